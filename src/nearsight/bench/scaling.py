"""How time and memory grow with the image: the exponent of a power law."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from ..clock import Spread
from .results import Bench, Key


@dataclass(frozen=True)
class Growth:
    """A model in a runtime, over image sizes.

    Attributes:
        label: Of the model.
        runtime: In which it ran.
        keys: Measurements, from the smallest image to the largest.
        latency: Exponent of the time in the number of pixels; None for a single size.
        memory: Exponent of the memory; None where it was not measured.
    """

    label: str
    runtime: str
    keys: tuple[Key, ...]
    latency: Spread | None
    memory: Spread | None


def growths(found: Bench) -> list[Growth]:
    """The growth of each model in each runtime, at the first batch size."""
    batch = found.setting.batches[0]
    pairs = dict.fromkeys((key.label, key.runtime) for key in found.seconds)
    grown = []
    for label, runtime in pairs:
        keys = [key for key in found.seconds if (key.label, key.runtime, key.batch) == (label, runtime, batch)]
        keys.sort(key=lambda key: math.prod(key.size))
        pixels = [math.prod(key.size) for key in keys]
        latency = fit_exponent(pixels, [found.milliseconds(key).median for key in keys])
        told = all(found.memory.get(key) for key in keys)
        memory = fit_exponent(pixels, [found.memory[key] for key in keys]) if told else None
        grown.append(Growth(label, runtime, tuple(keys), latency, memory))
    return grown


def fit_exponent(pixels: Sequence[float], costs: Sequence[float]) -> Spread | None:
    """The power of the pixels that the costs grow with: least squares between logarithms.

    The 95 % interval is that of the slope (Student's t); two sizes leave nothing to judge it by, and one no slope.

    Example:
        >>> fit_exponent([1, 10, 100], [5, 50, 500])
        Spread(median=1.0, low=1.0, high=1.0)
    """
    if len(pixels) < 2:
        return None
    x, y = np.log(np.asarray(pixels, dtype=float)), np.log(np.asarray(costs, dtype=float))
    around = x - x.mean()
    slope = float(around @ y / (around @ around))
    freedom = len(x) - 2
    if freedom == 0:
        return Spread(slope, -math.inf, math.inf)
    rest = y - y.mean() - slope * around
    reach = float(student.ppf(0.975, freedom) * math.sqrt(rest @ rest / freedom / (around @ around)))
    return Spread(*(round(value, 9) for value in (slope, slope - reach, slope + reach)))
