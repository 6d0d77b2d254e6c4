"""`nearsight reproduce`: the papers' printed numbers beside those counted here."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..reproduction import RowVerdict

STATUSES = {  # title and style of each status
    "match": ("as printed", "green"),
    "explained": ("explained", "yellow"),
    "not built": ("not built", "dim"),
    "no figures": ("no figures", "dim"),
    "differs": ("differs", "bold red"),
}
PAPERS = {"localvit": "LocalViT", "lightvit": "LightViT", "lit": "LIT", "dwconv": "DWNet", "life": "LIFE"}


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="localvit, lightvit, lit, dwconv or life; all five without.")
    ] = None,
    as_json: AsJson = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all five papers' rows to a page.")
    ] = None,
) -> None:
    """Count the papers' models and put the numbers beside the printed ones."""
    from ..atomic import check_output, write_whole
    from ..console import make_console, tracked
    from ..reproduction.published import rows_of
    from ..reproduction.verdicts import is_page, print_table, reproduce, to_json, to_markdown

    rows_of(paper)  # refuse an unknown paper, or a page that can't be written, before the work
    if markdown and not markdown.absolute().parent.is_dir():
        raise ValueError(f"{markdown} can't be written: there is no folder {markdown.parent}; make it first.")
    if markdown:
        check_output(markdown, is_ours=is_page, force=None, option="--markdown")
    counted = None if markdown else paper
    verdicts = reproduce(counted, progress=lambda rows: tracked(rows, "Counting the models of the papers"))
    if markdown:
        write_whole(markdown, to_markdown(verdicts).encode())
        print(f"Wrote {markdown}.", file=sys.stderr)
    wanted = [verdict for verdict in verdicts if paper in (None, verdict.row.paper)]
    if as_json:
        print(to_json(wanted))
    elif paper:
        print_table(wanted, make_console())
    else:
        make_console().print(reproduction_summary(wanted))


def reproduction_summary(verdicts: "Sequence[RowVerdict]") -> "RenderableType":
    """How many rows of each paper come out."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_footer=True)
    table.add_column("paper", footer="all")
    table.add_column("rows", justify="right", footer=str(len(verdicts)))
    total = Counter(verdict.status for verdict in verdicts)
    for status, (title, style) in STATUSES.items():
        table.add_column(title, justify="right", footer=str(total[status]), style=style)  # type: ignore[index]
    for paper, title in PAPERS.items():
        counts = Counter(verdict.status for verdict in verdicts if verdict.row.paper == paper)
        cells = [str(counts[status]) if counts[status] else "–" for status in STATUSES]  # type: ignore[index]
        table.add_row(title, str(counts.total()), *cells)
    caption = Text(
        "Rows of the papers' tables whose printed parameters and multiply-adds come out when their model is counted. "
        "explained: not as printed; it is known why, or what was tried. `nearsight reproduce PAPER` shows the rows.",
        style="dim italic",
    )
    return Group(table, caption)
