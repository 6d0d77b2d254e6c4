"""Tables for the terminal."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress import track
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .models.catalogue import Row
    from .reproduce.compare import Verdict

T = TypeVar("T")
PIPED = 160  # width of a table that goes to a file or a pipe
WIDE = 150  # from this width on, every slot has a column of its own
FAMILIES = {
    "localvit": "LocalViT",
    "lightvit": "LightViT",
    "lit": "LIT",
    "dwnet": "DWNet",
    "life": "LIFE",
    "hosts": "Hosts",
}
NUMBERS = {"params": 8, "MACs": 8, "image": 7, "strides": 9, "ckpt": 4}  # titles and widths


def make_console() -> Console:
    """A console as wide as the terminal, or as a wide page when the output goes elsewhere."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def tracked(items: Sequence[T], title: str) -> Iterable[T]:
    """The items, with a progress bar on stderr; only its title where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} ...")
    return track(items, description=title, console=console, transient=True, disable=not console.is_terminal)


def percent(value: float) -> str:
    """A share for people.

    Example:
        >>> percent(0.98765)
        '98.8 %'
    """
    return f"{100 * value:.1f} %"


def models_table(rows: "Sequence[Row]", width: int) -> RenderableType:
    """The catalogue: a column for each slot on a wide page, two lines for each model on a narrow one."""
    caption = Text(
        f"{len(rows)} model{'s' * (len(rows) > 1)}; released checkpoints (ckpt): {sum(r.released for r in rows)}. "
        "MACs: multiply-adds of one image. ×: attention heads. /: from stage to stage. –: nothing there.",
        style="dim italic",
    )
    return Group(wide_table(rows) if width >= WIDE else narrow_table(rows), caption)


def wide_table(rows: "Sequence[Row]") -> Table:
    """A line for each model."""
    from .models.catalogue import SLOTS

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("model", no_wrap=True)
    for slot in SLOTS:
        table.add_column(slot)
    for title in NUMBERS:
        table.add_column(title, justify="right", no_wrap=True)
    for family, members in groupby(rows, key=lambda row: row.family):
        table.add_row(Text(FAMILIES.get(family, family), style="bold cyan"))
        for row in members:
            slots = [Text(text, style="dim" if is_plain(text) else "") for text in slot_texts(row)]
            table.add_row(f"  {row.name}", *slots, *number_texts(row))
        table.add_section()
    return table


def narrow_table(rows: "Sequence[Row]") -> Text:
    """A line for the size and cost of each model, and one for what fills its slots."""
    from .models.catalogue import SLOTS

    def line(name: str, numbers: Sequence[str]) -> str:
        cells = [f"{text:>{size}}" for text, size in zip(numbers, NUMBERS.values(), strict=True)]
        return f"{name:<22}" + "  ".join(cells) + "\n"

    text = Text("\n")
    text.append(line("model", list(NUMBERS)), style="bold")
    text.append("    " + " · ".join(SLOTS) + "\n", style="bold dim")
    for family, members in groupby(rows, key=lambda row: row.family):
        text.append(f"\n{FAMILIES.get(family, family)}\n", style="bold cyan")
        for row in members:
            text.append(line(f"  {row.name}", number_texts(row)))
            text.append("    " + " · ".join(slot_texts(row)) + "\n", style="dim")
    return text


def slot_texts(row: "Row") -> list[str]:
    """What fills the slots, in their order."""
    from .models.catalogue import SLOTS

    return [getattr(row, slot) for slot in SLOTS]


def is_plain(text: str) -> bool:
    """Whether a slot holds what every vision transformer has there."""
    return text in ("–", "Linear", "Mlp 4") or text.startswith("Patchify")


def number_texts(row: "Row") -> list[str]:
    """Size, cost, image, strides, and whether a checkpoint was released."""
    height, width = row.image
    return [
        f"{row.parameters / 1e6:.1f} M",
        f"{row.macs / 1e9:.2f} G" if row.macs >= 1e8 else f"{row.macs / 1e6:.1f} M",
        str(height) if height == width else f"{height}×{width}",
        "/".join(map(str, row.strides)),
        "yes" if row.released else "–",
    ]


STATUSES = {  # title and style of each status
    "match": ("as printed", "green"),
    "explained": ("explained", "yellow"),
    "not built": ("not built", "dim"),
    "no figures": ("no figures", "dim"),
    "differs": ("differs", "bold red"),
}
PAPERS = {"localvit": "LocalViT", "lightvit": "LightViT", "lit": "LIT", "dwconv": "DWNet", "life": "LIFE"}


def reproduction_summary(verdicts: "Sequence[Verdict]") -> RenderableType:
    """How many rows of each paper come out."""
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
