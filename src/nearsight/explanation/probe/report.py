"""Findings for the terminal and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .findings import COLUMNS, Findings, describe
from .findings import box as size_of
from .paper import Verdict

TITLES = {
    "sparse_positions_nonlocal": "sparse positions:\nlocal",
    "sparse_positions_full": "\nown only",
    "sparse_channels": "sparse\nchannels",
    "share_positions": "shared over\npositions",
    "share_channels": "shared over\nchannels",
    "dynamic": "\ndynamic",
}


def findings_text(found: Findings) -> RenderableType:
    """One layer, a line for each property."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for what, answer in describe(found):
        table.add_row(what, answer)
    return Group(Text(found.name, style="bold"), table, Text())


def verdicts_table(verdicts: Sequence[Verdict], title: str) -> RenderableType:
    """The paper's table as measured, with what it prints where that is something else."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("layer", no_wrap=True, vertical="bottom")
    for column in COLUMNS:
        table.add_column(TITLES[column], justify="center", vertical="bottom")
    table.add_column("shifts", justify="center")
    table.add_column("paper", no_wrap=True)
    for verdict in verdicts:
        cells = [mark(verdict, column) for column in COLUMNS]
        table.add_row(verdict.row.name, *cells, shift_mark(verdict.found), agreement(verdict))
    return table


def mark(verdict: Verdict, column: str) -> Text:
    """One cell: what was measured."""
    found = verdict.found
    measured = dict(zip(COLUMNS, found.properties, strict=True))[column]
    text = "yes" if measured else "·"
    if column == "share_channels" and measured and found.channel_groups > 1:
        text = f"in {found.channel_groups} groups"
    if column == "share_positions" and not measured and found.share_positions:
        text = f"every {size_of(found.share_positions)}"
    wrong = column in verdict.differing
    return Text(f"{text} (!)" if wrong else text, style="bold red" if wrong else "green" if measured else "dim")


def shift_mark(found: Findings) -> Text:
    """By how much the input may be shifted."""
    if found.shifts is None:
        return Text("·", style="dim")
    return Text("any" if found.shifts == (1, 1) else size_of(found.shifts))


def agreement(verdict: Verdict) -> Text:
    """Whether the paper says the same."""
    if verdict.row.printed is None:
        return Text("not listed", style="dim")
    return Text("differs", style="bold red") if verdict.differing else Text("agrees", style="green")


def tables_text(printed: Sequence[Verdict], others: Sequence[Verdict]) -> RenderableType:
    """Tables 1 and 7 and what they leave out, with a summary in words."""
    first = [verdict for verdict in printed if verdict.row.in_table_1]
    agree = sum(not verdict.differing for verdict in printed)
    words = [f"{agree} of {len(printed)} layers come out as printed."]
    wide = [verdict.row.name for verdict in printed if verdict.found.reach_channels != verdict.found.channels]
    if wide:
        words.append(
            f"The paper counts connections given the weights. In the plain Jacobian {', '.join(wide)} also connect "
            "other channels, through the prediction of their weights."
        )
    far = [verdict.row.name for verdict in printed if verdict.found.reach != verdict.found.field]
    if far:
        words.append(f"There, {', '.join(far)} also see{'s' if len(far) == 1 else ''} positions outside the kernel.")
    return Group(
        verdicts_table(first, "Table 1, measured"),
        verdicts_table(printed, "Table 7, measured"),
        verdicts_table(others, "Layers that the tables do not list"),
        Text(" ".join(words), style="italic"),
    )


def as_json(verdict: Verdict) -> dict[str, Any]:
    """A layer of the tables for JSON."""
    printed = dict(zip(COLUMNS, verdict.row.printed, strict=True)) if verdict.row.printed else None
    return {
        "layer": verdict.row.name,
        "module": verdict.row.what,
        "table_1": verdict.row.in_table_1,
        "printed": printed,
        "differing": verdict.differing,
        "measured": verdict.found.as_dict(),
    }
