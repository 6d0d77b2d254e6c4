"""What a run works with: device, model, optimizer, data, and the state of its last checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import ProjectConfiguration
from timm.utils import ModelEmaV3
from torch import nn
from torch.utils.data import DataLoader

from ..data import Data, Split
from ..data.loader import Batches, default_workers
from ..tasks.classify import Classify
from ..tasks.scenes import Detect, Segment
from ..tasks.task import Task
from .build import Built, build
from .build_scenes import build_scenes
from .groups import make_optimizer
from .prepare import Prepared
from .recipe import Recipe
from .run import Run, first_difference
from .state import Checkpoints, Progress
from .teacher import Teacher
from .together import check_together, join_model


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
    average: ModelEmaV3 | None
    task: Task
    checkpoints: Checkpoints
    progress: Progress
    steps_per_epoch: int
    workers: int
    images: int  # of all splits

    @property
    def is_done(self) -> bool:
        """Whether all epochs are trained, or validation has not improved for too long."""
        progress, patience = self.progress, self.recipe.patience
        waited = progress.epoch - progress.best_epoch
        return progress.epoch >= self.recipe.epochs or (patience is not None and waited >= patience)

    def autocast(self) -> torch.autocast:
        """Half the bits for matrix products, if the recipe wants it."""
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16")

    @property
    def answering(self) -> nn.Module:
        """The model whose answers count: the running mean of the weights where there is one."""
        return self.built.model if self.average is None else self.average.module


def open_session(run: Run, prepared: Prepared, accelerator: Accelerator) -> Session:
    """Build the model and its optimizer, and bring them to the last checkpoint if there is one."""
    recipe, data = prepared.recipe, prepared.data
    check_batch(recipe, len(prepared.train), accelerator.num_processes)
    torch.manual_seed(recipe.seed)
    built = build_for(recipe, data)
    model, device = built.model, accelerator.device
    check_norms(model, recipe.batch // (recipe.accumulate * accelerator.num_processes))
    teacher = Teacher(recipe.distill, data.classes, built.input, device) if recipe.distill else None
    answer_apart: Any = getattr(model, "set_distilled_training", None)  # models with a distillation token have it
    if teacher is not None and answer_apart is not None:
        answer_apart(True)
    if device.type == "cuda" and accelerator.num_processes > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        built = replace(built, model=model)
    model.to(device).train()
    optimizer = make_optimizer(model, recipe.optimizer, recipe.batch)
    base_rates = [group["lr"] for group in optimizer.param_groups]
    average = ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None

    steps_per_epoch = len(prepared.train) // recipe.batch
    checkpoints = Checkpoints(run.checkpoints, recipe.saving.keep, steps_per_epoch)
    progress = checkpoints.read_last(model, optimizer, average.module if average else None)
    if accelerator.is_main_process:
        checkpoints.remove_unfinished()
        run.forget_after(progress.step, progress.epoch)
    check_together(run, accelerator, progress.step)
    return Session(
        run=run,
        accelerator=accelerator,
        recipe=recipe,
        built=built,
        model=join_model(model, accelerator),
        optimizer=optimizer,
        base_rates=base_rates,
        average=average,
        task=make_task(prepared, built, device, teacher),
        checkpoints=checkpoints,
        progress=progress,
        steps_per_epoch=steps_per_epoch,
        workers=default_workers(data.kind, device) if recipe.data.workers is None else recipe.data.workers,
        images=sum(map(len, data.splits().values())),
    )


def build_for(recipe: Recipe, data: Data) -> Built:
    """The model of a recipe, for the classes of the data."""
    if recipe.task == "classify":
        return build(recipe.model, len(data.classes))
    return build_scenes(recipe, len(data.classes), data.masks)


def make_task(prepared: Prepared, built: Built, device: torch.device, teacher: Teacher | None) -> Task:
    """The task of a recipe, for its data and its model."""
    recipe, data = prepared.recipe, prepared.data
    if recipe.task == "classify":
        return Classify(recipe, prepared.train.labels, len(data.classes), built.input, device, teacher)
    kind = Detect if recipe.task == "detect" else Segment
    masks = bool(getattr(built.model, "masks", False))
    return kind(recipe, len(data.classes), masks, built.input, device)


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
    return session.task.train_loader(split, batches, session.workers)


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


def check_norms(model: nn.Module, images: int) -> None:
    """Refuse batch norms over a single image."""
    if images == 1 and any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ValueError("The model has batch norms, which need two images or more at a time; give a larger --batch.")
