"""The verb `train`: what people ask for becomes a recipe and a folder, and the loop does the rest."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..arguments import checked
from ..checkpoints.pretrained import at_hand, available_name, find_pretrained, missing_sentence, why_missing
from ..config.files import load_recipe, parse_changes
from ..config.recipe import Recipe
from ..data.open import find_task
from ..network import is_offline, obeys_offline
from ..retrofit import LocalizeOptions
from ..runs.predictor import FOLDS
from ..runs.run import Outcome, Run, processes
from ..tasks import get_task
from ..timing import check_threads, parse_duration
from .folds import CrossValidation, resume_folds, train_folds
from .ladder import climb, climb_again, is_ladder, read_plan, train_one
from .loop import resume_training


@checked
@obeys_offline
def train(
    data: str | Path | None = None,
    *,
    model: str | None = None,
    task: str | None = None,
    head: str | None = None,
    recipe: str | Path | Recipe | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    folds: int | None = None,
    groups: str | None = None,
    budget: str | float | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    img_size: int | None = None,
    patch_size: int | None = None,
    channels: int | None = None,
    weights: str | Path = "auto",
    download: bool = False,
    offline: bool = False,
    localize: str | None = None,
    class_weights: str | Sequence[float] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    keep: int | None = None,
    workers: int | None = None,
    changes: Mapping[str, Any] | Sequence[str] | None = None,
    track: Sequence[str] | None = None,
    threads: int | None = None,
    cpu: bool = False,
    quiet: bool = False,
) -> Outcome | CrossValidation:
    """Train a model; the same call again goes on where it stopped. What is left out follows the data.

    Args:
        data: Class folders, a table, annotations or a name; see `nearsight.open_data`.
        model: A model of ours or of timm.
        task: `classify`, `detect` or `segment`; without, what the data are annotated for.
        head: `retinanet`, `mask-rcnn`, `cascade-mask-rcnn`, `detr`; `semantic-fpn`, `upernet`, `linear`.
        recipe: A recipe by name, a YAML file, or a `Recipe`.
        out: Folder of the run; without, one in `runs`.
        resume: A run to go on with as it was, instead of data and settings.
        folds: Train so many models, each on all but one part of the training images, and judge their predictions for
            the parts that they were not trained with together: for data too small for a test split.
        groups: Which images stay together in splits and folds: `folder`, `folder:2` or `pattern:REGEX`; see
            `nearsight.data.groups.group_keys`.
        budget: Time that all may take, such as `20m`, `1h30m` or a number of seconds; the plan keeps to it.
        epochs: Passes over the training images.
        batch: Images in a step, over all processes.
        lr: Learning rate.
        img_size: Side of the images in pixels.
        patch_size: Stride of the model's embedding in pixels.
        channels: Of the images that a classifier sees: 1 makes photos grey; without, those of the data.
        weights: What to start from: `auto` for pretrained weights that are at hand and may be used commercially,
            `none` for a start from scratch, `pretrained` for those of the model under any licence, downloaded if need
            be, or a file of weights or the folder of a former run.
        download: Let `auto` download what is not at hand.
        offline: Ask nothing of other machines, nor whether to: no weights, and no data that are not here.
        localize: Local parts for the model, such as `ffn=localvit,qkv=life`.
        class_weights: `balanced`, `sqrt` (weaker), `none`, or one number for each class.
        limit: Train on so many images only.
        seed: Of the weights, the order and every random draw.
        precision: `float32`, `bfloat16`, or `auto` for the faster one by some measured steps.
        keep: Newest checkpoints to keep, beside the best.
        workers: Processes that read images.
        changes: Other settings of the recipe: `{"augment.mixup": 0}` or `["augment.mixup=0"]`.
        track: Also report to these trackers of accelerate: `wandb`, `mlflow`, ...
        threads: CPU threads.
        cpu: Do not use a GPU.
        quiet: Show no progress.

    Returns:
        What came of it; `outcome.folder` is the run. With `folds` a `CrossValidation`.

    Raises:
        ValueError: Something can't be done, in one sentence.
        Interrupted: A signal ended the run; its checkpoint is written.

    Example:
        >>> import tempfile, nearsight
        >>> outcome = nearsight.train(
        ...     "digits", model="deit_nano", epochs=1, limit=64, batch=32, out=tempfile.mkdtemp(), quiet=True
        ... )
        >>> outcome.model, outcome.epochs
        ('deit_nano', 1)
    """
    given = named_settings(locals() | {"weights": None if os.fspath(weights) == "auto" else os.fspath(weights)})
    if localize is not None:
        given["model.localize"] = LocalizeOptions.parse(localize).as_json()
    if (data is None) == (resume is None):
        raise ValueError("Give either DATA to train on, or --resume RUN to go on with a run.")
    limit_of_time = None if budget is None else parse_duration(budget)
    others = (given, changes, recipe, out, task, download, folds)
    if resume is not None and (any(others) or budget is not None):
        raise ValueError("--resume goes on with a run as it was; leave the other settings out.")
    options = {"--model": model, "--weights": weights, "--out": out, "--epochs": epochs, "--batch": batch}
    refuse_nothing({"DATA": data, "--resume": resume, **options})
    if threads is not None:
        check_threads(threads)

    settings: dict[str, Any] = {"track": tuple(track or ()), "quiet": quiet, "cpu": cpu}
    if resume is not None:
        use_threads(threads, Path(resume))
        if (Path(resume) / FOLDS).is_file():
            return resume_folds(resume, settings)
        return (climb_again if is_ladder(resume) else resume_training)(resume, **settings)
    source = os.fspath(data)  # type: ignore[arg-type]
    given |= parse_changes(changes)
    is_open = recipe is None
    if recipe is None:
        started = given.get("model.weights") not in (None, "none", "auto")
        recipe = "retrofit" if localize and started else default_recipe(source, task, started)
    chosen = load_recipe(recipe, given)
    if task is not None and task != chosen.task:
        raise ValueError(f"The recipe {chosen.name} is made to {chosen.task}, not to {task}; choose another.")
    folder = Path(out) if out is not None else default_folder(source, chosen.model.name, chosen.seed)
    if takes_pretrained(chosen, is_open):
        ask = confirm if not quiet and processes() == 1 and sys.stdin.isatty() and sys.stderr.isatty() else None
        start = choose_start(chosen, Run(folder), download=download, offline=offline, ask=ask)
        if start.weights is not None:
            found = {"model.name": start.model, "model.weights": start.weights}
            chosen = load_recipe(start.recipe if is_open else recipe, given | found)
        settings["notes"] = start.notes
    use_threads(threads, folder)
    from_weights = chosen.model.weights is not None and chosen.distill is None
    staged = is_open and from_weights and get_task(chosen.task).is_linear and processes() == 1
    if folds is not None:
        return train_folds(source, chosen, folder, folds, settings, staged=staged, budget=limit_of_time, epochs=epochs)
    if (folder / FOLDS).is_file():
        raise ValueError(f"{folder} holds folds; go on with --resume, or give another folder with --out.")
    if staged:
        return climb(source, chosen, folder, budget=limit_of_time, epochs=epochs, **settings)
    return train_one(source, chosen, folder, limit_of_time, settings)


# Keys of the recipe that an option of `train` or `distill` sets.
SETTINGS = {
    "model": "model.name",
    "into": "model.name",
    "head": "model.head",
    "img_size": "model.img_size",
    "patch_size": "model.patch_size",
    "channels": "model.channels",
    "weights": "model.weights",
    "epochs": "epochs",
    "batch": "batch",
    "lr": "optimizer.lr",
    "class_weights": "loss.class_weights",
    "limit": "data.limit",
    "workers": "data.workers",
    "groups": "data.groups",
    "seed": "seed",
    "precision": "precision",
    "keep": "saving.keep",
}


def named_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """What options say of the recipe.

    Example:
        >>> named_settings({"data": "digits", "lr": 0.1, "batch": None})
        {'optimizer.lr': 0.1}
    """
    return {SETTINGS[name]: value for name, value in options.items() if name in SETTINGS and value is not None}


# Recipes that are made for a start from weights, or for both.
FROM_WEIGHTS = ("frozen", "fine-tune", "retrofit", "small-detect", "small-segment")


def takes_pretrained(recipe: Recipe, is_open: bool) -> bool:
    """Whether pretrained weights are looked for: not where weights are given, nor for a recipe that is not made for it.

    Args:
        recipe: With what the user gave.
        is_open: Whether the user named no recipe.
    """
    if "weights" in recipe.model.model_fields_set:
        return recipe.model.weights in ("auto", "pretrained")
    return is_open or recipe.name in FROM_WEIGHTS


@dataclass(frozen=True)
class Start:
    """How a training begins that was left to what is at hand.

    Attributes:
        recipe: Name of the recipe.
        model: Name of the model; None leaves it to the data.
        weights: File of the weights; None for a start from scratch.
        notes: What to say before the training.
    """

    recipe: str
    model: str | None = None
    weights: str | None = None
    notes: tuple[str, ...] = ()


def choose_start(
    recipe: Recipe,
    run: Run,
    *,
    download: bool = False,
    offline: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> Start:
    """Choose pretrained weights to start from, or a start from scratch, and the recipe for it.

    Args:
        recipe: With what the user gave, for a start from scratch.
        run: The run; one that was begun starts from what it did then.
        download: Fetch weights that are not at hand.
        offline: Neither download nor ask.
        ask: Asks the user; see `find_pretrained`.
    """
    model, scratch, task = recipe.model, Start(recipe.name, recipe.model.name), get_task(recipe.task)
    if model.spec is not None and model.weights in (None, "auto"):
        return scratch  # nobody has pretrained it
    tuned = (
        "retrofit" if model.localize and task.is_linear else "fine-tune" if recipe.name == "small-data" else recipe.name
    )
    plan = read_plan(run)
    if plan is not None or run.is_begun():
        begun = (run.recipe() if plan is None else plan.asked).model
        return Start(tuned, model.name or begun.name, begun.weights) if begun.weights is not None else scratch
    if model.weights == "pretrained":
        found = find_pretrained(model.name, offline=offline, download=not (offline or is_offline()), any_licence=True)
        if found is None:
            raise ValueError(f"--weights pretrained won't do: {why_missing(model.name)}")
        return Start(tuned, model.name or task.host_of(found.model), str(found.path), (found.say(),))
    if model.name is None and not task.is_pretrained:
        return scratch
    if model.name is not None and available_name(model.name) is None and next(at_hand(model.name), None) is None:
        return scratch  # nobody has pretrained it
    if model.patch_size is not None or model.options:
        what = "another patch size" if model.patch_size is not None else "other options"
        note = f"Trains from scratch: pretrained weights are of {model.name or 'models'} as they are, not with {what}."
        return replace(scratch, notes=(note,))
    found = find_pretrained(model.name, offline=offline, download=download, ask=ask)
    if found is None:
        return replace(scratch, notes=(missing_sentence(model.name),))
    return Start(tuned, model.name or task.host_of(found.model), str(found.path), (found.say(),))


def confirm(question: str) -> bool:
    """Ask at the terminal; only a yes is one."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def refuse_nothing(options: Mapping[str, Any]) -> None:
    """Refuse options that say nothing, as an empty shell variable does; left out they mean what the data decide."""
    for name, value in options.items():
        empty = value is not None and (value < 1 if isinstance(value, int) else not os.fspath(value).strip())
        if empty:
            shown = value if isinstance(value, int) else repr(os.fspath(value))
            hints = {"DATA": "name the data", "--resume": "name the folder of a run"}
            raise ValueError(f"{name} {shown} won't do; {hints.get(name, 'leave it out to have it chosen')}.")


def default_recipe(data: str, task: str | None, weights: bool = False) -> str:
    """The recipe for a task, or for what the data are annotated for."""
    recipe = get_task(task or find_task(data)).default_recipe
    return "fine-tune" if weights and recipe == "small-data" else recipe


def use_threads(given: int | None, folder: Path) -> None:
    """Set the CPU threads: as asked for, else as the run in the folder was begun with, as far as there are cores.

    Sums are split among the threads, so that their number decides the last bits.
    """
    noted = Run(folder).threads() if given is None and processes() == 1 else None
    cores = os.cpu_count() or 1
    if noted is not None and noted > cores:
        print(
            f"nearsight: The run was begun with {noted} threads; it goes on with the {cores} that this machine has, "
            "and the last bits may differ.",
            file=sys.stderr,
        )
        noted = cores
    if wanted := given or noted:
        torch.set_num_threads(wanted)


def default_folder(data: str, model: str | None, seed: int) -> Path:
    """Folder of a run, named after what is trained on what."""
    stem = Path(data.rstrip("/")).stem or "data"
    name = (model or "auto").removeprefix("timm/").replace("/", "-")
    folder = f"{stem}-{name}-seed{seed}"
    return Path("runs") / (re.sub(r'[<>:"|?*]', "-", folder) if sys.platform == "win32" else folder)
