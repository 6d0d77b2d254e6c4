"""Labels you can trust: annotations that a model contradicts, look-alikes with different labels, and outliers.

A model judges the labels of images that it was not trained with: the folds of a cross-validated run, or a logistic
regression on frozen features that leaves out one fold after the other.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch.nn import functional as F

from .arguments import checked
from .checkpoints.pretrained import cache_folder, find_pretrained, missing_sentence
from .config.recipe import ModelChoice
from .data.check import check_surveyed
from .data.groups import assign_groups, group_keys
from .data.issues import CheckReport, ImageRef, LookAlike, Outlier, Suspect
from .data.loader import default_workers
from .data.open import open_again, open_data
from .data.samples import Data, Split, Subset
from .data.survey import ImageKey, Survey
from .features import FOLDS as PARTS
from .features import cross_predict, extract_features
from .plots.style import image_url
from .runs.predictor import FOLDS, Predictor, load_trained, pick_device
from .runs.run import read_data_record
from .tasks import get_task
from .tasks.base import Built, Task
from .tasks.build import build
from .tasks.classify import held_channels
from .tasks.evaluator import Doubt

NEIGHBOURS = 10  # whose mean distance tells whether an image is an outlier
# Both from features of 400 photos of clothing by DeiT-Tiny: four of five photos of other things among them are so far
# away, and none of the clothing; 127 of 200 changed copies are so alike, and no pair of different labels.
FAR = 3.0  # robust standard deviations from the median distance
ALIKE = 0.85  # cosine of standardised features from which on two images are near-duplicates
ROWS = 1024  # images whose distances are computed at a time
SHOWN = 100  # of each kind, on the page
SIDE = 200  # pixels of an image on the page
MARGIN = 0.3  # of a box, that is shown around it
CROP_MARGIN = 0.1  # of a box, that frozen features see around it

Progress = Callable[[Iterable[Any]], Iterable[Any]]


@checked
def check_data(
    data: Data | str | os.PathLike[str],
    task: str | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    frozen: bool = False,
    groups: str | None = None,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> CheckReport:
    """Read all images and report what would spoil a training run; with a model, also which labels look wrong.

    Args:
        data: A source as for `open_data`, or what that opened.
        task: As for `open_data`, for a source.
        model: A finished run whose predictions the annotations are compared with; of `train --folds`, every image is
            judged by the fold that was not trained with it.
        frozen: Judge labels and boxes by a logistic regression on features of pretrained weights that are at hand,
            which leaves out one fold after the other; also finds look-alikes and outliers.
        groups: Which images must stay together (`nearsight.data.groups.group_keys`); None looks whether their names
            suggest series.
        workers: Processes that read images; 0 reads in this one. As many as there are cores if None.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps batches, to show how far the work is.

    Raises:
        ValueError: There are no such data, they are not for this task, or the model is of another task.

    Example:
        >>> report = check_data("digits")
        >>> report.problems, report.heights.median, report.img_size
        ([], 8.0, 32)
    """
    if not isinstance(data, Data):
        data = open_data(data, task)
    report, survey = check_surveyed(data, groups, workers)
    if model is None and not frozen:
        return report
    where = pick_device(device)
    readers = default_workers(data.kind, where) if workers is None else workers
    if model is not None:
        judge_by_model(report, data, survey, model, readers, where, progress)
    if frozen:
        judge_by_features(report, data, survey, groups, readers, where)
    return report


def judge_by_model(
    report: CheckReport,
    data: Data,
    survey: Survey,
    source: str | os.PathLike[str],
    workers: int,
    device: torch.device,
    progress: Progress,
) -> None:
    """Compare annotations with what a run predicts, of a run in folds for the images that each fold left out."""
    trained = load_trained(source)
    task = get_task(trained.task)
    if trained.task != data.task:
        raise ValueError(f"{source} was trained to {trained.task}, but {data.source} is annotated to {data.task}.")
    doubts: dict[ImageKey, list[Doubt]] = {}
    for name, predictor, split, numbers in judged_by(trained, data, Path(source)):
        matched = task.match_split(split, data, predictor.classes)
        model = predictor.model.to(device)
        for group in progress(task.eval_loader(matched, predictor.preprocessing, task.batch, workers)):
            predictions = task.predict(model, group, predictor.preprocessing, device, predictor.classes)
            for index, target, said in zip(group.indices.tolist(), group.targets, predictions, strict=True):
                doubts[name, int(numbers[index])] = task.doubts(said, target, predictor.classes)
    in_folds = (Path(source) / FOLDS).is_file()
    note = f"labels are judged by {trained.name} of {source}"
    if not in_folds and "train" in report.images:
        note += ", which learned from its training images and may repeat their mistakes; `train --folds 5` does better"
    report.notes.append(note)
    report.judged_by = trained.name
    report.suspects = rank_doubts(data, doubts)
    if task.is_linear and not in_folds:
        built = Built(trained.model, trained.name, None, trained.preprocessing)
        compare_features(report, data, *features_of(data, survey, built, workers, device))


def judged_by(
    trained: Predictor, data: Data, folder: Path
) -> Iterator[tuple[str, Predictor, Split, NDArray[np.int64]]]:
    """Which model judges which images: name of the split, model, images, and their numbers in the split."""
    rest = dict(data.splits())
    if (folder / FOLDS).is_file():
        for fold in sorted(folder.glob("fold-*")):
            test = open_again(read_data_record(fold / "data.json")).test
            assert isinstance(test, Subset) and data.train is not None
            yield "train", load_trained(fold), Subset(data.train, test.indices), test.indices
        rest.pop("train", None)
    for name, split in rest.items():
        yield name, trained, split, np.arange(len(split))


def rank_doubts(data: Data, doubts: dict[ImageKey, list[Doubt]]) -> list[Suspect]:
    """The annotations that a model contradicts, the least probable first."""
    splits = data.splits()
    found = [
        Suspect(name, splits[name].name(index), one.given, one.suggestion, one.score, index, one.box)
        for (name, index), some in doubts.items()
        for one in some
    ]
    return sorted(found, key=lambda suspect: suspect.score)


def judge_by_features(
    report: CheckReport, data: Data, survey: Survey, groups: str | None, workers: int, device: torch.device
) -> None:
    """Judge labels, or the classes of boxes, by frozen features; and find look-alikes and outliers by them."""
    weights = find_pretrained(None)
    if weights is None:
        raise ValueError(f"--frozen needs pretrained weights. {missing_sentence(None)}")
    splits, classes, task = data.splits(), len(data.classes), get_task(data.task)
    first = next(iter(splits.values()))
    choice = ModelChoice(name=weights.model, weights=str(weights.path), channels=held_channels(first))
    built = build(choice, classes)
    entries, values = features_of(data, survey, built, workers, device)
    compare_features(report, data, entries, values)
    if report.judged_by:
        return  # a run has judged the labels
    doubts: dict[ImageKey, list[Doubt]] = {}
    if task.is_linear:
        targets = np.array([np.asarray(splits[name].target(index)) for name, index in entries]).astype(np.int64)
        labels = np.array([int(splits[name].labels[index]) for name, index in entries])
        folds = assign_groups(labels, belonging(data, survey, report, entries, groups), [1 / PARTS] * PARTS, "labels")
        for entry, row, truth in zip(entries, cross_predict(values, targets, classes, folds), targets, strict=True):
            doubts[entry] = task.label_doubts(row, truth, data.classes)
    else:
        crops = {name: BoxCrops(split, found) for name, split in splits.items() if (found := task.boxes_of(split))}
        if not crops:
            report.notes.append(
                "masks are judged by a run alone; give --model RUN to compare them with its predictions"
            )
            return
        parts = {name: crop_features(one, built, name, data, workers, device) for name, one in crops.items()}
        rows = [(name, number) for name, (numbers, _) in parts.items() for number in numbers]
        targets = np.array([int(crops[name].labels[number]) for name, number in rows])
        owners = [f"{name} {crops[name].boxes[number][0]}" for name, number in rows]
        folds = assign_groups(targets, owners, [1 / PARTS] * PARTS, "labels")
        values = np.concatenate([found for _, found in parts.values()])
        said = cross_predict(values, targets, classes, folds)
        for (name, number), row, truth in zip(rows, said, targets, strict=True):
            index, box, _ = crops[name].boxes[number]
            for one in get_task("classify").label_doubts(row, truth, data.classes):
                doubts.setdefault((name, index), []).append(replace(one, box=box))
    report.judged_by = f"frozen features of {built.name}"
    report.suspects = rank_doubts(data, doubts)


def belonging(
    data: Data, survey: Survey, report: CheckReport, entries: Sequence[ImageKey], groups: str | None
) -> list[str]:
    """What images stay in one fold by: their group, or that they are copies of each other."""
    names = {name: group_keys(split, groups) for name, split in data.splits().items()}
    if all(keys is not None for keys in names.values()):
        return [(names[name] or [])[index] for name, index in entries]
    first = {
        (image.split, image.name): number for number, copies in enumerate(report.copies) for image in copies.images
    }
    splits = data.splits()
    found = [((name, splits[name].name(index)), f"{name} {index}") for name, index in entries]
    return [f"copies {first[key]}" if key in first else alone for key, alone in found]


def features_of(
    data: Data, survey: Survey, built: Built, workers: int, device: torch.device
) -> tuple[list[ImageKey], NDArray[np.float32]]:
    """The readable images of all splits, and their features `[n, P, C]`, which are kept on the disk."""
    entries: list[ImageKey] = []
    values = []
    for name, split in data.splits().items():
        seen = hashlib.sha256(
            b"".join(d for d, (s, _) in zip(survey.digests, survey.entries, strict=True) if s == name)
        )
        whole = BoxCrops(split, [(index, None, int(label)) for index, label in enumerate(split.labels.tolist())])
        numbers, found = crop_features(whole, built, name, data, workers, device, seen.hexdigest())
        entries += [(name, number) for number in numbers]
        values.append(found)
    return entries, np.concatenate(values)


def crop_features(
    crops: "BoxCrops", built: Built, name: str, data: Data, workers: int, device: torch.device, fingerprint: str = ""
) -> tuple[list[int], NDArray[np.float32]]:
    """Numbers of the crops that can be read, and their features `[n, P, C]`."""
    parts = [(number, box) for number, box, _ in crops.boxes]  # a corrected label changes no feature
    what = repr((os.path.abspath(data.source), name, built.name, built.preprocessing, fingerprint, parts))
    folder = cache_folder() / "features" / hashlib.sha256(what.encode(errors="surrogateescape")).hexdigest()[:24]
    found = extract_features(
        get_task("classify"), built, crops, folder, fingerprint=fingerprint, workers=workers, device=device
    )
    return found.indices.tolist(), found.values


Boxed = tuple[int, tuple[float, float, float, float] | None, int]  # number of an image, a box in it, a class


class BoxCrops(Split):
    """Parts of images, each with a class; a part without a box is the whole image.

    Args:
        whole: The images.
        boxes: Number of the image, box in its pixels and class number of each part.
    """

    def __init__(self, whole: Split, boxes: Sequence[Boxed]):
        self.whole, self.boxes = whole, list(boxes)
        self.labels = np.array([label for _, _, label in boxes], dtype=np.int64)

    def name(self, index: int) -> str:
        number, box, _ = self.boxes[index]
        return self.whole.name(number) if box is None else f"{self.whole.name(number)} {box}"

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        number, box, _ = self.boxes[index]
        image = self.whole.read(number, enough if box is None else None)
        return image if box is None else image.crop(around(box, image.size, CROP_MARGIN))

    def content(self, index: int) -> bytes:
        return self.read(index).tobytes()


def around(box: Sequence[float], size: tuple[int, int], margin: float) -> tuple[int, int, int, int]:
    """A box (x1, y1, x2, y2) with a margin of its sides, inside an image of a width and height."""
    wide, tall = (margin * (box[end] - box[end - 2]) for end in (2, 3))
    left, top = max(0, int(box[0] - wide)), max(0, int(box[1] - tall))
    right, bottom = min(size[0], int(box[2] + wide) + 1), min(size[1], int(box[3] + tall) + 1)
    return left, top, max(right, left + 1), max(bottom, top + 1)


def compare_features(report: CheckReport, data: Data, entries: Sequence[ImageKey], values: NDArray[np.float32]) -> None:
    """Near-duplicates with different labels, and images far from all others, by standardised features `[n, P, C]`."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    scaled = torch.from_numpy((flat - flat.mean(0)) / (flat.std(0) + 1e-6)).float()
    unit, count = F.normalize(scaled, dim=1), min(NEIGHBOURS, len(scaled) - 1)
    if count < 1:
        return
    parts = torch.arange(len(unit)).split(ROWS)
    likeness, numbers = (
        torch.cat(part).numpy() for part in zip(*(nearest(unit, rows, count) for rows in parts), strict=True)
    )
    splits = data.splits()

    def image(row: int) -> ImageRef:
        name, index = entries[row]
        return ImageRef(name, splits[name].name(index), splits[name].label_text(index, data.classes))

    pairs: dict[tuple[int, int], float] = {}
    for row, other in zip(*np.nonzero(likeness >= ALIKE), strict=True):
        first, second = sorted((int(row), int(numbers[row, other])))
        pairs[first, second] = float(likeness[row, other])
    for (first, second), value in sorted(pairs.items(), key=lambda pair: -pair[1]):
        images = image(first), image(second)
        if images[0].label != images[1].label:
            report.look_alikes.append(LookAlike(images, value, (entries[first], entries[second])))
    # By cosine, images of no class at all would be as near as rare ones of a class.
    distance = torch.cat([distant(scaled, rows, count) for rows in parts]).numpy()
    middle = float(np.median(distance))
    spread = 1.4826 * float(np.median(np.abs(distance - middle))) or 1.0
    for row in np.argsort(-distance, kind="stable").tolist():
        if (distance[row] - middle) / spread < FAR:
            break
        one = image(row)
        report.outliers.append(Outlier(one.split, one.name, one.label, float(distance[row] / middle), entries[row][1]))


def nearest(unit: torch.Tensor, rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and numbers of the nearest others of some rows `[r, count]`."""
    alike = unit[rows] @ unit.T
    alike[torch.arange(len(rows)), rows] = -2.0
    return alike.topk(count, dim=1)


def distant(values: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """Mean distances of some rows to their nearest others `[r]`."""
    apart = torch.cdist(values[rows], values)
    apart[torch.arange(len(rows)), rows] = torch.inf
    return apart.topk(count, dim=1, largest=False).values.mean(dim=1)


def draw_page(report: CheckReport, data: Data) -> bytes:
    """What was found, with its images, as one HTML page that needs nothing but itself."""
    from jinja2 import Environment, StrictUndefined

    task, splits = get_task(data.task), data.splits()

    def suspect(one: Suspect) -> dict[str, Any]:
        return {"image": picture(task, splits[one.split], one.index, data.classes, one.box), "of": one}

    def plain(name: str, index: int) -> str:
        return picture(task, splits[name], index, data.classes, None)

    pairs = [{"of": one, "images": [plain(*key) for key in one.keys]} for one in report.look_alikes[:SHOWN]]
    outliers = [{"of": one, "image": plain(one.split, one.index)} for one in report.outliers[:SHOWN]]
    template = (files("nearsight") / "label_issues.html.j2").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            report=report,
            suspects=[suspect(one) for one in report.suspects[:SHOWN]],
            pairs=pairs,
            outliers=outliers,
            total=sum(report.images.values()),
        )
        .encode("utf-8", "replace")
    )


def picture(task: Task, split: Split, index: int, classes: Sequence[str], box: Sequence[float] | None) -> str:
    """An image as the text of a JPEG: whole, with its annotation where that is drawn, or around a box."""
    try:
        if task.is_linear or box:
            image = split.read(index, None if box else 2 * SIDE)
        else:
            draw: Any = task  # one of dense prediction
            image = draw.draw_ground_truth(split, index, classes)[1]
    except ValueError:
        return ""
    if box:
        part = around(box, image.size, MARGIN)
        image = image.crop(part)
        scale = 2 * SIDE / max(image.size)
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
        corners = [scale * (side - part[number % 2]) for number, side in enumerate(box)]
        ImageDraw.Draw(image).rectangle(corners, outline="#d55e00", width=4)
    image = image.convert("RGB")
    image.thumbnail((2 * SIDE, 2 * SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return image_url(file.getvalue(), "jpeg")


def is_page(head: bytes) -> bool:
    """Whether a file begins like such a page."""
    return b"<title>Labels of " in head
