"""Tokens times a gate that is read from their mean, as one step of training on a CPU.

Left to autograd, the gradient of the mean is spread over all tokens, divided, and added to that of the product: five
passes over maps that leave the cache. Here the backward pass goes over them twice, in pieces.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

PIECE = 1 << 17  # numbers of a piece: 512 KiB in float32


def gate_by_mean(tokens: Tensor, gate: Callable[[Tensor], Tensor], of: nn.Module) -> Tensor:
    """Tokens times what a gate makes of their mean over positions.

    Args:
        tokens: `[B, N, C]`.
        gate: From `[B, 1, C]` to the same, each image by itself or all together.
        of: The module whose parameters the gate uses, in training mode or not.

    Returns:
        `[B, N, C]`.

    Example:
        >>> tokens, layer = torch.randn(2, 5, 4, requires_grad=True), torch.nn.Linear(4, 4)
        >>> expected = gate_by_mean_reference(tokens, layer)
        >>> torch.allclose(gate_by_mean(tokens, layer, layer), expected)
        True
    """
    if not (of.training and trains_here(tokens)):  # explanations read the graph of a model that does not train
        return gate_by_mean_reference(tokens, gate)
    return GateByMean.apply(tokens, gate, *of.parameters())


def gate_by_mean_reference(tokens: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor:
    """The same, left to autograd."""
    return tokens * gate(tokens.mean(dim=1, keepdim=True))


def trains_here(tokens: Tensor) -> bool:
    """Whether gradients are recorded, in the type and place for which the pieces are made."""
    return (
        torch.is_grad_enabled()
        and tokens.requires_grad
        and not torch.compiler.is_compiling()
        and tokens.device.type == "cpu"
        and tokens.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")  # under which the gate's layers would compute in another type
    )


class GateByMean(Function):
    """Keeps the tokens and the graph of the gate, which is small."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, gate: Callable[[Tensor], Tensor], *parameters: Tensor) -> Tensor:
        with torch.enable_grad():
            mean = tokens.detach().mean(dim=1, keepdim=True).requires_grad_()
            values = gate(mean)
        ctx.save_for_backward(tokens, *parameters)
        ctx.mean, ctx.values = mean, values
        return tokens * values.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, *parameters = ctx.saved_tensors
        values = ctx.values.detach()
        for_values = torch.zeros_like(values)
        room = tokens.new_empty(min(rows_of(tokens), tokens.shape[1]), tokens.shape[2])
        for image, rows in pieces(tokens):
            given = tokens[image, rows]
            for_values[image] += torch.mul(given, grad[image, rows], out=room[: len(given)]).sum(dim=0)
        trained = [one for one in parameters if one.requires_grad]
        for_mean, *found = torch.autograd.grad(ctx.values, [ctx.mean, *trained], for_values, retain_graph=True)
        for_mean = for_mean / tokens.shape[1]
        out = torch.empty_like(tokens, memory_format=torch.contiguous_format)
        for image, rows in pieces(tokens):
            torch.addcmul(for_mean[image], grad[image, rows], values[image], out=out[image, rows])
        known = iter(found)
        return out, None, *(next(known) if one.requires_grad else None for one in parameters)


def rows_of(tokens: Tensor) -> int:
    """Tokens of `[B, N, C]` in a piece."""
    return max(PIECE // tokens.shape[2], 1)


def pieces(tokens: Tensor) -> Iterator[tuple[int, slice]]:
    """All tokens of all images of `[B, N, C]`."""
    step = rows_of(tokens)
    for image in range(len(tokens)):
        for start in range(0, tokens.shape[1], step):
            yield image, slice(start, start + step)
