"""Weights over a plane, resized: tables of positions, kernels."""

import torch.nn.functional as F
from torch import Tensor


def resize_plane(plane: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Interpolate the first two axes of `[H, W, ...]`."""
    if tuple(plane.shape[:2]) == size:
        return plane
    flat = plane.flatten(2).permute(2, 0, 1)[None].float()
    flat = F.interpolate(flat, size=size, mode=mode, align_corners=False)
    return flat[0].permute(1, 2, 0).reshape(*size, *plane.shape[2:]).to(plane.dtype)


def resize_kernel(kernel: Tensor, size: int) -> Tensor:
    """Resize convolution kernels `[side, side, ...]`, bicubic (dwconv paper, Table 14).

    The weights are scaled by the ratio of the areas: on an image enlarged as much as the kernel, the convolution
    gives about the same values as before, and the statistics of the batch norm behind it stay true.
    """
    side = kernel.shape[0]
    return kernel if side == size else resize_plane(kernel, (size, size), "bicubic") * (side / size) ** 2
