"""How long a model takes for an image, measured in turns."""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import nn

from ..timing import make_task, median_interval, take_turns, with_threads
from .results import Latency

BATCH = 32
ROUNDS = 25


@torch.inference_mode()
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
    tasks = {}
    with with_threads(threads):
        for label, (model, size) in models.items():
            model = model.to(device).eval()
            for batch in (1, BATCH):
                images = torch.randn(batch, 3, *size, device=device)
                tasks[label, batch] = make_task(partial(model, images), device)
        seconds = take_turns(tasks, (key for _ in rounds for key in tasks))
    return {
        label: Latency(
            milliseconds=median_interval([1e3 * value for value in seconds[label, 1]]),
            images_per_second=median_interval([BATCH / value for value in seconds[label, BATCH]]),
        )
        for label in models
    }
