import pytest
import torch
from torch import nn

from nearsight.lattice import Grid, image, sequence
from nearsight.parts.layers import CalibratedBatchNorm, TokenBatchNorm, make_norm
from tests.rounding import rounding


def test_batch_norm_of_tokens_is_batch_norm_of_the_image_with_its_statistics():
    ours, theirs = TokenBatchNorm(4).double(), nn.BatchNorm2d(4).double()
    grid = Grid(3, 5)
    for _ in range(3):
        tokens = 2 + 3 * torch.randn(2, 15, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(tokens), sequence(theirs(image(tokens, grid))))
    torch.testing.assert_close(ours.bn.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.bn.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(tokens), sequence(theirs(image(tokens, grid))))


def test_batch_norm_takes_tokens_that_are_a_slice():
    norm = TokenBatchNorm(4)
    tokens = torch.randn(2, 7, 4)
    torch.testing.assert_close(norm(tokens[:, 1:]), norm(tokens[:, 1:].contiguous()))


@pytest.mark.parametrize("training", [True, False])
def test_calibrated_batch_norm_starts_as_batch_norm(training):
    calibrated, plain = CalibratedBatchNorm(4).train(training), TokenBatchNorm(4).train(training)
    tokens = torch.randn(2, 6, 4)
    torch.testing.assert_close(calibrated(tokens), plain(tokens))


def test_calibration_by_minus_one_removes_the_mean_of_each_image():
    norm = CalibratedBatchNorm(4)
    nn.init.constant_(norm.center, -1.0)
    tokens = torch.randn(3, 6, 4) + torch.randn(3, 1, 4)
    allowed = rounding(6) * tokens.abs().max().item()  # a mean of six
    torch.testing.assert_close(norm(tokens).mean(1), torch.zeros(3, 4), atol=allowed, rtol=0)


def test_an_unknown_norm_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="norm='group' is not known; use one of layer, batch, calibrated_batch"):
        make_norm("group", 8)
