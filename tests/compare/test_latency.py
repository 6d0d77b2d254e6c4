"""Measured time: medians with intervals, models in turns."""

import time

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import nn

from nearsight.compare.latency import measure_latency, median_interval


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
    assert 20 <= found["slow"].milliseconds.low <= found["slow"].milliseconds.mean < 60
    assert found["fast"].milliseconds.mean < found["slow"].milliseconds.mean
    assert 32 / 0.06 < found["slow"].images_per_second.mean <= 32 / 0.02
    assert torch.get_num_threads() == before


def test_the_interval_of_the_median_agrees_with_the_bootstrap() -> None:
    values = np.random.default_rng(0).lognormal(size=101)
    found = median_interval(values.tolist())
    drawn = bootstrap((values,), np.median, method="percentile", random_state=0).confidence_interval
    assert np.isclose(found.low, drawn.low, rtol=0.1)
    assert np.isclose(found.high, drawn.high, rtol=0.1)
