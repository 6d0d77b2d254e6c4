"""What to localize and how, as a value that goes to JSON and back."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from torch import nn

from ..models.options import SLOT_TYPES, layer_numbers
from ..models.spec import from_json, to_json

SLOTS = ("ffn", "qkv", "mixer", "merge")


@dataclass(frozen=True)
class LocalizeOptions:
    """Which parts go where.

    Attributes:
        ffn: A feed-forward part, by name or as a value; None leaves the slot as it is. Of a model of ours without
            `preserve`, also a tuple with one for each stage. The same for the others.
        qkv: What makes queries, keys and values.
        mixer: What exchanges between positions.
        merge: What merges tokens between stages.
        layers: `all`, `low` (the first third), or numbers of layers counted from 1.
        preserve: Whether the model predicts exactly what it did at the start.
        start: Standard deviation of what is new and would start at zero, so that branches learn from the first step on;
            0 leaves the predictions exactly as they are.

    Example:
        >>> LocalizeOptions.parse("ffn=localvit,qkv=life,layers=1-3")
        LocalizeOptions(ffn='localvit', qkv='life', mixer=None, merge=None, layers=(1, 2, 3), preserve=True, start=0.0)
    """

    ffn: Any = None
    qkv: Any = None
    mixer: Any = None
    merge: Any = None
    layers: str | tuple[int, ...] = "all"
    preserve: bool = True
    start: float = 0.0

    def __post_init__(self) -> None:
        if not self.parts():
            raise ValueError("localize() was given no part; give ffn, qkv, mixer or merge, such as ffn='localvit'.")
        if not isinstance(self.preserve, bool):
            raise ValueError(f"preserve={self.preserve!r} is neither true nor false.")
        if isinstance(self.start, bool) or not isinstance(self.start, (int, float)) or not 0 <= self.start <= 1:
            raise ValueError(f"start={self.start!r} is no standard deviation; give 0 to 1, such as 0.02.")
        for slot, given in self.parts().items():
            for part in given if isinstance(given, tuple) else (given,):
                if not part or not isinstance(part, (str, SLOT_TYPES[slot])):
                    raise ValueError(f"{slot}={part!r} is no part for this slot; give a name or a {slot} part.")
        if self.layers not in ("all", "low"):
            object.__setattr__(self, "layers", read_layers(self.layers))

    def parts(self) -> dict[str, Any]:
        """The parts by slot, without the slots that stay as they are."""
        return {slot: getattr(self, slot) for slot in SLOTS if getattr(self, slot) is not None}

    def numbers(self, depth: int) -> tuple[int, ...]:
        """The layers of a model of that depth; refuses numbers that it does not have."""
        if self.layers == "all":
            return tuple(range(1, depth + 1))
        if self.layers == "low":
            return tuple(range(1, -(-depth // 3) + 1))
        assert isinstance(self.layers, tuple)
        if wrong := [number for number in self.layers if not 1 <= number <= depth]:
            raise ValueError(f"layers names layer {wrong[0]}, but the model has layers 1 to {depth}.")
        return self.layers

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        layers = self.layers if isinstance(self.layers, str) else list(self.layers)
        parts = {slot: to_json(part) for slot, part in self.parts().items()}
        small = {"start": self.start} if self.start else {}
        return parts | {"layers": layers, "preserve": self.preserve} | small

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LocalizeOptions":
        """Undo `as_json`; also reads what a recipe or a command line says."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                near = get_close_matches(str(key), known, 1)
                hint = f" did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"localize has no setting {key!r};{hint} it takes {', '.join(known)}.")
        parts = {slot: from_json(values[slot]) for slot in SLOTS if slot in values}
        return cls(**parts, **{key: values[key] for key in ("layers", "preserve", "start") if key in values})

    @classmethod
    def parse(cls, text: str) -> "LocalizeOptions":
        """Read `ffn=localvit,qkv=life,layers=1-4,preserve=false`; layers may have commas, `layers=1,3,ffn=...`."""
        values: dict[str, Any] = {}
        key = ""
        for piece in text.split(","):
            name, equals, value = (part.strip() for part in piece.partition("="))
            if equals and value:
                key = name
                values[key] = value
            elif key == "layers" and name:
                values[key] += f",{name}"
            else:
                raise ValueError(f"{piece!r} is not understood; write SLOT=PART, such as ffn=localvit,qkv=life.")
        if "preserve" in values:
            values["preserve"] = {"true": True, "false": False}.get(values["preserve"].lower(), values["preserve"])
        if "start" in values:
            with suppress(ValueError):
                values["start"] = float(values["start"])
        return cls.from_json(values)

    def __str__(self) -> str:
        named = {slot: shown(part) for slot, part in self.parts().items()}
        parts = [f"{slot}={name}" for slot, name in named.items()]
        layers = self.layers if isinstance(self.layers, str) else ",".join(map(str, self.layers))
        settings = ([] if layers == "all" else [f"layers={layers}"]) + ([] if self.preserve else ["preserve=false"])
        settings += [f"start={self.start:g}"] if self.start else []
        return ",".join(parts + settings)


def shown(part: Any) -> str:
    """A part that is no name, in a word."""
    if isinstance(part, tuple):
        return "+".join(map(shown, part))
    return part if isinstance(part, str) else type(part).__name__


@dataclass(frozen=True)
class Localized:
    """What was done to a model, as `model.localized` tells it.

    Attributes:
        choice: Which parts went where; with it, the plain model becomes this one again.
        layers: Numbers of the layers that got a part, by slot.
        new: Names of the parameters that were not there before.
        kept: With `preserve=False`: names of parameters of the parts that took over pretrained numbers.
    """

    choice: LocalizeOptions
    layers: dict[str, tuple[int, ...]]
    new: tuple[str, ...]
    kept: tuple[str, ...]

    def again(self, model: nn.Module) -> None:
        """Localize another model of ours with the same spec in the same way; one without `preserve` has it there."""
        from .localize import apply_choice

        if self.choice.preserve:
            apply_choice(model, self.choice, placed=self.layers, inplace=True)

    def as_json(self) -> dict[str, Any]:
        """What builds the model again from a plain one, as plain JSON values."""
        return self.choice.as_json() | {"placed": {slot: list(numbers) for slot, numbers in self.layers.items()}}


def localized_of(model: nn.Module) -> Localized | None:
    """What was done to a model, or to one inside it; None for a plain one."""
    held = (getattr(module, "localized", None) for module in model.modules())
    return next((value for value in held if isinstance(value, Localized)), None)


def read_layers(given: Any) -> tuple[int, ...]:
    """Numbers of layers from text such as `1-4` or a list."""
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if is_list and not all(isinstance(number, int) and not isinstance(number, bool) for number in given):
        raise ValueError(f"layers={given!r} is not understood; give numbers of layers counted from 1.")
    if (not is_list and not isinstance(given, (str, int))) or isinstance(given, bool):
        raise ValueError(f"layers={given!r} is not understood; use all, low, or numbers such as 1-4.")
    try:
        numbers = layer_numbers([given] if isinstance(given, int) else given)
    except ValueError:
        raise ValueError(f"layers={given!r} is not understood; use all, low, or numbers such as 1-4.") from None
    if not numbers:
        raise ValueError("layers names no layer; use all, low, or numbers such as 1-4.")
    return tuple(sorted(numbers))
