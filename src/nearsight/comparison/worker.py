"""What a process of a comparison does: train one run from beginning to end, or time it.

`python -m nearsight.comparison.worker train JOB.json`, or `time`. The process lives as long as the comparison: when the
other end of its standard input is closed, because the comparison was killed, it writes a checkpoint and ends.
"""

import os
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import torch

from ..config.recipe import Recipe
from ..data.samples import Subset
from ..runs.predictor import pick_device
from ..runs.run import PREDICTIONS, Run
from ..training.estimate import PAGE_SECONDS, measure
from ..training.loop import evaluate, run_training, set_rates, take_step
from ..training.session import Limits, make_accelerator, open_session, prepare, training_batches
from ..training.signals import Interrupted, StopFlag, end_in_order
from .plan import Job

WARM_UP = 2  # steps that are not timed
LEAST_STEPS, LEAST_SECONDS = 5, 4.0
VALIDATED = 256  # images that stand for all


def main() -> None:
    """Do a job; what is refused becomes the last line of the log, and exit code 1."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    what, file = sys.argv[1:]
    job = Job.model_validate_json(Path(file).read_text(encoding="utf-8"))
    torch.set_num_threads(job.threads)
    try:
        if what == "time":
            print(*time_run(job.source, job.recipe))
            return
        if not (job.folder / "outcome.json").is_file():
            run_training(job.source, job.recipe, job.folder)
        write_predictions(job.folder)
    except Interrupted as stop:
        print(f"nearsight: {stop}", file=sys.stderr)
        sys.exit(128 + stop.number)
    except (ValueError, OSError) as error:
        traceback.print_exc()  # for whoever looks into the log; its last line is what the comparison shows
        named = f"{error.filename or job.folder}: {error.strerror}." if isinstance(error, OSError) else str(error)
        sys.exit(f"nearsight: {' '.join(named.split())}")


def end_with_parent() -> None:
    """Wait for the end of standard input, then leave as if asked to."""
    while os.read(sys.stdin.fileno(), 1):  # not through the buffer, whose lock would be held at the end of the program
        pass
    end_in_order()


def write_predictions(folder: Path) -> None:
    """Write what a run's model predicts for the images that decide: test images, or validation images without such."""
    from ..evaluation import evaluate as predict_anew

    if not (folder / PREDICTIONS).is_file():  # a run of version 0.1, or somebody deleted it
        found = predict_anew(folder)
        Run(folder).write_predictions(found.split, {"indices": found.meter.indices, **found.meter.compared()})


def time_run(source: str, recipe: Recipe) -> tuple[float, float]:
    """Seconds of one epoch with its validation, from some steps of the training loop itself, and of all around them.

    A run on frozen features has no epochs; all of it stands around them.
    """
    began = time.perf_counter()
    prepared = prepare(source, recipe)
    preparing = time.perf_counter() - began
    if recipe.frozen:
        return 0.0, measure(prepared, pick_device(), preparing).frozen(prepared)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        session = open_session(run, prepared, make_accelerator(run, prepared.recipe, (), cpu=False), Limits())
        batches = iter(training_batches(session, prepared.train))
        flag = StopFlag()

        def step() -> None:
            set_rates(session)
            take_step(session, batches, flag)
            session.progress.step += 1

        total = prepared.recipe.epochs * session.steps_per_epoch
        for _ in range(min(WARM_UP, total - 1)):
            step()
        first, began = session.progress.step, time.perf_counter()
        while session.progress.step < total and (
            session.progress.step - first < LEAST_STEPS or time.perf_counter() - began < LEAST_SECONDS
        ):
            step()
        per_step = (time.perf_counter() - began) / (session.progress.step - first)
        training = per_step * session.steps_per_epoch
        some = Subset(prepared.val, torch.arange(min(VALIDATED, len(prepared.val))).numpy())
        began = time.perf_counter()
        evaluate(session, some)
        one = (time.perf_counter() - began) / len(some)
    test = prepared.data.test
    return training + one * len(prepared.val), preparing + PAGE_SECONDS + one * (0 if test is None else len(test))


if __name__ == "__main__":
    main()
