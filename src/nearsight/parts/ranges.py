"""Which values a field may have: its annotation says type and range; one check serves options, JSON and Python."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The numbers that a field may hold.

    Attributes:
        least: The smallest.
        most: The largest.
        above: Whether `least` itself is too small.
        odd: Whether even numbers are left out.

    Example:
        >>> 3 in Range(1, 255), 0 in Range(1, 255), 4 in Range(1, 255, odd=True), 0.0 in Range(0, 1, above=True)
        (True, False, False, False)
    """

    least: float
    most: float
    above: bool = False
    odd: bool = False

    def __contains__(self, value: Any) -> bool:
        inside = math.isfinite(value) and self.least <= value <= self.most
        return inside and not (self.above and value == self.least) and not (self.odd and value % 2 == 0)

    def __str__(self) -> str:
        first, second = ("above", "up to") if self.above else ("from", "to")
        return f"{'(odd) ' if self.odd else ''}{first} {self.least:,.15g} {second} {self.most:,.15g}"


# What the numbers of this field are; far more than any model has, far less than what hangs or fills the memory.
Width = Annotated[int, Range(1, 32768)]
Depth = Annotated[int, Range(1, 1024)]
Heads = Annotated[int, Range(1, 1024)]
Aux = Annotated[int, Range(0, 1024)]
Side = Annotated[int, Range(1, 255)]
OddSide = Annotated[int, Range(1, 255, odd=True)]
Patch = Annotated[int, Range(1, 1024)]
Ratio = Annotated[float, Range(0, 64, above=True)]
Reduction = Annotated[int, Range(1, 32768)]
Rate = Annotated[float, Range(0, 1)]
Epsilon = Annotated[float, Range(0, 1, above=True)]
Pixels = Annotated[int, Range(1, 16384)]
Channels = Annotated[int, Range(1, 4096)]
Classes = Annotated[int, Range(0, 1_000_000)]


def check_fields(value: Any) -> None:
    """Refuse a spec, stage or part if a field of it, or of a part inside it, holds what its annotation excludes.

    Raises:
        ValueError: What was given, and what the field takes.

    Example:
        >>> from nearsight.parts import Window
        >>> check_fields(Window(window=0))
        Traceback (most recent call last):
        ValueError: window=0 does not suit Window, which takes int from 1 to 255 there.
    """
    kind: Any = type(value)
    hints = annotations(kind)
    for field in fields(value):
        held, hint = getattr(value, field.name), hints[field.name]
        if not fits(held, hint):
            given = repr(held) if len(repr(held)) <= 80 else f"{repr(held)[:77]}..."
            raise ValueError(f"{field.name}={given} does not suit {kind.__name__}, which takes {wording(hint)} there.")
        for part in inside(held):
            check_fields(part)


def inside(held: Any) -> Iterator[Any]:
    """The dataclasses in a field."""
    for part in held if isinstance(held, tuple) else (held,):
        if is_dataclass(part):
            yield part


@cache
def annotations(kind: Any) -> dict[str, Any]:
    """Types and ranges of the fields of a dataclass."""
    return get_type_hints(kind, include_extras=True)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type and in its range."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, args[0]) and all(value in extra for extra in args[1:] if isinstance(extra, Range))
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in args)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = args[:1] * len(value) if args[-1] is ... else args
        return len(value) == len(wanted) and all(map(fits, value, wanted))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def wording(hint: Any) -> str:
    """An annotated type in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([wording(args[0]), *(str(extra) for extra in args[1:] if isinstance(extra, Range))])
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin in (Union, UnionType):
        return " or ".join(map(wording, args))
    if origin is tuple:
        return f"a tuple of {wording(args[0])}"
    return "None" if hint is NoneType else hint.__name__
