"""Going through the parts of a spec."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from .spec import BackboneSpec, Stage


def has_field(part: Any, field: str) -> bool:
    """Whether a part has a field of that name."""
    return is_dataclass(part) and any(f.name == field for f in fields(part))


def find_field(part: Any, field: str) -> Any:
    """The field of a part, or of a part inside it; None if there is none."""
    if not is_dataclass(part):
        return None
    if has_field(part, field):
        return getattr(part, field)
    return next((v for f in fields(part) if (v := find_field(getattr(part, f.name), field)) is not None), None)


def map_part(part: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a part and to the parts inside it."""
    if isinstance(part, tuple):
        return tuple(map_part(item, change) for item in part)
    if not is_dataclass(part):
        return part
    inside = {f.name: map_part(getattr(part, f.name), change) for f in fields(part)}
    return change(replace(part, **inside))  # type: ignore[type-var]


def map_stage(stage: Stage, change: Callable[[Any], Any]) -> Stage:
    """Apply `change` to every part of a stage."""
    slots = ("mixer", "qkv", "ffn", "merge", "position", "inner")
    return replace(stage, **{slot: map_part(getattr(stage, slot), change) for slot in slots})


def map_parts(spec: BackboneSpec, change: Callable[[Any], Any]) -> BackboneSpec:
    """Apply `change` to every part of a spec."""
    stages = tuple(map_stage(stage, change) for stage in spec.stages)
    return replace(spec, embed=map_part(spec.embed, change), stages=stages)


def iter_parts(spec: BackboneSpec) -> Iterator[Any]:
    """Every part of a spec."""
    seen: list[Any] = []

    def note(part: Any) -> Any:
        seen.append(part)
        return part

    map_parts(spec, note)
    yield from seen
