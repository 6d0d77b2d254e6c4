"""Real images to compare and to calibrate a model with."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data.file_system import find_images
from ..data.image import Files
from ..data.open import open_any
from ..data.samples import Data, Split, Subset
from ..runs.predictor import Predictor
from ..runs.run import open_own
from ..tasks import get_task

SEED = 0
ORDER = ("val", "test", "train")  # which images predictions are compared on


@dataclass(frozen=True)
class CalibrationSet:
    """Images to try a model with.

    Attributes:
        what: What they are, in words.
        measure: Images that predictions are compared on.
        calibrate: Other images, for the ranges of activations; None where there are too few.
        labelled: Whether the labels of `measure` are the model's classes.
    """

    what: str
    measure: Split
    calibrate: Split | None
    labelled: bool


class Crops(Split):
    """The two photographs that come with scikit-learn, cut into 4×4 pieces each."""

    grid = 4

    def __init__(self) -> None:
        from sklearn.datasets import load_sample_image

        self.photos = {name: load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
        self.labels = np.zeros(2 * self.grid**2, dtype=np.int64)

    def name(self, index: int) -> str:
        photo, piece = divmod(index, self.grid**2)
        return f"{list(self.photos)[photo]}, piece {piece}"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        photo, piece = divmod(index, self.grid**2)
        pixels: NDArray[np.uint8] = list(self.photos.values())[photo]
        height, width = pixels.shape[0] // self.grid, pixels.shape[1] // self.grid
        top, left = (piece // self.grid) * height, (piece % self.grid) * width
        return Image.fromarray(pixels[top : top + height, left : left + width])

    def content(self, index: int) -> bytes:
        return self.read(index).tobytes()


def find_calibration(predictor: Predictor, given: str | os.PathLike[str] | None = None) -> CalibrationSet:
    """The images to try a model with: those given, else the run's own, else two photographs.

    Args:
        predictor: The model.
        given: Data as `nearsight train` takes them, or a folder of images without labels.

    Raises:
        ValueError: What was given holds no images, or the run's data are no longer there.

    Example:
        >>> from nearsight.runs.predictor import load
        >>> found = find_calibration(load("deit_nano"))
        >>> found.what, len(found.measure)
        ('two photographs of scikit-learn (china, flower) in 32 pieces', 32)
    """
    if given is not None:
        return of_source(predictor, os.fspath(given))
    if predictor.path is None or not predictor.path.with_name("data.json").is_file():
        crops = Crops()
        return CalibrationSet(
            f"two photographs of scikit-learn (china, flower) in {len(crops)} pieces", crops, None, labelled=False
        )
    data, _ = open_own(predictor, None)
    return of_data(predictor, data)


def of_source(predictor: Predictor, source: str) -> CalibrationSet:
    """Images of labelled data, or all below a folder."""
    try:
        data = open_any(source, predictor.task if predictor.preprocessing.dense else None)
    except ValueError:
        if not Path(source).is_dir():
            raise
        paths = find_images([source])
        files = Files("", paths, np.zeros(len(paths), dtype=np.int64))
        return halved(f"the images in {source}", files, labelled=False)
    return of_data(predictor, data)


def of_data(predictor: Predictor, data: Data) -> CalibrationSet:
    """Images of labelled data; where the model does not know the classes, their labels are not used."""
    splits = {name: split for name, split in data.splits().items() if len(split)}
    name = next((name for name in ORDER if name in splits), None)
    if name is None:
        raise ValueError(f"{data.source} has no images; give others with --images.")
    measure = splits[name]
    labelled = predictor.weights == "trained"  # others have numbers for labels, which any may have
    try:
        measure = get_task(predictor.task).match_split(measure, data, predictor.classes) if labelled else measure
    except ValueError:
        labelled = False
    words = {"val": "the validation images of", "test": "the test images of", "train": "images of"}
    what = f"{words[name]} {data.source}"
    if name != "train" and "train" in splits:
        return CalibrationSet(what, measure, splits["train"], labelled)
    return halved(what, measure, labelled)


def halved(what: str, split: Split, labelled: bool) -> CalibrationSet:
    """One half to calibrate with, the other to compare on; a single image is only compared on."""
    order = np.random.default_rng(SEED).permutation(len(split))
    half = len(split) // 2
    if not half:
        return CalibrationSet(what, split, None, labelled)
    return CalibrationSet(what, Subset(split, np.sort(order[half:])), Subset(split, np.sort(order[:half])), labelled)


def sample(split: Split, most: int) -> Split:
    """Up to so many images, drawn always in the same way."""
    if len(split) <= most:
        return split
    return Subset(split, np.sort(np.random.default_rng(SEED).permutation(len(split))[:most]))
