"""Segmentation of an image at once, or window by window."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def slide(
    classify: Callable[[Tensor], Tensor],
    images: Tensor,
    window: int | tuple[int, int],
    step: int | tuple[int, int] | None = None,
) -> Tensor:
    """Logits of images from windows that overlap; where several see a pixel, their probabilities are averaged.

    A segmenter that was trained on crops sees whole images as crops again, and a large image needs no more memory
    than a window. An image that one window covers is classified as a whole.

    Args:
        classify: A segmenter in evaluation: images `[B, 3, h, w]` to logits `[B, classes, h, w]`.
        images: `[B, 3, H, W]`.
        window: Side of a window, or height and width.
        step: Pixels from one window to the next; None for two thirds of the window. The last window of a row or column
            is moved back to end where the image ends.

    Returns:
        `[B, classes, H, W]`: logits, or logarithms of mean probabilities where there are several windows.

    Example:
        >>> slide(lambda crop: crop[:, :2], torch.randn(1, 3, 40, 60), window=32, step=16).shape
        torch.Size([1, 2, 40, 60])
    """
    height, width = images.shape[-2:]
    sides = both(window)
    steps = (max(sides[0] * 2 // 3, 1), max(sides[1] * 2 // 3, 1)) if step is None else both(step)
    if not (1 <= steps[0] <= sides[0] and 1 <= steps[1] <= sides[1]):
        raise ValueError(
            f"Windows of {sides[0]}x{sides[1]} pixels, {steps[0]} and {steps[1]} apart, leave gaps; use steps from 1 "
            "up to the window's sides."
        )
    tall, wide = min(sides[0], height), min(sides[1], width)
    if (tall, wide) == (height, width):
        return classify(images)
    total: Tensor | None = None
    seen = torch.zeros(1, 1, height, width, device=images.device)
    for top in starts(height, tall, steps[0]):
        for left in starts(width, wide, steps[1]):
            index = (..., slice(top, top + tall), slice(left, left + wide))
            logits = classify(images[index])
            if total is None:
                total = logits.new_zeros(len(images), logits.shape[1], height, width)
            total[index] += logits.softmax(dim=1)
            seen[index] += 1
    assert total is not None  # there is a window
    return (total / seen).clamp(min=torch.finfo(total.dtype).tiny).log()


def both(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width from one number or two."""
    return (size, size) if isinstance(size, int) else size


def starts(length: int, window: int, step: int) -> Iterator[int]:
    """Where windows begin along a side, the last one at its end.

    Example:
        >>> list(starts(40, 32, 16)), list(starts(64, 32, 16))
        ([0, 8], [0, 16, 32])
    """
    last = length - window
    yield from range(0, last, step)
    yield last
