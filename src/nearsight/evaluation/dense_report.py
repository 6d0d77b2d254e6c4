"""Files of an evaluation of objects or regions: figures as JSON, a table of images, the best and worst cases."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..atomic import write_whole
from ..console import percent
from ..data.dense.loader import Collate, EvalScenes, read_scene
from ..data.instances import Instances, decode_masks
from ..data.samples import Split
from ..plots.overlays import draw_objects, draw_regions, side_by_side
from ..runs.predictor import Predictor
from ..tasks.dense import find_objects, find_regions
from .dense import SceneEvaluation
from .table import SEEN, titled

SHOWN = 4  # cases of each sort
TALL = 240  # pixels of a case
WIDE = 1200  # pixels of a case, at most
FIGURES = {
    "ap": ("AP", "mean over overlaps of 50 to 95 % and over classes"),
    "ap50": ("AP50", "an overlap of 50 % counts as found"),
    "ap75": ("AP75", "an overlap of 75 % counts as found"),
    "small": ("AP small", "objects up to 32 × 32 pixels"),
    "medium": ("AP medium", "up to 96 × 96 pixels"),
    "large": ("AP large", "above"),
    "recall": ("AR", "share of the objects found among 100 answers"),
    "f1": ("F1", "at the score below which answers are best left out"),
}


def write_scene_report(evaluation: SceneEvaluation, folder: str | Path | None = None) -> Path:
    """Write `metrics.json`, `images.csv` and `cases.png`.

    Args:
        evaluation: What `evaluate_scenes` returned.
        folder: Where to; made if it is not there. None takes `eval-...` in the folder of the run.

    Returns:
        The folder.
    """
    folder = evaluation.default_folder if folder is None else Path(folder)
    stream = io.BytesIO()
    draw_cases(evaluation).save(stream, "PNG")
    files = {
        "images.csv": to_csv(evaluation),
        "cases.png": stream.getvalue(),
        "metrics.json": to_json(evaluation).encode(),  # last: where it is, the others are
    }
    for name, content in files.items():
        write_whole(folder / name, content)
    return folder


def to_json(evaluation: SceneEvaluation) -> str:
    """All figures as JSON; null where there is nothing to count."""
    trained = evaluation.trained
    values: dict[str, Any] = {
        "model": trained.name,
        "weights": str(trained.path),
        "task": trained.task,
        "data": evaluation.source,
        "split": evaluation.split,
        "images": len(evaluation.indices),
        "bad_images": evaluation.bad,
    }
    values |= {kind: figures.as_dict(trained.classes) for kind, figures in evaluation.objects.items()}
    if evaluation.regions is not None:
        values["regions"] = evaluation.regions.as_dict(trained.classes)
    return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(evaluation: SceneEvaluation) -> bytes:
    """A line for each image: its name, and how good the answer is."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["image", "f1" if evaluation.objects else "mean_overlap"])
    for index, worth in zip(evaluation.indices.tolist(), evaluation.worth.tolist(), strict=True):
        writer.writerow([evaluation.images.name(index), f"{worth:.4f}"])
    return stream.getvalue().encode(errors="surrogateescape")


def draw_cases(evaluation: SceneEvaluation) -> Image.Image:
    """The worst answers on the left, the best on the right, each beside the truth.

    The best are those with something to find, if there are any.
    """
    worst = np.argsort(evaluation.worth, kind="stable")[:SHOWN].tolist()
    order = np.lexsort((evaluation.worth, evaluation.content > 0))[::-1].tolist()
    best = [place for place in order if place not in worst][:SHOWN]
    columns = [draw_column(evaluation, title, places) for title, places in (("worst", worst), ("best", best))]
    page = Image.new("RGB", (sum(part.width for part in columns), max(part.height for part in columns)), "white")
    left = 0
    for part in columns:
        page.paste(part, (left, 0))
        left += part.width
    return page


def draw_column(evaluation: SceneEvaluation, title: str, places: Sequence[int]) -> Image.Image:
    """Some answers, one below the other."""
    rows = []
    for place in places:
        row = draw_case(evaluation, int(evaluation.indices[place]), f"{title}: {100 * evaluation.worth[place]:.0f} %")
        rows.append(row if row.width <= WIDE else row.resize((WIDE, max(1, round(row.height * WIDE / row.width)))))
    column = Image.new("RGB", (max((row.width for row in rows), default=0), sum(row.height for row in rows)), "white")
    top = 0
    for row in rows:
        column.paste(row, (0, top))
        top += row.height
        ImageDraw.Draw(column).line((0, top - 1, column.width, top - 1), fill="#dddddd")
    return column


def draw_case(evaluation: SceneEvaluation, index: int, title: str) -> Image.Image:
    """One image: as it is, with the truth, and with the answer."""
    trained = evaluation.trained
    image, truth, size = read_scene(evaluation.images, index)
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]))
    if isinstance(truth, Instances):
        assert evaluation.found is not None
        least = evaluation.objects["boxes"].threshold
        real = draw_truth(image, truth, trained.classes)
        said = draw_answer(image, evaluation.found.records[index].answer, trained.classes, least)
    else:
        real = draw_regions(image, truth, trained.classes)
        said = draw_regions(image, answer_again(trained, evaluation.images, index), trained.classes)
    name = Path(evaluation.images.name(index)).name
    return side_by_side([(title, image), (f"truth · {name}", real), ("answer", said)], TALL)


def draw_truth(image: Image.Image, truth: Instances, classes: tuple[str, ...]) -> Image.Image:
    """The objects that are there."""
    masks = truth.dense() if truth.shapes is not None else None
    return draw_objects(image, truth.boxes, truth.labels, classes, masks=masks)


def draw_answer(image: Image.Image, found: dict[str, Any], classes: tuple[str, ...], least: float) -> Image.Image:
    """The objects that were found and are sure enough."""
    kept = np.flatnonzero(found["scores"] >= least)
    size = (image.height, image.width)
    masks = decode_masks([found["rles"][place] for place in kept], size) if "rles" in found else None
    return draw_objects(image, found["boxes"][kept], found["labels"][kept], classes, found["scores"][kept], masks)


def answer_again(trained: Predictor, split: Split, index: int) -> Any:
    """What a model finds in one image of a split: objects, or the class of every pixel."""
    batch = Collate(trained.preprocessing.divisor, training=False)([EvalScenes(split, trained.preprocessing)[index]])
    device = next(trained.model.parameters()).device
    find: Any = find_objects if trained.task == "detect" else find_regions
    return find(trained.model, batch, trained.preprocessing, device)[0]


def scene_table(evaluation: SceneEvaluation) -> RenderableType:
    """What was evaluated, the figures, and those of each class, for the terminal."""
    trained = evaluation.trained
    text = Text()
    text.append(trained.name, style="bold")
    text.append(" on all images of " if evaluation.split == "all" else f" on the {evaluation.split} images of ")
    text.append(evaluation.source, style="bold")
    text.append(f"\n{len(evaluation.indices):,} images")
    if evaluation.bad:
        text.append(f"; {len(evaluation.bad):,} unreadable left out", style="yellow")
    if evaluation.own and evaluation.split in SEEN:
        text.append(f"; {SEEN[evaluation.split]}", style="yellow")
    text.append(".\n")
    body = object_tables(evaluation) if evaluation.objects else region_tables(evaluation)
    return Group(text, *body)


def object_tables(evaluation: SceneEvaluation) -> list[RenderableType]:
    """AP of boxes and masks, over all and by class."""
    kinds = evaluation.objects
    table = titled("figure", *kinds, "meaning")
    for key, (name, meaning) in FIGURES.items():
        table.add_row(
            name, *(share_of(getattr(figures, key)) for figures in kinds.values()), Text(meaning, style="dim")
        )
    classes = titled("AP by class", *kinds)
    for number, name in enumerate(evaluation.trained.classes):
        classes.add_row(Text(name), *(share_of(figures.classes[number]) for figures in kinds.values()))
    return [table, Text(), classes]


def region_tables(evaluation: SceneEvaluation) -> list[RenderableType]:
    """Overlap over all and by class."""
    regions = evaluation.regions
    assert regions is not None
    classes = evaluation.trained.classes
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    always = f"always {classes[regions.most_frequent]}: {percent(regions.baseline)}"
    table.add_row("mIoU", percent(regions.miou), Text(f"mean overlap of the classes; {always}", style="dim"))
    table.add_row("pixel accuracy", percent(regions.accuracy), Text("share of the pixels that are right", style="dim"))
    table.add_row("class accuracy", percent(regions.class_accuracy), Text("the same, mean of the classes", style="dim"))
    by_class = titled("class", "overlap", "found", "right", "of the pixels")
    pixels = max(int(regions.pixels.sum()), 1)
    for number, name in enumerate(classes):
        values = (regions.iou[number], regions.recall[number], regions.precision[number])
        by_class.add_row(Text(name), *map(share_of, values), percent(regions.pixels[number] / pixels))
    return [table, Text(), by_class]


def share_of(value: float) -> str:
    """A share for people; a dash where there is none."""
    return "–" if np.isnan(value) else percent(float(value))
