"""Measured time: medians with intervals, models in turns."""

import time

import torch
from torch import nn

from nearsight.comparison.compare import measure_latency


class Slow(nn.Module):
    """Sleeps for a while for each batch."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return images


def test_a_model_that_takes_20_milliseconds_is_measured_so() -> None:
    models = {"fast": (Slow(0.005), (4, 4)), "slow": (Slow(0.02), (4, 4))}
    before = torch.get_num_threads()
    found = measure_latency(models, torch.device("cpu"), 1, range(7))
    assert 20 <= found["slow"].milliseconds.low <= found["slow"].milliseconds.value < 60
    assert found["fast"].milliseconds.value < found["slow"].milliseconds.value
    assert 32 / 0.06 < found["slow"].images_per_second.value <= 32 / 0.02
    assert torch.get_num_threads() == before
