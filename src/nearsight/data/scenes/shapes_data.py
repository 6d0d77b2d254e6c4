"""The data set of detection and segmentation that is always there: drawn shapes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..samples import Data
from .detection import BACKGROUND
from .objects import Objects
from .scenes import Flaws, Scenes, rarest_labels
from .shapes import CLASSES, Scene, make_scene, plan_scene

IMAGES, SIZE, SEED = 1200, 128, 0
FIRST = {"train": 0, "val": 10**7, "test": 2 * 10**7}  # number of the first picture of each split


class Shapes(Scenes):
    """A split of pictures that are drawn when they are read, and then remembered.

    Args:
        split: Name of the split.
        images: How many pictures it has.
        size: Pixels of their longer side.
        seed: Another seed gives other pictures.
        task: `detect` or `segment`.
        background: For `segment`, whether the ground is class 0; else it does not count.
    """

    def __init__(self, split: str, images: int, size: int, seed: int, task: str, background: bool = True):
        self.split, self.side, self.seed, self.task = split, size, seed, task
        self.masks, self.flaws = task == "detect", Flaws()
        first = 1 if background else 0
        self.numbers, self.ground = (np.arange(len(CLASSES)) + first).astype(np.uint8), 0 if background else 255
        kinds = [plan_scene(seed, FIRST[split] + number, size).kinds for number in range(images)]
        starts = np.cumsum([0, *map(len, kinds)])
        self.labels = rarest_labels(starts, np.concatenate([*kinds, np.zeros(0, dtype=np.int64)]), len(CLASSES))
        self._made: dict[int, Scene] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def scene(self, index: int) -> Scene:
        """The picture with all that is known of it."""
        if index not in self._made:
            self._made[index] = make_scene(self.seed, FIRST[self.split] + index, self.side)
        return self._made[index]

    def name(self, index: int) -> str:
        return f"{self.split}/{index:05d}.png"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return Image.fromarray(self.scene(index).pixels)

    def content(self, index: int) -> bytes:
        return self.scene(index).pixels.tobytes()

    def size(self, index: int) -> tuple[int, int]:
        height, width, _ = self.scene(index).pixels.shape
        return height, width

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> Objects | NDArray[np.uint8]:
        scene = self.scene(index)
        crowd = np.zeros(len(scene.labels), dtype=bool)
        found = Objects(
            self.size(index), scene.boxes.copy(), scene.labels.copy(), crowd, scene.area.copy(), list(scene.rles)
        )
        return found if self.task == "detect" else found.paint(self.numbers, self.ground)


def open_shapes(
    task: str, images: int = IMAGES, size: int = SIZE, seed: int = SEED, background: bool = True, source: str = "shapes"
) -> Data:
    """Training pictures, an eighth as many to validate with, and a quarter to test with.

    Args:
        task: `detect` or `segment`.
        images: Training pictures.
        size: Pixels of their longer side.
        seed: Another seed gives other pictures.
        background: For `segment`, whether the ground is a class.
        source: What the user named.
    """
    if images < 4 or not 32 <= size <= 4096:
        raise ValueError(f"Shapes come in 4 images or more of 32 to 4096 pixels; asked for: {images} of {size}.")
    counts = {"train": images, "val": max(images // 8, 1), "test": images // 4}
    splits = {split: Shapes(split, count, size, seed, task, background) for split, count in counts.items()}
    with_background = task == "segment" and background
    classes = (BACKGROUND, *CLASSES) if with_background else CLASSES
    return Data(source, "shapes", classes, **splits)
