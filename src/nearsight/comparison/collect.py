"""From the folders of the runs to the results: statistics, latency, curves, examples."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..data import Split
from ..evaluation.predictions import pick_device
from ..runs.predictor import open_trained
from ..runs.run import Run, processor
from ..training.session import Prepared
from .candidates import Contender
from .examples import find_disagreements
from .latency import ROUNDS, measure_latency
from .plan import Plan, RunPlan
from .predictions import Answers, best_of, differences, read_answers, scores
from .results import Curve, Disagreement, Latency, ModelResult, Results, RunResult
from .runner import is_finished

UNFINISHED = "It has not finished."


def collect(
    plan: Plan,
    folder: Path,
    contenders: Sequence[Contender],
    prepared: Prepared,
    *,
    failures: Mapping[Path, str],
    suggestion: str | None,
    command: str,
    rounds: Iterable[int] = range(ROUNDS),
) -> Results:
    """Everything that is known after the runs.

    Args:
        plan: What was planned.
        folder: Of the comparison.
        contenders: The models of the plan, in its order.
        prepared: The data.
        failures: Sentences of the runs that failed, by folder.
        suggestion: A ConvNet to add.
        command: What was typed.
        rounds: Of the measurement of latency.
    """
    answers = read_answers(plan, folder)
    found = scores(answers) if answers else {}
    against = differences(answers, plan.baseline) if answers and plan.baseline in found else {}
    behind = differences(answers, best_of(found)) if answers else {}
    threads = torch.get_num_threads()
    latency = measure(plan, folder, threads, rounds)
    runs = plan.runs(folder)
    models = [
        ModelResult(
            label=model.label,
            name=model.name,
            options=model.options,
            convnet=contender.convnet,
            parameters=contender.parameters,
            macs=contender.macs,
            runs=[read_run(run, answers, failures) for run in runs if run.model is model],
            score=found.get(model.label),
            difference=against.get(model.label),
            behind_best=behind.get(model.label),
            latency=latency.get(model.label),
        )
        for model, contender in zip(plan.models, contenders, strict=True)
    ]
    split = answers.split if answers else "test"
    return Results(
        data=describe_data(prepared),
        task=prepared.data.task,
        metric=metric_of(runs),
        split=split,
        recipe=describe_recipe(plan, contenders),
        seeds=list(plan.seeds),
        baseline=plan.baseline,
        suggestion=suggestion,
        models=models,
        disagreements=disagreements(answers, plan, folder, prepared) if answers else [],
        machine=describe_machine(threads),
        command=command,
    )


def metric_of(runs: Sequence[RunPlan]) -> str:
    """What the scores of the runs are."""
    outcomes = (Run(run.folder).outcome() for run in runs)
    return next((outcome.metric for outcome in outcomes if outcome is not None), "score")


def read_run(run: RunPlan, answers: Answers | None, failures: Mapping[Path, str]) -> RunResult:
    """What came of one run."""
    records = [values for values in Run(run.folder).records() if values["kind"] == "epoch"]
    curve = Curve(
        epoch=[values["epoch"] for values in records],
        seconds=[values["elapsed"] for values in records],
        loss=[values["loss"] for values in records],
        val_score=[values["val_score"] for values in records],
    )
    outcome = Run(run.folder).outcome()
    if outcome is None or answers is None or not is_finished(run.folder):
        return RunResult(seed=run.seed, failure=failures.get(run.folder, UNFINISHED), curve=curve)
    return RunResult(
        seed=run.seed,
        score=answers.score(run.model.label, run.seed),
        val_score=outcome.val_score,
        seconds=outcome.elapsed,
        epochs=outcome.epochs,
        curve=curve,
    )


def measure(plan: Plan, folder: Path, threads: int, rounds: Iterable[int]) -> dict[str, Latency]:
    """Latency of each model that has a finished run."""
    models = {}
    for run in plan.runs(folder):
        if run.model.label not in models and is_finished(run.folder):
            trained = open_trained(run.folder)
            models[run.model.label] = (trained.model, trained.input.size)
    return measure_latency(models, pick_device(), threads, rounds)


def disagreements(answers: Answers, plan: Plan, folder: Path, prepared: Prepared) -> list[Disagreement]:
    """Examples for the best model and the baseline; for the next model where the baseline is best."""
    found = scores(answers)
    if len(found) < 2:
        return []
    best = best_of(found)
    rest = {label: value for label, value in found.items() if label != best}
    other = plan.baseline if plan.baseline in rest else best_of(rest)
    split: Split = prepared.data.splits()[answers.split]
    if prepared.data.task == "classify":
        return find_disagreements(answers, best, other, split, prepared.data.classes)
    from .dense import find_differences

    return find_differences(answers, best, other, split, plan.runs(folder))


def describe_data(prepared: Prepared) -> dict[str, Any]:
    """Name and sizes of the data."""
    return {
        "source": Path(prepared.data.source).name or prepared.data.source,
        "kind": prepared.data.kind,
        "classes": len(prepared.data.classes),
        "images": {name: len(split) for name, split in prepared.data.splits().items()},
        "made": [name for name, split in prepared.record["splits"].items() if split.get("names") is not None],
    }


def describe_recipe(plan: Plan, contenders: Sequence[Contender]) -> dict[str, Any]:
    """What all runs have in common."""
    first = contenders[0].recipe
    return {
        "name": plan.shared.recipe,
        "changes": list(plan.shared.changes),
        "img_size": first.model.img_size if first.task == "classify" else first.scene.shorter,
        "batch": first.batch,
        "limit": plan.shared.limit,
        "budget": plan.shared.budget,
        "epochs": {model.label: model.epochs for model in plan.models},
    }


def describe_machine(threads: int) -> dict[str, Any]:
    """Where latency was measured, and with what."""
    import timm

    device = pick_device()
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else processor(),
        "threads": threads,
        "nearsight": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
    }
