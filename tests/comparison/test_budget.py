"""A budget in time becomes epochs."""

import pytest

from nearsight.comparison.plan import Shared, build_candidates
from nearsight.comparison.runner import Slot, epochs_within
from nearsight.comparison.worker import time_epoch
from nearsight.config.candidates import parse_candidates

SHARED = Shared(data="digits", recipe="small-data", limit=160, changes=("batch=16",), img_size=16)


@pytest.mark.drill
def test_a_dearer_model_gets_fewer_epochs_of_the_same_time() -> None:
    built, _ = build_candidates(parse_candidates("deit_nano:patch_size=8,wide=deit_nano:patch_size=1"), SHARED)
    few, many = sorted(epochs_within(60, built, "digits", slots=[Slot(1)]))
    assert epochs_within(60, built[1:], "digits", slots=[Slot(1)])[0] < many
    assert 1 <= few < many


@pytest.mark.slow
def test_a_budget_below_one_epoch_is_refused() -> None:
    built, _ = build_candidates(parse_candidates("deit_nano"), SHARED)
    assert time_epoch("digits", built[0].recipe) > 0
    with pytest.raises(ValueError, match=r"One epoch of deit_nano takes about .* s, more than the budget of 0\.001 s"):
        epochs_within(0.001, built, "digits", slots=[Slot(1)])
