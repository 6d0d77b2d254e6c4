"""Work on tokens in pieces that stay in the processor's cache."""

from collections.abc import Callable

import torch
from torch import Tensor

PIECE = 1 << 20  # numbers of the widest intermediate in a piece: 4 MiB in float32


def in_chunks(function: Callable[[Tensor], Tensor], tokens: Tensor, width: int) -> Tensor:
    """Apply a function of single tokens to `[B, N, C]` piece by piece.

    The hidden layer of an MLP is several times as wide as its tokens. Written out for a large map it leaves the cache
    and, from some size, is given back to the system and fetched again in every call; in pieces it does neither. What
    makes fewer than four pieces, a GPU, and a graph that is being recorded get the whole at once.

    Args:
        function: From `[..., C]` to `[..., C]`, each token by itself.
        tokens: `[B, N, C]`.
        width: Numbers that the widest intermediate holds for each token.

    Returns:
        `[B, N, C]`.
    """
    if torch.compiler.is_compiling() or tokens.device.type != "cpu":
        return function(tokens)
    rows = max(PIECE // width, 64)
    if tokens.shape[0] * tokens.shape[1] < 4 * rows:
        return function(tokens)
    flat = tokens.flatten(0, 1)
    out = torch.empty_like(flat)
    for start in range(0, len(flat), rows):
        out[start : start + rows] = function(flat[start : start + rows])
    return out.view_as(tokens)


def by_images(function: Callable[[Tensor], Tensor], tokens: Tensor, numbers: int, least: int = 0) -> Tensor:
    """Apply a function of single images to a batch, as many images at once as stay in the cache.

    A GPU and a graph that is being recorded get the whole batch at once.

    Args:
        function: From `[b, ...]` to `[b, ...]`, each image by itself.
        tokens: `[B, ...]`.
        numbers: How many the widest intermediate holds for an image.
        least: Images of fewer numbers stay together.

    Returns:
        `[B, ...]`, as the function returns it for the whole.

    Example:
        >>> images = torch.randn(5, 3, 2)
        >>> torch.equal(by_images(lambda part: 2 * part, images, numbers=PIECE // 2), 2 * images)
        True
    """
    if torch.compiler.is_compiling() or tokens.device.type != "cpu":
        return function(tokens)
    images = max(1, PIECE // numbers)
    if numbers < least or images >= len(tokens):
        return function(tokens)
    first = function(tokens[:images])
    out = first.new_empty(len(tokens), *first.shape[1:])
    out[:images] = first
    for start in range(images, len(tokens), images):
        out[start : start + images] = function(tokens[start : start + images])
    return out
