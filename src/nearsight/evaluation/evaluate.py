"""Evaluate a run: on its own data, split as they were for the training, or on others with the same class names."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data.loader import default_workers
from ..data.samples import Split
from ..deployment.module import open_bundle
from ..runs.bundle import is_bundle
from ..runs.eval_data import choose_split, match_classes, open_own
from ..runs.predictor import load_trained
from .metrics import Metrics, measure
from .predictions import Predictions, Progress, pick_device, predict_split


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on a split.

    Attributes:
        model: Name of the model.
        path: File of its weights.
        source: The data, as the user named them.
        own: Whether these are the data that the run was trained with.
        split: Name of the split; `all` for other data that are not divided.
        classes: Names of the model's classes, by number.
        images: The split, its class numbers those of the model.
        predictions: What the model said.
        metrics: How good that is.
    """

    model: str
    path: Path
    source: str
    own: bool
    split: str
    classes: tuple[str, ...]
    images: Split
    predictions: Predictions
    metrics: Metrics

    @property
    def default_folder(self) -> Path:
        """Where the report goes unless another folder is given; other data don't overwrite the run's own."""
        name = "" if self.own else f"{Path(self.source.partition('?')[0]).stem or 'data'}-"
        return self.path.parent / f"eval-{name}{self.split}"


def evaluate(
    run: str | Path,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    batch: int = 64,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> Evaluation:
    """Show images that a model was not trained with to it, and count how often it is right.

    Args:
        run: Folder of a finished run, or its weight file, or a bundle.
        data: Other data, with class names of the model; None takes the run's own, split as in the training.
        split: `test`, `val` or `train`; None takes the first of these that there is.
        batch: Images at a time.
        workers: Processes that read images; None follows the machine and the data.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: There is no finished model or no such split, or the data have classes that the model does not know.

    Example:
        >>> import tempfile
        >>> from nearsight.tasks.build import build
        >>> from nearsight.config.recipe import ModelChoice
        >>> from nearsight.runs.predictor import save_trained
        >>> folder = Path(tempfile.mkdtemp())
        >>> untrained = build(ModelChoice(name="localvit_nano"), classes=10)
        >>> weights = save_trained(untrained, "classify", tuple("0123456789"), folder / "model.safetensors")
        >>> found = evaluate(folder, "digits")
        >>> found.split, found.metrics.images, found.metrics.top1.high < 0.5
        ('test', 359, True)
    """
    trained = open_bundle(run) if is_bundle(run) else load_trained(run, "classify")
    place = pick_device(device)
    opened, own = open_own(trained, data)
    name, images = choose_split(opened, split)
    if split is None and not own and list(opened.splits()) == ["train"]:
        name = "all"  # nobody divided these images
    images = match_classes(images, opened, trained)
    if workers is None:
        workers = default_workers(opened.kind, place)
    found = predict_split(trained, images, batch=batch, workers=workers, device=place, progress=progress)
    return Evaluation(
        model=trained.name,
        path=trained.path or Path(trained.name),
        source=opened.source,
        own=own,
        split=name,
        classes=trained.classes,
        images=images,
        predictions=found,
        metrics=measure(found.probabilities, found.labels),
    )
