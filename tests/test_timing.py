"""Measured seconds: medians with intervals, tasks in turns."""

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap

from nearsight import timing
from nearsight.timing import TimedCall, make_task, median_interval, ratio_interval, take_turns, with_threads

CPU = torch.device("cpu")


def test_the_interval_of_the_median_agrees_with_the_bootstrap() -> None:
    values = np.random.default_rng(0).lognormal(size=101)
    found = median_interval(values.tolist())
    drawn = bootstrap((values,), np.median, method="percentile", random_state=0).confidence_interval
    assert np.isclose(found.low, drawn.low, rtol=0.1)
    assert np.isclose(found.high, drawn.high, rtol=0.1)


def test_the_interval_holds_the_true_median_in_95_of_100_cases() -> None:
    drawn = np.random.default_rng(1).exponential(size=(2000, 12))
    found = [median_interval(values) for values in drawn.tolist()]
    held = np.mean([spread.low <= np.log(2) <= spread.high for spread in found])
    assert 0.95 <= held <= 0.995


def test_a_ratio_is_not_moved_by_rounds_in_which_everything_was_slow() -> None:
    slow = np.array([1, 1, 7, 1, 3, 1, 1, 20, 1])
    bottom = slow * 0.1
    top = slow * np.array([0.149, 0.151, 0.15, 0.15, 0.148, 0.15, 0.152, 0.15, 0.15])
    found = ratio_interval(top.tolist(), bottom.tolist())
    assert found.value == pytest.approx(1.5)
    assert 1.48 <= found.low <= found.high <= 1.52


@pytest.mark.usefixtures("clock")
def test_a_task_makes_enough_calls_to_last() -> None:
    calls = []
    task = make_task(lambda: calls.append(timing.time.sleep(0.002)), CPU, least=0.02)  # type: ignore[func-returns-value]
    assert task.calls == 10
    made = len(calls)
    assert task.seconds() == pytest.approx(0.002)
    assert len(calls) == made + task.calls


def test_tasks_are_measured_in_the_given_order() -> None:
    seen: list[str] = []
    tasks = {name: TimedCall(lambda name=name: seen.append(name), 2, CPU) for name in "ab"}  # type: ignore[misc]
    found = take_turns(tasks, ["a", "b", "a"])
    assert "".join(seen) == "aabbaa"
    assert {key: len(values) for key, values in found.items()} == {"a": 2, "b": 1}


def test_threads_are_set_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), with_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError
    assert torch.get_num_threads() == before
