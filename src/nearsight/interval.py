"""Numbers with their 95 % intervals, Wilson's and Student's, and what JSON has of a number that is missing."""

import math
from typing import Any, NamedTuple

from numpy.typing import NDArray

NORMAL_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


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


def wilson(hits: int, total: int) -> Interval:
    """A fraction with Wilson's interval, which stays in 0..1 and holds for few cases, too.

    Example:
        >>> [round(x, 3) for x in wilson(8, 10)]
        [0.8, 0.49, 0.943]
    """
    if total == 0:
        return Interval(math.nan, math.nan, math.nan)
    rate, weight = hits / total, NORMAL_95**2 / total
    centre = rate + weight / 2
    spread = NORMAL_95 * math.sqrt(rate * (1 - rate) / total + weight / (4 * total))
    low, high = ((centre + sign * spread) / (1 + weight) for sign in (-1, 1))
    # At the ends the interval touches 0 or 1 exactly; rounding must not push it past the value.
    return Interval(rate, float(min(max(low, 0.0), rate)), float(max(min(high, 1.0), rate)))


def student(parts: NDArray[Any]) -> Interval:
    """A score with Student's interval, which ends at 0 and 1, from what each of some groups of images adds to it `[k]`.

    Of a single group the interval is not known (nan).

    Example:
        >>> import numpy as np
        >>> [round(x, 3) for x in student(np.array([0.7, 0.8, 0.9]))]
        [0.8, 0.552, 1.0]
    """
    from scipy.special import stdtrit  # which bundles do without

    value = float(parts.mean())
    if len(parts) < 2:
        return Interval(value, math.nan, math.nan)
    error = float(parts.std(ddof=1)) / len(parts) ** 0.5
    reach = float(stdtrit(len(parts) - 1, 0.975)) * error
    return Interval(value, max(0.0, value - reach), min(1.0, value + reach))
