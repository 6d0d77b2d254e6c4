"""Axes of the report's charts: nice ticks and the way from a value to a position."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on positions from `start` to `end`, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def position(self, value: float) -> float:
        """Where a value stands.

        Example:
            >>> Axis(0, 10, 100, 200).position(5), Axis(1, 100, 0, 2, logarithmic=True).position(10)
            (150.0, 1.0)
        """
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """About so many round values."""
        if self.logarithmic and len(found := log_ticks(self.low, self.high)) > 2:
            return found
        return even_ticks(self.low, self.high, count)


def even_ticks(low: float, high: float, count: int) -> list[float]:
    """Round values at equal distances.

    Example:
        >>> even_ticks(0.43, 0.71, 4)
        [0.5, 0.6, 0.7]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between two values.

    Example:
        >>> log_ticks(0.4, 12)
        [0.5, 1.0, 2.0, 5.0, 10.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    return [value for value in every if low <= value <= high]


def padded(values: Sequence[float], fraction: float = 0.08, least: float = 0.01) -> tuple[float, float]:
    """Smallest and largest value with some room on both sides."""
    low, high = min(values), max(values)
    room = max((high - low) * fraction, least)
    return low - room, high + room
