"""How predictions hold when images get worse or move: corruptions at five strengths, and shifts by a few pixels.

The corruptions are those of ImageNet-C (Hendrycks and Dietterich, ICLR 2019), written to its definitions, without
frost, which needs photographs of frost; the elastic transform is that of Michaelis et al. 2019, since the first two
strengths of the original are its worst. Their lengths were set for images of 224 pixels; here they grow and shrink with
the image, so that one strength means the same for all sizes. Images are corrupted in the size in which the model is
shown them.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.signal import fftconvolve

from .console import percent, titled
from .data.samples import Split, Subset, scramble
from .interval import Interval, student
from .plots.style import COLOURS, INK, SEQUENTIAL, SMALL, figure, tidy, to_png, write
from .runs.predictor import Predictor
from .tasks import get_evaluator
from .tasks.evaluator import Metric

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType

Pixels = NDArray[np.float32]  # [H, W, 3] on the scale 0 to 1
Corruption = Callable[[Pixels, int, float, np.random.Generator], NDArray[Any]]

STRENGTHS = 5
SHIFTS = range(1, 9)  # pixels
REFERENCE = 224  # pixels of the shorter side, for which the lengths below are meant
DIRECTIONS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # down, right


def gaussian_noise(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Noise of a sensor in low light."""
    return pixels + random.normal(0, (0.08, 0.12, 0.18, 0.26, 0.38)[strength], pixels.shape)


def shot_noise(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Noise of few photons."""
    photons = (60, 25, 12, 5, 3)[strength]
    return random.poisson(pixels * photons) / photons


def impulse_noise(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Single values that are black or white."""
    amount, drawn = (0.03, 0.06, 0.09, 0.17, 0.27)[strength], random.random(pixels.shape)
    return np.where(drawn < amount / 2, 0, np.where(drawn < amount, 1, pixels))


def defocus_blur(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Out of focus: a disk."""
    radius = scale * (3, 4, 6, 8, 10)[strength]
    reach = math.ceil(radius) + 1
    fine = (np.arange(-reach - 0.5 + 1 / 16, reach + 0.5, 1 / 8)) ** 2  # eight points a pixel each way
    disk = (fine[:, None] + fine <= max(radius, 0.5) ** 2).astype(np.float32)
    kernel = disk.reshape(2 * reach + 1, 8, 2 * reach + 1, 8).mean(axis=(1, 3))
    return filtered(pixels, kernel)


def glass_blur(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Through frosted glass: pixels change with those nearby."""
    sigma, reach, times = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[strength]
    sigmas, most = (scale * sigma, scale * sigma, 0), max(1, round(scale * reach))
    result = ndimage.gaussian_filter(pixels, sigmas)
    rows, columns = np.indices(pixels.shape[:2])
    for _ in range(times):  # each pixel takes the colour of one nearby, where the original swaps the two
        moved = [
            np.clip(where + random.integers(-most, most, where.shape), 0, size - 1)
            for where, size in zip((rows, columns), pixels.shape, strict=False)
        ]
        result = result[moved[0], moved[1]]
    return ndimage.gaussian_filter(result, sigmas)


def motion_blur(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """The camera moves along a line."""
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[strength]
    return filtered(pixels, streak(scale * radius, scale * sigma, random.uniform(-45, 45)))


def zoom_blur(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """The camera moves towards the scene."""
    most, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.33, 0.03))[strength]
    zoomed = [magnify(pixels, factor) for factor in np.arange(1, most, step)]
    return (pixels + np.sum(zoomed, axis=0)) / (len(zoomed) + 1)


def snow(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Flakes that fall, and a whiter scene."""
    mean, deviation, zoom, least, radius, sigma, kept = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[strength]
    flakes = magnify(random.normal(mean, deviation, (*pixels.shape[:2], 1)).astype(np.float32), zoom)
    flakes = np.where(flakes < least, 0, flakes).clip(0, 1)
    flakes = filtered(flakes, streak(scale * radius, scale * sigma, random.uniform(-135, -45)))
    grey = pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    faded = kept * pixels + (1 - kept) * np.maximum(pixels, (grey * 1.5 + 0.5)[..., None])
    return faded + flakes + flakes[::-1, ::-1]


def fog(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Clouds of fractal noise."""
    amount, decay = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))[strength]
    side = 1 << math.ceil(math.log2(max(2, *pixels.shape[:2])))
    clouds, cells, height = np.zeros((side, side), dtype=np.float32), 2, 1.0
    while cells <= side:  # midpoints halve their distance, and what is added to them falls by the decay
        grid = random.uniform(-height, height, (cells + 1, cells + 1))
        clouds += ndimage.zoom(grid, side / (cells + 1), order=1, grid_mode=True, mode="nearest")[:side, :side]
        cells, height = 2 * cells, height / decay
    clouds = (clouds - clouds.min()) / np.ptp(clouds)
    brightest = pixels.max()
    foggy = pixels + amount * clouds[: pixels.shape[0], : pixels.shape[1], None]
    return foggy * brightest / (brightest + amount)


def brightness(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """More of the value of hue, saturation, value."""
    value = pixels.max(axis=2, keepdims=True)  # of hue, saturation, value
    wanted = (value + 0.1 * (strength + 1)).clip(max=1)
    return np.where(value > 0, pixels / np.maximum(value, 1e-6), 1) * wanted


def contrast(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Closer to the mean colour."""
    mean = pixels.mean(axis=(0, 1))
    return (pixels - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[strength] + mean


def elastic_transform(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Stretched and bent in small regions."""
    where = np.indices(pixels.shape[:2], dtype=np.float64)  # row and column that each pixel comes from [2, H, W]
    for axis in where:
        drawn = random.uniform(-1, 1, axis.shape) * 1.12 * scale**2  # a narrow filter leaves more of it
        axis += (12.5, 16.25, 21.25, 25, 30)[strength] * ndimage.gaussian_filter(drawn, 2.24 * scale, truncate=3)
    planes = [ndimage.map_coordinates(pixels[..., c], where, order=1, mode="reflect") for c in range(3)]
    return np.stack(planes, axis=-1)


def pixelate(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Enlarged from a smaller image."""
    image, factor = to_image(pixels), (0.6, 0.5, 0.4, 0.3, 0.25)[strength]
    small = image.resize([max(1, int(side * factor)) for side in image.size], Image.Resampling.BOX)
    return np.asarray(small.resize(image.size, Image.Resampling.BOX)) / 255


def jpeg_compression(pixels: Pixels, strength: int, scale: float, random: np.random.Generator) -> NDArray[Any]:
    """Saved with a low quality."""
    stream = io.BytesIO()
    to_image(pixels).save(stream, "JPEG", quality=(25, 18, 15, 10, 7)[strength])
    return np.asarray(Image.open(stream)) / 255


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian noise": gaussian_noise,
    "shot noise": shot_noise,
    "impulse noise": impulse_noise,
    "defocus blur": defocus_blur,
    "glass blur": glass_blur,
    "motion blur": motion_blur,
    "zoom blur": zoom_blur,
    "snow": snow,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic transform": elastic_transform,
    "pixelate": pixelate,
    "JPEG compression": jpeg_compression,
}


def filtered(pixels: NDArray[Any], kernel: NDArray[Any]) -> NDArray[Any]:
    """Each channel under a kernel of any sum, mirrored at the edges."""
    reach = len(kernel) // 2
    padded = np.pad(pixels, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return fftconvolve(padded, (kernel / kernel.sum())[..., None], mode="valid", axes=(0, 1))


def streak(length: float, sigma: float, degrees: float) -> NDArray[np.float64]:
    """The kernel of a motion: a line from its middle, weights falling as a Gaussian."""
    reach = math.ceil(length) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    along = np.linspace(0, length, 8 * reach + 1)
    weights = np.exp(-0.5 * (along / max(sigma, 1e-6)) ** 2)
    down, right = (reach + along * turn(math.radians(degrees)) for turn in (math.sin, math.cos))
    for shift_down, shift_right in ((0, 0), (0, 1), (1, 0), (1, 1)):  # divided between the four pixels around
        near_down, near_right = np.floor(down) + shift_down, np.floor(right) + shift_right
        part = (1 - abs(down - near_down)) * (1 - abs(right - near_right))
        np.add.at(kernel, (near_down.astype(int), near_right.astype(int)), weights * part)
    return kernel


def magnify(pixels: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """The middle, enlarged to the size of the whole `[H, W, C]`."""
    height, width = pixels.shape[:2]
    inside = (width / factor, height / factor)
    box = ((width - inside[0]) / 2, (height - inside[1]) / 2, (width + inside[0]) / 2, (height + inside[1]) / 2)
    planes = [
        Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR, box=box)
        for plane in pixels.transpose(2, 0, 1)
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)


def to_image(pixels: NDArray[Any]) -> Image.Image:
    """Pixels on the scale 0 to 1, rounded and cut off to bytes."""
    return Image.fromarray(np.rint(pixels.clip(0, 1) * 255).astype(np.uint8))


def corrupt(image: Image.Image, name: str, strength: int, seed: int = 0) -> Image.Image:
    """A worse image.

    Args:
        image: In mode RGB.
        name: Of a corruption, see `CORRUPTIONS`.
        strength: From 1 to 5.
        seed: What is drawn follows from it.

    Raises:
        ValueError: There is no such corruption or strength.

    Example:
        >>> grey = Image.new("RGB", (32, 32), (100, 100, 100))
        >>> corrupt(grey, "brightness", 2).getpixel((0, 0))
        (151, 151, 151)
    """
    if name not in CORRUPTIONS or strength not in range(1, STRENGTHS + 1):
        raise ValueError(
            f"There is no corruption {name!r} of strength {strength}; strengths are 1 to {STRENGTHS}, "
            f"corruptions {', '.join(CORRUPTIONS)}."
        )
    pixels = (np.asarray(image) / 255).astype(np.float32)
    random = np.random.default_rng([seed, strength])
    return to_image(CORRUPTIONS[name](pixels, strength - 1, min(image.size) / REFERENCE, random))


def shift(image: Image.Image, right: int, down: int) -> Image.Image:
    """The image, moved; what comes in at the edges is the mirror image.

    Example:
        >>> row = Image.fromarray(np.arange(4, dtype=np.uint8)[None])
        >>> np.asarray(shift(row, 1, 0))
        array([[0, 0, 1, 2]], dtype=uint8)
    """
    pixels = np.asarray(image)
    margins = [(max(by, 0), max(-by, 0)) for by in (down, right)]
    padded = np.pad(pixels, margins + [(0, 0)] * (pixels.ndim - 2), mode="symmetric")
    top, left = max(-down, 0), max(-right, 0)
    return Image.fromarray(padded[top : top + image.height, left : left + image.width])


class Variant(NamedTuple):
    """One way to show an image: a corruption of a strength, or a shift in pixels that the model sees."""

    corruption: str | None = None
    strength: int = 0
    pixels: int = 0

    def direction(self, index: int) -> tuple[int, int]:
        """Where an image is shifted to, down and right, in pixels that the model sees."""
        down, right = DIRECTIONS[scramble(index, self.pixels) % len(DIRECTIONS)]
        return self.pixels * down, self.pixels * right


class Variants(Subset):
    """All variants of each image of a split, one after the other.

    Args:
        whole: The images.
        variants: How each is shown.
        side: Shorter side that the model is shown; images are brought to it first.
    """

    def __init__(self, whole: Split, variants: Sequence[Variant], side: int):
        super().__init__(whole, np.repeat(np.arange(len(whole)), len(variants)))
        self.variants, self.side = variants, side

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        image, number = super().read(index, enough), int(self.indices[index])
        if min(image.size) != self.side:  # else a pixel of a smaller image would be several that the model sees
            factor = self.side / min(image.size)
            image = image.resize([max(1, round(factor * side)) for side in image.size], Image.Resampling.BICUBIC)
        variant = self.variants[index % len(self.variants)]
        if variant.corruption is not None:
            return corrupt(image, variant.corruption, variant.strength, seed=number)
        down, right = (round(by * min(image.size) / self.side) for by in variant.direction(number))
        return shift(image, right, down)


@dataclass(frozen=True)
class Robustness:
    """How good a model is on worse and on moved images.

    Attributes:
        metric: What the numbers are.
        clean: The metric on the images as they are.
        corruptions: The metric by corruption, at each of the five strengths; empty if it was not asked for.
        corrupted: Mean score of an image over all corruptions and strengths, with the interval that the choice of
            images leaves; None if it was not asked for.
        shifts: The metric by pixels that the images were moved; empty if it was not asked for.
        agreement: How much of the prediction stays when an image moves by so many pixels, from 0 to 1: the class, the
            fraction of labels or pixels, of objects those of the same class with an IoU of 0.5.

    Example:
        >>> found = Robustness(Metric("top1", "top-1"), 0.9, {"fog": (0.8, 0.7, 0.6, 0.5, 0.4)}, None, {}, {})
        >>> found.mean
        0.6
    """

    metric: Metric
    clean: float
    corruptions: dict[str, tuple[float, ...]]
    corrupted: Interval | None
    shifts: dict[int, float]
    agreement: dict[int, float]

    @property
    def mean(self) -> float:
        """The metric, averaged over corruptions and strengths; nan without them."""
        values = [value for row in self.corruptions.values() for value in row]
        return float(np.mean(values)) if values else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has."""
        found: dict[str, Any] = {}
        if self.corrupted is not None:
            found["corruptions"] = {
                "mean": self.mean,
                "mean_image_score": self.corrupted._asdict(),
                "by_strength": {name: list(row) for name, row in self.corruptions.items()},
            }
        if self.shifts:
            found["shifts"] = {
                "by_pixels": {str(by): value for by, value in self.shifts.items()},
                "agreement": {str(by): value for by, value in self.agreement.items()},
            }
        return found

    def tables(self) -> "list[RenderableType]":
        """For the terminal."""
        tables: list[RenderableType] = []
        if self.corrupted is not None:
            low, high = percent(self.corrupted.low), percent(self.corrupted.high)
            title = f"\n{self.metric.title}: {percent(self.clean)} clean, {percent(self.mean)} corrupted"
            rows = titled(f"{title}, by strength", "mean", *map(str, range(1, STRENGTHS + 1)))
            for name, row in self.corruptions.items():
                rows.add_row(name, percent(float(np.mean(row))), *map(percent, row))
            tables += [rows, f"mean score of an image {percent(self.corrupted.value)}, 95 % interval {low} – {high}"]
        if self.shifts:
            rows = titled("\nimages shifted by", self.metric.title, "predictions that stay")
            for by, value in self.shifts.items():
                rows.add_row(f"{by} pixel{'s' * (by != 1)}", percent(value), percent(self.agreement[by]))
            tables.append(rows)
        return tables

    def to_png(self) -> bytes:
        """A figure of all numbers."""
        panels = int(bool(self.corruptions)) + int(bool(self.shifts))
        fig = figure(6.4 * panels, 4.8)
        if self.corruptions:
            axes = tidy(fig.add_subplot(1, panels, 1), title=f"{self.metric.title} on corrupted images", grid=False)
            table = 100 * np.array(list(self.corruptions.values()))
            axes.imshow(table, cmap=SEQUENTIAL, vmin=0, vmax=100, aspect="auto")
            axes.set_yticks(range(len(table)), list(self.corruptions))
            axes.set_xticks(range(STRENGTHS), [f"strength {k}" for k in range(1, STRENGTHS + 1)])
            for (row, column), value in np.ndenumerate(table):
                ink = "white" if value > 60 else INK
                write(axes.text(column, row, f"{value:.1f}", ha="center", va="center"), SMALL, ink)
        if self.shifts:
            axes = tidy(fig.add_subplot(1, panels, panels), title="Images shifted", x="pixels", y="%")
            by = [0, *self.shifts]
            lines = {self.metric.title: (self.clean, *self.shifts.values())}
            lines["predictions that stay"] = (1.0, *self.agreement.values())
            for number, (label, values) in enumerate(lines.items()):
                axes.plot(by, 100 * np.array(values), color=COLOURS[number], marker="os"[number], label=label)
            axes.set_ylim(0, 102)
            for text in axes.legend(frameon=False).get_texts():
                write(text, SMALL)
        return to_png(fig)


def measure_robustness(
    trained: Predictor,
    images: Split,
    clean: float,
    *,
    corruptions: bool,
    shifts: bool,
    batch: int | None,
    workers: int,
    device: "torch.device | str | None",
    progress: Callable[[Any], Any] = iter,
) -> Robustness:
    """Judge the predictions of a model for worse and for moved images.

    Args:
        trained: The model.
        images: The split, with the class numbers of the model.
        clean: The metric on the images as they are.
        corruptions: Whether to corrupt the images.
        shifts: Whether to shift them.
        batch: Images at a time; None follows the task.
        workers: Processes (for a bundle: threads) that read images.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.
    """
    task, side = get_evaluator(trained.task), trained.preprocessing.enough()
    if trained.preprocessing.channels not in (1, 3):
        raise ValueError(
            f"{trained.name} sees {trained.preprocessing.channels} channels; --corruptions and --shifts change "
            "images in red, green and blue."
        )
    names = tuple(CORRUPTIONS) if corruptions else ()
    worse = [Variant(name, strength) for name in names for strength in range(1, STRENGTHS + 1)]
    moved = [Variant(pixels=by) for by in (0, *SHIFTS)] if shifts else []  # 0: what the others are compared with
    variants = worse + moved
    meters = [task.meter(len(trained.classes), trained.settings) for _ in variants]
    agreement: dict[int, list[float]] = {by: [] for by in SHIFTS} if shifts else {}
    still: dict[int, Any] = {}  # predictions for images where they are, by number
    shown_images = Variants(images, variants, side)
    predicted = trained.predict_annotated(shown_images, batch=batch, workers=workers, device=device, progress=progress)
    for group, found in predicted:
        for index, target, original, prediction in zip(
            group.indices.tolist(), group.targets, group.originals.tolist(), found, strict=True
        ):
            number, shown_as = divmod(index, len(variants))
            variant = variants[shown_as]
            if variant.corruption is None:
                step = min(original) / side  # of the image's own pixels, one that the model sees
                down, right = (round(by * step) for by in variant.direction(number))
                prediction = prediction.moved(-right, -down)
                shown = prediction.at_settings(trained.settings, 1, None)
                if not variant.pixels:
                    still = {number: shown}
                elif number in still:
                    agreement[variant.pixels].append(still[number].agreement(shown, iou=0.5, score=1))
            meters[shown_as].records[number] = meters[shown_as].record(number, prediction, target)
    value = [meter.metrics().values()[task.metric.key] for meter in meters]
    worst = np.mean([meter.scores() for meter in meters[: len(worse)]], axis=0) if worse else None
    strengths = {name: tuple(value[STRENGTHS * row :][:STRENGTHS]) for row, name in enumerate(names)}
    return Robustness(
        metric=task.metric,
        clean=clean,
        corruptions=strengths,
        corrupted=None if worst is None else student(worst),
        shifts={by: value[len(worse) + by] for by in (SHIFTS if shifts else ())},
        agreement={by: float(np.mean(values)) for by, values in agreement.items()},
    )
