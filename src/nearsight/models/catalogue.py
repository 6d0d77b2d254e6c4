"""The table of models that `nearsight models` prints.

It is recorded in `catalogue.json` (`make catalogue` writes it, the tests hold it against the models), so that the table
appears at once: counting every model's multiply-adds takes half a minute, and loading torch some seconds.
"""

import json
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("catalogue.json")
SLOTS = ("embed", "qkv", "mixer", "ffn", "merge")


@dataclass(frozen=True)
class Row:
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


def read_catalogue(pattern: str | None = None) -> list[Row]:
    """The recorded rows, grouped by family; with a pattern, those whose name or family it matches.

    Args:
        pattern: Shell-style pattern, or a piece of a name; upper and lower case are the same.

    Raises:
        ValueError: Nothing matches.

    Example:
        >>> [row.name for row in read_catalogue("lit_s*")]
        ['lit_small']
    """
    rows = [Row(**row | {"image": tuple(row["image"]), "strides": tuple(row["strides"])}) for row in _read_json()]
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


def write_catalogue(rows: list[Row], path: Path = RECORD) -> None:
    """Record the rows, one a line."""
    lines = ",\n".join(json.dumps(row.as_dict(), ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _read_json() -> list[dict[str, Any]]:
    return json.loads(RECORD.read_text(encoding="utf-8"))
