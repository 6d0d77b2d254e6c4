"""The benchmark of the speed goals still runs: it is called by hand alone, so that nothing else would notice."""

import pytest

from benchmarks import goals
from nearsight.interval import Interval


@pytest.fixture
def small(monkeypatch):
    """Its rows with few models and no exports."""
    monkeypatch.setattr(goals, "FAMILIES", ("deit_tiny",))
    monkeypatch.setattr(goals, "FLOAT32", ("eager", "folded"))
    monkeypatch.setattr(goals, "PEAK", {"small": ("deit_tiny",)})
    monkeypatch.setitem(goals.SIDE, "cpu", 64)
    return goals.Rig(rounds=1, threads=1)


def test_the_mean_of_ratios_is_geometric():
    found = goals.geometric_mean({"a": Interval(0.5, 0.25, 1.0), "b": Interval(2.0, 1.0, 4.0)})
    assert found == pytest.approx((1.0, 0.5, 2.0))


@pytest.mark.slow  # some seconds of measuring, which says nothing of the code
def test_rows_are_measured_without_exports(small):
    one, eight = goals.runtimes(small)
    assert one.measured.value <= 1 and eight.measured.value <= 1  # the best of the two, by the folded one
    (fraction,) = goals.peak("small", 0.7, 0.8, small)
    assert fraction.measured.value > 0 and fraction.met == (fraction.measured.value >= 0.7)
    (step,) = goals.training(small, {"localvit_tiny": "deit_tiny"})
    assert (step.bar, step.stretch) == (1.15, 1.05) and step.measured.value > 0
    assert goals.record(step, 1)["measured"]["median"] == step.measured.value
