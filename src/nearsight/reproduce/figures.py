"""A printed figure beside ours, and the ways in which a number can be printed."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

from .own import Plan
from .published import Row

UNITS = {"params_m": 1e6, "flops_g": 1e9, "gmacs": 1e9}


@dataclass(frozen=True)
class Figure:
    """One figure of a row.

    Attributes:
        row: Where it is printed.
        key: Which figure: a name of `published.COSTS`.
        printed: As printed.
        ours: Our number in the same unit.
        plan: How ours was obtained.
    """

    row: Row
    key: str
    printed: str
    ours: float
    plan: Plan

    @property
    def unit(self) -> float:
        """Parameters or multiply-adds in one unit of the figure."""
        return UNITS.get(self.key, 1.0)


def decimals(printed: str) -> int:
    """Digits behind the point."""
    return len(printed.partition(".")[2])


def to_digits(value: float, digits: int, rounding: str) -> Decimal:
    """A number with a fixed count of digits behind the point."""
    return Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), rounding=rounding)


def agrees(printed: str, value: float) -> bool:
    """Whether a value rounds to what is printed: 5.65 to 5.75 print as 5.7."""
    digits = decimals(printed)
    return Decimal(printed) in {to_digits(value, digits, way) for way in (ROUND_HALF_UP, ROUND_HALF_EVEN)}


def truncates(printed: str, value: float) -> bool:
    """Whether a value was cut to what is printed."""
    return to_digits(value, decimals(printed), ROUND_FLOOR) == Decimal(printed)


def rounds_up(printed: str, value: float) -> bool:
    """Whether a value was rounded up to what is printed."""
    return to_digits(value, decimals(printed), ROUND_CEILING) == Decimal(printed)


def rounds_twice(printed: str, value: float) -> bool:
    """Whether a value rounds to what is printed by way of one digit more."""
    digits = decimals(printed)
    once = to_digits(value, digits + 1, ROUND_HALF_UP)
    return once.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP) == Decimal(printed)


def between(printed: str, low: float, high: float) -> bool:
    """Whether what is printed lies between two values, both rounded."""
    digits = decimals(printed)
    return to_digits(low, digits, ROUND_HALF_UP) <= Decimal(printed) <= to_digits(high, digits, ROUND_HALF_UP)
