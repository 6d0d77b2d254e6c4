"""What the papers claim and what was measured: `python -m tools.claims` writes docs/results/claims.md and its figure.

`benchmarks/claims.yaml` lists the claims as differences between two labels of the evidence queue (`tools/evidence.py`)
or of an earlier comparison. A claim is *confirmed* where the whole interval lies on its side, *not confirmed* where it
lies on the other, *undecided* where it holds both and is at most two points wide each way; all else is open.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from nearsight.atomic import write_whole
from nearsight.comparison.report import signed
from nearsight.comparison.statistics import Estimate, estimate_difference
from nearsight.plots.style import COLOURS, LINE, SMALL, SOFT, abbreviate, figure, tidy, to_png, write

from .evidence import LISTED, RESULTS, ROOT, RUNS, Queue, pool, read_questions, scores_of

CLAIMS, PAGES = ROOT / "benchmarks" / "claims.yaml", ROOT / "docs" / "results"
DECISIVE = 0.02  # half-width of an interval from which on it is worth a verdict
VERDICTS = ("confirmed", "not confirmed", "undecided", "open")


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        paper: Who says so.
        where: In the paper.
        text: In words.
        of: Question of the evidence queue, or comparison in docs/results; None where accuracy can't decide it.
        better: Label that should be better.
        than: Label that should be worse.
        margin: By how much it may be better all the same, as a fraction.
        why: Why it is open, of one that nothing measures.
    """

    paper: str
    where: str
    text: str
    of: str | None = None
    better: str = ""
    than: str = ""
    margin: float = 0.0
    why: str = ""

    def verdict(self, found: Estimate | None) -> str:
        """One of `VERDICTS`.

        Example:
            >>> Claim("LIFE", "Table 1", "LIFE helps.").verdict(Estimate(0.03, 0.01, 0.05, 0.01, None, 0.01))
            'confirmed'
        """
        if found is None:
            return "open"
        if found.low > -self.margin:
            return "confirmed"
        if found.high < -self.margin:
            return "not confirmed"
        return "undecided" if (found.high - found.low) / 2 <= DECISIVE else "open"


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """The claims of a file, in its order.

    Raises:
        ValueError: A claim has other keys than those that are known.
    """
    claims = []
    for paper, rows in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for row in rows:
            if unknown := set(row) - {"where", "claim", "of", "better", "than", "margin", "why"}:
                raise ValueError(f"{path}: a claim of {paper} has the unknown key {sorted(unknown)[0]}.")
            settings = {name: row[name] for name in ("of", "better", "than", "why") if name in row}
            claims.append(Claim(paper, row["where"], row["claim"], margin=row.get("margin", 0) / 100, **settings))
    return claims


class Measured(NamedTuple):
    """The difference that a claim is about; `raw` is the file that it was computed from."""

    gap: Estimate
    seeds: int
    raw: str


def measure(claim: Claim, queue: Queue) -> Measured | None:
    """What was measured of a claim; None unless both of its sides were run."""
    if claim.of is None:
        return None
    if (recorded := PAGES / f"{claim.of}.npz").is_file():
        sides, raw = [right_of(recorded, label) for label in (claim.better, claim.than)], recorded.name
    else:
        lines = queue.lines(claim.of)
        paired = pool(scores_of(lines, claim.better), scores_of(lines, claim.than))
        if paired is None:
            return None
        sides, raw = [side.astype(float) for side in paired], f"../../benchmarks/results/{claim.of}.jsonl"
    better, than = sides
    return Measured(estimate_difference(better, than), len(better), raw)


def right_of(path: Path, label: str) -> NDArray[np.float64]:
    """Whether each test image was predicted right `[seeds, images]`, of a comparison in docs/results."""
    with np.load(path, allow_pickle=False) as file:
        rows = [number for number, run in enumerate(file["runs"]) if run.rpartition("-seed")[0] == label]
        return (file["answers"][rows] == file["labels"]).astype(float)


def page(claims: list[Claim], queue: Queue) -> tuple[str, bytes]:
    """The page, and its figure as a PNG."""
    listed = [one for question in read_questions(queue.listed) for one in question.experiments]
    commands = {(one.question, one.label): one.command for one in listed}
    rows = [(claim, found := measure(claim, queue), claim.verdict(found and found.gap)) for claim in claims]
    counts = Counter(verdict for *_, verdict in rows)
    blocks = [HEAD.format(total=len(claims), **{name.replace(" ", "_"): counts[name] for name in VERDICTS})]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        blocks.append(f"\n## {paper}\n\n| claim | where | compared | difference in points | seeds | verdict |")
        blocks.append("| --- | --- | --- | --- | --- | --- |")
        used = []
        for claim, found, verdict in (row for row in rows if row[0].paper == paper):
            cells = [claim.text, claim.where]
            cells.append(f"{claim.of}: `{claim.better}` − `{claim.than}`" if claim.of else "–")
            if found is None:
                cells += [claim.why or "not run yet", "–"]
            else:
                shown = f"{signed(found.gap.mean)} ({signed(found.gap.low)} to {signed(found.gap.high)})"
                cells += [f"[{shown}]({found.raw})", str(found.seeds)]
            blocks.append(f"| {' | '.join([*cells, verdict])} |")
            used += [(claim.of or "", label) for label in (claim.better, claim.than)]
        lines = [f"# {of}: {label}\nnearsight {commands[of, label]}" for of, label in used if (of, label) in commands]
        blocks.append("\n```sh\n" + "\n".join(dict.fromkeys(lines)) + "\n```")
    return "\n".join(blocks) + "\n", draw(rows)


def draw(rows: list[tuple[Claim, Measured | None, str]]) -> bytes:
    """What is decided and what is open: a line for each claim."""
    colours = dict(zip(VERDICTS, (COLOURS[2], COLOURS[1], COLOURS[0], LINE), strict=True))
    fig = figure(10, 1.2 + 0.24 * len(rows))
    axes = tidy(fig.add_subplot(), x="points of accuracy, with 95 % interval")
    for height, (claim, found, verdict) in enumerate(rows):
        if found is None:
            write(axes.text(0.4, height, "not run yet" if claim.of else "not measured", va="center"), SMALL, SOFT)
            continue
        mean, low, high = (100 * value for value in found.gap[:3])
        axes.plot([low, high], [height, height], color=colours[verdict], linewidth=2.5, solid_capstyle="round")
        axes.plot([mean], [height], color=colours[verdict], marker="o", markersize=6)
        if claim.margin:
            axes.plot([-100 * claim.margin] * 2, [height - 0.35, height + 0.35], color=SOFT, linewidth=1)
    axes.axvline(0, color=SOFT, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{claim.paper}: {abbreviate(claim.text, 70)}" for claim, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    handles = [axes.plot([], [], color=colours[name], linewidth=4, label=name)[0] for name in VERDICTS]
    legend = axes.legend(
        handles=handles, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(VERDICTS)
    )
    for text in legend.get_texts():
        write(text, SMALL)
    return to_png(fig)


HEAD = """# What the papers claim, and what came out here

Written by `python -m tools.claims` from `benchmarks/claims.yaml` and the raw files behind the numbers. Small models on
small data, from scratch: what holds here need not hold on ImageNet, and the other way round. Of {total} claims
{confirmed} are confirmed, {not_confirmed} not confirmed, {undecided} undecided, {open} open.

A difference is paired over test images and seeds; its interval (95 %) holds the choice of both. *Confirmed*: the whole
interval lies on the claim's side (for "no worse": above the margin of one or two points, the tick in the figure). *Not
confirmed*: it lies on the other side. *Undecided*: it holds both, and is at most two points wide each way. *Open*: not
run, or too wide to tell.

![The differences with their intervals, coloured by verdict](claims.png)"""


def main() -> None:
    """Write the page and its figure."""
    queue = Queue(LISTED, RESULTS, RUNS, Path())
    text, png = page(read_claims(), queue)
    write_whole(PAGES / "claims.md", text.encode())
    write_whole(PAGES / "claims.png", png)


if __name__ == "__main__":
    main()
