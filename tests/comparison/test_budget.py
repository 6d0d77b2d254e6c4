"""A budget in time becomes epochs."""

import pytest

from nearsight.comparison.budget import epochs_within, time_epoch
from nearsight.comparison.candidates import check_contenders
from nearsight.comparison.plan import Shared
from nearsight.config.candidates import parse_entries

SHARED = Shared(data="digits", recipe="small-data", limit=160, changes=("batch=16",), img_size=16)


@pytest.mark.drill
def test_a_dearer_model_gets_fewer_epochs_of_the_same_time() -> None:
    contenders, _ = check_contenders(parse_entries("deit_nano:patch_size=8,wide=deit_nano:patch_size=1"), SHARED)
    few, many = sorted(epochs_within(60, contenders, "digits", slots=1, threads=1))
    assert epochs_within(60, contenders[1:], "digits", slots=1, threads=1)[0] < many
    assert 1 <= few < many


@pytest.mark.slow
def test_a_budget_below_one_epoch_is_refused() -> None:
    contenders, _ = check_contenders(parse_entries("deit_nano"), SHARED)
    assert time_epoch("digits", contenders[0].recipe, threads=1) > 0
    with pytest.raises(ValueError, match=r"One epoch of deit_nano takes about .* s, more than the budget of 0\.001 s"):
        epochs_within(0.001, contenders, "digits", slots=1, threads=1)
