"""A bundle: the folder of a model that runs without the code that trained it. Nothing here needs torch."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import __version__
from ..arguments import why_no_json
from ..atomic import is_writable_text, refuse_unwritable
from ..data.image import enough_for, show_middle
from ..data.restore import fit_sides, resize_image

FORMAT, VERSION = "nearsight-bundle", 2
LARGEST = 16384  # pixels of a side
FIRST = 1  # a version that knew classifiers alone
ABOUT, VERIFIED = "preprocess.json", "verify.json"
# The files of each kind of model; the first is what its runtime opens.
FILES = {"onnx": ("model.onnx",), "pt2": ("model.pt2",), "openvino": ("model.xml", "model.bin")}
PAGE = ("index.html", "isolate.js", "onnxruntime-web")  # beside them, of the format `web`
CLASSES = {"name": "classes"}  # what is left to do with a classifier's logits
FIT = "the whole image, its shorter side min_size unless its longer one exceeds max_size then; or stretched; bilinear"
RESIZE = "the middle, as large as it fits the size's proportions; crop is the fraction of it that is shown; bicubic"


Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Settings(BaseModel):
    """What training and calibration find out beside the weights; a later version may know more."""

    model_config = ConfigDict(strict=True)

    threshold: Fraction = 0.0
    thresholds: list[Fraction] = []
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    conformal: dict[str, Fraction] = {}
    tta: str | None = None
    error_rate: None = None  # is asked for, and never kept


def check_settings(settings: Any, classes: int) -> dict[str, Any]:
    """Settings that a file holds, of a model of so many classes.

    Raises:
        ValueError: They were edited; says which one.

    Example:
        >>> check_settings({"threshold": 0.3}, 2)
        {'threshold': 0.3}
        >>> check_settings({"thresholds": [0.3, "x"]}, 2)
        Traceback (most recent call last):
        ...
        ValueError: thresholds are not as they were written
    """
    try:
        found = Settings.model_validate(settings)
    except ValidationError as error:
        place = error.errors(include_url=False)[0]["loc"]
        raise ValueError(f"{place[0] if place else 'settings'} are not as they were written") from None
    if "thresholds" in settings and len(found.thresholds) != classes:
        raise ValueError(f"{len(found.thresholds)} thresholds are there for {classes} classes")
    return dict(settings)


class BundleError(ValueError):
    """A bundle that can't be used, and why."""


@dataclass(frozen=True)
class Bundle:
    """What a bundle's `preprocess.json` says.

    Attributes:
        kind: `onnx`, `pt2` or `openvino`.
        model: Name of the model.
        weights: Where its weights come from: `trained`, `converted` or `random`.
        labels: Names of the classes, by number.
        size: Height and width in pixels that images are shown in.
        crop: Fraction of the image's shorter side that is shown.
        mean: Of each channel (red, green, blue, or those that the model sees), on the scale 0 to 1.
        std: Of each channel, on the scale 0 to 1.
        any_batch: Whether the model takes any number of images at once; else one.
        any_size: Whether it takes images of other heights and widths.
        int8: Whether its weights and activations are whole numbers of 8 bits.
        bfloat16: Whether it computes in bfloat16; OpenVINO alone does.
        task: Name of the task.
        outputs: Names of the graph's outputs, in their order.
        postprocessing: What is left to do with them: the `name` of a function of `postprocess`, and its settings.
        fit: Of a model that is shown whole images, `min_size` and `max_size` of their sides and whether to `stretch`
            them to squares; None where the middle of an image is cut out.
        settings: What else the training found out, such as the `threshold` of a detector's scores.
    """

    kind: str
    model: str
    weights: str
    labels: tuple[str, ...]
    size: tuple[int, int]
    crop: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    any_batch: bool
    any_size: bool
    int8: bool = False
    bfloat16: bool = False
    task: str = "classify"
    outputs: tuple[str, ...] = ("logits",)
    postprocessing: Mapping[str, Any] = field(default_factory=lambda: dict(CLASSES))
    fit: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def channels(self) -> int:
        """Channels of the images that the model sees."""
        return len(self.mean)

    def enough(self) -> int:
        """Shorter side below which an image would lose detail."""
        return enough_for(self.size, self.crop) if self.fit is None else int(self.fit["min_size"])

    def show(self, image: Image.Image, original: tuple[int, int]) -> NDArray[np.uint8]:
        """An image in mode RGB, or with the model's channels, as the model is shown it, in bytes `[C, H, W]`.

        Args:
            image: Perhaps decoded smaller than its original.
            original: Height and width of the original.
        """
        if self.fit is None:
            return show_middle(image, self.size, self.crop, self.channels)
        stretch, shorter, longest = (self.fit[key] for key in ("stretch", "min_size", "max_size"))
        size = self.size if stretch else fit_sides(original, shorter, longest)
        return np.asarray(resize_image(image, size)).transpose(2, 0, 1)

    def normalise(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Bytes `[B, C, H, W]` as the model wants them; the same numbers as in PyTorch, bit by bit."""
        mean, std = (np.array(x, dtype=np.float32)[:, None, None] for x in (self.mean, self.std))
        return (images.astype(np.float32) / np.float32(255) - mean) / std


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder of a bundle, whole or damaged.

    Example:
        >>> is_bundle("/")
        False
    """
    folder = Path(path)
    if not folder.is_dir():
        return False
    # The folder of a run has its weights; a bundle that lost its description still has its model.
    return (folder / ABOUT).exists() or any((folder / names[0]).is_file() for names in FILES.values())


def describe(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """What is written to `preprocess.json`, with the checksums of the model's files in a folder."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "nearsight": __version__,
        "model": bundle.model,
        "weights": bundle.weights,
        "kind": bundle.kind,
        "int8": bundle.int8,
        **({"bfloat16": True} if bundle.bfloat16 else {}),
        "files": {name: checksum(folder / name) for name in FILES[bundle.kind]},
        "input": {"layout": "NCHW", "type": "float32", "colour": colour(bundle.channels), "size": list(bundle.size)},
        "task": bundle.task,
        "resize": {"rule": RESIZE, "crop": bundle.crop, "filter": "bicubic"}
        if bundle.fit is None
        else {"rule": FIT, **bundle.fit, "filter": "bilinear"},
        "scale": 255,
        "mean": list(bundle.mean),
        "std": list(bundle.std),
        "dynamic": {"batch": bundle.any_batch, "height": bundle.any_size, "width": bundle.any_size},
        "labels": list(bundle.labels),
        "outputs": list(bundle.outputs),
        "postprocessing": dict(bundle.postprocessing),
        "settings": dict(bundle.settings),
    }


def read_bundle(folder: str | os.PathLike[str]) -> Bundle:
    """The description of a bundle, once its model's files are found to be whole.

    Raises:
        BundleError: A file is missing or damaged, or was written by a later version.
    """
    folder = Path(folder)
    about = read_json(folder / ABOUT)
    if about.get("format") != FORMAT:
        raise BundleError(f"{folder / ABOUT} does not describe a bundle of Nearsight; export the model again.")
    if about.get("version") not in (FIRST, VERSION):
        raise BundleError(
            f"{folder} is a bundle of format {about.get('version')}, this is Nearsight {__version__}, which reads "
            f"formats {FIRST} and {VERSION}; use the Nearsight that wrote it ({about.get('nearsight')})."
        )
    try:
        bundle, sums = parse(about), dict(about["files"])
        if set(sums) != set(FILES[bundle.kind]):
            raise ValueError(f"files are {', '.join(sums)}")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise BundleError(
            f"{folder / ABOUT} is damaged: an export wrote it otherwise; export the model again."
        ) from None
    for name, expected in sums.items():
        file = folder / name
        if not file.is_file():
            raise BundleError(f"{folder} lacks {name}; copy the whole folder, or export the model again.")
        if checksum(file) != expected:
            raise BundleError(f"{file} is damaged: it is not the file that was verified; export the model again.")
    return bundle


def parse(about: Mapping[str, Any]) -> Bundle:
    """The description as a value; `KeyError`, `TypeError` or `ValueError` where something is not in order."""
    height, width = (int(side) for side in about["input"]["size"])
    dynamic, resize = about["dynamic"], about["resize"]
    later = about.get("version") != FIRST
    fit = None
    if "crop" not in resize:
        fit = {"min_size": int(resize["min_size"]), "max_size": int(resize["max_size"])}
        fit["stretch"] = bool(resize["stretch"])
    bundle = Bundle(
        kind=str(about["kind"]),
        model=str(about["model"]),
        weights=str(about["weights"]),
        labels=tuple(map(str, about["labels"])),
        size=(height, width),
        crop=float(resize["crop"]) if fit is None else 1.0,
        mean=numbers(about["mean"]),
        std=numbers(about["std"]),
        any_batch=bool(dynamic["batch"]),
        any_size=bool(dynamic["height"] and dynamic["width"]),
        int8=bool(about["int8"]),
        bfloat16=bool(about.get("bfloat16", False)),
        task=str(about["task"]) if later else "classify",
        outputs=tuple(map(str, about["outputs"])) if later else ("logits",),
        postprocessing=dict(about["postprocessing"]) if later else dict(CLASSES),
        fit=fit,
        settings=check_settings(about["settings"], len(about["labels"])) if later else {},
    )
    if not all(map(is_writable_text, (bundle.model, *bundle.labels))):
        raise ValueError("labels have half of a character")
    if bundle.kind not in FILES:
        raise ValueError(f"kind is {bundle.kind}")
    if not len(bundle.mean) == len(bundle.std) > 0 or (fit is not None and bundle.channels != 3):
        raise ValueError("mean and std are not of the same channels")
    if not (0 < min(bundle.size) <= max(bundle.size) <= LARGEST and 0 < bundle.crop <= 1 and bundle.labels):
        raise ValueError("size, crop or labels make no sense")
    shown = np.array([*bundle.mean, *bundle.std], dtype=np.float32)
    if not (np.isfinite(shown).all() and min(bundle.std) > 0):
        raise ValueError("mean or std make no sense")
    return bundle


def numbers(values: Sequence[Any]) -> tuple[float, ...]:
    """A number for each channel."""
    return tuple(float(value) for value in values)


def colour(channels: int) -> str:
    """What the channels of the input are, in words."""
    return {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of a bundle."""
    if not file.is_file():
        raise BundleError(f"{file.parent} lacks {file.name}; copy the whole folder, or export the model again.")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise BundleError(f"{file} is not whole JSON ({why_no_json(error)}); export the model again.") from None
    return value if isinstance(value, dict) else {}


def checksum(file: Path) -> str:
    """SHA-256 of a file, as text."""
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def refuse_target(folder: Path, force: bool) -> None:
    """Say before any work that a bundle can't be written to a folder.

    Raises:
        ValueError: Something is there that must not be lost.
        OSError: The folder around it can't be written to.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} is a file; give the name of a folder with --out.")
    if folder.is_dir() and any(folder.iterdir()):
        known = {ABOUT, VERIFIED, *PAGE, *(name for names in FILES.values() for name in names)}
        held = sorted(file.name for file in folder.iterdir())
        other = [name for name in held if name not in known and not name.startswith("eval-")]  # reports of the bundle
        if other or not is_bundle(folder):
            raise ValueError(f"{folder} holds other files (such as {(other or held)[0]}); give another with --out.")
        if not force:
            raise ValueError(f"{folder} holds a bundle; give another folder with --out, or replace it with --force.")
    refuse_unwritable(folder.absolute().parent)


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a value as JSON for people and programs."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    file.write_bytes(text.encode(errors="backslashreplace"))  # for names of folders that are no UTF-8
