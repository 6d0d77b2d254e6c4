"""What a run of the benchmark found out, and what follows from it."""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from .. import __version__
from ..interval import Interval
from ..result import Result
from ..runs.run import environment
from ..timing import instructions, median_interval, ratio_interval
from .models import RUNTIMES, BenchModel
from .stages import StageTime

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
        stages: Whether to time embedding, stages and head, too.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    runtimes: tuple[str, ...] = RUNTIMES
    rounds: int = 10
    threads: int = field(default_factory=torch.get_num_threads)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    memory: bool = True
    stages: bool = False


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


@dataclass(frozen=True, repr=False)
class Bench(Result):
    """What was measured.

    Attributes:
        models: The models, in their order.
        setting: How.
        seconds: Of one call, in each round.
        memory: Bytes of one call.
        making: Seconds that it took to fold, compile or write each model.
        missing: What could not be measured.
        peak: Seconds of the product of two square matrices, in each round.
        side: Of these matrices.
        reference: Label of the model that the others are divided by.
        interrupted: Number of the signal that ended it early; 0 for none.
        scaling: Whether growth over image sizes is asked for.
        machine: Where and with what it was measured.
    """

    models: tuple[BenchModel, ...]
    setting: Setting
    seconds: dict[Key, list[float]]
    memory: dict[Key, int]
    making: dict[Key, float]
    missing: tuple[Missing, ...]
    peak: list[float]
    side: int
    reference: str
    interrupted: int = 0
    scaling: bool = False
    machine: dict[str, Any] = field(default_factory=lambda: describe_machine())
    stages: dict[Key, list[StageTime]] = field(default_factory=dict)

    @cached_property
    def macs(self) -> dict[tuple[str, tuple[int, int]], int]:
        """Multiply-adds of one image, by label and size."""
        return {(model.label, model.size): model.macs for model in self.models}

    def milliseconds(self, key: Key) -> Interval:
        """Of one call."""
        return median_interval([1e3 * value for value in self.seconds[key]])

    def images_per_second(self, key: Key) -> Interval:
        """Images in a second."""
        return median_interval([key.batch / value for value in self.seconds[key]])

    def fraction(self, key: Key) -> Interval:
        """Fraction of the peak: multiply-adds in a second by those of the matrix product in the same round."""
        ours, theirs = self.macs[key.label, key.size] * key.batch, self.side**3
        return ratio_interval([ours / value for value in self.seconds[key]], [theirs / value for value in self.peak])

    def stage_fraction(self, stage: StageTime, batch: int) -> float:
        """Fraction of the peak that a stage reaches."""
        took, best = float(np.median(stage.seconds)), float(np.median(self.peak))
        return stage.macs * batch / took * best / self.side**3

    def ratio(self, key: Key, other: Key | None = None) -> Interval | None:
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
    def peak_flops(self) -> Interval:
        """Floating-point operations in a second of the matrix product."""
        return median_interval([2 * self.side**3 / value for value in self.peak])

    @property
    def restless(self) -> str | None:
        """A sentence for a machine that did other things meanwhile; None for a quiet one."""
        return warn_if_restless(self.peak, self.side)

    def to_dict(self) -> dict[str, Any]:
        """All that was measured, as values that JSON has."""
        record: dict[str, Any] = {
            "nearsight": __version__,
            "machine": {**self.machine, "threads": self.setting.threads},
            "setting": {
                **asdict(self.setting),
                "device": str(self.setting.device),
                "rounds_measured": len(self.peak),
                "interrupted": bool(self.interrupted),
                "reference": self.reference,
            },
            "peak": {
                "matrix_side": self.side,
                "flops_per_second": plain(self.peak_flops),
                "seconds": self.peak,
                "warning": self.restless,
            },
            "models": [
                {
                    "label": model.label,
                    "name": model.name,
                    "size": model.size,
                    "parameters": model.parameters,
                    "macs": model.macs,
                }
                for model in self.models
            ],
            "measurements": [self.describe(key) for key in self.seconds],
            "missing": [asdict(missing) for missing in self.missing],
        }
        if self.scaling:
            record["scaling"] = [
                {
                    "model": growth.label,
                    "runtime": growth.runtime,
                    "exponent": plain(growth.latency),
                    "memory_exponent": plain(growth.memory),
                }
                for growth in growths(self)
            ]
        return record

    def describe(self, key: Key) -> dict[str, Any]:
        """One measurement."""
        stages = self.stages.get(key)
        return {
            "model": key.label,
            "size": key.size,
            "runtime": key.runtime,
            "batch": key.batch,
            "milliseconds": plain(self.milliseconds(key)),
            "images_per_second": plain(self.images_per_second(key)),
            "memory_bytes": self.memory.get(key),
            "fraction_of_peak": plain(self.fraction(key)),
            "time_ratio": plain(self.ratio(key)),
            "seconds_until_ready": self.making[key],
            "seconds": self.seconds[key],
            **({"stages": [self.describe_stage(stage, key.batch) for stage in stages]} if stages else {}),
        }

    def describe_stage(self, stage: StageTime, batch: int) -> dict[str, Any]:
        """A part of a measurement."""
        return {
            "name": stage.name,
            "macs": stage.macs,
            "milliseconds": plain(median_interval([1e3 * value for value in stage.seconds])),
            "fraction_of_peak": self.stage_fraction(stage, batch),
            "seconds": stage.seconds,
        }

    def __repr__(self) -> str:
        """The table, as the command line prints it."""
        from .report import bench_table, scaling_table

        return (scaling_table if self.scaling else bench_table)(self).plain

    def _repr_html_(self) -> str:
        """The table and, where sizes or printed accuracies give one, the figure."""
        from .report import to_html

        return to_html(self)


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
    latency: Interval | None
    memory: Interval | None


def growths(found: Bench) -> list[Growth]:
    """The growth of each model in each runtime, at the first batch size."""
    batch = found.setting.batches[0]
    pairs = dict.fromkeys((key.label, key.runtime) for key in found.seconds)
    grown = []
    for label, runtime in pairs:
        keys = [key for key in found.seconds if (key.label, key.runtime, key.batch) == (label, runtime, batch)]
        keys.sort(key=lambda key: math.prod(key.size))
        pixels = [math.prod(key.size) for key in keys]
        latency = fit_exponent(pixels, [found.milliseconds(key).value for key in keys])
        told = all(found.memory.get(key) for key in keys)
        memory = fit_exponent(pixels, [found.memory[key] for key in keys]) if told else None
        grown.append(Growth(label, runtime, tuple(keys), latency, memory))
    return grown


def fit_exponent(pixels: Sequence[float], costs: Sequence[float]) -> Interval | None:
    """The power of the pixels that the costs grow with: least squares between logarithms.

    The 95 % interval is that of the slope (Student's t); two sizes leave nothing to judge it by, and one no slope.

    Example:
        >>> fit_exponent([1, 10, 100], [5, 50, 500])
        Interval(value=1.0, low=1.0, high=1.0)
    """
    if len(pixels) < 2:
        return None
    x, y = np.log(np.asarray(pixels, dtype=float)), np.log(np.asarray(costs, dtype=float))
    around = x - x.mean()
    slope = float(around @ y / (around @ around))
    freedom = len(x) - 2
    if freedom == 0:
        return Interval(slope, -math.inf, math.inf)
    rest = y - y.mean() - slope * around
    reach = float(student.ppf(0.975, freedom) * math.sqrt(rest @ rest / freedom / (around @ around)))
    return Interval(*(round(value, 9) for value in (slope, slope - reach, slope + reach)))


def describe_machine() -> dict[str, Any]:
    """Where and with what is measured: the system, the CPU's instructions, the load before it, versions."""
    about = environment()
    if hasattr(os, "getloadavg"):  # not on Windows
        about["load"] = os.getloadavg()[0]
    for package in ("onnxruntime", "openvino"):
        with suppress(PackageNotFoundError):
            about["versions"][package] = version(package)
    return {**about, "instructions": list(instructions()), "torch_uses": torch.backends.cpu.get_cpu_capability()}


def plain(value: Interval | None) -> dict[str, float | None] | None:
    """A median and its interval; an end that is not known is null."""
    if value is None:
        return None
    numbers = {"median": value.value, "low": value.low, "high": value.high}
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}
