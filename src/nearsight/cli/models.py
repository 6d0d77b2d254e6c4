"""`nearsight models`: the table of models.

It is recorded in `catalogue.json` (`make catalogue` writes it, the tests hold it against the models), so that the table
appears at once: counting every model's multiply-adds takes half a minute, and loading torch some seconds.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

RECORD = Path(__file__).with_name("catalogue.json")
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


@dataclass(frozen=True)
class ModelRow:
    """One model.

    Attributes:
        name: What `create_model` takes.
        family: Paper, or `hosts` for the plain models.
        image: Height and width in pixels that multiply-adds are counted at.
        embed: What fills this slot, as short text; where stages differ, separated by slashes.
        qkv: The same.
        mixer: The same.
        ffn: The same.
        merge: The same.
        parameters: Number of trained values.
        macs: Multiply-adds of one image.
        strides: Pixels between neighbouring tokens, per stage.
        released: Whether released checkpoints of this model are known to `load_official`.
    """

    name: str
    family: str
    image: tuple[int, int]
    embed: str
    qkv: str
    mixer: str
    ffn: str
    merge: str
    parameters: int
    macs: int
    strides: tuple[int, ...]
    released: bool

    def as_dict(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def models(
    pattern: Annotated[
        str | None, typer.Argument(help="A piece of a name, a pattern like 'lit_*', or a family.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the models: what fills their slots, their size and their cost."""
    rows = read_catalogue(pattern)
    if as_json:
        from ..console import print_json

        print_json([row.as_dict() for row in rows])
        return
    from ..console import make_console

    console = make_console()
    console.print(models_table(rows, console.width))


def read_catalogue(pattern: str | None = None) -> list[ModelRow]:
    """The recorded rows, grouped by family; with a pattern, those whose name or family it matches.

    Args:
        pattern: Shell-style pattern, or a piece of a name; upper and lower case are the same.

    Raises:
        ValueError: Nothing matches.

    Example:
        >>> [row.name for row in read_catalogue("lit_s*")]
        ['lit_small']
    """
    rows = [ModelRow(**row | {"image": tuple(row["image"]), "strides": tuple(row["strides"])}) for row in _read_json()]
    if pattern is None:
        return rows
    wanted = pattern.lower()
    glob = wanted if any(sign in wanted for sign in "*?[") else f"*{wanted}*"
    found = [row for row in rows if fnmatchcase(row.name, glob) or row.family == wanted]
    if not found:
        names = [row.name for row in rows] + sorted({row.family for row in rows})
        near = get_close_matches(wanted.strip("*"), names, 1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"No model matches {pattern!r}; {hint}`nearsight models` lists all {len(rows)}.")
    return found


def write_catalogue(rows: list[ModelRow], path: Path = RECORD) -> None:
    """Record the rows, one a line."""
    lines = ",\n".join(json.dumps(row.as_dict(), ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _read_json() -> list[dict[str, Any]]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


def models_table(rows: Sequence[ModelRow], width: int) -> RenderableType:
    """The catalogue: a column for each slot on a wide page, two lines for each model on a narrow one."""
    caption = Text(
        f"{len(rows)} model{'s' * (len(rows) > 1)}; released checkpoints (ckpt): {sum(r.released for r in rows)}. "
        "MACs: multiply-adds of one image. ×: attention heads. /: from stage to stage. –: nothing there.",
        style="dim italic",
    )
    return Group(wide_table(rows) if width >= WIDE else narrow_table(rows), caption)


def wide_table(rows: Sequence[ModelRow]) -> Table:
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


def narrow_table(rows: Sequence[ModelRow]) -> Text:
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


def slot_texts(row: ModelRow) -> list[str]:
    """What fills the slots, in their order."""
    return [getattr(row, slot) for slot in SLOTS]


def is_plain(text: str) -> bool:
    """Whether a slot holds what every vision transformer has there."""
    return text in ("–", "Linear", "Mlp 4") or text.startswith("Patchify")


def number_texts(row: ModelRow) -> list[str]:
    """Size, cost, image, strides, and whether a checkpoint was released."""
    height, width = row.image
    return [
        f"{row.parameters / 1e6:.1f} M",
        f"{row.macs / 1e9:.2f} G" if row.macs >= 1e8 else f"{row.macs / 1e6:.1f} M",
        str(height) if height == width else f"{height}×{width}",
        "/".join(map(str, row.strides)),
        "yes" if row.released else "–",
    ]
