"""Numbers of reports: one with its interval, and one that may be missing."""

import math
from typing import NamedTuple


class Interval(NamedTuple):
    """A number with its 95 % interval; all nan where nothing was measured.

    Example:
        >>> score = Interval(0.8, 0.7, 0.85)
        >>> score.value, round(score.half_width, 3)
        (0.8, 0.1)
    """

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's length; the longer half where it is not symmetric, as one that ends at 0 or 1."""
        return max(self.value - self.low, self.high - self.value)


def json_number(value: float) -> float | None:
    """A number, or None for nan, which JSON has no word for.

    Example:
        >>> json_number(0.5), json_number(math.nan)
        (0.5, None)
    """
    return None if math.isnan(value) else float(value)
