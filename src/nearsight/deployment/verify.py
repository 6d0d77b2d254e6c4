"""Hold an exported model against PyTorch, on real images and at several sizes."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..console import first_line
from ..data.loader import EvalImages
from ..data.samples import BadImage, Split
from ..data.transforms import Preprocessing
from ..runs.bundle import Bundle
from ..runs.postprocess import postprocess, to_prediction
from ..runs.predictor import Predictor
from ..runs.runtime import Runner
from ..tasks import get_task
from .calibration import sample
from .graph import Exportable

MOST = 32  # images at each size
MOST_DENSE = 8  # of detectors and segmenters
BATCH = 8
LEAST = 0.5  # fraction of detections that have to be the same; among equal scores rounding decides which are kept
TOLERANCE = 1e-3  # of the largest logit; float32 sums in another order differ by about 1e-6


@dataclass(frozen=True)
class Agreement:
    """How near two models' predictions are at a size.

    Attributes:
        size: Height and width of the images.
        images: How many were compared.
        max_abs: Largest difference of a logit.
        max_rel: The same as a fraction of the largest logit of PyTorch's.
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
        return self.max_rel <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Its fields as values that JSON knows."""
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


def compare_dense(
    predictor: Predictor, bundle: Bundle, runner: Runner, split: Split, labelled: bool
) -> list[Agreement]:
    """The agreement of an exported detector or segmenter with PyTorch, on whole images in three sizes.

    Images are shown as they are in use, as squares, and larger. What the graph gives is compared number by number,
    unless the graph itself chooses detections; then the predictions that follow from it, and their metric.
    """
    own = predictor.preprocessing
    larger = replace(own, min_size=own.min_size * 5 // 4 + 3, max_size=own.most * 5 // 4 + 3, stretch=False)
    ways = (own, replace(own, stretch=not own.stretch), larger) if bundle.any_size else (own,)
    return [compare_shown(predictor, bundle, runner, sample(split, MOST_DENSE), way, labelled) for way in ways]


@torch.inference_mode()
def compare_shown(
    predictor: Predictor, bundle: Bundle, runner: Runner, split: Split, shown: Any, labelled: bool
) -> Agreement:
    """The agreement in one way to show images."""
    task, graph, device = get_task(predictor.task), Exportable(predictor.model), torch.device("cpu")
    loader = (task.eval_loader if labelled else task.image_loader)(split, shown, 1, 0)
    meters = task.meter(len(predictor.classes)), task.meter(len(predictor.classes))
    chosen = bundle.postprocessing["name"] == "instances"  # by the graph, so that equal scores may change their order
    same, largest, scale = [], 0.0, float(np.finfo(np.float32).tiny)
    sizes: list[tuple[int, int]] = []
    for batch in loader:
        if not len(batch.indices):
            continue
        height, width = batch.sizes[0].tolist()
        images = bundle.normalise(batch.images[..., :height, :width].numpy())
        if bundle.any_batch and not sizes:  # the first one beside its mirror image
            images = np.concatenate([images, images[..., ::-1]])
        sizes.append((height, width))
        try:
            outputs = runner(images)
        except Exception as error:  # each runtime has classes of its own
            raise ValueError(
                f"The export was given up: it can't be run with {len(images)} image(s) of {height}×{width} pixels "
                f"({first_line(error)}); nothing was written."
            ) from None
        for name, value in graph.outputs(torch.from_numpy(images)).items():
            if name == "scores" or not chosen:
                largest = max(largest, float(np.abs(outputs[name] - value.numpy()).max()))
                scale = max(scale, float(value.abs().max()))
        found = postprocess(outputs, bundle.postprocessing, (height, width))[0]
        original = (int(batch.originals[0, 0]), int(batch.originals[0, 1]))
        mine = to_prediction(found, (height, width), batch.names[0], original, bundle.labels)
        (theirs,) = task.predict(predictor.model, batch, shown, device, predictor.classes)
        same.append(mine.agreement(theirs))
        if labelled:
            for meter, prediction in zip(meters, (mine, theirs), strict=True):
                meter.add(batch, [prediction])
    if not same:
        raise ValueError(f"None of the {len(split)} images can be read.")
    if chosen and np.mean(same) < LEAST:
        raise ValueError(
            f"The export was given up: of its detections {100 * np.mean(same):.0f} % are those of PyTorch, and at "
            f"least {100 * LEAST:.0f} % have to be; nothing was written."
        )
    scores = [meter.metrics().values()[task.metric.key] for meter in meters] if labelled else None
    return Agreement(
        sizes[0],
        len(same),
        largest,
        largest / scale,
        float(np.mean(same)),
        (scores[0], scores[1]) if scores else None,
    )


def compare(
    predictor: Predictor, runner: Runner, split: Split, *, any_batch: bool, any_size: bool, labelled: bool = False
) -> list[Agreement]:
    """The agreement of an exported model with PyTorch at each size.

    Args:
        predictor: The model, as it was before the export.
        runner: The exported model.
        split: Real images; up to `MOST` are shown.
        any_batch: Whether the exported model takes several images at once; the first is shown alone in any case.
        any_size: Whether it takes other sizes than its own.
        labelled: Whether the images have one class of the model each, by which both are scored.
    """
    sizes = sizes_to_try(predictor.preprocessing.size, any_size)
    return [compare_at(predictor, runner, split, size, BATCH if any_batch else 1, labelled) for size in sizes]


def compare_at(
    predictor: Predictor, runner: Runner, split: Split, size: tuple[int, int], batch: int, labelled: bool
) -> Agreement:
    """The agreement at one size."""
    preprocessing = replace(predictor.preprocessing, size=size)
    mine, theirs, labels = [], [], []
    for group in batches(sample(split, MOST), preprocessing, batch, alone=True):
        theirs.append(run_predictor(predictor, group.images))
        labels.append(group.labels)
        try:
            mine.append(np.asarray(runner(group.images)["logits"], dtype=np.float32))
        except Exception as error:  # each runtime has classes of its own
            raise ValueError(
                f"The export was given up: it can't be run with {len(group.images)} image(s) of {size[0]}×{size[1]} "
                f"pixels ({first_line(error)[:200]}); nothing was written."
            ) from None
    found = measure(size, np.concatenate(mine), np.concatenate(theirs))
    if not labelled:
        return found
    both = (np.concatenate(logits).argmax(axis=1) == np.concatenate(labels) for logits in (mine, theirs))
    ours, pytorch = (float(right.mean()) for right in both)
    return replace(found, score=(ours, pytorch))


def measure(size: tuple[int, int], mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> Agreement:
    """The agreement of logits `[n, classes]` with PyTorch's."""
    largest = float(np.abs(mine - theirs).max())
    scale = max(float(np.abs(theirs).max()), float(np.finfo(np.float32).tiny))
    same = float((mine.argmax(axis=1) == theirs.argmax(axis=1)).mean())
    return Agreement(size, len(mine), largest, largest / scale, same)


@torch.inference_mode()
def run_predictor(predictor: Predictor, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """PyTorch's logits `[B, classes]`."""
    return predictor.model(torch.from_numpy(images)).float().numpy()


class Group(NamedTuple):
    """Normalised images `[B, 3, H, W]` and their labels `[B]`."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def batches(split: Split, preprocessing: Preprocessing, batch: int, alone: bool = False) -> Iterator[Group]:
    """Readable images as models want them.

    Args:
        split: The images.
        preprocessing: How they are shown.
        batch: Images at a time.
        alone: Whether the first comes alone, so that several batch sizes are tried.

    Raises:
        ValueError: None of the images can be read.
    """
    shown = EvalImages(split, preprocessing)
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
            yield stack(pixels, labels, preprocessing)
            pixels, labels = [], []
        begun = True
    if pixels:
        yield stack(pixels, labels, preprocessing)
    if not begun:
        raise ValueError(f"None of the {len(split)} images can be read; the first: {shown[0]}")


def stack(pixels: list[torch.Tensor], labels: list[int], preprocessing: Preprocessing) -> Group:
    """Bytes of images as one normalised array."""
    images = preprocessing.normalise(torch.stack(pixels).float() / 255).numpy()
    return Group(images, np.array(labels, dtype=np.int64))


def refuse_disagreement(found: list[Agreement], what: str) -> None:
    """Refuse an export that does not give PyTorch's predictions.

    Raises:
        ValueError: The largest difference is above the tolerance at some size.
    """
    for one in found:
        if not one.is_close:
            height, width = one.size
            raise ValueError(
                f"The export was given up: at {height}×{width} pixels its predictions differ from PyTorch's by "
                f"{one.max_rel:.2g} of the largest value on {what} ({TOLERANCE:g} is allowed); nothing was written."
            )
