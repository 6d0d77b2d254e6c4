"""Images in NumPy arrays, as `.npz` files keep them."""

import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..bands import MOST_CHANNELS, BandImage, channel_axis
from ..file_system import refuse_inflation
from ..image import to_rgb
from ..labels import number_labels
from ..samples import Data, Split, Subset
from ..split import choose_fraction

FEW_LEVELS = 16  # values up to this are levels of their own, as in scikit-learn's digits, and not dark bytes
LAYOUTS = f"[n, h, w], [n, h, w, channels] or [n, channels, h, w] with up to {MOST_CHANNELS} channels"
RGBA = 4
SPELLINGS = {
    split: [pattern.format(word) for word in words for pattern in ("x_{}", "{}_images", "images_{}", "{}_x")]
    for split, words in {"train": ["train"], "val": ["val", "valid", "validation"], "test": ["test"]}.items()
}


class Arrays(Split):
    """Images in one array, which worker processes share.

    Args:
        title: What the array is called.
        pixels: Bytes `[n, h, w]` or `[n, h, w, channels]`.
        labels: Class numbers `[n]`.
        alpha: Whether a fourth channel is transparency.
    """

    def __init__(self, title: str, pixels: NDArray[np.uint8], labels: NDArray[np.int64], alpha: bool = True):
        self.title = title
        self.pixels = pixels
        self.labels = labels
        self.alpha = alpha

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        pixels = self.pixels[index]
        if pixels.ndim == 3 and pixels.shape[2] not in ((3, RGBA) if self.alpha else (3,)):
            return BandImage(pixels)
        return to_rgb(Image.fromarray(pixels))

    def content(self, index: int) -> bytes:
        return self.pixels[index].tobytes()


def open_npz(path: Path, alpha: bool = True) -> Data:
    """Arrays `x_train`, `y_train` and, if there, `x_val`, `y_val`, `x_test`, `y_test`, `classes`.

    MedMNIST's names (`train_images`, `train_labels`) are known too.

    Args:
        path: The file.
        alpha: Whether the fourth of four channels is transparency; else it is a channel as the others.

    Raises:
        ValueError: Arrays are missing, or hold no images and labels.
    """
    arrays = load_arrays(path)
    named = find_splits(path, arrays)
    if not named:
        raise ValueError(
            f"{path} has the arrays {', '.join(arrays) or '(none)'}; images and labels are looked for under x_train, "
            "y_train, x_val, y_val, x_test, y_test."
        )
    images = {split: arrays[image] for split, (image, _) in named.items()}
    for split, (image, label) in named.items():
        check_shapes(path, image, images[split], label, arrays[label])
    images = {split: array for split, array in images.items() if len(array)}  # a split without images is none
    if not images:
        raise ValueError(f"{path} has no images.")
    named = {split: named[split] for split in images}
    low, high = pixel_range(path, {named[split][0]: array for split, array in images.items()})
    given = next((arrays[name].ravel() for name in ("classes", "class_names") if name in arrays), None)
    classes, labels = number_labels(
        str(path),
        {split: arrays[label].reshape(-1) for split, (_, label) in named.items()},
        None if given is None else [as_text(name) for name in given],
    )
    splits = {
        split: Arrays(named[split][0], to_bytes(channels_last(images[split]), low, high), labels[split], alpha)
        for split in images
    }
    if len(held := {array.pixels.shape[3:] for array in splits.values()}) > 1:
        counts = " and ".join(str(*shape or (1,)) for shape in sorted(held))
        raise ValueError(f"The images in {path} have {counts} channels; give all of them the same.")
    return Data(str(path) if alpha else f"{path}?alpha=off", "arrays", classes, **splits)


def pixel_range(path: Path, images: Mapping[str, NDArray]) -> tuple[float, float]:
    """The smallest and the largest value of all images.

    Raises:
        ValueError: Some are no numbers, or the arrays were scaled differently.
    """
    ends = {name: (float(array.min()), float(array.max())) for name, array in images.items()}
    if not np.isfinite(list(ends.values())).all():
        raise ValueError(f"{path} has pixels that are not finite numbers (nan or inf); replace them.")
    fractions = [name for name, (_, high) in ends.items() if high <= 1 and images[name].dtype.kind == "f"]
    large = [name for name, (_, high) in ends.items() if high > FEW_LEVELS]
    if fractions and large:
        raise ValueError(
            f"In {path}, {fractions[0]} has values up to {ends[fractions[0]][1]:.3g} and {large[0]} up to "
            f"{ends[large[0]][1]:.3g}; scale them alike."
        )
    return min(low for low, _ in ends.values()), max(high for _, high in ends.values())


def load_arrays(path: Path) -> dict[str, NDArray]:
    """All arrays of the file, none of them unpickled.

    Raises:
        ValueError: It is damaged, claims or grows to more than there is, or holds Python objects.
    """
    if not path.is_file() or not zipfile.is_zipfile(path):  # at a pipe one would wait; else NumPy unpickles
        raise ValueError(f"{path} can't be read as an .npz file: it is something else, or cut off.")
    try:
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is damaged: {error}.") from None
    refuse_inflation(str(path), entries)
    try:
        with zipfile.ZipFile(path) as packed:
            for info in entries:
                refuse_claims(path, packed, info)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory; give fewer images, or files in class folders.") from None
    except ValueError as error:
        if isinstance(error, RefusedArray):
            raise
        if "pickle" not in str(error) and "object" not in str(error).lower():
            raise ValueError(f"{path} can't be read as an .npz file: one of its arrays is damaged.") from None
        raise ValueError(
            f"{path} holds Python objects, which are not opened as they could run a program; "
            "save its arrays as numbers or fixed-length texts."
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:  # also an unknown compression
        raise ValueError(f"{path} is damaged: {error}.") from None


class RefusedArray(ValueError):
    """Arrays that are refused before they are read."""


def refuse_claims(path: Path, packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Refuse an array whose header claims more than its file holds, or more than the machine's memory."""
    if not info.filename.endswith(".npy"):
        return
    with packed.open(info) as file:
        version = np.lib.format.read_magic(file)  # type: ignore[arg-type]
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)  # type: ignore[arg-type]
        size = math.prod(shape) * kind.itemsize
        if kind.hasobject:
            return  # refused when it is read, as it could run a program
        if size > info.file_size - file.tell():
            raise RefusedArray(
                f"{path} is damaged: {info.filename} claims the shape {list(shape)}, which is {size:,} bytes, but has "
                f"{max(0, info.file_size - file.tell()):,}."
            )
    if hasattr(os, "sysconf") and size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise RefusedArray(f"{info.filename} in {path} has {size / 2**30:,.1f} GiB, more than this machine's memory.")


def find_splits(path: Path, arrays: Mapping[str, NDArray]) -> dict[str, tuple[str, str]]:
    """Names of the images and of the labels of each split, however they are spelled."""
    spelled = {name.lower(): name for name in arrays}
    found = {}
    for split, spellings in SPELLINGS.items():
        for image in spellings:
            if image not in spelled:
                continue
            label = image.replace("images", "labels")
            if label == image:  # x_train or train_x
                label = f"y{image[1:]}" if image.startswith("x_") else f"{image[:-1]}y"
            if label not in spelled:
                raise ValueError(f"{path} has images {spelled[image]}, but no labels {label} for them.")
            found[split] = (spelled[image], spelled[label])
            break
    return found


def check_shapes(path: Path, image: str, images: NDArray, label: str, labels: NDArray) -> None:
    """Refuse arrays that can't be images and one label for each."""
    if images.dtype.kind not in "uifb":
        raise ValueError(f"{image} in {path} holds {images.dtype}, not pixels; numbers are needed.")
    layout = images.shape
    if images.ndim not in (3, 4) or 0 in layout[1:] or (images.ndim == 4 and min(layout[1], layout[3]) > MOST_CHANNELS):
        raise ValueError(f"{image} in {path} has the shape {list(layout)}; images are {LAYOUTS}.")
    if labels.size != len(images) or len(labels) != len(images):
        raise ValueError(
            f"{label} in {path} has the shape {list(labels.shape)} for {len(images)} images; "
            "each image needs one class, as [n] or [n, 1]."
        )


def channels_last(images: NDArray) -> NDArray:
    """The images as `[n, h, w]` or `[n, h, w, channels]`."""
    if images.ndim == 4 and images.shape[3] not in (1, 3, RGBA):
        usual = images.shape[1] in (1, 3, RGBA)
        images = images.transpose(0, 2, 3, 1) if usual or channel_axis(images.shape[1:]) == 0 else images
    return images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images


def to_bytes(images: NDArray, low: float, high: float) -> NDArray[np.uint8]:
    """The pixels as 0..255, scaled by the range `low`..`high` of all images of the source.

    Values in 0..1 and 0..255 keep their meaning; others, such as 0..16 or 0..4095, are stretched to the whole range.
    """
    if low >= 0 and high <= 1 and images.dtype.kind == "f":
        low, high = 0.0, 1.0
    elif low >= 0 and FEW_LEVELS < high <= 255:
        low, high = 0.0, 255.0
    low = min(low, 0.0)
    if low == 0.0 and high == 255.0 and images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    scale = 255.0 / (high - low) if high > low else 0.0
    result = np.empty(images.shape, np.uint8)
    for index, image in enumerate(images):  # one at a time: the whole as float64 would take eight times the memory
        result[index] = np.rint((image.astype(np.float64) - low) * scale)
    return result


def as_text(value: object) -> str:
    """A class name that may be bytes or a number."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def open_digits() -> Data:
    """Scikit-learn's 1,797 scanned digits of 8×8 pixels; a fifth, always the same, is the test split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    whole = Arrays("digits", to_bytes(digits.images, 0, 16), digits.target.astype(np.int64))
    test = choose_fraction(whole, 0.2, "digits test")
    train = np.setdiff1d(np.arange(len(whole)), test)
    classes = tuple(map(str, digits.target_names))
    return Data("digits", "digits", classes, train=Subset(whole, train), test=Subset(whole, test))
