"""Hold an exported model against PyTorch, on real images and at several sizes."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.loader import EvalImages
from ..data.samples import BadImage, Split
from ..data.transforms import Preprocessing
from ..runs.bundle import Bundle
from ..runs.postprocess import postprocess, to_prediction
from ..runs.predictor import Predictor
from ..runs.runtime import Runner
from .calibration import sample
from .program import Exportable, first_line

MOST = 32  # images at each size
MOST_DENSE = 8  # of detectors and segmenters
BATCH = 8
LEAST = 0.9  # fraction of predictions that have to be the same; near a threshold rounding decides
TOLERANCE = 1e-3  # of the largest logit; float32 sums in another order differ by about 1e-6


@dataclass(frozen=True)
class Agreement:
    """How near two models' answers are at a size.

    Attributes:
        size: Height and width of the images.
        images: How many were compared.
        max_abs: Largest difference of a logit.
        max_rel: The same as a share of the largest logit of PyTorch's.
        top1: Fraction of images with the same first class; of a detector the fraction of detections that both have, of
            a segmenter the fraction of pixels with the same class.
        score: The task's metric of the exported model and of PyTorch, where the images are annotated.
    """

    size: tuple[int, int]
    images: int
    max_abs: float
    max_rel: float
    top1: float
    score: tuple[float, float] | None = None

    @property
    def is_close(self) -> bool:
        """Whether the difference is within the tolerance; not where a logit is no number."""
        return self.max_rel <= TOLERANCE and self.top1 >= LEAST

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return asdict(self) | {"size": list(self.size)}


def sizes_to_try(size: tuple[int, int], any_size: bool) -> list[tuple[int, int]]:
    """The model's own size, a wide one and a high one whose sides nothing divides; only the own one for a fixed model.

    Example:
        >>> sizes_to_try((224, 224), any_size=True)
        [(224, 224), (224, 336), (283, 227)]
    """
    height, width = size
    others = [(height, width + width // 2), (height + height // 4 + 3, width + 3)]
    return [size, *(others if any_size else [])]


def compare_dense(subject: Predictor, bundle: Bundle, runner: Runner, split: Split) -> list[Agreement]:
    """The agreement of an exported detector or segmenter with PyTorch, on whole images in three sizes.

    Images are shown as they are in use, as squares, and larger. What the graph gives is compared number by number,
    unless the graph itself chooses detections, and then the predictions that follow from it.
    """
    assert bundle.fit is not None
    least, most = bundle.fit["min_size"], bundle.fit["max_size"]
    larger = {"min_size": least + least // 4 + 3, "max_size": most + most // 4 + 3, "stretch": False}
    square = {"min_size": least, "max_size": most, "stretch": True}
    fits = (bundle.fit, square, larger) if bundle.any_size else (bundle.fit,)
    return [compare_fit(subject, replace(bundle, fit=fit), runner, sample(split, MOST_DENSE)) for fit in fits]


@torch.inference_mode()
def compare_fit(subject: Predictor, bundle: Bundle, runner: Runner, split: Split) -> Agreement:
    """The agreement in one way to show images."""
    graph, same, largest, scale = Exportable(subject.model), [], 0.0, float(np.finfo(np.float32).tiny)
    sizes = []
    for index in range(len(split)):
        try:
            image = split.read(index)
        except BadImage:
            continue
        shown = bundle.normalise(bundle.show(image)[None])
        size, about = shown.shape[-2:], (split.name(index), (image.height, image.width), bundle.labels)
        sizes.append(size)
        if bundle.any_batch and len(sizes) == 1:
            shown = np.concatenate([shown, shown[..., ::-1]])
        try:
            outputs = runner(np.ascontiguousarray(shown))
        except Exception as error:  # each runtime has classes of its own
            raise ValueError(
                f"The export was given up: it can't be run with {len(shown)} image(s) of {size[0]}×{size[1]} pixels "
                f"({first_line(error)}); nothing was written."
            ) from None
        tensors = torch.from_numpy(np.ascontiguousarray(shown))
        if bundle.postprocessing["name"] != "instances":  # there equal scores may change places
            for name, value in graph.outputs(tensors).items():
                largest = max(largest, float(np.abs(outputs[name] - value.numpy()).max()))
                scale = max(scale, float(value.abs().max()))
        answer = subject.model(tensors)
        found = (
            postprocess({"logits": answer.numpy()}, bundle.postprocessing, size)
            if isinstance(answer, torch.Tensor)
            else [{name: value.numpy() for name, value in one.items()} for one in answer]
        )
        mine = to_prediction(postprocess(outputs, bundle.postprocessing, size)[0], size, *about)
        same.append(mine.agreement(to_prediction(found[0], size, *about)))
    if not same:
        raise ValueError(f"None of the {len(split)} images can be read.")
    return Agreement(sizes[0], len(same), largest, largest / scale, float(np.mean(same)))


def compare(subject: Predictor, runner: Runner, split: Split, *, any_batch: bool, any_size: bool) -> list[Agreement]:
    """The agreement of an exported model with PyTorch at each size.

    Args:
        subject: The model, as it was before the export.
        runner: The exported model.
        split: Real images; up to `MOST` are shown.
        any_batch: Whether the exported model takes several images at once; the first is shown alone in any case.
        any_size: Whether it takes other sizes than its own.
    """
    sizes = sizes_to_try(subject.preprocessing.size, any_size)
    return [compare_at(subject, runner, split, size, BATCH if any_batch else 1) for size in sizes]


def compare_at(subject: Predictor, runner: Runner, split: Split, size: tuple[int, int], batch: int) -> Agreement:
    """The agreement at one size."""
    input = replace(subject.preprocessing, size=size)
    mine, theirs = [], []
    for group in batches(sample(split, MOST), input, batch, alone=True):
        theirs.append(answer(subject, group.images))
        try:
            mine.append(np.asarray(runner(group.images)["logits"], dtype=np.float32))
        except Exception as error:  # each runtime has classes of its own
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise ValueError(
                f"The export was given up: it can't be run with {len(group.images)} image(s) of {size[0]}×{size[1]} "
                f"pixels ({reason}); nothing was written."
            ) from None
    return measure(size, np.concatenate(mine), np.concatenate(theirs))


def measure(size: tuple[int, int], mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> Agreement:
    """The agreement of logits `[n, classes]` with PyTorch's."""
    largest = float(np.abs(mine - theirs).max())
    scale = max(float(np.abs(theirs).max()), float(np.finfo(np.float32).tiny))
    same = float((mine.argmax(axis=1) == theirs.argmax(axis=1)).mean())
    return Agreement(size, len(mine), largest, largest / scale, same)


@torch.inference_mode()
def answer(subject: Predictor, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """PyTorch's logits `[B, classes]`."""
    return subject.model(torch.from_numpy(images)).float().numpy()


class Group(NamedTuple):
    """Normalised images `[B, 3, H, W]` and their labels `[B]`."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def batches(split: Split, input: Preprocessing, batch: int, alone: bool = False) -> Iterator[Group]:
    """Readable images as models want them.

    Args:
        split: The images.
        input: How they are shown.
        batch: Images at a time.
        alone: Whether the first comes alone, so that several batch sizes are tried.

    Raises:
        ValueError: None of the images can be read.
    """
    shown = EvalImages(split, input)
    pixels: list[torch.Tensor] = []
    labels: list[int] = []
    begun = False
    for index in range(len(split)):
        item = shown[index]
        if isinstance(item, BadImage):
            continue
        pixels.append(item[0])
        labels.append(item[1])
        if len(pixels) == batch or (alone and not begun):
            yield stack(pixels, labels, input)
            pixels, labels = [], []
        begun = True
    if pixels:
        yield stack(pixels, labels, input)
    if not begun:
        raise ValueError(f"None of the {len(split)} images can be read; the first: {shown[0]}")


def stack(pixels: list[torch.Tensor], labels: list[int], input: Preprocessing) -> Group:
    """Bytes of images as one normalised array."""
    images = input.normalise(torch.stack(pixels).float() / 255).numpy()
    return Group(images, np.array(labels, dtype=np.int64))


def refuse_disagreement(found: list[Agreement], what: str) -> None:
    """Refuse an export that does not give PyTorch's answers.

    Raises:
        ValueError: The largest difference is above the tolerance at some size.
    """
    for one in found:
        if not one.is_close:
            height, width = one.size
            raise ValueError(
                f"The export was given up: at {height}×{width} pixels its answers differ from PyTorch's by "
                f"{one.max_rel:.2g} of the largest value on {what} ({TOLERANCE:g} is allowed); nothing was written."
            )
