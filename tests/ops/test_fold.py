"""Layers that took in a batch norm compute what both computed."""

import pytest
import torch
from torch import nn

from nearsight.ops.fold import GRIDS_KEPT, fold_before, fold_behind, once_per_grid


def trained_norm(kind, channels, affine=True):
    norm = kind(channels, affine=affine).double().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 3)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_takes_in_the_norm_behind_it(bias, affine):
    layer, norm = nn.Conv2d(3, 6, 3, groups=3, bias=bias).double(), trained_norm(nn.BatchNorm2d, 6, affine)
    images = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    expected = norm(layer(images))
    fold_behind(layer, norm)
    torch.testing.assert_close(layer(images), expected)


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_takes_in_the_norm_before_it(bias):
    layer, norm = nn.Linear(4, 6, bias=bias).double(), trained_norm(nn.BatchNorm1d, 4)
    tokens = torch.randn(7, 4, dtype=torch.float64)
    expected = layer(norm(tokens))
    fold_before(norm, layer)
    torch.testing.assert_close(layer(tokens), expected)


def test_a_norm_without_statistics_is_refused():
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    with pytest.raises(ValueError, match="without running statistics"):
        fold_behind(nn.Linear(4, 4), norm)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.made = []

    @once_per_grid
    def table(self, size):
        self.made.append(size)
        return self.weight * size


def test_a_table_is_made_once_for_each_size_and_type_once_folded():
    module = Counting()
    module.table(3), module.table(3)
    assert module.made == [3, 3]
    module.folded = True
    module.table(3), module.table(4), module.table(3)
    assert module.made == [3, 3, 3, 4]
    assert module.double().table(4).dtype == torch.float64


def test_only_the_last_tables_are_kept():
    module = Counting()
    module.folded = True
    for size in range(GRIDS_KEPT + 2):
        module.table(size)
    assert len(module.known) == GRIDS_KEPT
    module.table(0)
    assert module.made == [*range(GRIDS_KEPT + 2), 0]
