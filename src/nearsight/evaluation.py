"""How good a trained model is: its predictions for a split, judged, and a report of that. Bundles need no torch."""

import html
import io
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from .arguments import checked
from .atomic import check_output, is_own_png, write_whole
from .console import percent, titled
from .data.other_labels import read_labels
from .data.samples import BadImage, Data, Split, Subset, available_cores
from .interval import Interval, wilson
from .plots.style import image_html
from .runs.bundle import ABOUT, Bundle, is_bundle
from .runs.predictor import Predictor, load, load_trained, pick_device
from .runs.run import open_own
from .tasks import TASKS, get_evaluator
from .tasks.evaluator import Evaluator, Gain, Judged, Meter

if TYPE_CHECKING:
    import torch

    from .robustness import Robustness

Progress = Callable[[Any], Any]  # of batches
PREFERRED = ("test", "val", "train")
ROBUSTNESS = "robustness.png"
SEEN = {  # what the training did with the images already
    "train": "the model learned from them, so expect less on new ones",
    "val": "the best epoch was chosen by them",
}


@dataclass(frozen=True)
class OtherLabels:
    """How many predictions are right by labels that a file gives beside those of the data.

    Attributes:
        file: The file.
        images: Images that it has labels for.
        left_out: Images that it has none for.
        accuracy: Fraction of predictions that are among an image's labels.
    """

    file: str
    images: int
    left_out: int
    accuracy: Interval


@dataclass(frozen=True, repr=False)
class Evaluation(Judged):
    """How good a model is on a split.

    Attributes:
        model: Name of the model.
        path: File of its weights.
        task: How predictions of what it was trained for are judged.
        source: The data, as the user named them.
        own: Whether these are the data that the run was trained with.
        split: Name of the split; `all` for other data that are not divided.
        bad: Names of unreadable images, and why they are.
        metrics: Metrics with intervals: of the type of the task.
        robustness: How good it is on corrupted and shifted images, if that was asked for.
        gains: What averaging, views, a temperature and thresholds bring, and what they cost.
        other_labels: How many are right by other labels, if a file of them was given.
    """

    model: str
    path: Path
    task: Evaluator
    source: str
    own: bool
    split: str
    bad: dict[str, str]
    robustness: "Robustness | None" = None
    gains: tuple[Gain, ...] = ()
    other_labels: OtherLabels | None = None

    @property
    def score(self) -> float:
        """The metric that models are compared by."""
        return self.metrics.values()[self.task.metric.key]

    @property
    def default_folder(self) -> Path:
        """Where the report goes unless another folder is given; other data don't overwrite the run's own."""
        name = "" if self.own else f"{Path(self.source.partition('?')[0]).stem or 'data'}-"
        return (self.path if self.path.is_dir() else self.path.parent) / f"eval-{name}{self.split}"

    def __repr__(self) -> str:
        count = len(self.meter.records)
        return f"Evaluation({self.model} on {count:,} {self.split} images: {self.task.metric.title} {self.score:.4f})"

    def _repr_html_(self) -> str:
        """The tables, and the figures of the report."""
        console = Console(width=100, file=io.StringIO(), record=True)
        console.print(self.table())
        text = html.escape(console.export_text().rstrip(), quote=True)
        images = (
            image_html(content, name.removesuffix(".png"))
            for name, content in self._report_files().items()
            if name.endswith(".png")
        )
        return f'<pre style="overflow-x:auto">{text}</pre>' + "\n".join(images)

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
            **({"gains": [asdict(gain) for gain in self.gains]} if self.gains else {}),
            **({"other_labels": asdict(self.other_labels)} if self.other_labels else {}),
            **self.metrics.to_dict(self.classes),
            **(self.robustness.to_dict() if self.robustness else {}),
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

        Raises:
            ValueError: Files of others are there under these names.
        """
        target = self.default_folder if folder is None else Path(folder)
        refuse_other_files(target)
        files = self._report_files()
        files["metrics.json"] = self.to_json().encode(errors="backslashreplace")  # last: where it is, the others are
        for name, content in files.items():
            write_whole(target / name, content)
        return target

    def _report_files(self) -> dict[str, bytes]:
        """Tables and figures by their names."""
        files = self.task.report_files(self)
        return files if self.robustness is None else files | {ROBUSTNESS: self.robustness.to_png()}

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
        more = self.robustness.tables() if self.robustness else []
        if (other := self.other_labels) is not None:
            low, high = percent(other.accuracy.low), percent(other.accuracy.high)
            line = f"by {Path(other.file).name}: {percent(other.accuracy.value)} of {other.images:,} images right, "
            more = [
                Text(f"\n{line}95 % interval {low} – {high}; {other.left_out:,} without such labels left out."),
                *more,
            ]
        if self.gains:
            table = titled("beside the plain model", "before", "now", "")
            for gain in self.gains:
                table.add_row(gain.what, gain.before, gain.now, Text(gain.cost, style="dim"))
            more = [Text(), table, *more]
        return Group(text, *self.task.tables(self), *more)


@checked
def evaluate(
    source: str | os.PathLike[str] | Predictor,
    data: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    device: "torch.device | str | None" = None,
    corruptions: bool = False,
    shifts: bool = False,
    tta: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    progress: Progress = iter,
) -> Evaluation:
    """Judge the predictions of a model for images that it was not trained with.

    Args:
        source: Folder of a finished run, its weight file, a bundle, or a model that was opened before.
        data: Other data, with class names of the model; None takes the run's own, split as in the training.
        split: `test`, `val` or `train`; None takes the first of these that there is.
        batch: Images at a time; None follows the task.
        workers: Processes (for a bundle: threads) that read images; None follows the machine and the data.
        device: Where to compute; None takes a GPU if there is one. Bundles run on the CPU.
        corruptions: Judge it on worse images, too: fourteen corruptions at five strengths.
        shifts: Judge it on images that are shifted by 1 to 8 pixels, too.
        tta: Views whose predictions are merged, such as `flip`; one view of one model is judged beside it.
        labels: Of a classifier: a JSON file with other labels, perhaps several for an image, such as ReaL's for the
            validation images of ImageNet; a prediction is right if it is among them.
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
    trained = load(source) if not isinstance(source, Predictor) and is_bundle(source) else load_trained(source)
    bundle, task = trained.preprocessing, get_evaluator(trained.task)
    if labels is not None:
        task.right_by(task.meter(len(trained.classes), trained.settings), {})
    opened, own = open_own(trained, data)
    if opened.task != trained.task:
        raise ValueError(
            f"{opened.source} is annotated to {opened.task}; {trained.folder} was trained to {trained.task}."
        )
    name, images = choose_split(opened, split)
    if split is None and not own and list(opened.splits()) == ["train"]:
        name = "all"  # nobody divided these images
    images = task.match_split(images, opened, trained.classes)
    allowed = {} if labels is None else read_labels(Path(labels), images, trained.classes)
    name_of_model, path = trained.name, trained.path or Path(trained.name)
    if isinstance(bundle, Bundle):
        name_of_model, path = f"{trained.name} ({bundle.kind}{', 8 bits' if bundle.int8 else ''})", path / ABOUT
        workers = reading_threads(opened.kind, workers)
    elif workers is None:
        from .data.loader import default_workers

        workers = default_workers(opened.kind, pick_device(device))
    alone = trained
    if tta is not None:
        if isinstance(bundle, Bundle):
            raise ValueError(f"{path.parent} is a bundle, which shows an image once; leave --tta {tta} out.")
        trained = trained.with_views(tta)
    seen: list[tuple[Any, Any]] = []
    began = time.perf_counter()
    meter, bad = collect(trained, images, batch=batch, workers=workers, device=device, progress=progress, seen=seen)
    seconds = time.perf_counter() - began
    metrics = meter.metrics()
    if not all(map(math.isfinite, metrics.values().values())):
        raise ValueError(
            f"{trained.path} gives predictions that are no finite numbers; its weights are damaged, train it anew."
        )

    gains = []
    if members := getattr(trained.model, "members", None):  # several models, or views
        one = replace(alone, model=members[0])
        began = time.perf_counter()
        plain, _ = collect(one, images, batch=batch, workers=workers, device=device, progress=progress)
        ratio = seconds / (time.perf_counter() - began)
        gains.append(gain_of_merging(task, trained.model, plain, meter, ratio))
    gains += task.gains(seen, trained.settings, len(trained.classes))

    other = None
    if labels is not None:
        right, counted = task.right_by(meter, allowed)
        other = OtherLabels(str(labels), counted, len(meter.records) - counted, wilson(right, counted))

    robustness = None
    if corruptions or shifts:
        from .robustness import measure_robustness

        robustness = measure_robustness(
            trained,
            images,
            metrics.values()[task.metric.key],
            corruptions=corruptions,
            shifts=shifts,
            batch=batch,
            workers=workers,
            device=device,
            progress=progress,
        )

    def again(index: int) -> Any:
        ((group, predictions),) = trained.predict_annotated(Subset(images, np.array([index])), device=device)
        for bad_name, reason in group.bad.items():
            raise BadImage(bad_name, reason)
        return predictions[0]

    return Evaluation(
        classes=trained.classes,
        images=images,
        meter=meter,
        metrics=metrics,
        again=again,
        model=name_of_model,
        path=path,
        task=task,
        source=opened.source,
        own=own,
        split=name,
        bad=bad,
        robustness=robustness,
        gains=tuple(gains),
        other_labels=other,
    )


def refuse_other_files(folder: Path) -> None:
    """Refuse a folder with files of others under the names of a report; what a killed evaluation left is ours.

    Raises:
        ValueError: There is such a file.
    """
    evaluators = [get_evaluator(task) for task in TASKS]  # the names of tasks need no torch
    scores = (f"image,{one.image_score}\n".encode() for one in evaluators if one.image_score)
    begins = (b'{\n "model": ', b"image,true,predicted,", *scores)
    for name in {"metrics.json", ROBUSTNESS, *(name for one in evaluators for name in one.files)}:
        check_output(folder / name, is_ours=lambda head: is_own_png(head) or head.startswith(begins), force=None)


def gain_of_merging(task: Evaluator, model: Any, plain: Meter, merged: Meter, ratio: float) -> Gain:
    """What several models or views bring, with the interval of the difference where images are paired."""
    key, models, views = task.metric.key, len(model.members), len(model.views)
    before, now = (meter.metrics().values()[key] for meter in (plain, merged))
    what = " and ".join([f"{models} models"] * (models > 1) + [f"{views} views"] * (views > 1))
    spread, found = "", merged.compared()
    if "parts" not in found and len(found["scores"]) > 1:
        difference = found["scores"].astype(float) - plain.compared()["scores"]
        spread = f", difference ± {196 * float(difference.std(ddof=1)) / len(difference) ** 0.5:.1f}"
    cost = f"{models * views} looks at an image, {ratio:.1f} x the time{spread}"
    return Gain(f"{task.metric.title} of {what}", percent(before), percent(now), cost)


def collect(
    trained: Predictor,
    images: Split,
    *,
    batch: int | None = None,
    workers: int = 0,
    device: "torch.device | str | None" = None,
    progress: Progress = iter,
    seen: list[tuple[Any, Any]] | None = None,
) -> tuple[Meter, dict[str, str]]:
    """Predictions of a model for a split with their ground truth, and the unreadable images with the reasons.

    Confidences are as a calibration corrects them, as they are in use. What the model of a calibrated classifier says
    itself is added to `seen`, with the ground truth.

    Raises:
        ValueError: None of the images can be read.
    """
    meter, bad = get_evaluator(trained.task).meter(len(trained.classes), trained.settings), dict[str, str]()
    predicted = trained.predict_annotated(images, batch=batch, workers=workers, device=device, progress=progress)
    for group, predictions in predicted:
        bad |= group.bad
        if seen is not None and "temperature" in trained.settings:
            seen += zip(predictions, group.targets, strict=True)
        meter.add(group, [one.calibrated(trained.settings) for one in predictions])
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


def reading_threads(kind: str, wanted: int | None) -> int:
    """Threads that read images for a bundle; sources that keep an open place in a file are read by one."""
    if kind not in ("folder", "coco", "voc", "yolo", "masks"):
        return 0
    return min(4, available_cores()) if wanted is None else wanted
