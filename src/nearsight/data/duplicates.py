"""Copies among images: equal bytes, and near-duplicates after saving, scaling, brightening or trimming.

An image is described by a thumbnail of 16×16. Its low frequencies, each weighed by its frequency so that all count
alike, give a direction; copies point the same way. Candidates are found by hashing the directions with random planes,
so that the time grows with the number of images and not with its square, and are then compared themselves.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16  # of a thumbnail
FREQUENCIES = 8  # in each direction; a trimmed edge moves the higher ones out of phase
ALIKE = 0.92  # cosine of two directions; lower ones are look-alikes in CIFAR-10, nearly all above are copies
ALIKE_IF_SIMPLE = 0.96  # the same for images of few frequencies: a horizon, a sky, an edge
SIMPLE = 6.0  # frequencies that carry an image, below which it is simple
ALIKE_INSIDE = 0.8  # correlation without the border, so that two images in white frames are not copies
MARGIN = 3  # thumbnail pixels that count as border
COLOUR = 32.0  # mean difference of colour (of 255) that editing leaves
SURPRISE = 6.0  # standard deviations by which copies must be more alike than the images of their class are anyway
CERTAIN = 0.995  # from here on, images are copies however alike the class is
ENOUGH_TO_JUDGE = 50  # images of a class whose likeness can be estimated
TABLES = 32  # random hashes; two copies have to agree in one
CODE_BITS = 32
WINDOW = 32  # neighbours that are compared in a crowded bucket
GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)

Thumbnails = NDArray[np.uint8]
Pairs = NDArray[np.int64]


def make_thumbnail(image: Image.Image) -> Thumbnails:
    """What is remembered of an image: `[16, 16, 3]`."""
    plain = image if image.mode == "RGB" else image.convert("RGB")
    small = plain.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(small, dtype=np.uint8)


def same_bytes(digests: Sequence[bytes]) -> list[list[int]]:
    """Numbers of the images with equal digests, a list for each digest that occurs more than once.

    Example:
        >>> same_bytes([b"a", b"b", b"a"])
        [[0, 2]]
    """
    by_digest: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in enumerate(digests):
        by_digest[digest].append(index)
    return [group for group in by_digest.values() if len(group) > 1]


def near_duplicates(thumbnails: Thumbnails, labels: NDArray[np.int64]) -> Pairs:
    """Pairs of images that look like copies of each other, enough of them to link all copies of an image.

    Args:
        thumbnails: `[n, 16, 16, 3]`, of different images.
        labels: Classes `[n]`. Where the images of a class are all alike, as digits are, copies must be more so.

    Returns:
        Numbers of the two images `[pairs, 2]`, the smaller first.
    """
    if len(thumbnails) < 2:
        return np.empty((0, 2), dtype=np.int64)
    directions = describe(thumbnails)
    limits = likeness_limits(directions, labels)
    groups = Groups(len(thumbnails))
    found = []
    for left, right in candidates(directions):
        new = groups.first[left] != groups.first[right]  # copies of copies need no comparison
        left, right = left[new], right[new]
        likeness = np.einsum("nd,nd->n", directions[left], directions[right])
        alike = likeness >= np.maximum(limits[left], limits[right])
        pairs = np.sort(np.stack([left[alike], right[alike]], axis=1), axis=1)
        pairs = pairs[confirm(thumbnails, pairs)]
        if len(pairs):
            groups.join(pairs.tolist())
            found.append(pairs)
    return np.unique(np.concatenate(found), axis=0) if found else np.empty((0, 2), dtype=np.int64)


def describe(thumbnails: Thumbnails) -> NDArray[np.float32]:
    """Directions `[n, 63]` of length 1, or 0 for a blank image."""
    steps = np.arange(FREQUENCIES)[:, None]
    waves = np.cos(np.pi * steps * (np.arange(SIDE) + 0.5) / SIDE).astype(np.float32)  # cosine transform [8, 16]
    frequency = np.hypot(steps, steps.T).astype(np.float32)  # amplitudes of photos fall with it
    blocks = []
    for start in range(0, len(thumbnails), 4096):
        grey = thumbnails[start : start + 4096] @ GREY
        spectrum = (waves @ grey @ waves.T * frequency).reshape(len(grey), -1)[:, 1:]
        blocks.append(spectrum / np.maximum(np.linalg.norm(spectrum, axis=1, keepdims=True), 1e-3))
    return np.concatenate(blocks)


def likeness_limits(directions: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """The cosine `[n]` from which another image is a copy and not only one more of a class of look-alikes."""
    limits = np.full(len(labels), usual_limit(directions), dtype=np.float32)
    for label, count in enumerate(np.bincount(labels)):
        if count >= ENOUGH_TO_JUDGE:
            members = labels == label
            limits[members] = usual_limit(directions[members])
    carrying = 1 / np.maximum((directions**4).sum(axis=1), 1e-6)  # 1 for one frequency, 63 for all alike
    return np.where(carrying < SIMPLE, np.maximum(limits, ALIKE_IF_SIMPLE), limits)


def usual_limit(directions: NDArray[np.float32]) -> float:
    """The limit among images that belong together, from how alike random pairs of them are."""
    if len(directions) < ENOUGH_TO_JUDGE:
        return ALIKE
    left, right = np.random.default_rng(0).integers(len(directions), size=(2, 4000))
    left, right = left[left != right], right[left != right]
    likeness = np.einsum("nd,nd->n", directions[left], directions[right])
    spread = np.arctanh(np.clip(likeness, -0.999, 0.999))  # close to normal (Fisher's transform)
    middle, upper = np.quantile(spread, [0.5, 0.8413])  # one standard deviation above; some copies don't move these
    return float(np.clip(np.tanh(middle + SURPRISE * (upper - middle)), ALIKE, CERTAIN))


def candidates(directions: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs that agree in one of the random hashes, in pieces; one pair may come several times."""
    random = np.random.default_rng(0)
    count = len(directions)
    rest = CODE_BITS - int(np.clip(np.log2(count), 4, CODE_BITS))  # about one image in a bucket
    powers = 2 ** np.arange(CODE_BITS, dtype=np.int64)
    for _ in range(TABLES):
        planes = random.standard_normal((directions.shape[1], CODE_BITS), dtype=np.float32)
        codes = (directions @ planes > 0) @ powers
        order = np.argsort(codes, kind="stable")  # within a bucket, by the other bits: copies come close together
        buckets = codes[order] >> rest
        for step in range(1, min(WINDOW, count - 1) + 1):
            first = np.flatnonzero(buckets[step:] == buckets[:-step])
            if not len(first):
                break
            for start in range(0, len(first), 1 << 16):
                piece = first[start : start + (1 << 16)]
                yield order[piece], order[piece + step]


def confirm(thumbnails: Thumbnails, pairs: Pairs) -> NDArray[np.bool_]:
    """Which pairs `[pairs]` also agree without their borders, and in colour."""
    left, right = thumbnails[pairs[:, 0]].astype(np.float32), thumbnails[pairs[:, 1]].astype(np.float32)
    inside = slice(MARGIN, SIDE - MARGIN)
    inner = [(side @ GREY)[:, inside, inside] for side in (left, right)]
    inner = [values - values.mean(axis=(1, 2), keepdims=True) for values in inner]
    lengths = np.sqrt((inner[0] ** 2).sum(axis=(1, 2)) * (inner[1] ** 2).sum(axis=(1, 2)))
    correlation = (inner[0] * inner[1]).sum(axis=(1, 2)) / np.maximum(lengths, 1e-3)
    colours = [side - (side @ GREY)[..., None] for side in (left, right)]
    difference = np.abs(colours[0] - colours[1]).mean(axis=(1, 2, 3))
    return (correlation >= ALIKE_INSIDE) & (difference <= COLOUR)


class Groups:
    """Numbers below `count` that belong together, directly or through others.

    Attributes:
        first: For each number `[count]`, the smallest of its group.

    Example:
        >>> groups = Groups(5)
        >>> groups.join([(3, 1), (1, 4)])
        >>> groups.first.tolist(), groups.several()
        ([0, 1, 2, 1, 1], [[1, 3, 4]])
    """

    def __init__(self, count: int):
        self.first = np.arange(count)

    def join(self, links: Iterable[Sequence[int]]) -> None:
        """Put the numbers of each link into one group."""
        for link in links:
            roots = [self._root(number) for number in link]
            self.first[roots] = min(roots)
        while (self.first != self.first[self.first]).any():
            self.first = self.first[self.first]

    def several(self) -> list[list[int]]:
        """The groups of more than one number, each in order."""
        members: dict[int, list[int]] = defaultdict(list)
        counts = np.bincount(self.first)
        for number in np.flatnonzero(counts[self.first] > 1).tolist():
            members[int(self.first[number])].append(number)
        return list(members.values())

    def _root(self, number: int) -> int:
        """The number that stands for a group while links are added."""
        while self.first[number] != number:
            number = int(self.first[number])
        return number
