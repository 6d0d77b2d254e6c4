"""How long something takes: measured in turns, so that a slow minute of the machine hits all alike."""

import os
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from scipy.stats import binom

from .interval import Interval

Key = TypeVar("Key", bound=Hashable)
LEAST = 0.02  # seconds that one measurement lasts, so that the clock's grain does not count
UNITS = {"s": 1, "m": 60, "h": 3600}
LONGEST = 365 * 24 * 3600.0  # seconds of a budget
INSTRUCTIONS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)
# Any of these instructions makes the bits worth it; without them a runtime would compute in float32 or slower.
FASTER_WITH = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "int8": ("avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"),
}
SETTLE = 0.005  # seconds in which the threads of whatever ran before stop looking for work


@dataclass(frozen=True)
class TimedCall:
    """Something to measure.

    Attributes:
        call: What is done.
        calls: How many in a row make one measurement.
        device: Where it happens.
    """

    call: Callable[[], object]
    calls: int
    device: torch.device

    def seconds(self) -> float:
        """Seconds of one call, from some in a row."""
        time.sleep(SETTLE)
        began = moment(self.device)
        for _ in range(self.calls):
            self.call()
        return (moment(self.device) - began) / self.calls


def make_task(call: Callable[[], object], device: torch.device, least: float = LEAST) -> TimedCall:
    """A task that was warmed up; it makes as many calls in a row as last `least` seconds.

    Example:
        >>> task = make_task(lambda: time.sleep(0.01), torch.device("cpu"), least=0.03)
        >>> 1 <= task.calls <= 3 and 0.01 < task.seconds() < 1
        True
    """
    once = TimedCall(call, 1, device)
    fastest = min(once.seconds() for _ in range(2))  # the first call is slow
    return TimedCall(call, max(1, round(least / fastest)), device)


def take_turns(tasks: Mapping[Key, TimedCall], order: Iterable[Key]) -> dict[Key, list[float]]:
    """Seconds of the tasks, measured in this order.

    Args:
        tasks: What to measure.
        order: Whose turn it is; each task comes once in each round.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in tasks}
    for key in order:
        seconds[key].append(tasks[key].seconds())
    return seconds


def wait(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def moment(device: torch.device) -> float:
    """The clock's seconds when a device has done what it was given."""
    wait(device)
    return time.perf_counter()


def check_threads(threads: int) -> None:
    """Refuse a number of CPU threads that no machine like this could use; the system gives up on too many.

    Raises:
        ValueError: There are less than 1, or far more than cores.
    """
    cores = os.cpu_count() or 1
    most = max(16, 4 * cores)
    if not 1 <= threads <= most:
        raise ValueError(
            f"--threads {threads} won't do; give a whole number of at least 1 and at most {most} (there are {cores} "
            "cores)."
        )


@contextmanager
def with_threads(threads: int) -> Iterator[None]:
    """Let PyTorch use so many threads inside the block."""
    check_threads(threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def instructions() -> tuple[str, ...]:
    """The CPU's vector instructions that decide how fast models run, as far as the system tells."""
    described = Path("/proc/cpuinfo")
    rows = described.read_text().splitlines() if described.is_file() else []
    flags = next((set(row.partition(":")[2].split()) for row in rows if row.startswith(("flags", "Features"))), set())
    return tuple(name for name in INSTRUCTIONS if name in flags)


def refuse_precision(precision: str) -> None:
    """Refuse numbers of fewer bits where the CPU computes them no faster.

    Raises:
        ValueError: It has no instructions for them.
    """
    if not set(FASTER_WITH[precision]) & set(instructions()):
        raise ValueError(f"This CPU has no instructions for {precision} ({', '.join(FASTER_WITH[precision])}).")


def median_interval(values: Sequence[float]) -> Interval:
    """The median with its 95 % interval from the order of the values, whatever their distribution.

    Example:
        >>> median_interval([1, 2, 3, 4, 5, 6, 7, 8, 9])
        Interval(value=5.0, low=2.0, high=8.0)
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    below = max(0, int(binom.ppf(0.025, len(ordered), 0.5)) - 1)
    return Interval(float(np.median(ordered)), float(ordered[below]), float(ordered[-1 - below]))


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> Interval:
    """The median of the ratios within rounds, with its interval: what slowed a whole round down cancels.

    Example:
        >>> ratio_interval([2.0, 4.0, 60.0], [1.0, 2.0, 30.0])
        Interval(value=2.0, low=2.0, high=2.0)
    """
    return median_interval([one / other for one, other in zip(top, bottom, strict=True)])


def parse_duration(given: str | float) -> float:
    """Seconds of a text like `90s`, `20m`, `1.5h` or `1h30m`, or of a number of them, at most a year.

    Raises:
        ValueError: It is no such time.

    Example:
        >>> parse_duration("20m"), parse_duration("1h30m")
        (1200.0, 5400.0)
    """
    text = f"{given}s" if isinstance(given, int | float) else given.strip()
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+", text):
        raise ValueError(f"{text!r} is not a time; write it like 90s, 20m or 1h30m.")
    seconds = sum(float(number) * UNITS[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)([smh])", text))
    if seconds > LONGEST:
        raise ValueError(f"A budget of {text} is more than a year; give less, such as 2h.")
    if seconds <= 0:
        raise ValueError(f"A budget of {text} leaves no time to train; give some minutes, such as 20m.")
    return seconds
