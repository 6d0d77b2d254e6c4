"""One run of a comparison, in a process of its own: train as the command does, then answer the test images.

The process lives as long as the comparison: when the other end of its standard input is closed, because the comparison
was killed, it writes a checkpoint and ends.
"""

import io
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.native import write_whole

ANSWERS = "predictions.npz"


def main() -> None:
    """Train with the arguments of the command line, then write what the model says of the test images."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    arguments = sys.argv[1:]
    folder = Path(arguments[arguments.index("--out") + 1])
    from ..cli import main as command
    from ..cli import stop

    if not (folder / "outcome.json").is_file():
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise
    try:
        write_answers(folder)
    except (ValueError, OSError) as error:
        stop(error)


def end_with_parent() -> None:
    """Wait for the end of standard input, then leave as if asked to."""
    while os.read(sys.stdin.fileno(), 1):  # not through the buffer, whose lock would be held at the end of the program
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def write_answers(folder: Path) -> None:
    """Write the answers of a run's model to the images that decide: test images, or validation images without such."""
    from ..train.run import Run

    outcome = Run(folder).outcome()
    assert outcome is not None
    if outcome.task == "classify":
        arrays = class_answers(folder)
    else:
        from .scenes import scene_answers

        arrays = scene_answers(folder)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    write_whole(folder / ANSWERS, file.getvalue())


def class_answers(folder: Path) -> dict[str, NDArray[Any]]:
    """What the model of a run answered to the images that decide, as arrays for its file of answers."""
    from ..evaluate.evaluation import evaluate

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


if __name__ == "__main__":
    main()
