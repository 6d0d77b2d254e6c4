"""What images and the instances in them measure, and the image size to train at."""

from dataclasses import dataclass

import numpy as np

from .instances import Instances
from .samples import BadImage, Split

SIZES = (28, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
# Photographs come larger than this, but the time for a step grows with the square of the side.
LARGEST_BY_ITSELF = 224
# Smaller images are enlarged to what the nano models are made for.
SMALLEST = 32


def choose_size(side: float) -> int:
    """The side to train at for images of a side: a round number that is not above it, from 28 to 224.

    Example:
        >>> choose_size(8), choose_size(28), choose_size(100), choose_size(500)
        (32, 28, 96, 224)
    """
    if side < SIZES[0]:
        return SMALLEST
    return max(size for size in SIZES if size <= min(side, LARGEST_BY_ITSELF))


LOOKED_AT = 100  # images whose sizes and instances stand for all

# Shorter side in pixels: so large that nine of ten instances keep the first side, and half of every class the second
# one; not larger than the images are.
SMALL_INSTANCE, SMALL_CLASS = 40, 16
SIDES = (64, 512)
SEGMENT_SIDE = 256  # semantic segmentation has no smallest instance to follow


@dataclass(frozen=True)
class Sizes:
    """What the images and instances measure.

    Attributes:
        side: Median of the shorter sides of the images, in pixels.
        frame: Shorter and longer side in pixels that nine of ten images fit into.
        small: Side that nine of ten instances exceed, as a fraction of the image's shorter side; None without any.
        large: Side that one of ten instances exceeds, as a fraction of the image's shorter side.
        classes: Smallest and largest median of a class, as fractions of the image's shorter side.
        crowded: Instances that one of ten images exceeds.
    """

    side: int
    frame: tuple[int, int]
    small: float | None
    large: float | None
    classes: tuple[float, float] | None
    crowded: int

    @property
    def range(self) -> tuple[float, float] | None:
        """Sides that anchors should span: most instances, and the middle of every class, however rare."""
        if self.small is None or self.large is None or self.classes is None:
            return None
        return min(self.small, self.classes[0]), max(self.large, self.classes[1])


def measure_sizes(split: Split, most: int = LOOKED_AT) -> Sizes:
    """Sizes of some images and of the instances in them.

    Args:
        split: Of dense annotations.
        most: Images that are looked at.

    Raises:
        ValueError: None of the images can be read.
    """
    formats, instances, labels, counts = [], [], [], [0]
    for index in np.linspace(0, len(split) - 1, min(most, len(split))).astype(int):
        try:
            shorter, longer = sorted(split.size(int(index)))
            found = split.annotation(int(index)) if split.counted == "instance" else None
        except BadImage:
            continue
        formats.append((shorter, longer))
        if isinstance(found, Instances):
            extent = found.boxes[:, 2:] - found.boxes[:, :2]
            counts.append(len(extent))
            labels += found.labels.tolist()
            instances += (np.sqrt(extent.clip(min=0).prod(axis=1)) / shorter).tolist()
    if not formats:
        raise ValueError("None of the training images can be read; run `nearsight data check` on the data.")
    side, crowded = int(np.median(formats, axis=0)[0]), int(np.quantile(counts, 0.9))
    short, long = np.quantile(formats, 0.9, axis=0).astype(int).tolist()
    if not instances:
        return Sizes(side, (short, long), None, None, None, crowded)
    small, large = np.quantile(instances, (0.1, 0.9)).tolist()
    medians = [float(np.median(np.array(instances)[np.array(labels) == label])) for label in set(labels)]
    return Sizes(side, (short, long), small, large, (min(medians), max(medians)), crowded)


def choose_side(sizes: Sizes) -> int:
    """Shorter side that images are shown with: a multiple of 32."""
    if not sizes.small or not sizes.classes:  # maps of classes, or no instance
        side: float = min(SEGMENT_SIDE, sizes.frame[0])
    else:
        wanted = max(SMALL_INSTANCE / sizes.small, SMALL_CLASS / max(sizes.classes[0], 1e-3))
        side = min(max(wanted, SIDES[0]), SIDES[1], sizes.side)
    return max(32, round(side / 32) * 32)
