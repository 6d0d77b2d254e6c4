"""`nearsight models` and `nearsight doctor`: what there is, and whether it works on this machine."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from ..catalogue import ModelInfo, describe_models
from .options import AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

WIDE = 150  # from this width on, every slot has a column of its own
FAMILIES = {
    "near": "Near",
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


def doctor(
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps. Default: a GPU if there is one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at versions and devices, and hold every fast path to its reference here; ends with a line for an issue."""
    from ..console import make_console, print_json, titled
    from ..diagnosis import doctor as examine

    found = examine(device)
    if as_json:
        print_json(found.to_dict())
    else:
        table = titled(f"fast path, on {found.device}", "difference", "ms")
        for check in found.checks:
            differs = "failed" if check.error is None else f"{check.error:.0e}"
            table.add_row(check.name, differs, f"{1000 * check.seconds:.0f}")
        console = make_console()
        console.print(table, highlight=False)
        for check in found.problems:
            print(f"{check.name}: {check.problem}.")
        fine = "All fast paths compute what their references do."
        print(f"\n{fine if not found.problems else 'Please open an issue'}\nTo paste into an issue:\n{found.line}")
    if found.problems:
        raise typer.Exit(1)


def models_table(rows: Sequence[ModelInfo], width: int) -> "RenderableType":
    """The catalogue: a column for each slot on a wide page, two lines for each model on a narrow one."""
    from rich.console import Group
    from rich.text import Text

    caption = Text(
        f"{len(rows)} model{'s' * (len(rows) > 1)}; released checkpoints (ckpt): {sum(r.released for r in rows)}. "
        "MACs: multiply-adds of one image. ×: attention heads. /: from stage to stage. –: nothing there.",
        style="dim italic",
    )
    return Group(wide_table(rows) if width >= WIDE else narrow_table(rows), caption)


def wide_table(rows: Sequence[ModelInfo]) -> "Table":
    """A line for each model."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

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


def narrow_table(rows: Sequence[ModelInfo]) -> "Text":
    """A line for the size and cost of each model, and one for what fills its slots."""
    from rich.text import Text

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
