"""The one type of a number with its interval."""

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
