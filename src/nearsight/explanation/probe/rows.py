"""Rows of a module's Jacobian: what one output neuron, or a sum of them, is connected to."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .frozen import freeze_predicted
from .subject import Subject

BUDGET = 2**22  # numbers in the copies of an input that go through a module at once


def draw(subject: Subject, seed: int) -> Tensor:
    """A random input `[1, N, C]`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, subject.source.tokens, subject.channels)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(subject.dtype) * subject.spread


def jacobian_rows(subject: Subject, tokens: Tensor, cotangents: Sequence[Tensor], *, given_weights: bool) -> Tensor:
    """The derivative of chosen outputs by all inputs.

    Copies of the input go through the module side by side, and each is asked for another output, so that any module
    that treats the images of a batch alone is served, in pieces that fit into memory.

    Args:
        subject: What is probed.
        tokens: The input `[1, N, C]`.
        cotangents: Which outputs: each `[M, D]`, a weight for every output neuron.
        given_weights: Count predicted weights as constants, and activations and norms as nothing.

    Returns:
        `[len(cotangents), N, C]`.
    """
    cost = max(tokens[0].numel(), subject.target.tokens * subject.out_channels)
    at_once = max(1, min(32, BUDGET // cost))
    rows = []
    for start in range(0, len(cotangents), at_once):
        piece = torch.stack(list(cotangents[start : start + at_once]))
        copies = tokens.expand(len(piece), -1, -1).clone().requires_grad_()
        with torch.enable_grad():
            output = subject.run(copies)
            if given_weights:
                freeze_predicted(output)
            if output.grad_fn is None:
                rows.append(torch.zeros_like(copies).detach())
                continue
            (row,) = torch.autograd.grad(output, copies, piece, allow_unused=True)
        rows.append(torch.zeros_like(copies).detach() if row is None else row.detach())
    return torch.cat(rows)


Picker = Callable[[int], Tensor]


def one_channel(subject: Subject, position: int, channel: int) -> Tensor:
    """Asks for one output neuron: `[M, D]`."""
    asked = torch.zeros(subject.target.tokens, subject.out_channels, dtype=subject.dtype)
    asked[position, channel] = 1
    return asked


def mixed_channels(subject: Subject, position: int, weights: Tensor) -> Tensor:
    """Asks for a weighted sum `[D]` of one position's channels."""
    asked = torch.zeros(subject.target.tokens, subject.out_channels, dtype=subject.dtype)
    asked[position] = weights.to(subject.dtype)
    return asked


def random_weights(subject: Subject, seed: int, *, signs: bool = False) -> Tensor:
    """Random weights `[D]` for a sum over output channels: normal, or plus and minus one."""
    drawn = torch.randn(subject.out_channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(drawn < 0, -1.0, 1.0) if signs else drawn


def tolerance(subject: Subject) -> float:
    """Below which share of the largest weight a difference is rounding."""
    return 1e-8 if subject.dtype == torch.float64 else 1e-4


def spread_out(count: int, most: int) -> list[int]:
    """At most so many of `count` numbers: the first half of them neighbours, the others far from each other.

    Example:
        >>> spread_out(96, 6), spread_out(3, 6)
        ([0, 1, 2, 33, 64, 95], [0, 1, 2])
    """
    if count <= most:
        return list(range(count))
    near = most // 2
    far = most - near
    return [*range(near), *(near - 1 + math.ceil((count - near) * (step + 1) / far) for step in range(far))]
