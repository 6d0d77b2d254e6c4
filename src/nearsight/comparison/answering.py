"""What the models of a comparison answer to the images that decide, one file for each run."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_whole

ANSWERS = "predictions.npz"


def write_answers(folder: Path) -> None:
    """Write the answers of a run's model to the images that decide: test images, or validation images without such."""
    from ..runs.run import Run

    outcome = Run(folder).outcome()
    assert outcome is not None
    if outcome.task == "classify":
        arrays = class_answers(folder)
    else:
        from .dense import scene_answers

        arrays = scene_answers(folder)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    write_whole(folder / ANSWERS, file.getvalue())


def class_answers(folder: Path) -> dict[str, NDArray[Any]]:
    """What the model of a run answered to the images that decide, as arrays for its file of answers."""
    from ..evaluation.evaluate import evaluate

    evaluation = evaluate(folder)
    found = evaluation.predictions
    given = found.logits.argmax(axis=1).astype(np.int64)
    return {
        "worth": given == found.labels,
        "classes": np.stack([given, found.labels]),
        "sureness": found.probabilities.max(axis=1).astype(np.float32),
        "indices": found.indices,
        "split": np.array(evaluation.split),
    }
