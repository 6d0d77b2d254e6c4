"""Comparisons of detectors and segmenters: what their runs answered, and where two of them differ most."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data import BadImage, Split
from ..data.dense.loader import read_scene
from ..data.instances import Instances
from ..evaluation.dense import evaluate_scenes
from ..evaluation.dense_report import answer_again, draw_answer, draw_truth
from ..plots.overlays import draw_regions, side_by_side
from ..runs.predictor import Trained, open_trained
from .plan import RunPlan
from .predictions import Answers
from .results import Answer, Disagreement, Example
from .runner import is_finished
from .statistics import pseudo_values

SHOWN = 4  # examples of each sort
CLEAR = 0.1  # by how much better an answer must be to be one
WIDTH = 720  # pixels of an example


def scene_answers(folder: Path) -> dict[str, NDArray[Any]]:
    """What the model of a run answered to the images that decide, as arrays for its file of answers."""
    found = evaluate_scenes(folder)
    return {
        "worth": found.worth,
        "parts": pseudo_values(found.score, found.scores_without()),
        "indices": found.indices,
        "split": np.array(found.split),
    }


def find_differences(
    answers: Answers, first: str, second: str, split: Split, runs: Sequence[RunPlan]
) -> list[Disagreement]:
    """Images that one of two models answers clearly better than the other, in both directions."""
    models = {label: open_first(runs, label) for label in (first, second)}
    return [differ(answers, better, worse, split, models) for better, worse in ((first, second), (second, first))]


def open_first(runs: Sequence[RunPlan], label: str) -> Trained:
    """The model of a label's first finished run."""
    return open_trained(next(run.folder for run in runs if run.model.label == label and is_finished(run.folder)))


def differ(answers: Answers, better: str, worse: str, split: Split, models: dict[str, Trained]) -> Disagreement:
    """Images that one model answers clearly better; the largest differences first."""
    good, bad = answers.worth(better), answers.worth(worse)
    clear = np.flatnonzero(good - bad >= CLEAR)
    clear = clear[np.argsort((bad - good)[clear], kind="stable")]
    examples = []
    for place in clear[:SHOWN]:
        index = int(answers.indices[place])
        said = [
            Answer(
                label=label,
                answer=f"{100 * answers.worth(label)[place]:.0f} %",
                right=0,
                seeds=len(answers.runs[label]),
            )
            for label in (better, worse)
        ]
        try:
            picture = encode(draw_both(split, index, {label: models[label] for label in (better, worse)}))
        except BadImage:
            continue
        examples.append(Example(name=split.name(index), truth="", picture=picture, answers=said, models_right=0))
    return Disagreement(right=better, wrong=worse, images=len(clear), examples=examples)


def draw_both(split: Split, index: int, models: dict[str, Trained]) -> Image.Image:
    """One image with the truth, and with the answers of models."""
    image, truth, size = read_scene(split, index)
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]))
    classes = next(iter(models.values())).classes
    if isinstance(truth, Instances):
        panels = [("truth", draw_truth(image, truth, classes))]
        panels += [
            (label, draw_answer(image, answer_again(trained, split, index), classes, trained.threshold))
            for label, trained in models.items()
        ]
    else:
        panels = [("truth", draw_regions(image, truth, classes))]
        panels += [
            (label, draw_regions(image, answer_again(trained, split, index), classes))
            for label, trained in models.items()
        ]
    return side_by_side(panels)


def encode(picture: Image.Image) -> str:
    """A PNG as base64, not wider than a page."""
    if picture.width > WIDTH:
        picture = picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.quantize(128).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
