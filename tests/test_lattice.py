import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearsight.lattice import (
    Grid,
    image,
    lattice,
    pad_to_multiple,
    sequence,
    unwindow,
    windows,
    with_aux,
    zeros_for_aux,
)

side = st.integers(1, 6)


def address(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("aux", [0, 1, 3])
def test_going_to_the_lattice_and_back_copies_nothing(aux):
    grid = Grid(3, 5, aux)
    tokens = torch.randn(2, grid.tokens, 4)
    for view in (lattice(tokens, grid), image(tokens, grid)):
        assert address(view) == address(tokens)
    alone = torch.randn(2, grid.patches, 4)
    assert address(sequence(image(alone, Grid(3, 5)))) == address(alone)


def test_writing_into_the_image_writes_into_the_tokens():
    tokens = torch.zeros(1, 1 + 6, 2)
    image(tokens, Grid(2, 3, aux=1))[0, 1, 1, 2] = 7
    assert tokens[0, 1 + 5, 1] == 7
    assert tokens.count_nonzero() == 1


def test_the_image_of_tokens_is_channels_last():
    assert image(torch.randn(2, 6, 4), Grid(2, 3)).is_contiguous(memory_format=torch.channels_last)


@given(height=side, width=side, aux=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_patch_tokens_stand_row_by_row_behind_the_auxiliary_ones(height, width, aux):
    grid = Grid(height, width, aux)
    tokens = torch.randn(2, grid.tokens, 3)
    field = lattice(tokens, grid)
    for row in range(height):
        for column in range(width):
            assert torch.equal(field[:, row, column], tokens[:, aux + row * width + column])
    assert torch.equal(sequence(image(tokens, grid)), tokens[:, aux:])
    assert grid.tokens == aux + grid.patches


@given(rows=st.integers(1, 3), columns=st.integers(1, 3), size=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_windows_hold_their_cells_row_by_row_and_unwindow_puts_them_back(rows, columns, size):
    field = torch.randn(2, rows * size, columns * size, 3)
    pieces = windows(field, size).view(2, rows, columns, size, size, 3)
    for row in range(rows):
        for column in range(columns):
            block = field[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
            assert torch.equal(pieces[:, row, column], block)
    assert torch.equal(unwindow(windows(field, size), size, rows * size, columns * size), field)


@given(height=side, width=side, multiple=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_padding_adds_the_fewest_zeros_below_and_on_the_right(height, width, multiple):
    field = torch.randn(1, height, width, 2)
    padded = pad_to_multiple(field, multiple)
    assert padded.shape[1] % multiple == padded.shape[2] % multiple == 0
    assert padded.shape[1] - height < multiple and padded.shape[2] - width < multiple
    assert torch.equal(padded[:, :height, :width], field)
    assert padded.count_nonzero() == field.count_nonzero()


def test_a_map_that_divides_is_not_copied_for_padding():
    field = torch.randn(1, 4, 6, 2)
    assert pad_to_multiple(field, 2) is field


def test_auxiliary_tokens_are_kept_or_left_at_zero():
    grid = Grid(2, 2, aux=2)
    tokens, patches = torch.randn(1, 6, 3), torch.randn(1, 4, 3)
    assert torch.equal(with_aux(tokens, patches, grid), torch.cat((tokens[:, :2], patches), 1))
    assert torch.equal(zeros_for_aux(patches, grid), torch.cat((torch.zeros(1, 2, 3), patches), 1))
    bare = Grid(2, 2)
    assert with_aux(patches, patches, bare) is patches and zeros_for_aux(patches, bare) is patches
