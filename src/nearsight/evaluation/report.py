"""The files of an evaluation: figures as JSON, predictions as CSV, and pictures."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from ..atomic import write_whole
from ..interval import Interval
from ..plots.style import to_png
from .evaluate import Evaluation
from .metrics import worst_mistakes
from .plots import ACROSS, Mistake, draw_confusion, draw_mistakes, draw_reliability

SHOWN = 4 * ACROSS  # mistakes on the contact sheet


def write_report(evaluation: Evaluation, folder: str | Path | None = None) -> Path:
    """Write `metrics.json`, `predictions.csv`, `confusion.png`, `reliability.png` and `mistakes.png`.

    Args:
        evaluation: What `evaluate` returned.
        folder: Where to; made if it is not there. None takes `eval-...` in the folder of the run.

    Returns:
        The folder.
    """
    folder = evaluation.default_folder if folder is None else Path(folder)
    metrics = evaluation.metrics
    files = {
        "predictions.csv": to_csv(evaluation),
        "confusion.png": to_png(draw_confusion(metrics.confusion, evaluation.classes)),
        "reliability.png": to_png(draw_reliability(metrics.calibration)),
        "mistakes.png": to_png(draw_mistakes(find_mistakes(evaluation), metrics.images, count_wrong(evaluation))),
        "metrics.json": to_json(evaluation).encode(),  # last: where it is, the others are
    }
    for name, content in files.items():
        write_whole(folder / name, content)
    return folder


def count_wrong(evaluation: Evaluation) -> int:
    """Images with a wrong answer."""
    return int(evaluation.metrics.images - evaluation.metrics.confusion.trace())


def find_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """The wrong answers that the model was surest of, with their images."""
    found = evaluation.predictions
    probabilities = found.probabilities
    names = evaluation.classes
    return [
        Mistake(
            evaluation.images.read(int(found.indices[row]), enough=256),
            names[found.labels[row]],
            names[probabilities[row].argmax()],
            float(probabilities[row].max()),
        )
        for row in worst_mistakes(probabilities, found.labels, SHOWN)
    ]


def to_dict(evaluation: Evaluation) -> dict[str, Any]:
    """All figures as values that JSON has; null where there is nothing to count."""
    metrics, calibration = evaluation.metrics, evaluation.metrics.calibration
    bins = zip(
        calibration.edges[:-1], calibration.edges[1:], *calibration[2:], strict=True
    )  # limits, images, confidence, accuracy
    by_class = zip(
        evaluation.classes, metrics.support, metrics.recall, metrics.precision, metrics.f1.tolist(), strict=True
    )
    return {
        "model": evaluation.model,
        "weights": str(evaluation.path),
        "data": evaluation.source,
        "split": evaluation.split,
        "images": metrics.images,
        "bad_images": evaluation.predictions.bad,
        "top1": share_dict(metrics.top1),
        "top5": metrics.top5 and share_dict(metrics.top5),
        "balanced_accuracy": metrics.balanced_accuracy,
        "macro_f1": metrics.macro_f1,
        "nll": metrics.nll,
        "calibration_error": calibration.error,
        "calibration": [
            {"from": low, "to": high, "images": int(images), "confidence": known(sure), "accuracy": known(right)}
            for low, high, images, sure, right in bins
        ],
        "classes": [
            {
                "name": name,
                "images": int(support),
                "recall": share_dict(recall),
                "precision": share_dict(precision),
                "f1": known(f1),
            }
            for name, support, recall, precision, f1 in by_class
        ],
        "confusion": metrics.confusion.tolist(),
    }


def share_dict(share: Interval) -> dict[str, float] | None:
    """A share and its 95 % interval."""
    return None if math.isnan(share.value) else share._asdict()


def known(value: float) -> float | None:
    """The number, or None where there is none; JSON has no nan."""
    return None if math.isnan(value) else float(value)


def to_json(evaluation: Evaluation) -> str:
    """All figures as JSON, with a row of the confusion matrix on a line."""
    values = to_dict(evaluation)
    rows = ",\n  ".join(json.dumps(row) for row in values.pop("confusion"))
    head = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    return f'{head},\n "confusion": [\n  {rows}\n ]\n}}\n'


def to_csv(evaluation: Evaluation) -> bytes:
    """A line for each image: its name, the true class, the answer, and how likely the model held both."""
    found, names = evaluation.predictions, evaluation.classes
    probabilities = found.probabilities
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["image", "true", "said", "right", "probability", "probability_of_true"])
    for row, (index, label) in enumerate(zip(found.indices.tolist(), found.labels.tolist(), strict=True)):
        said = int(probabilities[row].argmax())
        chances = (f"{probabilities[row, number]:.6f}" for number in (said, label))
        writer.writerow([evaluation.images.name(index), names[label], names[said], int(said == label), *chances])
    return stream.getvalue().encode(errors="surrogateescape")
