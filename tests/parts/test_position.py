import math

import pytest
import torch
import torch.nn.functional as F

from nearsight.lattice import Grid
from nearsight.parts import Learned, Sinusoid
from nearsight.parts.position import resize_positions


@pytest.mark.parametrize("part", [Learned(), Learned("bilinear"), Sinusoid()])
def test_on_the_grid_it_is_made_for_the_table_is_added_as_it_is(part):
    grid = Grid(3, 4, 1)
    module = part.build(6, grid)
    tokens = torch.randn(2, 13, 6)
    assert torch.equal(module(tokens, grid), tokens + module.table)


@pytest.mark.parametrize("resize", ["bicubic", "bilinear"])
@pytest.mark.parametrize("aux", [0, 2])
def test_on_another_grid_the_part_of_the_patches_is_interpolated(resize, aux):
    module = Learned(resize).build(6, Grid(3, 4, aux))
    grid = Grid(5, 2, aux)
    patches = module.table[:, aux:].transpose(1, 2).view(1, 6, 3, 4)
    patches = F.interpolate(patches, size=(5, 2), mode=resize, align_corners=False).flatten(2).transpose(1, 2)
    zeros = torch.zeros(2, grid.tokens, 6)
    torch.testing.assert_close(module(zeros, grid)[:1], torch.cat((module.table[:, :aux], patches), 1))


def test_a_transposed_grid_with_as_many_patches_is_interpolated_too():
    module = Learned().build(6, Grid(2, 4))
    assert not torch.allclose(resize_positions(module.table, Grid(2, 4), Grid(4, 2), "bicubic"), module.table)


def test_a_16_bit_table_is_interpolated_and_stays_16_bit():
    table = torch.randn(1, 12, 6).bfloat16()
    assert resize_positions(table, Grid(3, 4), Grid(6, 8), "bicubic").dtype == torch.bfloat16


def test_the_sinusoid_is_that_of_the_first_transformer():
    table = Sinusoid().build(6, Grid(3, 3, 1)).table
    for token in range(10):
        for channel in range(6):
            angle = token / 10000 ** (2 * (channel // 2) / 6)
            wanted = math.sin(angle) if channel % 2 == 0 else math.cos(angle)
            assert table[0, token, channel].item() == pytest.approx(wanted, abs=1e-6)


def test_the_sinusoid_is_not_trained_but_saved():
    module = Sinusoid().build(6, Grid(2, 2))
    assert not list(module.parameters()) and "table" in module.state_dict()


def test_the_sinusoid_is_made_on_the_device_of_the_model():
    with torch.device("meta"):
        assert Sinusoid().build(6, Grid(2, 2)).table.device.type == "meta"
