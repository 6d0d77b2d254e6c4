"""Read every image once and keep what a check needs of it: size, mode, a digest and a thumbnail, about 1 kB each."""

import hashlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..console import tracked
from .bands import BandImage, channels_of
from .duplicates import SIDE, make_thumbnail
from .image import ORIENTATION, TURNED, readable_formats
from .samples import BadImage, Split, available_cores, check_workers

CHUNK = 16  # images that a process reads at a time
FEW = 400  # images that are read sooner than processes are started
SHORTER_SIDE = 64  # pixels of a JPEG that are enough for a thumbnail
BLANK = 2  # largest difference of values in an image with nothing on it
DIED = "the process that read it died (out of memory, or a fault in the image decoder)"

ImageKey = tuple[str, int]  # split, and number of the image in it


@dataclass(frozen=True)
class ImageFacts:
    """What one look at a readable image tells.

    Attributes:
        digest: Hash of its bytes.
        height: Pixels, upright.
        width: Pixels, upright.
        mode: Pillow's name of how the file stores colours; empty for images that are no files.
        rotated: Whether the EXIF data turn it.
        blank: Whether it shows one colour only.
        thumbnail: `[16, 16, 3]`.
        note: What the split says of the annotation.
    """

    digest: bytes
    height: int
    width: int
    mode: str
    rotated: bool
    blank: bool
    thumbnail: NDArray[np.uint8]
    note: object = None


@dataclass
class Survey:
    """All readable images of some splits, in order, and why the others can't be read.

    Attributes:
        entries: Split and number of each readable image.
        labels: Class numbers `[n]`.
        digests: Hashes of the images' bytes.
        sizes: Height and width `[n, 2]`.
        modes: Pillow's names of modes; empty where unknown.
        rotated: Whether EXIF data turn an image `[n]`.
        blank: Whether an image shows one colour only `[n]`.
        thumbnails: `[n, 16, 16, 3]`.
        notes: What the splits say of the annotations.
        unreadable: Reasons, by split and number.
    """

    entries: list[ImageKey]
    labels: NDArray[np.int64]
    digests: list[bytes]
    sizes: NDArray[np.int64]
    modes: list[str]
    rotated: NDArray[np.bool_]
    blank: NDArray[np.bool_]
    thumbnails: NDArray[np.uint8]
    notes: list[object]
    unreadable: dict[ImageKey, str] = field(default_factory=dict)


def survey_images(splits: Mapping[str, Split], workers: int | None = None) -> Survey:
    """Look at all images, with a progress bar on stderr.

    Args:
        splits: Splits by name.
        workers: Processes that read; 0 reads in this one. As many as there are cores if None, for more than a few
            images.

    Raises:
        ValueError: The number of workers is negative or far too large.
        OSError: No worker process can be started.
    """
    if workers is not None:
        check_workers(workers)
    entries = [(name, index) for name, split in splits.items() for index in range(len(split))]
    if workers is None:
        workers = available_cores() if len(entries) > FEW else 0
    chunks = [entries[start : start + CHUNK] for start in range(0, len(entries), CHUNK)]
    looks = look_in_processes(splits, chunks, workers) if workers else (look_at_chunk(splits, c) for c in chunks)
    seen: list[ImageKey] = []
    kept: list[ImageFacts] = []
    unreadable: dict[ImageKey, str] = {}
    with closing(looks):  # an interruption ends the processes
        for chunk, results in zip(tracked(chunks, f"Reading {len(entries):,} images"), looks, strict=True):
            for entry, look in zip(chunk, results, strict=True):
                if isinstance(look, str):
                    unreadable[entry] = look
                else:
                    seen.append(entry)
                    kept.append(look)
    return Survey(
        entries=seen,
        labels=np.array([splits[name].labels[index] for name, index in seen], dtype=np.int64),
        digests=[look.digest for look in kept],
        sizes=np.array([(look.height, look.width) for look in kept], dtype=np.int64).reshape(-1, 2),
        modes=[look.mode for look in kept],
        rotated=np.array([look.rotated for look in kept], dtype=bool),
        blank=np.array([look.blank for look in kept], dtype=bool),
        thumbnails=np.array([look.thumbnail for look in kept], dtype=np.uint8).reshape(-1, SIDE, SIDE, 3),
        notes=[look.note for look in kept],
        unreadable=unreadable,
    )


def look_at_chunk(splits: Mapping[str, Split], chunk: Sequence[ImageKey]) -> list[ImageFacts | str]:
    """What is seen of each image, or why it can't be read."""
    return [look_at(splits[name], index) for name, index in chunk]


def look_at(split: Split, index: int) -> ImageFacts | str:
    """What is seen of an image, or why it can't be read."""
    try:
        content = split.content(index)
        image = split.read(index, SHORTER_SIDE)
    except BadImage as error:
        return error.reason
    except Exception as error:  # a check reports what would stop a training run, whatever it is
        return f"{type(error).__name__}: {error}"
    mode, size, rotated = read_header(content, image)
    if isinstance(image, BandImage):
        mode = f"{channels_of(image)} channels"
    extrema = image.getextrema()
    return ImageFacts(
        digest=hashlib.blake2b(content, digest_size=16).digest(),
        height=size[1],
        width=size[0],
        mode=mode,
        rotated=rotated,
        blank=all(high - low <= BLANK for low, high in extrema),  # type: ignore[misc]
        thumbnail=make_thumbnail(image),
        note=split.inspect(index),
    )


def read_header(content: bytes, image: Image.Image) -> tuple[str, tuple[int, int], bool]:
    """Mode, upright (width, height) and whether EXIF data turn the image; no mode if the bytes are bare pixels."""
    bare = "", image.size, False
    try:
        with Image.open(io.BytesIO(content), formats=readable_formats()) as header:
            mode, size, jpeg = header.mode, header.size, header.format in ("JPEG", "MPO")
            orientation = header.getexif().get(ORIENTATION, 1)
    except Exception:  # pixels of an array, or damaged metadata beside sound pixels
        return bare
    upright = (size[1], size[0]) if orientation in TURNED else size
    if not jpeg and upright != image.size:
        return bare  # pixels that happen to begin like a file
    return mode, upright, orientation in range(2, 9)


def look_in_processes(
    splits: Mapping[str, Split], chunks: Sequence[list[ImageKey]], workers: int
) -> Generator[list[ImageFacts | str], None, None]:
    """What worker processes see of the chunks, in order. An image that kills its process counts as unreadable."""
    waiting = deque(chunks)
    while waiting:
        pool = start_pool(splits, workers)
        under_way: deque[Future[list[ImageFacts | str]]] = deque()  # of the first of the waiting chunks
        broken = False
        try:
            while waiting and not broken:
                try:
                    while len(under_way) < min(4 * workers, len(waiting)):
                        under_way.append(submit(pool, waiting[len(under_way)]))
                    result = under_way[0].result()
                except BrokenProcessPool:
                    broken = True
                    continue
                under_way.popleft()
                waiting.popleft()
                yield result
        finally:
            pool.shutdown(cancel_futures=True)
        if broken:
            suspects = [waiting.popleft() for _ in range(max(1, len(under_way)))]
            results = iter(look_one_by_one(splits, [entry for chunk in suspects for entry in chunk]))
            yield from (list(islice(results, len(chunk))) for chunk in suspects)


def look_one_by_one(splits: Mapping[str, Split], entries: Sequence[ImageKey]) -> list[ImageFacts | str]:
    """What is seen of images some of which may kill their process."""
    results: list[ImageFacts | str] = []
    while len(results) < len(entries):
        pool = start_pool(splits, 1)
        try:
            try:
                submit(pool, []).result()
            except BrokenProcessPool:
                raise OSError("Worker processes end before they have read anything; read with 0 workers.") from None
            for entry in entries[len(results) :]:
                results += submit(pool, [entry]).result()
        except BrokenProcessPool:
            results.append(DIED)
        finally:
            pool.shutdown(cancel_futures=True)
    return results


def start_pool(splits: Mapping[str, Split], workers: int) -> ProcessPoolExecutor:
    """Processes that share nothing with this one, which may have threads."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=remember, initargs=(dict(splits),))


def submit(pool: ProcessPoolExecutor, chunk: Sequence[ImageKey]) -> Future[list[ImageFacts | str]]:
    """Have images looked at. A process that is started for it inherits that interruptions are held back."""
    with without_main():
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            return pool.submit(look_again, chunk)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(look_again, chunk)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main() -> Iterator[None]:
    """Let processes that are started meanwhile not import the user's script, which would do all its work again.

    What they run is imported from here, and what they read comes from the sources of this package.
    """
    main = sys.modules["__main__"].__dict__
    kept: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(kept)


_splits: dict[str, Split] = {}  # in a worker: what it reads from


def remember(splits: dict[str, Split]) -> None:
    """Prepare a worker process: what it reads from; interruptions are the main process's, with which it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _splits.update(splits)


def end_with_parent() -> None:
    """Wait until the main process is gone, however it ended, and leave too."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this runs in a worker
    parent.join()
    os._exit(1)


def look_again(chunk: Sequence[ImageKey]) -> list[ImageFacts | str]:
    """`look_at_chunk` in a worker process."""
    return look_at_chunk(_splits, chunk)
