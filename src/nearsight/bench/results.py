"""What a run of the benchmark found out, and what follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ..clock import Spread, median_interval, ratio_interval
from .runtimes import RUNTIMES
from .subjects import Subject

RESTLESS = 1.5  # the slowest round of the same product by the fastest, from which on people are warned


@dataclass(frozen=True)
class Setting:
    """How to measure.

    Attributes:
        batches: Images at a time.
        runtimes: Some of `RUNTIMES`.
        rounds: Each measures everything once.
        threads: Of the CPU.
        device: Where.
        memory: Whether to measure memory too.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    runtimes: tuple[str, ...] = RUNTIMES
    rounds: int = 10
    threads: int = field(default_factory=torch.get_num_threads)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    memory: bool = True


@dataclass(frozen=True)
class Key:
    """What was measured: a model by label, the size of its images, a runtime, and a batch size."""

    label: str
    size: tuple[int, int]
    runtime: str
    batch: int


@dataclass(frozen=True)
class Missing:
    """What could not be measured, and why; batch 0 stands for all."""

    label: str
    size: tuple[int, int]
    runtime: str
    batch: int
    reason: str


@dataclass(frozen=True)
class Bench:
    """What was measured.

    Attributes:
        subjects: The models, in their order.
        setting: How.
        seconds: Of one call, in each round.
        memory: Bytes of one call.
        making: Seconds that it took to fold, compile or write each model.
        missing: What could not be measured.
        peak: Seconds of the product of two square matrices, in each round.
        side: Of these matrices.
        reference: Label of the model that the others are divided by.
        interrupted: Number of the signal that ended it early; 0 for none.
    """

    subjects: tuple[Subject, ...]
    setting: Setting
    seconds: dict[Key, list[float]]
    memory: dict[Key, int]
    making: dict[Key, float]
    missing: tuple[Missing, ...]
    peak: list[float]
    side: int
    reference: str
    interrupted: int = 0

    @cached_property
    def macs(self) -> dict[tuple[str, tuple[int, int]], int]:
        """Multiply-adds of one image, by label and size."""
        return {(subject.label, subject.size): subject.macs for subject in self.subjects}

    def milliseconds(self, key: Key) -> Spread:
        """Of one call."""
        return median_interval([1e3 * value for value in self.seconds[key]])

    def images_per_second(self, key: Key) -> Spread:
        """Images in a second."""
        return median_interval([key.batch / value for value in self.seconds[key]])

    def fraction(self, key: Key) -> Spread:
        """Share of the peak: multiply-adds in a second by those of the matrix product in the same round."""
        ours, theirs = self.macs[key.label, key.size] * key.batch, self.side**3
        return ratio_interval([ours / value for value in self.seconds[key]], [theirs / value for value in self.peak])

    def ratio(self, key: Key, other: Key | None = None) -> Spread | None:
        """Time by that of another measurement in the same round; by the reference's where none is given.

        The reference's is that in its first runtime, with the same batch size; None where that is missing.
        """
        other = other or self.reference_of(key)
        return ratio_interval(self.seconds[key], self.seconds[other]) if other else None

    def reference_of(self, key: Key) -> Key | None:
        """The measurement that this one is divided by."""
        found = (other for other in self.seconds if other.label == self.reference and other.batch == key.batch)
        return min(found, key=lambda other: self.setting.runtimes.index(other.runtime), default=None)

    @property
    def peak_flops(self) -> Spread:
        """Floating-point operations in a second of the matrix product."""
        return median_interval([2 * self.side**3 / value for value in self.peak])

    @property
    def restless(self) -> str | None:
        """A sentence for a machine that did other things meanwhile; None for a quiet one."""
        return warn_if_restless(self.peak, self.side)


def warn_if_restless(seconds: Sequence[float], side: int) -> str | None:
    """A sentence where the same matrix product did not always take the same time.

    Example:
        >>> warn_if_restless([0.1, 0.2, 0.1], 1000)
        'The machine was not quiet: the same matrix product ran at 10 to 20 GFLOP/s; close other programs, or take
        more rounds.'
    """
    ordered = sorted(seconds)
    low, high = ordered[0], ordered[-1]
    if high < RESTLESS * low:
        return None
    slow, fast = (2 * side**3 / value / 1e9 for value in (high, low))
    return (
        f"The machine was not quiet: the same matrix product ran at {slow:.0f} to {fast:.0f} GFLOP/s; close other "
        "programs, or take more rounds."
    )
