"""How good a trained model is: its predictions for a split, judged by its task, and a report of that."""

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from .atomic import write_whole
from .data.loader import Batch, Collate, EvalImages, default_workers
from .data.samples import BadImage, Data, Split
from .data.transforms import DensePreprocessing, Preprocessing
from .runs.bundle import ABOUT, Bundle, is_bundle, read_bundle
from .runs.postprocess import postprocess
from .runs.predictor import Predictor, load_trained, pick_device
from .runs.run import open_own
from .runs.runtime import Runner, open_runner
from .tasks import get_task
from .tasks.base import Judged, Meter, Task

Progress = Callable[[Iterable[Batch]], Iterable[Batch]]
PREFERRED = ("test", "val", "train")
SEEN = {  # what the training did with the images already
    "train": "the model learned from them, so expect less on new ones",
    "val": "the best epoch was chosen by them",
}


@dataclass(frozen=True, repr=False)
class Evaluation(Judged):
    """How good a model is on a split.

    Attributes:
        model: Name of the model.
        path: File of its weights.
        task: What it was trained for.
        source: The data, as the user named them.
        own: Whether these are the data that the run was trained with.
        split: Name of the split; `all` for other data that are not divided.
        bad: Names of unreadable images, and why they are.
        metrics: Metrics with intervals: of the type of the task.
    """

    model: str
    path: Path
    task: Task
    source: str
    own: bool
    split: str
    bad: dict[str, str]

    @property
    def score(self) -> float:
        """The metric that models are compared by."""
        return self.metrics.values()[self.task.metric.key]

    @property
    def default_folder(self) -> Path:
        """Where the report goes unless another folder is given; other data don't overwrite the run's own."""
        name = "" if self.own else f"{Path(self.source.partition('?')[0]).stem or 'data'}-"
        return self.path.parent / f"eval-{name}{self.split}"

    def __repr__(self) -> str:
        count = len(self.meter.records)
        return f"Evaluation({self.model} on {count:,} {self.split} images: {self.task.metric.title} {self.score:.4f})"

    def to_dict(self) -> dict[str, Any]:
        """All metrics as values that JSON has; null where there is nothing to count."""
        return {
            "model": self.model,
            "weights": str(self.path),
            "task": self.task.name,
            "data": self.source,
            "split": self.split,
            "images": len(self.meter.records),
            "bad_images": self.bad,
            **self.metrics.to_dict(self.classes),
        }

    def to_json(self) -> str:
        """All metrics as JSON, with a row of a matrix on a line."""
        values = self.to_dict()
        matrix = values.pop("confusion", None)
        text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
        if matrix is None:
            return text + "\n"
        rows = ",\n  ".join(json.dumps(row) for row in matrix)
        head = text.removesuffix("\n}")
        return f'{head},\n "confusion": [\n  {rows}\n ]\n}}\n'

    def save(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """Write `metrics.json` and the files of the task: tables and figures.

        Args:
            folder: Where to; made if it is not there. None takes `eval-...` in the folder of the run.

        Returns:
            The folder.
        """
        target = self.default_folder if folder is None else Path(folder)
        files = self.task.report_files(self)
        files["metrics.json"] = self.to_json().encode()  # last: where it is, the others are
        for name, content in files.items():
            write_whole(target / name, content)
        return target

    def table(self) -> RenderableType:
        """What was evaluated and how good it is, for the terminal."""
        text = Text()
        text.append(self.model, style="bold")
        text.append(" on all images of " if self.split == "all" else f" on the {self.split} images of ")
        text.append(self.source, style="bold")
        count = len(self.meter.records)
        text.append(f"\n{count:,} image{'s' * (count != 1)}{self.metrics.contents()}")
        if self.bad:
            text.append(f"; {len(self.bad):,} unreadable left out", style="yellow")
        if self.own and self.split in SEEN:
            text.append(f"; {SEEN[self.split]}", style="yellow")
        text.append(".\n")
        return Group(text, *self.task.tables(self))


def evaluate(
    source: str | os.PathLike[str] | Predictor,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> Evaluation:
    """Judge the predictions of a model for images that it was not trained with.

    Args:
        source: Folder of a finished run, its weight file, a bundle, or a model that was opened before.
        data: Other data, with class names of the model; None takes the run's own, split as in the training.
        split: `test`, `val` or `train`; None takes the first of these that there is.
        batch: Images at a time; None follows the task.
        workers: Processes that read images; None follows the machine and the data.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: There is no finished model or no such split, the data have another task or classes that the model
            does not know, or its predictions are no finite numbers.

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
    trained = open_bundle(source) if not isinstance(source, Predictor) and is_bundle(source) else load_trained(source)
    task, where = get_task(trained.task), pick_device(device)
    opened, own = open_own(trained, data)
    if opened.task != trained.task:
        raise ValueError(
            f"{opened.source} is annotated to {opened.task}; {trained.folder} was trained to {trained.task}."
        )
    name, images = choose_split(opened, split)
    if split is None and not own and list(opened.splits()) == ["train"]:
        name = "all"  # nobody divided these images
    images = task.match_split(images, opened, trained.classes)
    workers = default_workers(opened.kind, where) if workers is None else workers
    meter, bad = collect(trained, images, batch=batch, workers=workers, device=where, progress=progress)
    metrics = meter.metrics()
    if not all(map(math.isfinite, metrics.values().values())):
        raise ValueError(
            f"{trained.path} gives predictions that are no finite numbers; its weights are damaged, train it anew."
        )

    def again(index: int) -> Any:
        item = EvalImages(images, trained.preprocessing)[index]
        if isinstance(item, BadImage):
            raise item
        group = Collate(trained.preprocessing.divisor, training=False)([item])
        return task.predict(trained.model, group, trained.preprocessing, where, trained.classes)[0]

    return Evaluation(
        classes=trained.classes,
        images=images,
        meter=meter,
        metrics=metrics,
        again=again,
        model=trained.name,
        path=trained.path or Path(trained.name),
        task=task,
        source=opened.source,
        own=own,
        split=name,
        bad=bad,
    )


def collect(
    trained: Predictor,
    images: Split,
    *,
    batch: int | None = None,
    workers: int = 0,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> tuple[Meter, dict[str, str]]:
    """Predictions of a model for a split with their ground truth, and the unreadable images with the reasons.

    Raises:
        ValueError: None of the images can be read.
    """
    task, where, bad = get_task(trained.task), pick_device(device), dict[str, str]()
    model, meter = trained.model.to(where), task.meter(len(trained.classes), trained.settings)
    for group in progress(task.eval_loader(images, trained.preprocessing, batch or task.batch, workers)):
        bad |= group.bad
        meter.add(group, task.predict(model, group, trained.preprocessing, where, trained.classes))
    if not meter.records:
        first = next((f"; the first: {name} ({reason})" for name, reason in bad.items()), "")
        raise ValueError(f"None of the {len(images)} images can be read{first}.")
    return meter, bad


def choose_split(data: Data, wanted: str | None) -> tuple[str, Split]:
    """The split of that name, or the one that the model knows least of."""
    splits = {name: split for name, split in data.splits().items() if len(split)}
    if wanted is not None and wanted not in PREFERRED:
        raise ValueError(f"There is no split {wanted!r}; splits are {', '.join(PREFERRED)}.")
    if not splits:
        raise ValueError(f"{data.source} has no images.")
    if wanted is not None and wanted not in splits:
        raise ValueError(f"{data.source} has no {wanted} split; it has: {', '.join(splits)}.")
    name = wanted or next(name for name in PREFERRED if name in splits)
    return name, splits[name]


class BundleModel(nn.Module):
    """The model of a bundle, called as the trained one is; takes images from any device, runs on the CPU."""

    def __init__(self, runner: Runner, bundle: Bundle):
        super().__init__()
        self.runner, self.bundle = runner, bundle

    def forward(self, images: Tensor, sizes: Tensor | Sequence[Sequence[int]] | None = None) -> Any:
        """Logits of a classifier or segmenter, or the detections of each image.

        Args:
            images: Normalised images `[B, 3, H, W]`.
            sizes: Height and width of each image before it was padded, the same for all; None for no padding.
        """
        height, width = images.shape[-2:]
        if sizes is not None:
            ((height, width),) = {tuple(map(int, size)) for size in torch.as_tensor(sizes).tolist()}
            images = images[..., :height, :width]
        groups = [images] if self.bundle.any_batch else images.split(1)
        outputs = [self.runner(group.float().contiguous().cpu().numpy()) for group in groups]
        if "logits" in self.bundle.outputs:
            return torch.cat([torch.from_numpy(part["logits"]) for part in outputs])
        found = [one for part in outputs for one in postprocess(part, self.bundle.postprocessing, (height, width))]
        return [{name: torch.from_numpy(value) for name, value in one.items()} for one in found]


def open_bundle(folder: str | os.PathLike[str]) -> Predictor:
    """A bundle with its classes and its preprocessing, to be used like a trained model.

    Raises:
        ValueError: The bundle is damaged, or what runs it is not installed.
    """
    bundle = read_bundle(folder)
    model = BundleModel(open_runner(Path(folder), bundle), bundle)
    name = f"{bundle.model} ({bundle.kind}{', 8 bits' if bundle.int8 else ''})"
    if bundle.fit is None:
        shown: Any = Preprocessing(bundle.size, bundle.mean, bundle.std, bundle.crop)
    else:
        sides = (bundle.fit["min_size"], bundle.fit["max_size"], bundle.fit["stretch"])
        shown = DensePreprocessing(*sides, bundle.mean, bundle.std, divisor=1)
    path = Path(folder) / ABOUT
    return Predictor(model.eval(), name, bundle.task, bundle.labels, shown, path, bundle.weights, dict(bundle.settings))
