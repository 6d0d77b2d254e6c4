"""The verdict on each row: match, explained, or not built; as a table, as JSON, and as `docs/reproduction.md`."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..arguments import checked
from ..models import MODELS, BackboneSpec
from ..result import Result, Results
from .papers import plan
from .published import PAPERS, PublishedRow, rows_of
from .recipes import BuildRecipe, DenseRecipe, Derived, MeasuredCost, NotBuilt, measure
from .register import REGISTER, UNITS, Figure, RegisterEntry, agrees, explain

Status = Literal["match", "explained", "not built", "no figures", "differs"]


@dataclass(frozen=True)
class RowVerdict(Result):
    """What became of a row.

    Attributes:
        row: The row.
        status: `match`: every figure comes out as printed. `explained`: one does not, and the register says why or
            what was tried. `not built`: there is no model. `no figures`: the row prints neither parameters nor
            multiply-adds. `differs`: a figure without an explanation.
        built: What was built.
        measured: What it costs, unless the row compares models.
        figures: Printed figures beside ours.
        entries: The explanation of each figure, None where it matches.
        reason: Why there is no model.
    """

    row: PublishedRow
    status: Status
    built: str = ""
    measured: MeasuredCost | None = None
    figures: tuple[Figure, ...] = ()
    entries: tuple[RegisterEntry | None, ...] = ()
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values."""
        pairs = zip(self.figures, self.entries, strict=True)
        figures = {
            f.key: {"printed": f.printed, "ours": round(f.ours, 6), "explanation": entry.number if entry else None}
            for f, entry in pairs
        }
        cost = self.measured.cost if self.measured else None
        return {
            "number": self.row.number,
            "paper": self.row.paper,
            "table": self.row.table,
            "row": self.row.name,
            "own": self.row.own,
            "status": self.status,
            "built": self.built,
            "reason": self.reason,
            "parameters": cost.parameters if cost else None,
            "multiply_adds": cost.macs if cost else None,
            "formula": self.measured.formula if self.measured else None,
            "figures": figures,
        }


@checked
def reproduce(
    paper: str | None = None, *, progress: Callable[[Sequence[PublishedRow]], Iterable[PublishedRow]] = iter
) -> Results[RowVerdict]:
    """Build and count what every row of a paper's tables describes, beside the numbers that it prints.

    Args:
        paper: `localvit`, `lightvit`, `lit`, `dwconv` or `life`; None for all five.
        progress: Wraps the rows, to show how far the work is.

    Example:
        >>> verdicts = reproduce("localvit")
        >>> sorted({v.status for v in verdicts})
        ['explained', 'match']
    """
    return Results(judge(row) for row in progress(rows_of(paper)))


def judge(row: PublishedRow) -> RowVerdict:
    """The verdict on one row."""
    what = plan(row)
    match what:
        case NotBuilt():
            return RowVerdict(row, "not built", reason=what.reason)
        case Derived():
            return compare(row, RowVerdict(row, "no figures", what.what), what.figures(), what)
        case BuildRecipe() | DenseRecipe():
            measured = measure(what)
            cost = measured.cost
            ours = {key: (cost.parameters if key == "params_m" else cost.macs) / unit for key, unit in UNITS.items()}
            return compare(row, RowVerdict(row, "no figures", str(what), measured), ours, what)


def compare(
    row: PublishedRow, base: RowVerdict, ours: dict[str, float], what: BuildRecipe | DenseRecipe | Derived
) -> RowVerdict:
    """Put our figures beside those printed."""
    figures = tuple(Figure(row, key, printed, ours[key], what) for key, printed in row.costs.items())
    if not figures:
        status: Status = "match" if isinstance(what, BuildRecipe) and same_architecture(row, what) else "no figures"
        return RowVerdict(row, status, base.built, base.measured)
    fits = [agrees(figure.printed, figure.ours) for figure in figures]
    entries = tuple(None if fit else explain(figure) for fit, figure in zip(fits, figures, strict=True))
    if all(fits):
        status = "match"
    else:
        known = all(fit or entry for fit, entry in zip(fits, entries, strict=True))
        status = "explained" if known else "differs"
    return RowVerdict(row, status, base.built, base.measured, figures, entries)


def same_architecture(row: PublishedRow, what: BuildRecipe) -> bool:
    """Whether a row of an architecture table prints the stages of our model."""
    spec = MODELS.get(what.model)
    known = ("channels", "blocks", "heads", "heads_stage3_4", "global_tokens", "expansion")
    printed = {key: row.setting[key] for key in known if row.setting.get(key) is not None}
    return "blocks" in printed and spec is not None and architecture(spec).items() >= printed.items()


def architecture(spec: BackboneSpec) -> dict[str, Any]:
    """The same of a spec."""
    heads = [getattr(next(stage.layers()).mixer, "heads", None) for stage in spec.stages]
    return {
        "channels": [stage.dim for stage in spec.stages],
        "blocks": [stage.depth for stage in spec.stages],
        "heads": heads,
        "heads_stage3_4": heads[2:],
        "global_tokens": spec.aux,
        "expansion": [getattr(next(stage.layers()).ffn, "ratio", None) for stage in spec.stages],
    }


COLUMNS = ("Table", "Row", "Built from", "Parameters", "Multiply-adds", "Verdict")
BUILT_FROM = COLUMNS.index("Built from")
SHADES = {"match": "green", "explained": "yellow", "differs": "red"}
STATUSES: tuple[Status, ...] = ("match", "explained", "not built", "no figures", "differs")


def to_json(verdicts: Iterable[RowVerdict]) -> str:
    """Verdicts and the explanations they refer to."""
    verdicts = list(verdicts)
    entries = [{"number": e.number, "cause_known": e.cause, "text": e.text} for e in used(verdicts)]
    return json.dumps({"rows": [v.to_dict() for v in verdicts], "explanations": entries}, indent=1, ensure_ascii=False)


def print_table(verdicts: Sequence[RowVerdict], console: Console | None = None) -> None:
    """Print a table for each paper, the explanations used, and the totals."""
    console = console or Console()
    for paper, title in PAPERS.items():
        mine = [v for v in verdicts if v.row.paper == paper]
        if not mine:
            continue
        table = Table(title=title, title_justify="left")
        for column in without_built(COLUMNS):
            table.add_column(column)
        for verdict in mine:
            *cells, last = without_built(cells_of(verdict))
            table.add_row(*cells, Text(last.partition(":")[0], style=SHADES.get(verdict.status, "")))
        console.print(table)
    for entry in used(verdicts):
        console.print(f"#{entry.number} {'' if entry.cause else '(cause unknown) '}{entry.text}", highlight=False)
    for reason, rows in Counter(v.reason for v in verdicts if v.reason).items():
        console.print(f"not built, {rows} rows: {reason}", highlight=False)
    totals = Counter(v.status for v in verdicts)
    console.print(", ".join(f"{totals[status]} {status}" for status in STATUSES if totals[status]))


def without_built(cells: Sequence[str]) -> list[str]:
    """The cells that fit into a terminal; JSON and the page also say what was built."""
    return [cell for index, cell in enumerate(cells) if index != BUILT_FROM]


def cells_of(verdict: RowVerdict) -> tuple[str, ...]:
    """The cells of a row, in the order of `COLUMNS`."""
    row = verdict.row
    numbers = sorted({entry.number for entry in verdict.entries if entry})
    result = " ".join((verdict.status, *(f"#{number}" for number in numbers)))
    return (
        row.table,
        row.name,
        verdict.built or "-",
        cost_cell(verdict, ("params_m", "extra_params", "params_reduction_pct")),
        cost_cell(verdict, ("flops_g", "gmacs", "flops_reduction_pct", "flops_share_pct")),
        f"not built: {verdict.reason}" if verdict.status == "not built" else result,
    )


def cost_cell(verdict: RowVerdict, keys: Sequence[str]) -> str:
    """`printed: ours`; with nothing printed, ours alone; without a model, the printed figure alone."""
    for figure in verdict.figures:
        if figure.key in keys:
            unit = {"params_m": " M", "flops_g": " G", "gmacs": " G", "extra_params": ""}.get(figure.key, " %")
            digits = 0 if figure.key == "extra_params" else 3
            return f"{figure.printed}: {figure.ours:.{digits}f}{unit}{formula_note(verdict) if unit == ' G' else ''}"
    if verdict.measured is None:
        return next((f"{printed}: -" for key, printed in verdict.row.costs.items() if key in keys), "-")
    cost = verdict.measured.cost
    if keys[0] == "params_m":
        return f"{cost.parameters / 1e6:.3f} M"
    return f"{cost.macs / 1e9:.3f} G{formula_note(verdict)}"


def formula_note(verdict: RowVerdict) -> str:
    """The figure of the release's formula, beside the true count."""
    formula = verdict.measured.formula if verdict.measured else None
    return f" (formula {formula / 1e9:.3f} G)" if formula else ""


def used(verdicts: Iterable[RowVerdict]) -> list[RegisterEntry]:
    """The explanations that some verdict refers to, in the order of the register."""
    wanted = {id(entry) for verdict in verdicts for entry in verdict.entries if entry}
    return [entry for entry in REGISTER if id(entry) in wanted]


# The page

INTRODUCTION = """# Reproduction

Every row that the five papers print, and what the model it describes costs here. `nearsight reproduce` builds each
model, counts its parameters and the multiply-adds of one image (which the papers call FLOPs), and compares them with
the printed figures; `nearsight reproduce --markdown docs/reproduction.md` writes this page.

- **match**: every figure of the row comes out as printed, rounded to the printed digits.
- **explained**: a figure does not, and the entry of the register below says why, or what was tried.
- **not built**: there is no model for the row; the reason is given.
- **no figures**: the row prints accuracy alone; the model is built and counted.

A cell `5.7: 5.717 M` holds the printed figure and ours. Accuracy is not part of this page.
"""


def to_markdown(verdicts: Sequence[RowVerdict]) -> str:
    """The page for `docs/`."""
    lines = [INTRODUCTION, "## Summary", "", *summary(verdicts), ""]
    for paper in PAPERS:
        lines += [*section(of_paper(verdicts, paper), paper), ""]
    lines += ["## Register", "", *map(register_line, used(verdicts))]
    return "\n".join(lines) + "\n"


def is_page(head: bytes) -> bool:
    """Whether a file begins like the page."""
    return head.startswith(INTRODUCTION[:60].encode())


def section(verdicts: Sequence[RowVerdict], paper: str) -> list[str]:
    """One paper's part of the page."""
    return [f"## {PAPERS[paper]}", "", *markdown_table(COLUMNS, map(cells_of, verdicts))]


def register_line(entry: RegisterEntry) -> str:
    """One explanation on the page."""
    return f"- **#{entry.number}** {'' if entry.cause else '*(cause unknown)* '}{entry.text}"


def summary(verdicts: Sequence[RowVerdict]) -> list[str]:
    """Rows per paper and verdict."""
    rows = []
    for paper in PAPERS:
        totals = Counter(v.status for v in of_paper(verdicts, paper))
        rows.append((paper, *(str(totals[status]) for status in STATUSES[:4]), str(totals.total())))
    totals = Counter(v.status for v in verdicts)
    rows.append(("all", *(str(totals[status]) for status in STATUSES[:4]), str(totals.total())))
    return markdown_table(("Paper", *STATUSES[:4], "rows"), rows)


def of_paper(verdicts: Sequence[RowVerdict], paper: str) -> list[RowVerdict]:
    """The verdicts on one paper's rows."""
    return [verdict for verdict in verdicts if verdict.row.paper == paper]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in row) + " |")
    return lines
