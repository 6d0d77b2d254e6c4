"""Tokens in pieces come out as they do at once."""

import pytest
import torch

from nearsight.ops.chunks import PIECE, by_images, in_chunks


def squares(tokens, width):
    """The squares, and how many tokens came at a time."""
    seen = []

    def square(part):
        seen.append(part.shape[:-1].numel())
        return part**2

    return in_chunks(square, tokens, width), seen


@pytest.mark.parametrize("tokens", [torch.randn(3, 150, 5), torch.randn(150, 3, 5).transpose(0, 1)])
def test_pieces_make_the_whole(tokens):
    found, seen = squares(tokens, width=PIECE // 100)
    assert torch.equal(found, tokens**2)
    assert seen == [100, 100, 100, 100, 50]


def test_few_tokens_stay_together():
    found, seen = squares(torch.ones(3, 150, 5), width=5)
    assert seen == [450] and found.shape == (3, 150, 5)


@pytest.mark.parametrize(("numbers", "groups"), [(PIECE // 2, [2, 2, 1]), (2 * PIECE, [1] * 5), (1, [5])])
def test_images_go_in_groups_that_fit(numbers, groups):
    images, seen = torch.randn(5, 3, 2), []

    def fold_rows(part):
        seen.append(len(part))
        return part.sum(dim=1)

    assert torch.equal(by_images(fold_rows, images, numbers), images.sum(dim=1))
    assert seen == groups
