"""Inhomogeneous dynamic convolution: a depth-wise kernel at each position, predicted there from a few numbers."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .bands import (
    Band,
    at_offsets,
    bands,
    offset_sums,
    pad_for_window,
    padded_planes,
    planes,
    weigh,
    weigh_backward,
    without_padding,
)
from .execution import report_macs, wide, without_autocast
from .sliding import gather_offsets


def convolve_predicted(nhwc: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, kernel: int) -> Tensor:
    """Convolve with a kernel per position that a linear layer predicts there (inhomogeneous dynamic convolution).

    Equals `gather_offsets` with the weights `linear(hidden, weight, bias)`, but these exist for a band of the map at a
    time only, in the backward pass too, which predicts them again.

    Args:
        nhwc: `[B, H, W, G, K]`, K channels in each of G groups.
        hidden: `[B, H, W, R]`, from which each position's kernel is predicted.
        weight: `[G * kernel*kernel, R]`, the offsets of a group beside each other.
        bias: `[G * kernel*kernel]`.
        kernel: Side of the window.

    Returns:
        `[B, H, W, G, K]`; positions outside the map count as zero.

    Example:
        >>> nhwc, hidden = torch.randn(1, 5, 5, 2, 3), torch.zeros(1, 5, 5, 4)
        >>> centre = torch.eye(9)[4].repeat(2)  # the hidden values are zero, so the bias is every kernel
        >>> torch.equal(convolve_predicted(nhwc, hidden, torch.randn(18, 4), centre, kernel=3), nhwc)
        True
    """
    weight, bias = weight.to(hidden.dtype), bias.to(hidden.dtype)  # they differ under autocast
    compiling = torch.compiler.is_compiling()
    if torch.compiler.is_exporting() or (compiling and nhwc.device.type != "cpu"):
        weights = F.linear(hidden, weight, bias).unflatten(-1, (nhwc.shape[3], -1)).transpose(3, 4)
        return gather_offsets(nhwc, weights, kernel)
    # Offset by offset, so that the matrix product writes an offset's weights beside each other; the bias is one more
    # column.
    table = torch.cat((weight, bias[:, None]), dim=1).unflatten(0, (nhwc.shape[3], -1)).transpose(0, 1).contiguous()
    report_macs(nhwc.numel() * kernel * kernel - hidden[..., 0].numel() * bias.numel())  # biases don't count
    if compiling:
        return predicted_op(nhwc, hidden, table, kernel)
    with without_autocast(nhwc.device):
        return ConvolvePredicted.apply(nhwc, hidden, table, kernel)


class ConvolvePredicted(Function):
    """Band by band: predict the weights, use them, forget them. The table is `[offsets, G, R + 1]`."""

    @staticmethod
    def forward(ctx: Any, nhwc: Tensor, hidden: Tensor, table: Tensor, kernel: int) -> Tensor:
        ctx.save_for_backward(nhwc, hidden, table)
        ctx.kernel = kernel
        padded = padded_planes(nhwc, kernel, wide(type_of(nhwc, hidden)))
        out = nhwc.new_empty(nhwc.shape, dtype=type_of(nhwc, hidden))
        for band in bands_of(nhwc, table):
            weights = predict(with_one(hidden[band]), table).to(padded.dtype)
            out[band] = weigh(at_offsets(padded, band, kernel), weights).permute(0, 2, 3, 4, 1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        nhwc, hidden, table = ctx.saved_tensors
        return *predicted_backward(grad, nhwc, hidden, table, ctx.kernel), None


def predicted_backward(
    grad: Tensor, nhwc: Tensor, hidden: Tensor, table: Tensor, kernel: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for the map, the hidden values and the table, in the bands of the forward pass."""
    padded = padded_planes(nhwc, kernel, wide(type_of(nhwc, hidden)))
    grad_padded = torch.zeros_like(padded)
    grad_hidden = hidden.new_empty(hidden.shape)
    grad_table = torch.zeros_like(table, dtype=padded.dtype)
    for band in bands_of(nhwc, table):
        near = with_one(hidden[band])
        slope = planes(grad[band], padded.dtype)
        weigh_backward(slope, predict(near, table).to(padded.dtype), at_offsets(grad_padded, band, kernel))
        slopes = offset_sums(slope, at_offsets(padded, band, kernel)).flatten(1, 3).to(near.dtype)  # [offsets, n, G]
        grad_table += torch.bmm(near.flatten(0, 2).mT.expand(len(slopes), -1, -1), slopes).mT
        products = slopes.new_zeros(slopes.shape[1], table.shape[2] - 1).addbmm_(slopes, table[..., :-1])  # [n, R]
        grad_hidden[band] = products.view(grad_hidden[band].shape)
    return without_padding(grad_padded, kernel).to(nhwc.dtype).contiguous(), grad_hidden, grad_table.to(table.dtype)


def type_of(nhwc: Tensor, hidden: Tensor) -> torch.dtype:
    """Type of the result."""
    return torch.promote_types(nhwc.dtype, hidden.dtype)


def bands_of(nhwc: Tensor, table: Tensor) -> Iterator[Band]:
    """The bands of a map `[B, H, W, G, K]` whose offsets are predicted with the table `[offsets, G, R + 1]`."""
    batch, height, width = nhwc.shape[:3]
    return bands(batch, height, width * table[..., 0].numel(), nhwc.device)


def with_one(hidden: Tensor) -> Tensor:
    """`[..., R]` to `[..., R + 1]`: a one at the end, that the bias in the table is multiplied by."""
    return F.pad(hidden, (0, 1), value=1)


def predict(near: Tensor, table: Tensor) -> Tensor:
    """The weights `[offsets, b, rows, W, G]` of a band, from `[b, rows, W, R + 1]`."""
    flat = near.flatten(0, 2).expand(len(table), -1, -1)
    return torch.bmm(flat, table.mT).unflatten(1, near.shape[:3])


@torch.library.custom_op("nearsight::convolve_predicted", mutates_args=())
def predicted_op(nhwc: Tensor, hidden: Tensor, table: Tensor, kernel: int) -> Tensor:
    """The same inside a compiled model on a CPU.

    A compiler that saw the offsets would write the weights of the whole map. Here it sees one operator, which goes
    through bands as well, and in each lets compiled code add up the offsets in one pass.
    """
    padded = pad_for_window(nhwc.transpose(3, 4).to(wide(type_of(nhwc, hidden))).contiguous(), kernel)
    out = nhwc.new_empty(nhwc.shape, dtype=type_of(nhwc, hidden))
    rows = table.flatten(0, 1).mT
    for band in bands_of(nhwc, table):
        near = with_one(hidden[band])
        weights = (near.flatten(0, 2) @ rows).to(padded.dtype).view(*near.shape[:3], *table.shape[:2])
        around = padded[band.images, band.rows.start : band.rows.stop + kernel - 1]
        torch._dynamo.mark_static(weights, 3)  # one compilation for all sizes of map, not of kernel
        out[band] = compiled_weigh(around, weights).transpose(3, 4)
    return out


@predicted_op.register_fake
def _(nhwc: Tensor, hidden: Tensor, table: Tensor, kernel: int) -> Tensor:
    return nhwc.new_empty(nhwc.shape, dtype=type_of(nhwc, hidden))


@torch.library.custom_op("nearsight::convolve_predicted_backward", mutates_args=())
def backward_op(
    grad: Tensor, nhwc: Tensor, hidden: Tensor, table: Tensor, kernel: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward, which is not compiled further."""
    return predicted_backward(grad, nhwc, hidden, table, kernel)


@backward_op.register_fake
def _(grad: Tensor, nhwc: Tensor, hidden: Tensor, table: Tensor, kernel: int) -> tuple[Tensor, Tensor, Tensor]:
    return nhwc.new_empty(nhwc.shape), hidden.new_empty(hidden.shape), table.new_empty(table.shape)


def keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    """What the backward needs."""
    *tensors, ctx.kernel = inputs
    ctx.save_for_backward(*tensors)


def op_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """From the gradient of the result to those of the inputs."""
    return *backward_op(grad, *ctx.saved_tensors, ctx.kernel), None


predicted_op.register_autograd(op_backward, setup_context=keep)


@torch.compile(fullgraph=True, dynamic=True)
def compiled_weigh(around: Tensor, weights: Tensor) -> Tensor:
    """`[b, rows + kernel - 1, W + kernel - 1, K, G]` weighed with `[b, rows, W, offsets, G]`: `[b, rows, W, K, G]`."""
    height, width, count = weights.shape[1:4]
    total = around[:, :height, :width] * weights[:, :, :, None, 0]
    for offset in range(1, count):
        row, column = divmod(offset, math.isqrt(count))
        total = total + around[:, row : row + height, column : column + width] * weights[:, :, :, None, offset]
    return total
