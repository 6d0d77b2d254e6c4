"""The tolerance of the tests: orders of a sum lie within it, mistakes do not."""

import pytest
import torch

from tests.rounding import assert_rounded, rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [3, 64, 4096, 100_000])
def test_another_order_of_a_sum_lies_well_within(length: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    terms = torch.randn(20, length, dtype=dtype)
    orders = [terms.sum(1), terms.cumsum(1)[:, -1], terms[:, torch.randperm(length)].cumsum(1)[:, -1]]
    largest = max(float(terms.sum(1).abs().max()), length**0.5)  # as large as a sum of so many is on its way
    apart = max(float((one - orders[0]).abs().max()) for one in orders)
    assert apart < rounding(length, dtype) * largest / 3


def test_one_term_of_thousands_that_is_left_out_does_not() -> None:
    torch.manual_seed(0)
    terms = torch.randn(20, 4096)
    with pytest.raises(AssertionError):
        assert_rounded(terms[:, 1:].sum(1), terms.sum(1), sums=4096)


def test_a_weight_that_is_wrong_in_the_fourth_digit_does_not() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    images = torch.randn(8, 64)
    wanted = model(images)
    assert_rounded(model.double()(images.double()), wanted, model)
    model.float()[3].weight.data *= 1.001
    with pytest.raises(AssertionError):
        assert_rounded(model(images), wanted, model)
