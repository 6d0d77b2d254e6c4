"""The teacher of a distilled model: how it is opened and asked, and how its predictions are kept on the disk."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from ..atomic import expand_home, write_whole
from ..checkpoints.format import name_in, read_description
from ..checkpoints.pretrained import find_pretrained, why_missing
from ..checkpoints.timm import load_into
from ..config.recipe import Distillation, Recipe
from ..data import Split
from ..data.loader import Draw
from ..data.transforms import Preprocessing
from ..network import is_offline
from ..runs.bundle import is_bundle
from ..runs.predictor import is_path, load, load_trained, model_file
from ..tasks.base import Opinion, PooledFeatures
from ..tasks.build import plain, preprocessing_of, weights_file
from .progress import Display, duration
from .signals import Interrupted, StopFlag, note_bad

if TYPE_CHECKING:
    from .session import Session

RETRAIN = "train it on these data first and give its run."
CHUNK = 512  # images whose predictions are in one file
AT_ONCE = 32  # images that the teacher is shown together
LOADED = 4  # views whose predictions are in memory
MIXING = {"mixup", "cutmix", "mix_probability", "mix_switch", "stop_mixing"}  # what is done to views afterwards


class Teacher:
    """A model whose predictions are labels (`Labeller`).

    Args:
        settings: Which model, and what is learnt of it.
        classes: Of the data.
        input: What the student wants to be fed.
        device: Where to compute.
        task: What it was trained for.
        precision: `bfloat16` halves the bits of matrix products.
        folder: Where predictions are kept, if there are a few views of each image.
    """

    def __init__(
        self,
        settings: Distillation,
        classes: Sequence[str],
        input: Preprocessing,
        device: torch.device,
        *,
        task: str = "classify",
        precision: str = "float32",
        folder: Path | None = None,
    ):
        self.settings, self.device, self.precision = settings, device, precision
        model, self.input = open_teacher(settings, classes, input, task)
        if self.input.channels != input.channels:
            raise ValueError(
                f"The teacher sees {self.input.channels} channels and the student {input.channels}; they are shown the "
                "same images, so give a teacher of as many."
            )
        self.model = model.to(device).eval().requires_grad_(False)
        self.pooled = PooledFeatures(model) if settings.features else None
        self.folder, self.fingerprint, self.images = folder, "", 0
        self.table = lru_cache(maxsize=LOADED)(self.read_view)

    @torch.no_grad()
    def look(self, images: Tensor) -> Opinion:
        """What it says of images `[B, 3, H, W]` on the scale 0 to 1, in the size that it wants."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits = self.model(self.input.normalise(self.input.resize(images))).float()
        return Opinion(logits, None if self.pooled is None else self.pooled.last.float())

    def recall(self, indices: Tensor, epoch: int) -> Opinion:
        """Its predictions of the view that an epoch shows of each of these images `[B]`."""
        assert self.settings.views is not None
        kept = self.table(epoch % self.settings.views)
        rows = {name: tensor[indices].to(self.device).float() for name, tensor in kept.items()}
        return Opinion(rows["logits"], rows.get("features"))

    def keep_for(self, recipe: Recipe, split: Split, shown: Preprocessing) -> None:
        """Tell which views predictions are kept of: others would not fit and are not taken for them."""
        told = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            told.update(name.encode())
            told.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        views = {
            "teacher": asdict(self.input),
            "shown": asdict(shown),
            "augment": recipe.augment.model_dump(mode="json", exclude=MIXING),
            "seed": recipe.seed,
            "precision": self.precision,
            "features": self.pooled is not None,
        }
        told.update(json.dumps(views, sort_keys=True).encode())
        told.update("".join(f"{split.name(i)}\0" for i in range(len(split))).encode(errors="surrogateescape"))
        self.fingerprint, self.images = told.hexdigest(), len(split)

    def path(self, view: int, first: int) -> Path:
        """File of the predictions for a view of the images from a number on."""
        assert self.folder is not None
        return self.folder / f"view-{view:03d}-{first:07d}.safetensors"

    def is_kept(self, view: int, first: int) -> bool:
        """Whether the predictions for a view of the images from a number on are there, whole, and ours."""
        try:
            with safe_open(self.path(view, first), "pt") as file:
                whole = file.get_slice("logits").get_shape()[0] == min(CHUNK, self.images - first)
                return whole and (file.metadata() or {}).get("fingerprint") == self.fingerprint
        except (OSError, SafetensorError):
            return False

    def write(self, view: int, first: int, opinions: Sequence[Opinion]) -> None:
        """Keep the predictions of a view of the images from a number on."""
        tensors = {"logits": torch.cat([one.logits for one in opinions])}
        if self.pooled is not None:
            tensors["features"] = torch.cat([one.features for one in opinions if one.features is not None])
        halves = {name: tensor.cpu().half().contiguous() for name, tensor in tensors.items()}
        write_whole(self.path(view, first), to_safetensors(halves, {"fingerprint": self.fingerprint}))

    def read_view(self, view: int) -> dict[str, Tensor]:
        """The predictions of a view of all images: `logits [n, C]` and perhaps `features [n, D]`, in half precision."""
        chunks = [load_file(self.path(view, first)) for first in range(0, self.images, CHUNK)]
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def open_teacher(
    settings: Distillation, classes: Sequence[str], input: Preprocessing, task: str = "classify"
) -> tuple[nn.Module, Preprocessing]:
    """The teacher and what it wants to be fed: from a run, a file, or timm with pretrained weights."""
    name: str | None = None
    weights: Path | None = None
    if is_path(settings.teacher):
        if settings.weights is not None:
            raise ValueError(f"The teacher {settings.teacher} has weights of its own; leave distill.weights out.")
        if is_bundle(settings.teacher):
            raise ValueError(f"{settings.teacher} is a bundle, which can't teach; give the run that it was made of.")
        weights = model_file(expand_home(settings.teacher))
    else:
        name, weights = plain(settings.teacher), weights_file(settings.weights)
    if weights is not None and (name is None or weights.with_suffix(".json").is_file()):
        held = read_description(weights)
        if name is not None and name_in(held) not in (None, name):
            raise ValueError(f"{weights} holds a {name_in(held)}, not the teacher {name}.")
        name = name or name_in(held) or "model"
        if held.get("trained"):
            trained = load_trained(weights, task)
            check_classes(name, trained.classes, classes)
            teacher, wanted = trained.model, trained.preprocessing
        else:  # a converted release
            released = load(weights)
            teacher, wanted = released.model, released.preprocessing
    elif not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r} to be a teacher; give the run of another as the teacher.")
    elif weights is not None:
        teacher = load_into(timm.create_model(name, num_classes=len(classes)), weights, fresh_head=False)
        wanted = preprocessing_of(teacher, input.size)
    else:
        found = find_pretrained(name, download=not is_offline(), any_licence=True)
        if found is None:
            raise ValueError(f"The teacher {name} has learnt nothing yet: {why_missing(name)}")
        teacher = load_into(timm.create_model(name), found.path, fresh_head=False)
        wanted = preprocessing_of(teacher, None)
    if teacher.num_classes != len(classes):
        counts = f"predicts {teacher.num_classes} classes, but the data have {len(classes)}"
        raise ValueError(f"The teacher {name} {counts}; {RETRAIN}")
    return teacher, wanted


def check_classes(name: str, known: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse a teacher whose class numbers mean something else; another count of them is told from the model."""
    if len(known) != len(classes):
        return
    for number, (its, ours) in enumerate(zip(known, classes, strict=True)):
        if its != ours:
            raise ValueError(
                f"The teacher {name} knows other classes than the data (its number {number} is {its}, that of the data "
                f"{ours}); {RETRAIN}"
            )


def shown_to_both(student: Preprocessing, teacher: Preprocessing, side: int) -> Preprocessing:
    """How views are drawn that a student and its teacher both see: as large as the teacher wants, if the images are.

    Args:
        student: What the student wants.
        teacher: What the teacher wants.
        side: Shorter side of the images in pixels; a larger view would show nothing more.

    Example:
        >>> small, large = Preprocessing((96, 96)), Preprocessing((224, 224))
        >>> [shown_to_both(small, large, side).size[0] for side in (64, 128, 500)]
        [96, 128, 224]
    """
    own = student.size
    if own[0] != own[1]:
        return student
    return replace(student, size=(max(own[0], min(min(teacher.size), side)),) * 2)


def keep_predictions(session: "Session", split: Split, flag: StopFlag, display: Display) -> None:
    """Let the teacher predict all views of all images, if there are a few views in turn; what is kept stays.

    Says before what it costs, by the time that a batch takes. The processes share the work.
    """
    teacher, recipe, accelerator = session.teacher, session.recipe, session.accelerator
    if teacher is None or teacher.settings.views is None:
        return
    views = min(teacher.settings.views, recipe.epochs)
    chunks = [(view, first) for view in range(views) for first in range(0, len(split), CHUNK)]
    todo = [chunk for chunk in chunks if not teacher.is_kept(*chunk)]
    foreign = sum(teacher.path(*chunk).exists() for chunk in todo)
    if foreign:
        display.say(
            f"{foreign} files of {teacher.folder} are cut off, or of another teacher, other data or settings; what "
            "they held is predicted again."
        )
    if todo:
        left = sum(min(CHUNK, len(split) - first) for _, first in todo)
        seconds = measure_batch(session, split, todo[0]) * left / accelerator.num_processes
        display.say(
            f"The teacher predicts {left:,} views ({views} of each of {len(split):,} images) in about "
            f"{duration(seconds)}; they are kept in {teacher.folder}."
        )
    parts = chunks[accelerator.process_index :: accelerator.num_processes]  # however far the others are by now
    mine = [chunk for chunk in parts if chunk in todo]
    for done, (view, first) in enumerate(mine, start=1):
        opinions = []
        for batch in view_batches(session, split, view, range(first, min(first + CHUNK, len(split)))):
            note_bad(session, batch.bad)
            opinions.append(teacher.look(batch.images.to(accelerator.device).float() / 255))
            if flag.number and accelerator.num_processes == 1:
                accelerator.end_training()
                raise Interrupted(flag.number, session.progress.step, session.run.resume_command)
        teacher.write(view, first, opinions)
        display.show_teacher(done, len(mine))
    accelerator.wait_for_everyone()


def view_batches(session: "Session", split: Split, view: int, images: range) -> Iterator[Any]:
    """Batches of a view of some images, as the training draws it."""
    rows = [images[start : start + AT_ONCE] for start in range(0, len(images), AT_ONCE)]
    draws = [[Draw(view, image, 0) for image in row] for row in rows]
    loader = session.task.train_loader(split, session.recipe, session.shown, draws, session.workers)
    return iter(loader)


def measure_batch(session: "Session", split: Split, chunk: tuple[int, int]) -> float:
    """Seconds that an image takes, read and predicted, once all is warm."""
    assert session.teacher is not None
    view, first = chunk
    images = range(first, min(first + AT_ONCE, len(split)))
    for _ in range(2):
        began = time.monotonic()
        for batch in view_batches(session, split, view, images):
            session.teacher.look(batch.images.to(session.accelerator.device).float() / 255)
    return (time.monotonic() - began) / len(images)
