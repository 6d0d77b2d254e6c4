"""Homogeneous dynamic convolution: every image is convolved with kernels of its own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..lattice import holds
from .bands import same_padding
from .sliding import gather_offsets

MANY = 256  # images; a graph of unknown size counts as more


def convolve_each(nchw: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve every image depth-wise with its own kernels (homogeneous dynamic convolution).

    Args:
        nchw: `[B, C, H, W]`.
        kernels: `[B, C, kernel, kernel]`.
        bias: `[C]`, added behind.

    Returns:
        `[B, C, H, W]`; positions outside the map count as zero.

    Example:
        >>> kernels = torch.stack((torch.zeros(3, 1, 1), torch.ones(3, 1, 1)))
        >>> convolve_each(torch.ones(2, 3, 4, 4), kernels).mean(dim=(1, 2, 3))
        tensor([0., 1.])
    """
    if torch.compiler.is_exporting():
        return convolve_each_by_offsets(nchw, kernels, bias)
    if nchw.device.type == "cpu" and holds(nchw.shape[0] <= MANY):
        return convolve_each_by_image(nchw, kernels, bias)
    return convolve_each_in_groups(nchw, kernels, bias)


def convolve_each_by_image(nchw: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
    """Image by image: on a CPU a depth-wise convolution is several times as fast if channels come last in memory."""
    kernel = kernels.shape[-1]
    if kernel % 2 == 0:
        before, after = same_padding(kernel)
        nchw = F.pad(nchw, (before, after, before, after))
    padding = kernel // 2 if kernel % 2 else 0
    pairs = zip(nchw.split(1), kernels.unsqueeze(2).unbind(), strict=True)
    return torch.cat([F.conv2d(one, own, bias, padding=padding, groups=len(own)) for one, own in pairs])


def convolve_each_in_groups(nchw: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
    """All images in one convolution, the batch laid into its groups: one call for a GPU."""
    groups = nchw.shape[0] * nchw.shape[1]
    before, after = same_padding(kernels.shape[-1])
    padded = F.pad(nchw, (before, after, before, after))
    padded = padded.reshape(1, groups, *padded.shape[2:])
    mixed = F.conv2d(padded, kernels.flatten(0, 1)[:, None], groups=groups).view(nchw.shape)
    return mixed if bias is None else mixed + bias[:, None, None]


def convolve_each_by_offsets(nchw: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
    """Offset by offset, for graphs: a compiler fuses it, and the groups of a convolution can't be a symbol."""
    nhwc = nchw.permute(0, 2, 3, 1)[..., None]  # [B, H, W, C, 1]: every channel is its own group
    weights = kernels.flatten(2).transpose(1, 2)[:, None, None]  # [B, 1, 1, offsets, C]
    mixed = gather_offsets(nhwc, weights, kernels.shape[-1])[..., 0]
    return (mixed if bias is None else mixed + bias).permute(0, 3, 1, 2)
