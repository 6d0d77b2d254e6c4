"""Images on which two models differ, to look at.

Where each image has one class, those that one model mostly gets right and the other mostly wrong; else those that one
model predicts clearly better, with what both predict drawn into them.
"""

import base64
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data import BadImage, Split
from ..data.loader import Collate, EvalImages
from ..plots.overlays import side_by_side
from ..runs.predictor import Predictor, load_trained
from ..tasks import get_task
from .plan import RunPlan
from .results import Disagreement, Example, ExamplePrediction
from .statistics import SharedPredictions

SHOWN, SHOWN_DENSE = 8, 4  # examples of each sort
SIDE, WIDTH = 96, 720  # pixels of an example: of its longer side, and of several beside each other
CLEAR = 0.1  # by how much better the predictions for an image must be


def find_examples(
    predictions: SharedPredictions,
    first: str,
    second: str,
    split: Split,
    classes: Sequence[str],
    runs: Sequence[RunPlan],
) -> list[Disagreement]:
    """Images that tell two models apart, in both directions."""
    pairs = ((first, second), (second, first))
    if predictions.counted:
        return [right_and_wrong(predictions, *pair, split, classes) for pair in pairs]
    finished = [run for run in runs if run.is_finished()]
    models = {
        label: load_trained(next(run.folder for run in finished if run.model.label == label))
        for label in (first, second)
    }
    return [better_and_worse(predictions, *pair, split, models) for pair in pairs]


def right_and_wrong(
    predictions: SharedPredictions, right: str, wrong: str, split: Split, classes: Sequence[str]
) -> Disagreement:
    """Images that most seeds of one model get right and most of another wrong; the clearest first."""
    good, bad = predictions.image_scores(right), predictions.image_scores(wrong)
    clear = np.flatnonzero((good > 0.5) & (bad < 0.5))
    clear = clear[np.argsort(bad[clear] - good[clear], kind="stable")]
    mostly = np.stack([predictions.image_scores(label) > 0.5 for label in predictions.labels_done()]).sum(axis=0)
    one = next(run for seeds in predictions.runs.values() for run in seeds.values())
    assert one.classes is not None
    labels = one.classes[1]  # [n]
    examples = []
    for row in spread_over_classes(clear, labels)[: 2 * SHOWN]:
        index = int(predictions.indices[row])
        try:
            image = split.read(index, SIDE).convert("RGB")
        except BadImage:
            continue
        image.thumbnail((SIDE, SIDE))
        examples.append(
            Example(
                name=split.name(index),
                ground_truth=classes[labels[row]],
                image=encode(image),
                predictions=[mostly_predicted(predictions, label, int(row), classes) for label in (right, wrong)],
                models_right=int(mostly[row]),
            )
        )
    return Disagreement(right=right, wrong=wrong, images=len(clear), examples=examples[:SHOWN])


def spread_over_classes(rows: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows in turns over the classes, so that one class does not fill the page."""
    seen: dict[int, int] = {}
    ranks = []
    for index in rows:
        label = int(labels[index])
        seen[label] = seen.get(label, 0) + 1
        ranks.append(seen[label])
    return rows[np.argsort(ranks, kind="stable")]


def mostly_predicted(
    predictions: SharedPredictions, label: str, index: int, classes: Sequence[str]
) -> ExamplePrediction:
    """What most seeds of a model predict for an image."""
    pairs = [run.classes[:, index] for run in predictions.runs[label].values() if run.classes is not None]
    given, labels = np.stack(pairs, axis=1)
    most = int(np.bincount(given).argmax())
    return ExamplePrediction(
        label=label, prediction=classes[most], right=int((given == labels).sum()), seeds=len(given)
    )


def better_and_worse(
    predictions: SharedPredictions, better: str, worse: str, split: Split, models: dict[str, Predictor]
) -> Disagreement:
    """Images that one model predicts clearly better; the largest differences first."""
    good, bad = predictions.image_scores(better), predictions.image_scores(worse)
    clear = np.flatnonzero(good - bad >= CLEAR)
    clear = clear[np.argsort((bad - good)[clear], kind="stable")]
    examples = []
    for row in clear[:SHOWN_DENSE]:
        index = int(predictions.indices[row])
        shown = [
            ExamplePrediction(
                label=label,
                prediction=f"{100 * predictions.image_scores(label)[row]:.0f} %",
                right=0,
                seeds=len(predictions.runs[label]),
            )
            for label in (better, worse)
        ]
        try:
            image = draw_both(split, index, {label: models[label] for label in (better, worse)})
        except BadImage:
            continue
        if image.width > WIDTH:
            image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
        drawn = encode(image.quantize(128))
        examples.append(
            Example(name=split.name(index), ground_truth="", image=drawn, predictions=shown, models_right=0)
        )
    return Disagreement(right=better, wrong=worse, images=len(clear), examples=examples)


def draw_both(split: Split, index: int, models: dict[str, Predictor]) -> Image.Image:
    """One image with the ground truth, and with the predictions of models."""
    first = next(iter(models.values()))
    task = get_task(first.task)
    image, truth = task.draw_ground_truth(split, index, first.classes)
    panels = [("ground truth", truth)]
    for label, trained in models.items():
        item = EvalImages(split, trained.preprocessing)[index]
        if isinstance(item, BadImage):
            raise item
        batch = Collate(trained.preprocessing.divisor, training=False)([item])
        device = next(trained.model.parameters()).device
        (found,) = task.predict(trained.model, batch, trained.preprocessing, device, trained.classes)
        panels.append((label, found.at_settings(trained.settings, top=1, min_score=None).draw(image)))
    return side_by_side(panels)


def encode(image: Image.Image) -> str:
    """A PNG as base64."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
