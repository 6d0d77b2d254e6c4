"""The verb `compare`: plan, runs, and what came of them."""

import inspect
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from .. import __version__
from ..arguments import checked
from ..checkpoints.pretrained import find_pretrained
from ..config.candidates import Candidate, parse_candidates, with_baseline
from ..console import tracked
from ..data import Split
from ..network import obeys_offline
from ..runs.predictor import load_trained, pick_device
from ..runs.run import Run, check_plan_folder, processor, refuse_odd_name
from ..tasks import get_task
from ..tasks.build import channels_seen
from ..timing import make_task, median_interval, parse_duration, take_turns, with_threads
from ..training.estimate import TrialSteps
from ..training.ladder import suitable_side
from ..training.session import Prepared
from ..training.train import default_recipe, refuse_nothing
from .examples import find_examples
from .plan import (
    BuiltCandidate,
    Plan,
    Planned,
    RunPlan,
    Shared,
    build_candidates,
    check_run,
    check_same,
    choose_baseline,
    parse_seeds,
    read_plan,
    recipe_of,
    spell_changes,
    suggest_convnet,
    write_plan,
)
from .results import Comparison, Curve, Disagreement, Latency, ModelResult, RunResult
from .runner import Board, Slot, epochs_within, find_slots, run_here
from .statistics import SharedPredictions, best_of, differences, read_predictions, scores

BATCH = 32
ROUNDS = 25
UNFINISHED = "It has not finished."

# What is compared by itself where pretrained weights are at hand, and its recipe.
FROZEN, TUNED = "frozen", "fine-tuned"
PRETRAINED = {FROZEN: "frozen", TUNED: "fine-tune"}


@checked
@obeys_offline
def compare(
    data: str | Path,
    models: str | Sequence[str],
    *,
    epochs: int | None = None,
    budget: str | None = None,
    seeds: str | int | Sequence[int] = 3,
    baseline: str | None = None,
    task: str | None = None,
    recipe: str | Path | None = None,
    changes: Mapping[str, Any] | Sequence[str] | None = None,
    img_size: int | None = None,
    limit: int | None = None,
    scratch_only: bool = False,
    download: bool = False,
    offline: bool = False,
    out: str | Path | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    quiet: bool = False,
) -> Comparison:
    """Train several models alike and say which is best on the data, and whether it is worth it.

    Each run is a process of its own. The same call again goes on where it stopped; `results.json` and `report.html` are
    written into the folder.

    Args:
        data: What to train on; see `nearsight.open_data`.
        models: Models of ours or of timm, as a list or a text with commas; each `NAME`, with options
            `NAME:KEY=VALUE:...`, with a label `LABEL=NAME:...`.
        epochs: Passes over the training images, the same for all models.
        budget: Time of each run instead, such as `20m`, all that it does counted: each model gets the epochs that fit.
        seeds: Runs of each model (seeds 0, 1, ...), or the seeds themselves.
        baseline: The model that the others are tested against, added if it is not among them; without, the first
            ConvNet, else the first model.
        task: `classify`, `detect` or `segment`; without, what the data are annotated for.
        recipe: A recipe by name or a YAML file.
        changes: Other settings of the recipe: `{"augment.mixup": 0}` or `["augment.mixup=0"]`.
        img_size: Side of the images in pixels.
        limit: Train on so many images only.
        scratch_only: Leave out what is compared by itself where pretrained weights are at hand and no recipe is named:
            the features of a frozen host, and the host fine-tuned.
        download: Fetch pretrained weights that are not at hand.
        offline: Ask nothing of other machines: no weights, and no data that are not here.
        out: Folder of the comparison; without, `runs/compare-DATA`.
        jobs: Runs at a time on the CPU, which share its cores.
        ray: Address of a Ray cluster to run on.
        quiet: Show no progress.

    Raises:
        ValueError: Something can't be done, or the folder holds something else; in one sentence.
        Stopped: A signal came; the same call goes on.

    Example:
        >>> import nearsight
        >>> nearsight.compare("digits", "deit_nano,deit_nan", epochs=1)
        Traceback (most recent call last):
        ValueError: deit_nan can't be compared: Neither Nearsight nor timm has a model 'deit_nan'; did you ...
    """
    call = spell_call(locals())
    options = {
        "--epochs": epochs,
        "--jobs": jobs,
        "--limit": limit,
        "--budget": budget,
        "--recipe": recipe,
        "--out": out,
    }
    refuse_nothing({"DATA": data, **options})
    if epochs is not None and budget is not None:
        raise ValueError("Give either --epochs or --budget, not both.")
    if ray is not None:  # said before models are built and timed
        from .ray import need_ray

        need_ray()
    candidates, wanted = with_baseline(
        parse_candidates(models if isinstance(models, str) else ",".join(models)), baseline
    )
    source = str(data)
    shared = Shared(
        data=source,
        recipe=str(recipe) if recipe else default_recipe(source, task),
        changes=spell_changes(changes),
        img_size=img_size,
        limit=limit,
        epochs=epochs,
        budget=parse_duration(budget) if budget else None,
    )
    if recipe is None and not scratch_only:
        candidates += pretrained_candidates(candidates, shared, download, offline, quiet)
    numbers = parse_seeds(seeds)
    folder = Path(out) if out is not None else default_folder(source)
    check_plan_folder(folder, source, "comparison", "plan.json")
    read_plan(folder)  # refuses what is none, before anything is put there
    with locked(folder):
        old = read_plan(folder)
        if old is not None:
            check_same(old, shared, candidates, folder)
        built, prepared = build_candidates(candidates, shared)
        suggestion = suggest_convnet(built)
        if suggestion is not None and not quiet:
            print(
                f"No ConvNet is among the models; --baseline {suggestion} adds one of like size as an honest baseline.",
                file=sys.stderr,
            )
        for remark in prepared.data.remarks:
            print(f"nearsight: {remark}", file=sys.stderr)
        slots = find_slots(len(candidates) * len(numbers), jobs)
        planned = plan_models(built, prepared, shared, old, slots, quiet)
        plan = Plan(shared=shared, models=planned, seeds=numbers, baseline=choose_baseline(built, wanted))
        runs = plan.runs(folder)
        for run in runs:
            check_run(run, shared, prepared)
        write_plan(plan, folder)
        with Board(runs, len(slots), quiet) as board:
            if ray is None:
                failures = run_here(runs, shared, slots, board)
            else:
                from .ray import run_on_ray

                failures = run_on_ray(runs, shared, ray, board)
        found = collect(
            plan,
            folder,
            built,
            prepared,
            failures=failures,
            suggestion=suggestion,
            command=call,
            rounds=range(ROUNDS) if quiet else tracked(range(ROUNDS), "Measuring latency"),
        )
        found.save(folder)
        return found


def pretrained_candidates(
    candidates: Sequence[Candidate], shared: Shared, download: bool, offline: bool, quiet: bool
) -> list[Candidate]:
    """A host of pretrained weights with its features frozen, and fine-tuned, where such weights are at hand."""
    labels = {candidate.label for candidate in candidates}
    is_there = any("weights" in candidate.options for candidate in candidates) or labels & {FROZEN, TUNED}
    if is_there or not get_task(recipe_of(None, shared).task).is_linear:
        return []
    found = find_pretrained(offline=offline, download=download)
    if found is None:
        return []
    if not quiet:
        print(f"{found.say()} They are compared, too; --scratch-only leaves them out.", file=sys.stderr)
    size = shared.img_size or suitable_side(shared.data, recipe_of(None, shared), str(found.path), found.model)
    options = {"weights": str(found.path), "img_size": str(size)}
    return [Candidate(label, found.model, {**options, "recipe": recipe}) for label, recipe in PRETRAINED.items()]


def spell_call(arguments: Mapping[str, Any]) -> str:
    """What was typed: the command, or the call in Python without what was left out."""
    if Path(sys.argv[0]).stem in ("nearsight", "__main__"):
        return shlex.join(["nearsight", *sys.argv[1:]])
    defaults = inspect.signature(compare).parameters
    given = [f"{name}={value!r}" for name, value in arguments.items() if value != defaults[name].default]
    return f"nearsight.compare({', '.join(given)})"


def default_folder(data: str) -> Path:
    """Folder of a comparison, named after the data."""
    return Path("runs") / f"compare-{Path(data.rstrip('/')).stem or 'data'}"


def plan_models(
    built: Sequence[BuiltCandidate],
    prepared: Prepared,
    shared: Shared,
    old: Plan | None,
    slots: Sequence[Slot],
    quiet: bool,
) -> tuple[Planned, ...]:
    """The models with the epochs and the precision of each: as given, as planned before, by budget and measured steps,
    or by the recipe."""
    known = {model.label: model.epochs for model in old.models} if old else {}
    precisions = {model.label: model.precision for model in old.models} if old else {}
    fresh = []
    for one in built:
        if one.candidate.label in known:
            continue
        precision: str = one.recipe.precision
        if precision == "auto":
            with with_threads(slots[0].threads):
                precision = TrialSteps(replace(prepared, recipe=one.recipe), pick_device()).choose_precision()[0]
        precisions[one.candidate.label] = precision
        fresh.append(replace(one, recipe=one.recipe.model_copy(update={"precision": precision})))
    if shared.budget is not None and fresh:
        if not quiet:
            print(f"Timing some steps of {len(fresh)} models ...", file=sys.stderr)
        found = epochs_within(shared.budget, fresh, shared.data, slots)
        known |= {one.candidate.label: epochs for one, epochs in zip(fresh, found, strict=True)}
    models = []
    for one in built:
        candidate = one.candidate
        epochs = 1 if one.recipe.frozen else known.get(candidate.label, one.recipe.epochs)
        recipe_of(candidate, shared, epochs)  # refuses, for one, a warm-up that is longer
        models.append(
            Planned(
                label=candidate.label,
                name=candidate.name,
                options=candidate.options,
                epochs=epochs,
                precision=precisions[candidate.label],
            )
        )
    return tuple(models)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other comparisons out of a folder."""
    refuse_odd_name(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"Another comparison is at work in {folder}; wait for it, or give another folder with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def collect(
    plan: Plan,
    folder: Path,
    built: Sequence[BuiltCandidate],
    prepared: Prepared,
    *,
    failures: Mapping[Path, str],
    suggestion: str | None,
    command: str,
    rounds: Iterable[int] = range(ROUNDS),
) -> Comparison:
    """Everything that is known after the runs.

    Args:
        plan: What was planned.
        folder: Of the comparison.
        built: The models of the plan, in its order.
        prepared: The data.
        failures: Sentences of the runs that failed, by folder.
        suggestion: A ConvNet to add.
        command: What was typed.
        rounds: Of the measurement of latency.
    """
    predictions = read_predictions(plan, folder)
    found = scores(predictions) if predictions else {}
    against = differences(predictions, plan.baseline) if predictions and plan.baseline in found else {}
    behind = differences(predictions, best_of(found)) if predictions else {}
    threads = torch.get_num_threads()
    latency = measure(plan, folder, threads, rounds)
    runs = plan.runs(folder)
    models = [
        ModelResult(
            label=model.label,
            name=model.name,
            options=model.options,
            convnet=one.convnet,
            parameters=one.parameters,
            macs=one.macs,
            runs=[read_run(run, predictions, failures) for run in runs if run.model is model],
            score=found.get(model.label),
            difference=against.get(model.label),
            behind_best=behind.get(model.label),
            latency=latency.get(model.label),
        )
        for model, one in zip(plan.models, built, strict=True)
    ]
    split = predictions.split if predictions else "test"
    outcomes = (Run(run.folder).outcome() for run in runs)
    return Comparison(
        data=describe_data(prepared),
        task=prepared.data.task,
        metric=next((outcome.metric for outcome in outcomes if outcome is not None), "score"),
        split=split,
        recipe=describe_recipe(plan, built),
        seeds=list(plan.seeds),
        baseline=plan.baseline,
        suggestion=suggestion,
        models=models,
        disagreements=disagreements(predictions, plan, folder, prepared) if predictions else [],
        machine=describe_machine(threads),
        command=command,
        folder=folder,
    )


def read_run(run: RunPlan, predictions: SharedPredictions | None, failures: Mapping[Path, str]) -> RunResult:
    """What came of one run."""
    records = [values for values in Run(run.folder).records() if values["kind"] == "epoch"]
    curve = Curve(
        epoch=[values["epoch"] for values in records],
        seconds=[values["elapsed"] for values in records],
        loss=[values["loss"] for values in records],
        val_score=[values["val_score"] for values in records],
        val_top5=[values["val_top5"] for values in records if "val_top5" in values],
    )
    outcome = Run(run.folder).outcome()
    if outcome is None or predictions is None or not run.is_finished():
        return RunResult(seed=run.seed, failure=failures.get(run.folder, UNFINISHED), curve=curve)
    return RunResult(
        seed=run.seed,
        score=predictions.score(run.model.label, run.seed),
        val_score=outcome.val_score,
        seconds=outcome.elapsed,
        epochs=outcome.epochs,
        curve=curve,
    )


def measure(plan: Plan, folder: Path, threads: int, rounds: Iterable[int]) -> dict[str, Latency]:
    """Latency of each model that has a finished run."""
    models = {}
    for run in plan.runs(folder):
        if run.model.label not in models and run.is_finished():
            trained = load_trained(run.folder)
            models[run.model.label] = (trained.model, trained.preprocessing.size)
    return measure_latency(models, pick_device(), threads, rounds)


def disagreements(predictions: SharedPredictions, plan: Plan, folder: Path, prepared: Prepared) -> list[Disagreement]:
    """Examples for the best model and the baseline; for the next model where the baseline is best."""
    found = scores(predictions)
    if len(found) < 2:
        return []
    best = best_of(found)
    rest = {label: value for label, value in found.items() if label != best}
    other = plan.baseline if plan.baseline in rest else best_of(rest)
    split: Split = prepared.data.splits()[predictions.split]
    return find_examples(predictions, best, other, split, prepared.data.classes, plan.runs(folder))


def describe_data(prepared: Prepared) -> dict[str, Any]:
    """Name and sizes of the data."""
    return {
        "source": Path(prepared.data.source).name or prepared.data.source,
        "kind": prepared.data.kind,
        "classes": len(prepared.data.classes),
        "images": {name: len(split) for name, split in prepared.data.splits().items()},
        "made": [name for name, split in prepared.record["splits"].items() if split.get("names") is not None],
    }


def describe_recipe(plan: Plan, built: Sequence[BuiltCandidate]) -> dict[str, Any]:
    """What all runs have in common."""
    first = built[0].recipe
    return {
        "name": plan.shared.recipe,
        "changes": list(plan.shared.changes),
        "img_size": built[0].img_size,
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


@torch.inference_mode()
def measure_latency(
    models: Mapping[str, tuple[nn.Module, tuple[int, int]]],
    device: torch.device,
    threads: int,
    rounds: Iterable[int] = range(ROUNDS),
) -> dict[str, Latency]:
    """Milliseconds for one image, and images in a second in batches of 32, of each model.

    Args:
        models: By label, each with the height and width of its images.
        device: Where to measure.
        threads: Of the CPU.
        rounds: One measurement of each model is made in each.
    """
    tasks = {}
    with with_threads(threads):
        for label, (model, size) in models.items():
            model = model.to(device).eval()
            for batch in (1, BATCH):
                images = torch.randn(batch, channels_seen(model), *size, device=device)
                tasks[label, batch] = make_task(partial(model, images), device)
        seconds = take_turns(tasks, (key for _ in rounds for key in tasks))
    return {
        label: Latency(
            milliseconds=median_interval([1e3 * value for value in seconds[label, 1]]),
            images_per_second=median_interval([BATCH / value for value in seconds[label, BATCH]]),
        )
        for label in models
    }
