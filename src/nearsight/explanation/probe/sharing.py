"""Which weights of a layer are equal: over channels, and over positions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...lattice import Grid
from .rows import jacobian_rows, mixed_channels, random_weights, tolerance
from .subject import Subject

PERIOD = 16  # positions up to which a repetition is looked for
ENOUGH = 0.25  # share of a row that two positions must have in common to be compared


def channel_groups(subject: Subject, tokens: Tensor, position: int, rows: Tensor, own: bool) -> tuple[int, int, bool]:
    """Into how many groups of equal weights the channels fall at one position.

    Where each channel is connected to itself alone, one pass asks for all channels at once.

    Args:
        subject: What is probed.
        tokens: The input `[1, N, C]`.
        position: Number of the output token.
        rows: Its Jacobian for some channels, `[channels, N, C]`.
        own: Whether these are each connected to one channel.

    Returns:
        Number of groups, number of channels compared, and whether all channels are alone as those in `rows` are.
    """
    if own and subject.out_channels == subject.channels:
        signs = [random_weights(subject, seed, signs=True).to(subject.dtype) for seed in (11, 12)]
        asked = [mixed_channels(subject, position, one) for one in signs]
        mixed = jacobian_rows(subject, tokens, asked, given_weights=True)
        kernels = [(row * one).T for row, one in zip(mixed, signs, strict=True)]  # [C, N]; equal unless channels mix
        scale = float(rows.abs().max())
        if float((kernels[0] - kernels[1]).abs().max()) <= 10 * tolerance(subject) * scale:
            return count_groups(kernels[0], scale, subject), subject.channels, True
        return *compare_rows(rows, subject), False
    return *compare_rows(rows, subject), True


def compare_rows(rows: Tensor, subject: Subject) -> tuple[int, int]:
    """The same from whole rows `[channels, N, C]`: equal are those with equal weights to as many channels."""
    scale = float(rows.abs().max())
    kernels = []
    for row in rows:
        linked = (row.abs() > tolerance(subject) * scale).any(dim=0)
        kernel = torch.zeros_like(row)
        kernel[:, : int(linked.sum())] = row[:, linked]
        kernels.append(kernel.flatten())
    return count_groups(torch.stack(kernels), scale, subject), len(kernels)


def count_groups(kernels: Tensor, scale: float, subject: Subject) -> int:
    """How many different rows there are in `[channels, numbers]`, by a few random sums of each row."""
    generator = torch.Generator().manual_seed(7)
    sums = kernels @ torch.randn(kernels.shape[1], 4, generator=generator, dtype=torch.float64).to(kernels.dtype)
    sums = sums[sums[:, 0].argsort()]
    # Far above rounding, far below what two of hundreds of different channels come near each other by chance.
    limit = 1e4 * torch.finfo(subject.dtype).eps * scale * max(1, kernels.shape[1]) ** 0.5
    return 1 + int(((sums[1:] - sums[:-1]).abs().amax(dim=1) > limit).sum())


def position_period(subject: Subject, tokens: Tensor, seed: int) -> tuple[int, int] | None:
    """After how many rows and columns the weights repeat; None if they do not."""
    weights = random_weights(subject, seed)
    periods = []
    for axis in (0, 1):
        period = period_along(axis, subject, tokens, weights)
        if period is None:
            return None
        periods.append(period)
    return periods[0], periods[1]


def period_along(axis: int, subject: Subject, tokens: Tensor, weights: Tensor) -> int | None:
    """The smallest number of places along an axis after which positions have the same weights."""
    length = (subject.target.height, subject.target.width)[axis]
    if length == 1:
        return 1  # nothing to compare with
    start = [subject.target.height // 2, subject.target.width // 2]
    steps = range(1, min(PERIOD, length // 2) + 1)
    for batch in (steps[:1], steps[1:]):
        same = repeating(start, axis, batch, subject, tokens, weights)
        for step in same:
            if all(repeating(place, axis, [step], subject, tokens, weights) for place in others(start, subject.target)):
                return step
    return None


def others(start: list[int], grid: Grid) -> list[list[int]]:
    """Positions beside the middle: what repeats must repeat there too, and not by chance where weights are simple."""
    near = [[start[0] + down, start[1] + right] for down, right in ((1, 1), (0, -1), (-1, 0))]
    return [place for place in near if 0 <= place[0] < grid.height and 0 <= place[1] < grid.width]


def repeating(
    start: list[int], axis: int, steps: Sequence[int], subject: Subject, tokens: Tensor, weights: Tensor
) -> list[int]:
    """Which of these steps along an axis lead from a position to one with the same weights."""
    target, stride = subject.target, subject.stride[axis]
    room = (target.height, target.width)[axis] - 1 - start[axis]
    moves = [0, *(step if step <= room else -step for step in steps)]
    places = [moved(start, axis, move) for move in moves]
    asked = [mixed_channels(subject, number(place, target), weights) for place in places if place[axis] >= 0]
    rows = jacobian_rows(subject, tokens, asked, given_weights=True)[:, subject.source.aux :]
    maps = rows.unflatten(1, (subject.source.height, subject.source.width))
    pairs = zip(moves[1:], maps[1:], strict=False)
    return [abs(move) for move, field in pairs if repeats(maps[0], field, axis, move * stride, tolerance(subject))]


def moved(place: list[int], axis: int, step: int) -> list[int]:
    """A place, so many steps along an axis from another."""
    return [one + step * (index == axis) for index, one in enumerate(place)]


def number(place: list[int], grid: Grid) -> int:
    """Number of the token at a place."""
    return grid.aux + place[0] * grid.width + place[1]


def repeats(base: Tensor, other: Tensor, axis: int, shift: int, limit: float) -> bool:
    """Whether the weights `other` `[H, W, C]` are those of `base`, moved along an axis, where both are on the map."""
    length = base.shape[axis]
    kept = length - abs(shift)
    if kept <= 0:
        return False
    from_base = base.narrow(axis, max(0, -shift), kept)
    from_other = other.narrow(axis, max(0, shift), kept)
    whole = float(base.square().sum())
    if whole == 0 or float(from_base.square().sum()) < ENOUGH * whole:
        return False
    scale = float(torch.maximum(base.abs().max(), other.abs().max()))
    return float((from_base - from_other).abs().max()) <= 10 * limit * scale
