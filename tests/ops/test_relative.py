import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.swin_transformer import get_relative_position_index

from nearsight.ops.relative import log_spaced_offsets, pairwise_bias, relative_index, resize_relative_table, shift_mask

side = st.integers(1, 5)


@given(height=side, width=side)
@settings(max_examples=20, deadline=None)
def test_each_pair_of_positions_reads_the_entry_of_its_offset(height, width):
    table = torch.randn((2 * height - 1) * (2 * width - 1), 2)
    spread = table.view(2 * height - 1, 2 * width - 1, 2)
    bias = pairwise_bias(table, height, width)
    for query in range(height * width):
        for key in range(height * width):
            down, right = query // width - key // width, query % width - key % width
            assert torch.equal(bias[:, query, key], spread[down + height - 1, right + width - 1])


@pytest.mark.parametrize("size", [(7, 7), (3, 5)])
def test_the_index_is_swins(size):
    assert torch.equal(relative_index(*size), get_relative_position_index(*size))


def test_resizing_a_table_is_bicubic_over_the_offsets():
    table = torch.randn(5 * 7, 2)
    wanted = F.interpolate(table.T.view(1, 2, 5, 7), size=(9, 3), mode="bicubic", align_corners=False)
    resized = resize_relative_table(table, (3, 4), (5, 2))
    torch.testing.assert_close(resized, wanted[0].flatten(1).T)
    assert resize_relative_table(table, (3, 4), (3, 4)) is table


def test_a_16_bit_table_stays_16_bit():
    assert resize_relative_table(torch.randn(9, 2).bfloat16(), (2, 2), (3, 3)).dtype == torch.bfloat16


def test_log_spaced_offsets_follow_swin_v2():
    size = 4
    offsets = log_spaced_offsets(size).view(7, 7, 2)
    for down in range(-3, 4):
        for right in range(-3, 4):
            wanted = [
                torch.sign(torch.tensor(d)) * torch.log2(torch.tensor(1 + abs(8 * d / 3))) / 3 for d in (down, right)
            ]
            torch.testing.assert_close(offsets[down + 3, right + 3], torch.stack(wanted))


@given(
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    size=st.integers(2, 4),
    shift=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
@settings(max_examples=20, deadline=None)
def test_only_positions_on_the_same_side_of_the_seam_see_each_other(rows, columns, size, shift):
    height, width = rows * size, columns * size
    mask = shift_mask(height, width, size, shift, None)
    assert mask.shape == (rows * columns, size**2, size**2)
    for window, query, key in torch.cartesian_prod(*map(torch.arange, mask.shape)).tolist():
        top, left = window // columns * size, window % columns * size
        crossed = [
            (top + position // size + shift[0] >= height, left + position % size + shift[1] >= width)
            for position in (query, key)
        ]
        assert mask[window, query, key].item() == (crossed[0] == crossed[1])
