"""How long a model takes for an image: measured in turns, so that a slow minute of the machine hits all alike."""

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from scipy.stats import binom
from torch import nn

from .results import Interval, Latency

BATCH = 32
ROUNDS = 25
LEAST = 0.02  # seconds that one measurement lasts, so that the clock's grain does not count


def measure_latency(
    models: Mapping[str, tuple[nn.Module, tuple[int, int]]],
    device: torch.device,
    threads: int,
    rounds: Iterable[int] = range(ROUNDS),
) -> dict[str, Latency]:
    """Milliseconds for one image, and images in a second in batches of 32, of each model.

    Args:
        models: By label, each with the height and width of its images.
        device: Where to measure.
        threads: Of the CPU.
        rounds: One measurement of each model is made in each.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return in_turns(models, device, rounds)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def in_turns(
    models: Mapping[str, tuple[nn.Module, tuple[int, int]]], device: torch.device, rounds: Iterable[int]
) -> dict[str, Latency]:
    """All models, one after the other, in each round."""
    tasks = {}
    for label, (model, size) in models.items():
        model = model.to(device).eval()
        for batch in (1, BATCH):
            images = torch.randn(batch, 3, *size, device=device)
            once = seconds_of(model, images, 1)  # the first call is slow
            once = min(once, seconds_of(model, images, 1))
            tasks[label, batch] = (model, images, max(1, round(LEAST / once)))
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in tasks}
    for _ in rounds:
        for key, (model, images, calls) in tasks.items():
            seconds[key].append(seconds_of(model, images, calls))
    return {
        label: Latency(
            milliseconds=median_interval([1e3 * value for value in seconds[label, 1]]),
            images_per_second=median_interval([BATCH / value for value in seconds[label, BATCH]]),
        )
        for label in models
    }


def seconds_of(model: nn.Module, images: torch.Tensor, calls: int) -> float:
    """Seconds of one call, from some in a row."""
    wait(images.device)
    began = time.perf_counter()
    for _ in range(calls):
        model(images)
    wait(images.device)
    return (time.perf_counter() - began) / calls


def wait(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def median_interval(values: Sequence[float]) -> Interval:
    """The median with its 95 % interval from the order of the values, whatever their distribution.

    Example:
        >>> median_interval([1, 2, 3, 4, 5, 6, 7, 8, 9])
        Interval(mean=5.0, low=2.0, high=8.0)
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    below = max(0, int(binom.ppf(0.025, len(ordered), 0.5)) - 1)
    return Interval(mean=float(np.median(ordered)), low=ordered[below], high=ordered[-1 - below])
