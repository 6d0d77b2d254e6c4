"""The table of models, recorded so that it appears at once.

`make catalogue` writes `catalogue.json`, and the tests hold it against the models: counting every model's multiply-adds
takes half a minute, and loading torch some seconds.
"""

import json
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .arguments import checked
from .result import Result, Results

RECORD = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class ModelInfo(Result):
    """What a model is made of, its size and its cost.

    Attributes:
        name: What `create_model` takes.
        family: The paper, or `hosts` for the plain models.
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

    def to_dict(self) -> dict[str, Any]:
        """Its fields as values that JSON knows."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


@checked
def describe_models(pattern: str | None = None) -> Results[ModelInfo]:
    """What fills the slots of models, their size and their cost, grouped by family; torch is not loaded for it.

    Args:
        pattern: Shell-style pattern, a piece of a name, or a family; upper and lower case are the same. None for all.

    Raises:
        ValueError: Nothing matches.

    Example:
        >>> (model,) = describe_models("lit_s*")
        >>> model.name, model.parameters, model.mixer
        ('lit_small', 27973720, '–/–, Global ×12/24')
    """
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = Results(
        ModelInfo(**row | {"image": tuple(row["image"]), "strides": tuple(row["strides"])}) for row in recorded
    )
    if pattern is None:
        return rows
    wanted = pattern.lower()
    glob = wanted if any(sign in wanted for sign in "*?[") else f"*{wanted}*"
    found = Results(row for row in rows if fnmatchcase(row.name, glob) or row.family == wanted)
    if not found:
        names = [row.name for row in rows] + sorted({row.family for row in rows})
        near = get_close_matches(wanted.strip("*"), names, 1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"No model matches {pattern!r}; {hint}`nearsight models` lists all {len(rows)}.")
    return found
