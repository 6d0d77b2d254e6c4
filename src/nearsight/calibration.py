"""Honest confidences: a temperature, and thresholds with which a classifier says that it does not know."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .arguments import checked
from .atomic import check_output, write_whole
from .data.loader import Batch, default_workers
from .evaluation import choose_split
from .result import Result
from .runs.bundle import is_bundle
from .runs.predictor import Predictor, calibration_file, fingerprint, load_trained, pick_device
from .runs.run import open_own
from .tasks import get_task

Progress = Callable[[Iterable[Batch]], Iterable[Batch]]
FEW = 100  # images below which a temperature is a guess


@dataclass(frozen=True)
class Calibrated(Result):
    """What a calibration found out.

    Attributes:
        model: Name of the model.
        images: How many images it was found with.
        split: Of which split they are.
        settings: `temperature`; of a classifier also `conformal`, the probability that a class needs to be possible, by
            error rate; and the views (`tta`) that it is for.
        file: Where it was written; a predictor that is opened from there has it.
    """

    model: str
    images: int
    split: str
    settings: dict[str, Any]
    file: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"file": str(self.file)}

    def lines(self) -> list[str]:
        """The result for people."""
        temperature = self.settings["temperature"]
        tendency = "too confident" if temperature > 1 else "not confident enough"
        found = [
            f"{self.model} is {tendency}: temperature {temperature:.3f}, from {self.images:,} {self.split} images."
        ]
        if rates := self.settings.get("conformal"):
            named = ", ".join(f"{rate} (from {100 * least:.1f} %)" for rate, least in rates.items())
            found.append(f"Error rates that `predict --error-rate` can promise: {named}.")
        if self.images < FEW:
            found.append(f"{self.images} images are few for that; expect other values with others.")
        return [*found, f"Wrote {self.file}."]


@checked
def calibrate(
    source: str | os.PathLike[str] | Predictor,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str = "val",
    tta: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> Calibrated:
    """Make the confidences of a classifier honest, and find out from which on it should say that it does not know.

    The temperature is the one at which the true classes of the validation images are most probable. The thresholds are
    split conformal: for images of the same kind as these, the true class is missing among the possible ones no more
    often than the error rate says. Both are written beside the model, where `nearsight.load`, `predict`, `eval`,
    `export` and the page find them; remove the file (`calibration.json`, beside weights of another name than a run's
    under their own) to be rid of them.

    Args:
        source: Folder of a finished run, of folds, or several runs between commas.
        data: Other data, with class names of the model; None takes the run's own, split as in the training.
        split: Images that the model was not trained with: `val` or `test`.
        tta: Views that predictions will be merged of; see `Predictor.predict`.
        batch: Images at a time; None follows the task.
        workers: Processes that read images; None follows the machine and the data.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: The model gives no classes of whole images, or there are no such images.

    Example:
        >>> import tempfile
        >>> from nearsight.config.recipe import ModelChoice
        >>> from nearsight.runs.predictor import save_trained
        >>> from nearsight.tasks.build import build
        >>> file = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> _ = save_trained(build(ModelChoice(name="deit_nano"), 10), "classify", tuple("0123456789"), file)
        >>> found = calibrate(file, "digits", split="test")
        >>> found.split, found.images, sorted(found.settings)
        ('test', 359, ['conformal', 'temperature', 'tta'])
    """
    if not isinstance(source, Predictor) and is_bundle(source):
        raise ValueError(f"{source} is a bundle; calibrate its run, and export it again.")
    opened = load_trained(source, calibrated=False)
    file = calibration_file(opened)
    check_output(file, is_ours=lambda head: head.startswith(b'{\n "settings": '), force=None)
    task, where = get_task(opened.task), pick_device(device)
    if not task.is_linear:
        task.calibrate(np.zeros((0, 1)), np.zeros(0))  # says why not
    if split == "train":
        raise ValueError("Training images are known to the model, which is more confident of them; give val or test.")
    trained = opened.with_views(tta)
    held, _ = open_own(opened, data)
    _, images = choose_split(held, split)
    images = task.match_split(images, held, opened.classes)
    workers = default_workers(held.kind, where) if workers is None else workers
    model, rows, targets = trained.model.to(where), [], []
    for group in progress(task.eval_loader(images, trained.preprocessing, batch or task.batch, workers)):
        found = task.predict(model, group, trained.preprocessing, where, trained.classes)
        rows += [one.probabilities for one in found]
        targets += [np.asarray(target) for target in group.targets]
    if not rows:
        raise ValueError(f"None of the {len(images)} {split} images can be read.")
    settings = task.calibrate(np.array(rows, dtype=np.float64), np.array(targets).astype(np.int64))
    settings |= {"tta": tta}
    about = {"settings": settings, "weights": fingerprint(opened), "images": len(rows), "split": split}
    write_whole(file, json.dumps(about, indent=1).encode())
    return Calibrated(opened.name, len(rows), split, settings, file)
