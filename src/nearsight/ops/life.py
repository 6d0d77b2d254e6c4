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


def cascade_by_heads(tokens: Tensor, grid: Grid, scales: Sequence[ScaleWeights]) -> tuple[Tensor, Tensor, Tensor]:
    """The same where every head is as wide as a scale gives, so that each head has a scale of its own.

    Then nothing has to be gathered: the scales' products are written beside each other, and the heads are views of it.

    Returns:
        Queries, keys and values `[B, S, aux + H*W, n]`, for inference.

    Example:
        >>> scales = [ScaleWeights(None, torch.randn(6, 4), None), ScaleWeights(None, torch.randn(6, 6), None)]
        >>> tokens = torch.randn(2, 1 + 20, 4)
        >>> queries, _, _ = cascade_by_heads(tokens, Grid(4, 5, aux=1), scales)
        >>> torch.allclose(queries[:, 0], cascade(tokens, Grid(4, 5, aux=1), scales)[..., 0, :2], atol=1e-5)
        True
    """
    batch, length, _ = tokens.shape
    out = tokens.new_empty(batch, length, len(scales), len(scales[0].point))
    for scale, (depth, point, bias) in enumerate(scales):
        part = out[:, :, scale]
        if depth is not None and batch == 1:  # auxiliary tokens and patches by themselves: no copy brings them together
            if grid.aux:
                write_linear(tokens[:, : grid.aux], point, bias, part[:, : grid.aux])
            write_linear(convolved(tokens, grid, depth), point, bias, part[:, grid.aux :])
        else:
            write_linear(tokens if depth is None else depthwise(tokens, grid, depth), point, bias, part)
        tokens = part
    queries, keys, values = out.unflatten(-1, (3, -1)).permute(3, 0, 2, 1, 4).unbind()
    return queries, keys, values


def write_linear(tokens: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """A linear layer of `[B, N, C]`, written to `out`, whose rows may stand apart."""
    rows, into = tokens.flatten(0, 1), out.flatten(0, 1)
    if bias is None:
        torch.mm(rows, weight.T, out=into)
    else:
        torch.addmm(bias, rows, weight.T, out=into)


def depthwise(tokens: Tensor, grid: Grid, depth: Tensor) -> Tensor:
    """Depth-wise convolution of the patch tokens; auxiliary tokens stay as they are."""
    patches = convolved(tokens, grid, depth)
    return torch.cat((tokens[:, : grid.aux], patches), dim=1) if grid.aux else patches


def convolved(tokens: Tensor, grid: Grid, depth: Tensor) -> Tensor:
    """Depth-wise convolution of the patch tokens, without the auxiliary ones."""
    batch, _, channels = tokens.shape
    nchw = tokens[:, grid.aux :].view(batch, grid.height, grid.width, channels).permute(0, 3, 1, 2)
    nchw = F.conv2d(nchw, depth, None, 1, depth.shape[-1] // 2, 1, channels)
    return nchw.permute(0, 2, 3, 1).flatten(1, 2)
