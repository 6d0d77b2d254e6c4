"""The frozen stage: features of a backbone that keeps its weights, and a logistic regression as its head.

It costs one pass over the images and says what all further training has to beat. What comes of it is an ordinary run.
"""

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..data.loader import default_workers
from ..data.samples import Split
from ..features import FittedHead, FrozenFeatures, extract_features, fit_head, use_head
from ..runs.run import Outcome, Run
from ..tasks import get_task
from ..tasks.base import Built, Task, class_weights
from ..tasks.evaluator import Meter
from .progress import duration
from .session import Prepared
from .signals import Interrupted, listening, refuse_many_bad
from .summary import finish_run


def fit_frozen(
    run: Run, prepared: Prepared, accelerator: Accelerator, quiet: bool, notes: Sequence[str] = ()
) -> Outcome:
    """Extract features, fit the head, and write the run. One process does it, as there is little to share.

    Raises:
        Interrupted: A signal ended the work; the features so far are kept.
        ValueError: The task has no classes to regress on, or the weights are not there.
    """
    if accelerator.is_main_process:
        for note in () if quiet else notes:
            print(note, file=sys.stderr, flush=True)
        work(run, prepared, accelerator.device, quiet)
    accelerator.wait_for_everyone()
    outcome = run.outcome()
    assert outcome is not None
    return outcome


def work(run: Run, prepared: Prepared, device: torch.device, quiet: bool) -> None:
    """What `fit_frozen` does, in the one process that does it."""
    recipe, data, began = prepared.recipe, prepared.data, time.monotonic()
    task = get_task(recipe.task)
    if not task.is_linear:
        raise ValueError(f"Frozen features are for tasks with classes of images, not to {task.name}; leave frozen out.")
    if recipe.model.weights is None:
        raise ValueError("Frozen features need weights that have learned something; name some with --weights.")
    torch.manual_seed(recipe.seed)
    built = task.build(recipe, data)
    if not run.is_begun():
        run.begin(recipe, prepared.record)
    classes, workers = len(data.classes), recipe.data.workers
    workers = default_workers(data.kind, device) if workers is None else workers
    splits = {name: split for name, split in data.splits().items() if split is not None}
    images, bad = sum(map(len, splits.values())), dict[str, str]()
    found: dict[str, FrozenFeatures] = {}
    with listening() as flag, bar(quiet) as progress:
        line = progress.add_task(f"features of {built.name}", total=images)

        def check() -> None:
            if flag.number:
                raise Interrupted(flag.number, 0, run.resume_command)

        for name, split in splits.items():
            fingerprint = hashlib.sha256(json.dumps(prepared.record["splits"][name]).encode()).hexdigest()
            found[name] = extract_features(
                task,
                built,
                split,
                run.folder / "features" / name,
                fingerprint=fingerprint,
                workers=workers,
                device=device,
                progress=lambda done: progress.advance(line, done),
                check=check,
            )
            bad |= found[name].bad
            refuse_many_bad(bad, found[name].bad, images, recipe.data.max_bad)
        progress.update(line, description="logistic regression", total=None)
        seen = found["train"].indices.tolist()
        targets = np.array([np.asarray(prepared.train.target(index)) for index in seen]).astype(np.int64)
        counts = np.bincount(targets, minlength=classes) if targets.ndim == 1 else None
        weights = class_weights(recipe.loss.class_weights, counts) if counts is not None else None
        head = fit_head(
            found["train"].values,
            targets,
            classes,
            weight=None if weights is None else weights.double().numpy()[targets],
            seed=recipe.seed,
        )
    use_head(built.model, head)
    meter = judge(task, head, found["val"], prepared.val, data.classes)
    metrics = meter.metrics()
    validated = metrics.values() | metrics.settings()
    settings = {name: validated[name] for name in task.settings}
    test, tested = data.test, None
    if test is not None:
        meter = judge(task, head, found["test"], test, data.classes, settings)
        metrics = meter.metrics()
        tested = metrics.values() | {name: v for name, v in metrics.settings().items() if isinstance(v, float)}
    seconds = time.monotonic() - began
    elapsed = seconds + sum(features.spared for features in found.values())
    score = validated[task.metric.key]
    if not run.records():
        run.record(
            {"kind": "frozen", "epoch": 0, "step": 0, "pooling": head.pooling, "strength": head.strength}
            | {"cv_score": head.score, "neighbours": head.neighbours, "neighbours_score": head.neighbours_score}
            | {"tried": head.tried, "val_score": score, **{f"val_{name}": value for name, value in validated.items()}}
            | {"elapsed": elapsed, "images_per_second": images / elapsed}
        )
    outcome = Outcome(
        model=built.name,
        parameters=sum(parameter.numel() for parameter in built.model.parameters()),
        epoch=0,
        epochs=0,
        steps=0,
        task=task.name,
        metric=task.metric.title,
        val_score=score,
        test_score=tested[task.metric.key] if tested else None,
        test=tested,
        elapsed=elapsed,
        stopped_early=False,
        bad_images=bad,
        folder=run.folder,
    )
    finish_run(run, outcome, built, data.classes, settings, meter)
    if not quiet:
        say(built, head, score, task, elapsed)


def judge(
    task: Task, head: FittedHead, found: FrozenFeatures, split: Split, classes: tuple[str, ...], settings: Any = None
) -> Meter:
    """What the head makes of the features of a split, with their ground truth."""
    meter = task.meter(len(classes), settings)
    names = [split.name(index) for index in found.indices.tolist()]
    predictions = task.interpret(head.logits(found.values), names, found.originals.tolist(), classes)
    for index, prediction in zip(found.indices.tolist(), predictions, strict=True):
        meter.records[index] = meter.record(index, prediction, split.target(index))
    return meter


def bar(quiet: bool) -> Progress:
    """Images done and time left, on stderr at a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def say(built: Built, head: FittedHead, score: float, task: Task, seconds: float) -> None:
    """The result in a line on stderr."""
    pooled = "" if head.pooling is None else f", pooling {head.pooling}"
    text = (
        f"frozen {built.name}: {task.metric.title} {score:.2%} on validation (cross-validated {head.score:.2%}{pooled}"
    )
    nearest = f"; {head.neighbours} nearest neighbours {head.neighbours_score:.2%}), {duration(seconds)}"
    Console(stderr=True, highlight=False, soft_wrap=True).print(text + nearest)
