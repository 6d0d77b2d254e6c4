"""Translation: by how much the input may be shifted so that the output shifts alike."""

import torch
from torch import Tensor

from .subject import Subject


def smallest_shift(
    subject: Subject, tokens: Tensor, field: tuple[int, int]
) -> tuple[tuple[int, int] | None, str | None]:
    """The smallest shifts down and across, in places of the input, that shift the output alike away from borders.

    The input is rolled around. Compared are all outputs; if they differ, those that see neither a border nor the seam,
    by the size of the receptive field.

    Args:
        subject: What is probed.
        tokens: The input `[1, N, C]`.
        field: Height and width of its receptive field.

    Returns:
        The shifts, or None if there are none; and a remark where the map is too small to tell.
    """
    with torch.no_grad():
        still = subject.run(tokens)
        found, doubts = [], False
        for axis in (0, 1):
            step, doubt = smallest_along(axis, subject, tokens, still, field)
            doubts = doubts or doubt
            found.append(step)
        down, right = found
        if down is None or right is None:
            small = "the map is too small to look away from its borders for some shifts; give a larger --size"
            return None, small if doubts else None
        if shifts_alike(subject, tokens, still, field, (2 * down, right)) is False:
            return None, None
    return (down, right), None


def smallest_along(
    axis: int, subject: Subject, tokens: Tensor, still: Tensor, field: tuple[int, int]
) -> tuple[int | None, bool]:
    """The smallest shift along an axis that the output follows, and whether for some it can't be told."""
    length = (subject.source.height, subject.source.width)[axis]
    if length == 1:
        return 1, False
    stride, doubt = subject.stride[axis], False
    for step in range(stride, length // 2 + 1, stride):
        alike = shifts_alike(subject, tokens, still, field, (step, 0) if axis == 0 else (0, step))
        if alike:
            return step, False
        doubt = doubt or alike is None
    return None, doubt


def shifts_alike(
    subject: Subject, tokens: Tensor, still: Tensor, field: tuple[int, int], shift: tuple[int, int]
) -> bool | None:
    """Whether the output of the shifted input is the shifted output, away from borders; None if all is border."""
    source, target, stride = subject.source, subject.target, subject.stride
    patches = tokens[:, source.aux :].unflatten(1, (source.height, source.width)).roll(shift, dims=(1, 2))
    answer = subject.run(torch.cat((tokens[:, : source.aux], patches.flatten(1, 2)), dim=1))
    before, after = (out[:, target.aux :].unflatten(1, (target.height, target.width)) for out in (still, answer))
    moved = before.roll((shift[0] // stride[0], shift[1] // stride[1]), dims=(1, 2))
    limit = (1e-7 if subject.dtype == torch.float64 else 1e-4) * float(before.abs().max())
    wrong = (after - moved)[0].abs().amax(dim=-1)  # [H, W]
    if float(wrong.max()) <= limit:
        return True
    if field[0] >= source.height and field[1] >= source.width:
        return False
    rows = inner(target.height, stride[0], field[0], shift[0], source.height)
    columns = inner(target.width, stride[1], field[1], shift[1], source.width)
    if rows is None or columns is None:
        return None
    return float(wrong[rows, columns].max()) <= limit


def inner(length: int, stride: int, field: int, shift: int, source: int) -> slice | None:
    """The outputs along an axis that see neither border nor seam, before and after a shift; all if each sees all."""
    if field >= source:
        return slice(0, length)
    margin = -(-(field - 1) // stride)  # in a window, an output may be at either end of what it sees
    first, last = margin + shift // stride, length - margin
    return slice(first, last) if first < last else None
