"""LIFE's cascade of convolutions, for inference: tokens in, queries, keys and values side by side out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..lattice import Grid


class ScaleWeights(NamedTuple):
    """Weights of a scale: depth-wise `[C, 1, k, k]` with an odd k, or None, then point-wise `[3n, C]`, bias `[3n]`."""

    depth: Tensor | None
    point: Tensor
    bias: Tensor | None


def cascade(tokens: Tensor, grid: Grid, scales: Sequence[ScaleWeights]) -> Tensor:
    """Run the scales one behind the other, and gather their parts.

    A small image takes so little arithmetic that the steps between the kernels count: the functions are called without
    modules around them, on views, and the parts of all scales are copied once.

    Args:
        tokens: `[B, aux + H*W, C]`; auxiliary tokens skip the depth-wise convolutions.
        grid: Where the tokens stand.
        scales: Weights of each scale, all of the same n.

    Returns:
        `[B, aux + H*W, 3, S * n]`: queries, keys and values, each with the parts of the S scales side by side.

    Example:
        >>> first, second = torch.randn(6, 4), torch.randn(6, 6)
        >>> scales = [ScaleWeights(None, first, None), ScaleWeights(torch.randn(6, 1, 3, 3), second, None)]
        >>> cascade(torch.randn(2, 1 + 20, 4), Grid(4, 5, aux=1), scales).shape
        torch.Size([2, 21, 3, 4])
    """
    batch, length, _ = tokens.shape
    parts = []
    for depth, point, bias in scales:
        if depth is not None:
            tokens = depthwise(tokens, grid, depth)
        tokens = F.linear(tokens, point, bias)
        parts.append(tokens.view(batch, length, 3, -1))  # q_s, k_s, v_s
    return torch.cat(parts, dim=-1)


def depthwise(tokens: Tensor, grid: Grid, depth: Tensor) -> Tensor:
    """Depth-wise convolution of the patch tokens; auxiliary tokens stay as they are."""
    batch, _, channels = tokens.shape
    nchw = tokens[:, grid.aux :].view(batch, grid.height, grid.width, channels).permute(0, 3, 1, 2)
    nchw = F.conv2d(nchw, depth, None, 1, depth.shape[-1] // 2, 1, channels)
    patches = nchw.permute(0, 2, 3, 1).flatten(1, 2)
    return torch.cat((tokens[:, : grid.aux], patches), dim=1) if grid.aux else patches
