"""What the papers claim and what was measured: `python -m tools.claims` writes docs/results/claims.md and its figure.

`benchmarks/claims.yaml` lists the claims. Most are a difference between runs of the evidence queue
(`tools/evidence.py`) or of an earlier comparison, in accuracy or in another value of a run; the others are a number
that `benchmarks/claim_values.py` has recorded. A claim is *confirmed* where the whole interval lies on its side, *not
confirmed* where it lies on the other, *undecided* where it holds both though it is at most two points wide each way or
all seeds were run; all else is open. A question needs no third seed where the claims are decided at 99 % after two:
looking twice at 95 % would be wrong more than five times in a hundred.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from nearsight.atomic import write_whole
from nearsight.comparison.report import signed
from nearsight.comparison.statistics import Estimate, estimate
from nearsight.plots.style import COLOURS, INK, LINE, SMALL, SOFT, abbreviate, figure, tidy, to_png, write

from .evidence import CLAIMS, ENOUGH, LISTED, RESULTS, ROOT, RUNS, Judged, Queue, pool, read_questions, scores_of

PAGES = ROOT / "docs" / "results"
RECORDED = "claim-values.json"  # in the folder of the results
DECISIVE = 0.02  # half-width of an interval in accuracy from which on it is worth a verdict
SURE = 0.01  # a claim with a smaller p after two seeds needs no third
VERDICTS = ("confirmed", "not confirmed", "undecided", "open")
TERM = re.compile(r"(?:(?P<of>[^/:]+)/)?(?P<label>[^/:]+)(?::(?P<value>[^/:]+))?")


class Term(NamedTuple):
    """Runs of a label, and which of their values: `QUESTION/LABEL:VALUE`; accuracy where none is named."""

    of: str
    label: str
    value: str | None

    def __str__(self) -> str:
        return self.label if self.value is None else f"{self.label}:{self.value}"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        paper: Who says so.
        where: In the paper.
        text: In words.
        better: Runs with more of what is measured; a second term is taken off (`a - b`).
        than: Runs with less of it.
        margin: By how much these may have more all the same: a fraction, or in the unit.
        unit: Of what is measured; None for accuracy.
        measured: Name of a recorded number, in place of runs.
        above: What it should be above.
        below: What it should be below.
        why: Why it is open, of one that nothing measures.
    """

    paper: str
    where: str
    text: str
    better: tuple[Term, ...] = ()
    than: tuple[Term, ...] = ()
    margin: float = 0.0
    unit: str | None = None
    measured: str | None = None
    above: float | None = None
    below: float | None = None
    why: str = ""

    @property
    def terms(self) -> tuple[Term, ...]:
        """All runs that it is about."""
        return self.better + self.than

    @property
    def compared(self) -> str:
        """What is compared, for the page."""
        if self.measured is not None:
            return f"`{self.measured}` {'<' if self.below is not None else '>'} {self.below or self.above or 0:g}"
        names, last = [], ""
        for term in self.terms:
            names.append(f"`{term}`" if term.of == last else f"{term.of}: `{term}`")
            last = term.of
        sides = [" − ".join(names[: len(self.better)]), " − ".join(names[len(self.better) :])]
        return " − ".join(f"({side})" if "−" in side else side for side in sides if side) or "–"

    def verdict(self, found: "Measured | None") -> str:
        """One of `VERDICTS`."""
        if found is None:
            return "open"
        if found.low > -self.margin:
            return "confirmed"
        if found.high < -self.margin:
            return "not confirmed"
        narrow = self.unit is None and self.measured is None and (found.high - found.low) / 2 <= DECISIVE
        return "undecided" if narrow or found.ended else "open"


class Measured(NamedTuple):
    """How far a claim holds.

    Attributes:
        mean: The difference, in favour of the claim where positive.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p: Probability of one at least so far from the margin if the true one were there; None of recorded numbers.
        shown: The number for the page.
        sample: How many seeds or images, in words.
        hours: Of one core, that its runs took; None where that is not known.
        raw: File that it was computed from.
        ended: Whether all runs were made that are listed.
    """

    mean: float
    low: float
    high: float
    p: float | None
    shown: str
    sample: str
    hours: float | None
    raw: str
    ended: bool


KEYS = {"where", "claim", "of", "better", "than", "margin", "unit", "measured", "above", "below", "why"}


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """The claims of a file, in its order.

    Raises:
        ValueError: A claim has other keys than those that are known, or names runs in a way that is not understood.
    """
    claims = []
    for paper, rows in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for row in rows:
            if unknown := set(row) - KEYS:
                raise ValueError(f"{path}: a claim of {paper} has the unknown key {sorted(unknown)[0]}.")
            sides: dict[str, Any] = {
                name: read_terms(row[name], row.get("of"), path) for name in ("better", "than") if name in row
            }
            scale = 1 if "unit" in row else 100  # points of accuracy
            rest: dict[str, Any] = {
                name: row[name] for name in ("unit", "measured", "above", "below", "why") if name in row
            }
            margin = row.get("margin", 0) / scale
            claims.append(Claim(paper, row["where"], row["claim"], margin=margin, **sides, **rest))
    return claims


def read_terms(text: str, of: str | None, path: Path) -> tuple[Term, ...]:
    """`QUESTION/LABEL:VALUE - QUESTION/LABEL:VALUE`, where the question may be left out if the claim has one."""
    terms = []
    for part in text.split(" - "):
        found = TERM.fullmatch(part)
        if found is None or not (found["of"] or of):
            raise ValueError(f"{path}: {text!r} is not understood; write QUESTION/LABEL or QUESTION/LABEL:VALUE.")
        terms.append(Term(found["of"] or of or "", found["label"], found["value"]))
    if len(terms) > 2:
        raise ValueError(f"{path}: {text!r} has more than one minus.")
    return tuple(terms)


def measure(claim: Claim, queue: Queue) -> Measured | None:
    """What was measured of a claim; None unless all of it was."""
    if claim.measured is not None:
        return recorded(claim, queue.results / RECORDED)
    if not claim.terms:
        return None
    sides = pool(*(judged(term, queue) for term in claim.terms))
    if sides is None:
        return None
    sign = [1.0, -1.0] if len(claim.better) == 2 else [1.0]
    signs = sign + [-one for one in ([1.0, -1.0] if len(claim.than) == 2 else [1.0])][: len(claim.than)]
    gaps = sum((one * side for one, side in zip(signs, sides, strict=True)), np.zeros_like(sides[0]))
    is_accuracy = claim.unit is None
    gap = estimate(gaps, counted=is_accuracy)
    lines = [line for term in set(claim.terms) for line in queue.lines(term.of) if line["label"] == term.label]
    return Measured(
        gap.mean,
        gap.low,
        gap.high,
        estimate(gaps + claim.margin, counted=is_accuracy).p,
        with_interval(gap, claim.unit),
        f"{len(gaps)} seed{'s' * (len(gaps) > 1)}",
        sum(line["core_seconds"] for line in {line["id"]: line for line in lines}.values()) / 3600 if lines else None,
        next(raw_of(term) for term in claim.terms),
        len(gaps) >= seeds_of(claim, queue),
    )


def with_interval(gap: Estimate, unit: str | None) -> str:
    """A difference in points of accuracy, or in a unit."""
    if unit is None:
        return f"{signed(gap.mean)} ({signed(gap.low)} to {signed(gap.high)})"
    return f"{gap.mean:+.3g} ({gap.low:+.3g} to {gap.high:+.3g}) {unit}".replace("-", "−")


def recorded(claim: Claim, path: Path) -> Measured | None:
    """A claim about a number that was recorded with its interval."""
    values = json.loads(path.read_text()) if path.is_file() else {}
    if (found := values.get(claim.measured)) is None:
        return None
    ends = [found["low"], found["high"]]
    if claim.below is not None:
        gap = claim.below - found["value"], claim.below - ends[1], claim.below - ends[0]
    else:
        gap = tuple(one - (claim.above or 0.0) for one in (found["value"], *ends))  # type: ignore[assignment]
    shown = f"{found['value']:.3g}"
    if ends[0] != ends[1]:
        shown += f" ({ends[0]:.3g} to {ends[1]:.3g})"
    shown = f"{shown} {found['unit']}".strip().replace("-", "−")
    return Measured(*gap, None, shown, found["count"], None, f"../../benchmarks/results/{path.name}", True)


def judged(term: Term, queue: Queue) -> Judged:
    """What a term's runs were judged by."""
    if (recorded := PAGES / f"{term.of}.npz").is_file():
        with np.load(recorded, allow_pickle=False) as file:
            runs = [
                (run.rpartition("-seed"), row == file["labels"])
                for run, row in zip(file["runs"], file["answers"], strict=True)
            ]
        return {
            (int(seed), None): {"values": right, "images": len(right), "indices": term.of}
            for (label, _, seed), right in runs
            if label == term.label
        }
    lines = queue.lines(term.of)
    if term.value is None:
        return scores_of(lines, term.label)
    found: Judged = {}
    for line in lines:
        if line["label"] == term.label and (value := line.get("values", line).get(term.value)) is not None:
            values = value if isinstance(value, list) else [value]
            found[line["seed"], line["fold"]] = {"values": values, "images": len(values), "indices": ""}
    return found


def raw_of(term: Term) -> str:
    """The file of a term's values, from the page's folder."""
    name = f"{term.of}.npz"
    return name if (PAGES / name).is_file() else f"../../benchmarks/results/{term.of}.jsonl"


def seeds_of(claim: Claim, queue: Queue) -> int:
    """How many seeds are listed for all runs of a claim."""
    listed: dict[tuple[str, str], set[int]] = {}
    for one in queue.experiments():
        listed.setdefault((one.question, one.label), set()).add(one.seed)
    return min((len(listed[place]) for term in claim.terms if (place := term[:2]) in listed), default=1)


def settled(claims: Iterable[Claim], queue: Queue) -> set[tuple[str, str]]:
    """Questions and labels that need no third seed, since all claims that they take part in are decided by two."""
    found: dict[tuple[str, str], bool] = {}
    for claim in claims:
        if not claim.terms:
            continue
        gap = measure(claim, queue)
        enough = gap is not None and int(gap.sample.split()[0]) >= ENOUGH and gap.p is not None and gap.p < SURE
        for term in claim.terms:
            found[term[:2]] = found.get(term[:2], True) and enough
    return {place for place, is_settled in found.items() if is_settled}


Row = tuple[Claim, Measured | None, str]


def page(claims: list[Claim], queue: Queue) -> tuple[str, bytes]:
    """The page, and its figure as a PNG."""
    listed = [one for question in read_questions(queue.listed) for one in question.experiments]
    commands = {(one.question, one.label): one.command for one in listed}
    rows: list[Row] = [(claim, found := measure(claim, queue), claim.verdict(found)) for claim in claims]
    counts = Counter(verdict for *_, verdict in rows)
    blocks = [HEAD.format(total=len(claims), **{name.replace(" ", "_"): counts[name] for name in VERDICTS})]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        mine = [row for row in rows if row[0].paper == paper]
        blocks.append(f"\n## {paper}\n\n| claim | where | compared | difference or value | from | verdict |")
        blocks.append("| --- | --- | --- | --- | --- | --- |")
        blocks += (f"| {' | '.join(cells(*row))} |" for row in mine)
        used = [term[:2] for claim, *_ in mine for term in claim.terms]
        lines = [f"# {of}: {label}\nnearsight {commands[of, label]}" for of, label in used if (of, label) in commands]
        blocks.append("\n```sh\n" + "\n".join(dict.fromkeys(lines)) + "\n```")
    return "\n".join(blocks) + "\n", draw(rows)


def cells(claim: Claim, found: Measured | None, verdict: str) -> Sequence[str]:
    """A claim in the table."""
    if found is None:
        return [claim.text, claim.where, claim.compared, claim.why or "not run yet", "–", verdict]
    spent = "" if found.hours is None else f", {found.hours:.1f} h"
    return [claim.text, claim.where, claim.compared, f"[{found.shown}]({found.raw})", found.sample + spent, verdict]


def draw(rows: list[Row]) -> bytes:
    """What is decided and what is open: a line for each claim."""
    colours = dict(zip(VERDICTS, (COLOURS[2], COLOURS[1], COLOURS[0], LINE), strict=True))
    fig = figure(10, 1.2 + 0.24 * len(rows))
    axes = tidy(fig.add_subplot(), x="points of accuracy, with 95 % interval")
    for height, (claim, found, verdict) in enumerate(rows):
        if found is None:
            text = "not measured" if claim.why else "not run yet"
            write(axes.text(0.4, height, text, va="center"), SMALL, SOFT)
            continue
        if claim.unit is not None or claim.measured is not None:
            write(axes.text(0.4, height, found.shown, va="center", backgroundcolor="white"), SMALL, INK)
            axes.plot([0], [height], color=colours[verdict], marker="s", markersize=6)
            continue
        mean, low, high = (100 * value for value in (found.mean, found.low, found.high))
        axes.plot([low, high], [height, height], color=colours[verdict], linewidth=2.5, solid_capstyle="round")
        axes.plot([mean], [height], color=colours[verdict], marker="o", markersize=6)
        if claim.margin:
            axes.plot([-100 * claim.margin] * 2, [height - 0.35, height + 0.35], color=SOFT, linewidth=1)
    axes.axvline(0, color=SOFT, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{claim.paper}: {abbreviate(claim.text, 70)}" for claim, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    handles = [axes.plot([], [], color=colours[one], linewidth=4, label=one)[0] for one in VERDICTS]
    legend = axes.legend(
        handles=handles, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(VERDICTS)
    )
    for name in legend.get_texts():
        write(name, SMALL)
    return to_png(fig)


HEAD = """# What the papers claim, and what came out here

Written by `python -m tools.claims` from `benchmarks/claims.yaml` and the raw files behind the numbers. Small models on
small data, from scratch: what holds here need not hold on ImageNet, and the other way round. Of {total} claims
{confirmed} are confirmed, {not_confirmed} not confirmed, {undecided} undecided, {open} open.

Differences are in points of accuracy where no unit is named, and paired over test images and seeds; their intervals
(95 %) hold the choice of both. Other numbers are of `benchmarks/results/claim-values.json`,
which says how they came about. *Confirmed*: the whole interval lies on the claim's side (for "no worse": above the
margin of one or two points, the tick in the figure). *Not confirmed*: it lies on the other side. *Undecided*: it holds
both, and is at most two points wide each way, or all seeds that are listed were run, in the hours of one core that are
named. *Open*: not run, or too wide to tell. Two seeds are enough where a claim is decided at 99 % by then; else there
is a third.

![The differences with their intervals, coloured by verdict](claims.png)"""


def main() -> None:
    """Write the page and its figure."""
    queue = Queue(LISTED, RESULTS, RUNS, Path())
    text, png = page(read_claims(), queue)
    write_whole(PAGES / "claims.md", text.encode())
    write_whole(PAGES / "claims.png", png)


if __name__ == "__main__":
    main()
