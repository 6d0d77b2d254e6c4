"""Predictions by a bundle: NumPy, Pillow and the bundle's own runtime, without torch."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.image import decode, enough_for, show_middle
from ..data.samples import BadImage
from ..runs.bundle import Bundle, read_bundle
from ..runs.runtime import Runner, open_runner
from .values import Answer, Prediction

AHEAD = 2  # batches that are read while one is answered


@dataclass(frozen=True)
class Shown:
    """Some images as a model is shown them.

    Attributes:
        names: Paths of the files, also of unreadable ones.
        pixels: Bytes `[n, 3, H, W]` of the readable ones.
        bad: Paths of the unreadable ones, and why they are.
    """

    names: tuple[str, ...]
    pixels: NDArray[np.uint8]
    bad: dict[str, str]


class ImageBatches:
    """Images of files, read by threads a few batches ahead (Pillow works on several at once).

    Args:
        paths: The files.
        bundle: Says how images are shown.
        batch: Images at a time.
        workers: Threads; 0 reads images when they are wanted.

    Attributes:
        sampler: Numbers of the images, as a `DataLoader` has them; its length is what progress counts to.
    """

    def __init__(self, paths: Sequence[str], bundle: Bundle, batch: int, workers: int):
        self.paths, self.bundle, self.batch, self.workers = paths, bundle, batch, workers
        self.sampler = range(len(paths))

    def __iter__(self) -> Iterator[Shown]:
        groups = [self.paths[first : first + self.batch] for first in range(0, len(self.paths), self.batch)]
        if not self.workers:
            yield from (collect(group, [self.show(path) for path in group]) for group in groups)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            begun: deque[tuple[Sequence[str], Iterator[NDArray[np.uint8] | BadImage]]] = deque()
            for group in groups:
                begun.append((group, pool.map(self.show, group)))
                if len(begun) > AHEAD:
                    first, results = begun.popleft()
                    yield collect(first, list(results))
            for first, results in begun:
                yield collect(first, list(results))

    def show(self, path: str) -> NDArray[np.uint8] | BadImage:
        """One image, or what is wrong with it."""
        try:
            image = decode(path, path, enough_for(self.bundle.size, self.bundle.crop))
        except BadImage as error:
            return error
        return show_middle(image, self.bundle.size, self.bundle.crop)


def collect(names: Sequence[str], results: Sequence[NDArray[np.uint8] | BadImage]) -> Shown:
    """Stack the readable images."""
    good = [result for result in results if not isinstance(result, BadImage)]
    bad = {result.name: result.reason for result in results if isinstance(result, BadImage)}
    return Shown(tuple(names), np.stack(good) if good else np.empty((0, 3, 0, 0), dtype=np.uint8), bad)


def normalise(pixels: NDArray[np.uint8], bundle: Bundle) -> NDArray[np.float32]:
    """Bytes `[B, 3, H, W]` as the model wants them; the same numbers as in PyTorch, bit by bit."""
    mean, std = (np.array(x, dtype=np.float32)[:, None, None] for x in (bundle.mean, bundle.std))
    return (pixels.astype(np.float32) / np.float32(255) - mean) / std


def predict_with_bundle(
    folder: str | os.PathLike[str],
    paths: Sequence[str],
    top: int,
    *,
    batch: int,
    workers: int | None,
    progress: Callable[[Any], Any],
) -> Iterator[Prediction]:
    """The predictions for each file, in order; `predict` says what the arguments are."""
    bundle = read_bundle(folder)
    runner = open_runner(Path(folder), bundle)
    if workers is None:
        workers = min(4, os.cpu_count() or 1) if len(paths) > 1 else 0
    batches = ImageBatches(paths, bundle, batch if bundle.any_batch else 1, workers)
    return answer_batches(runner, bundle, progress(batches), min(top, len(bundle.labels)))


def answer_batches(runner: Runner, bundle: Bundle, batches: Any, top: int) -> Iterator[Prediction]:
    """The predictions for each file, in order."""
    for shown in batches:
        rows = iter(rank(runner(normalise(shown.pixels, bundle))["logits"], top) if len(shown.pixels) else ())
        for name in shown.names:
            if name in shown.bad:
                yield Prediction(name, (), shown.bad[name])
            else:
                yield Prediction(name, tuple(Answer(bundle.labels[kind], chance) for kind, chance in next(rows)))


def rank(logits: NDArray[np.floating], top: int) -> list[list[tuple[int, float]]]:
    """For each row of logits `[n, classes]` the likeliest class numbers with their probabilities.

    Example:
        >>> rank(np.array([[-99.0, 1.0, 1.0]]), top=2)
        [[(1, 0.5), (2, 0.5)]]
    """
    raised = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    chances = raised / raised.sum(axis=1, keepdims=True)
    order = np.argsort(-chances, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(chances, order, axis=1)
    return [list(zip(*pair, strict=True)) for pair in zip(order.tolist(), best.tolist(), strict=True)]
