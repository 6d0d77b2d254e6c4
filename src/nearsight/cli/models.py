"""`nearsight models`: the table of models."""

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..catalogue import ModelInfo, describe_models
from .options import AsJson

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
SLOTS = ("embed", "qkv", "mixer", "ffn", "merge")


def models(
    pattern: Annotated[
        str | None, typer.Argument(help="A piece of a name, a pattern like 'lit_*', or a family.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models: what fills their slots, their size and their cost."""
    rows = describe_models(pattern)
    if as_json:
        from ..console import print_json

        print_json([row.to_dict() for row in rows])
        return
    from ..console import make_console

    console = make_console()
    console.print(models_table(rows, console.width))


def models_table(rows: Sequence[ModelInfo], width: int) -> RenderableType:
    """The catalogue: a column for each slot on a wide page, two lines for each model on a narrow one."""
    caption = Text(
        f"{len(rows)} model{'s' * (len(rows) > 1)}; released checkpoints (ckpt): {sum(r.released for r in rows)}. "
        "MACs: multiply-adds of one image. ×: attention heads. /: from stage to stage. –: nothing there.",
        style="dim italic",
    )
    return Group(wide_table(rows) if width >= WIDE else narrow_table(rows), caption)


def wide_table(rows: Sequence[ModelInfo]) -> Table:
    """A line for each model."""
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


def narrow_table(rows: Sequence[ModelInfo]) -> Text:
    """A line for the size and cost of each model, and one for what fills its slots."""

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


def slot_texts(row: ModelInfo) -> list[str]:
    """What fills the slots, in their order."""
    return [getattr(row, slot) for slot in SLOTS]


def is_plain(text: str) -> bool:
    """Whether a slot holds what every vision transformer has there."""
    return text in ("–", "Linear", "Mlp 4") or text.startswith("Patchify")


def number_texts(row: ModelInfo) -> list[str]:
    """Size, cost, image, strides, and whether a checkpoint was released."""
    height, width = row.image
    return [
        f"{row.parameters / 1e6:.1f} M",
        f"{row.macs / 1e9:.2f} G" if row.macs >= 1e8 else f"{row.macs / 1e6:.1f} M",
        str(height) if height == width else f"{height}×{width}",
        "/".join(map(str, row.strides)),
        "yes" if row.released else "–",
    ]
