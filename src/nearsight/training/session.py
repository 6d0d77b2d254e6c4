"""Before the first step: the data with their splits, and the recipe with everything decided."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import ProjectConfiguration
from timm.utils import ModelEmaV3
from torch import nn
from torch.utils.data import DataLoader

from ..checkpoints.pretrained import sha256_of
from ..config.recipe import Recipe
from ..data import Data, Split, open_data
from ..data.loader import Batches, default_workers
from ..data.open import open_again
from ..data.sources.shards import is_pattern
from ..data.split import complete_splits, describe_splits, limit_train, take_fold
from ..data.transforms import DensePreprocessing, Preprocessing
from ..data.unlabelled import add_unlabelled
from ..runs.checkpoint import Checkpoints, Progress
from ..runs.run import Run, first_difference
from ..tasks import get_task
from ..tasks.base import PROJECTION, Built, Objective, Task, linear_classifier
from ..tasks.build import weights_file
from ..tasks.classify import typical_side
from ..tasks.evaluator import Meter
from .distributed import check_together, from_main, join_model
from .estimate import TrialSteps
from .optim import make_optimizer
from .teacher import Teacher, shown_to_both

NOT_ON_DISK = ("digits", "shapes", "torchvision", "hub")  # kinds of data that a name stands for


@dataclass(frozen=True)
class Prepared:
    """What a run trains on and how.

    Attributes:
        data: With the splits `train` and `val`.
        train: Images to learn from.
        val: Images to validate with.
        recipe: With nothing left open.
        record: Of the data, for the run's folder.
    """

    data: Data
    train: Split
    val: Split
    recipe: Recipe
    record: dict[str, Any]


def prepare(source: str, recipe: Recipe, run: Run | None = None) -> Prepared:
    """Open the data, set validation images aside, and decide what the recipe leaves open.

    Args:
        source: The data.
        recipe: As far as it is given.
        run: The run that is begun or goes on; it keeps the weights that it started from.
    """
    recipe = anchor(recipe, run)
    data = open_data(source, recipe.task)
    if data.train is None:
        raise ValueError(f"{source} has no training images, only {', '.join(data.splits())}.")
    use = recipe.data
    if use.folds is not None and use.fold is not None:
        data = take_fold(data, use.folds, use.fold, use.split_seed, use.groups)
    data = complete_splits(data, val_fraction=use.val_fraction, seed=use.split_seed, groups=use.groups)
    if recipe.data.limit is not None:
        data = limit_train(data, recipe.data.limit, recipe.data.split_seed)
    record = {**describe_splits(data), "folder": os.getcwd()}
    if recipe.distill is not None and recipe.distill.unlabelled:
        data, record["unlabelled"] = add_unlabelled(data, recipe.distill.unlabelled)
    train, val = both(data)
    return Prepared(data, train, val, get_task(recipe.task).complete(recipe, data), record)


def prepare_again(run: Run) -> Prepared:
    """The data and the recipe of a run that was begun."""
    recipe, record = run.recipe(), run.data()
    check_there(run, record)
    check_weights_file(run)
    data = open_again(record)
    if recipe.distill is not None and recipe.distill.unlabelled:
        data, found = add_unlabelled(data, recipe.distill.unlabelled)
        if found != record.get("unlabelled"):
            raise ValueError(
                f"The unlabelled images of {run.folder} ({', '.join(recipe.distill.unlabelled)}) are not those that it "
                "was begun with; put them back, or start anew."
            )
    train, val = both(data)
    return Prepared(data, train, val, recipe, record)


def check_there(run: Run, record: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose files or folder of data were moved or removed."""
    bare = record["source"].partition("?")[0]
    if record["kind"] in NOT_ON_DISK or is_pattern(record["source"]):
        return
    paths = [os.path.expanduser(text) for text in (record["source"], bare)]
    begun_in = record.get("folder", "")
    if not any(os.path.exists(path) or os.path.exists(os.path.join(begun_in, path)) for path in paths):
        missing = os.path.join(begun_in, paths[1])
        raise ValueError(
            f"{run.folder} needs its data at {missing}, where nothing is; put them back, or link them there."
        )


def check_weights_file(run: Run) -> None:
    """Refuse to go on with a run whose file of weights was changed or removed since."""
    noted = run.weights()
    if noted is None:
        return
    file = Path(noted["file"])
    if not file.is_file():
        raise ValueError(f"{run.folder} starts from {file}, where nothing is; put it back, or train anew.")
    if sha256_of(file) != noted["sha256"]:
        raise ValueError(
            f"{run.folder} starts from {file}, whose content has changed since (its SHA-256 no longer begins with "
            f"{noted['sha256'][:12]}); put the old file back, or train anew in another folder."
        )


def anchor(recipe: Recipe, run: Run | None = None) -> Recipe:
    """The recipe with files of weights by absolute paths, so that the run can be resumed from another folder.

    A run that was begun keeps what `auto` and `pretrained` meant then, also for its precision.
    """
    changes: dict[str, Any] = {}
    if recipe.frozen:
        changes["precision"] = "float32"  # as predictions are
    elif recipe.precision == "auto" and run is not None and run.is_begun():
        changes["precision"] = run.recipe().precision
    weights = recipe.model.weights
    if weights in ("auto", "pretrained") and run is not None and run.is_begun():
        weights = run.recipe().model.weights
    elif weights in ("auto", "pretrained"):
        file = weights_file(weights, recipe.model.name)
        weights = os.path.abspath(file) if file else None
    elif weights is not None and os.path.exists(weights):
        weights = os.path.abspath(weights)
    changes["model"] = recipe.model.model_copy(update={"weights": weights})
    if recipe.distill is not None:
        teaching = recipe.distill
        moved: dict[str, Any] = {"unlabelled": tuple(map(absolute, teaching.unlabelled))}
        moved |= {"teacher": absolute(teaching.teacher)}
        moved |= {"weights": os.path.abspath(teaching.weights)} if teaching.weights is not None else {}
        changes["distill"] = teaching.model_copy(update=moved)
    return recipe.model_copy(update=changes)


def absolute(source: str) -> str:
    """The absolute path of what is there; names of models and data stay."""
    path = os.path.expanduser(source)
    return os.path.abspath(path) if os.path.exists(path) else source


def both(data: Data) -> tuple[Split, Split]:
    """The splits that training needs."""
    if data.train is None or data.val is None:
        raise ValueError(f"{data.source} has no images to train with and to validate with.")
    return data.train, data.val


OVERTIME = 1.02  # of a time that was set for training, what an epoch may end after


@dataclass(frozen=True)
class Limits:
    """What a run obeys beside its recipe.

    Attributes:
        seconds: Of training and validation, after which it ends with the best epoch so far; None for no limit. Where
            epochs take longer than was planned, fewer are made, so that the rate still comes down to its end.
        on_best: Is called when an epoch was better than all before, and after a run is taken up again.
        compared: Seconds of an image in each precision, if a plan has chosen the recipe's by them; they are recorded.
    """

    seconds: float | None = None
    on_best: "Callable[[Session], None] | None" = None
    compared: dict[str, float] | None = None


@dataclass
class Session:
    """Everything that a run works with."""

    run: Run
    accelerator: Accelerator
    recipe: Recipe
    built: Built
    model: nn.Module  # as the processes share it
    optimizer: torch.optim.Optimizer
    base_rates: list[float]
    ema: ModelEmaV3 | None
    task: Task
    objective: Objective
    classes: tuple[str, ...]
    checkpoints: Checkpoints
    progress: Progress
    steps_per_epoch: int
    workers: int
    images: int  # of all splits
    shown: Any  # how views of training images are drawn, where they differ from the model's preprocessing
    teacher: Teacher | None
    limits: "Limits"
    compared: dict[str, float] | None  # seconds of an image in each precision, if this process chose one
    best: Meter | None = None  # what the best epoch predicted for the validation images, if this process validated it

    @property
    def epochs(self) -> int:
        """Epochs to be made: those of the recipe, or what of them fits into the time."""
        return self.progress.planned or self.recipe.epochs

    def plan_epochs(self, epoch: int) -> None:
        """Behind an epoch, plan as many as fit into the time at the pace so far, at most the recipe's."""
        if self.limits.seconds is not None:
            fitting = int(OVERTIME * self.limits.seconds * epoch / self.progress.elapsed)
            self.progress.planned = min(self.recipe.epochs, max(epoch, fitting))

    @property
    def waited(self) -> int:
        """Epochs since the best one."""
        return self.progress.epoch - self.progress.best_epoch

    @property
    def is_done(self) -> bool:
        """Whether all epochs are trained, validation has not improved for too long, or there is no time for another."""
        return self.is_done_after(self.progress.epoch)

    def is_done_after(self, epoch: int) -> bool:
        """The same of a number of epochs, of which the last may not be validated yet."""
        progress, patience, seconds = self.progress, self.recipe.patience, self.limits.seconds
        if seconds is not None and epoch and progress.elapsed * (1 + 1 / epoch) > OVERTIME * seconds:
            return True
        waited = epoch - progress.best_epoch
        return epoch >= self.epochs or (patience is not None and waited >= patience)

    def autocast(self) -> torch.autocast:
        """Half the bits for matrix products, if the recipe wants it."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16")

    @property
    def eval_model(self) -> nn.Module:
        """The model whose predictions count: the EMA model where there is one."""
        return self.built.model if self.ema is None else self.ema.module


def open_session(run: Run, prepared: Prepared, accelerator: Accelerator, limits: Limits) -> Session:
    """Build the model and its optimizer, and bring them to the last checkpoint if there is one."""
    check_batch(prepared.recipe, len(prepared.train), accelerator.num_processes)
    compared = None
    if prepared.recipe.precision == "auto":  # before the seed is set, since a trial draws, too
        trial = TrialSteps(prepared, accelerator.device).choose_precision() if accelerator.is_main_process else None
        precision, compared = from_main(accelerator, trial)
        prepared = replace(prepared, recipe=prepared.recipe.model_copy(update={"precision": precision}))
    recipe, data = prepared.recipe, prepared.data
    torch.manual_seed(recipe.seed)
    task = get_task(recipe.task)
    built = task.build(recipe, data)
    model, device = built.model, accelerator.device
    alone = recipe.batch == recipe.accumulate * accelerator.num_processes
    if alone and any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ValueError("The model has batch norms, which need two images or more at a time; give a larger --batch.")
    teacher, shown = open_with_teacher(run, prepared, built, device)
    distill_apart: Any = getattr(model, "set_distilled_training", None)  # models with a distillation token have it
    if teacher is not None and distill_apart is not None:
        distill_apart(True)
    if device.type == "cuda" and accelerator.num_processes > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        built = replace(built, model=model)
    model.to(device).train()
    optimizer = make_optimizer(model, recipe.optimizer, recipe.batch)
    base_rates = [group["lr"] for group in optimizer.param_groups]
    ema = ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None

    steps_per_epoch = len(prepared.train) // recipe.batch
    checkpoints = Checkpoints(run.checkpoints, recipe.saving.keep, steps_per_epoch)
    progress = checkpoints.read_last(model, optimizer, ema.module if ema else None)
    if accelerator.is_main_process:
        checkpoints.remove_unfinished()
        run.forget_after(progress.step, progress.epoch)
    check_together(run, accelerator, progress.step)
    return Session(
        run=run,
        limits=limits,
        accelerator=accelerator,
        recipe=recipe,
        built=built,
        model=join_model(model, accelerator),
        optimizer=optimizer,
        base_rates=base_rates,
        ema=ema,
        task=task,
        objective=task.objective(recipe, data, built, device, teacher),
        classes=data.classes,
        checkpoints=checkpoints,
        progress=progress,
        steps_per_epoch=steps_per_epoch,
        workers=default_workers(data.kind, device) if recipe.data.workers is None else recipe.data.workers,
        images=sum(map(len, data.splits().values())),
        shown=shown,
        teacher=teacher,
        compared=compared,
    )


def open_with_teacher(
    run: Run, prepared: Prepared, built: Built, device: torch.device
) -> tuple[Teacher | None, Preprocessing | DensePreprocessing]:
    """The teacher of a recipe, if it has one, and how training images are drawn for both; the student may get a layer.

    Raises:
        ValueError: The teacher or the student is not made for this.
    """
    recipe, settings = prepared.recipe, prepared.recipe.distill
    if settings is None:
        return None, built.preprocessing
    if built.preprocessing.dense:
        raise ValueError(
            f"A teacher gives classes to whole images, but {prepared.data.source} is there to {recipe.task}; leave "
            "distill out."
        )
    teacher = Teacher(
        settings,
        prepared.data.classes,
        built.preprocessing,
        device,
        task=recipe.task,
        precision=recipe.precision,
        folder=run.folder / "teacher",
    )
    shown = shown_to_both(built.preprocessing, teacher.input, typical_side(prepared.train))
    if settings.views is not None:
        teacher.keep_for(recipe, prepared.train, shown)
    if teacher.pooled is not None:
        own, its = (linear_classifier(model).in_features for model in (built.model, teacher.model))
        built.model.add_module(PROJECTION, nn.Linear(own, its, bias=False))
    return teacher, shown


def training_batches(session: Session, split: Split) -> DataLoader:
    """Batches of this process, from the next step to the last."""
    recipe, accelerator = session.recipe, session.accelerator
    rank, accumulate = accelerator.process_index, recipe.accumulate
    batches = Batches(
        split,
        batch=recipe.batch,
        epochs=recipe.epochs,
        repeats=recipe.augment.repeats,
        seed=recipe.seed,
        start=session.progress.step,
        parts=accelerator.num_processes * accumulate,
        mine=range(rank * accumulate, (rank + 1) * accumulate),
    )
    return session.task.train_loader(split, recipe, session.shown, batches, session.workers)


def make_accelerator(run: Run, recipe: Recipe, track: Sequence[str], cpu: bool) -> Accelerator:
    """Device, processes and trackers; processes that can't share a batch are refused before the data are opened."""
    available = [str(tracker) for tracker in get_available_trackers()]
    for name in track:
        if name not in available:
            raise ValueError(f"The tracker {name!r} is not installed; there are {', '.join(sorted(available))}.")
    accelerator = Accelerator(
        cpu=cpu or not torch.accelerator.is_available(),  # said outright, or several processes would not find together
        mixed_precision="no",  # `Session.autocast` does it: accelerate could not change it from one run to the next
        log_with=["tensorboard", *track],
        project_config=ProjectConfiguration(str(run.folder), logging_dir=str(run.folder / "tensorboard")),
    )
    check_parts(recipe, accelerator.num_processes)
    return accelerator


def check_same(run: Run, prepared: Prepared) -> None:
    """Refuse to go on with a run of other settings or other data."""
    if difference := first_difference(run.recipe(), prepared.recipe):
        raise ValueError(
            f"{run.folder} holds a run with other settings ({difference}); go on with it as it was "
            f"(`{run.resume_command}`), or give another folder with --out."
        )
    if {**run.data(), "folder": None} != {**prepared.record, "folder": None}:
        raise ValueError(
            f"{run.folder} holds a run on other data ({run.data()['source']}); give another folder with --out."
        )


def check_batch(recipe: Recipe, images: int, processes: int) -> None:
    """Refuse batches that can't be filled, or not divided."""
    if images < recipe.batch:
        raise ValueError(f"A batch of {recipe.batch} is more than the {images} training images; give --batch {images}.")
    check_parts(recipe, processes)


def check_parts(recipe: Recipe, processes: int) -> None:
    """Refuse batches that can't be divided; one that the data decide (0) still can."""
    parts = processes * recipe.accumulate
    if recipe.batch % parts:
        raise ValueError(
            f"A batch of {recipe.batch} can't be divided equally among {processes} processes with "
            f"{recipe.accumulate} parts each; give a multiple of {parts}."
        )
    if recipe.augment.mixes and recipe.batch // parts % 2:
        raise ValueError(
            f"Mixup and cutmix pair images, but a batch of {recipe.batch} among {processes} processes leaves parts of "
            f"{recipe.batch // parts}; give a multiple of {2 * parts}."
        )
