"""The teacher of a distilled model."""

from collections.abc import Sequence

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checkpoints.format import name_in, read_description
from ..checkpoints.timm import load_into
from ..config.recipe import Distillation
from ..data.transforms import Preprocessing
from ..runs.predictor import load, load_trained
from ..tasks.build import plain, preprocessing_of, weights_file

RETRAIN = "train it on these data first and give its run as distill.weights."


class Teacher:
    """A model whose answers are labels."""

    def __init__(self, settings: Distillation, classes: Sequence[str], input: Preprocessing, device: torch.device):
        self.share = settings.share
        model, self.input = open_teacher(settings, classes, input)
        self.model = model.to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def labels(self, images: Tensor) -> Tensor:
        """Class numbers `[B]` for images `[B, 3, H, W]` on the scale 0 to 1, in the size that the teacher wants."""
        if images.shape[-2:] != self.input.size:
            images = F.interpolate(images, self.input.size, mode="bicubic", antialias=True).clamp(0, 1)
        return self.model(self.input.normalise(images)).argmax(dim=1)


def open_teacher(
    settings: Distillation, classes: Sequence[str], input: Preprocessing
) -> tuple[nn.Module, Preprocessing]:
    """The teacher and what it wants to be fed: from a run, a file, or timm with pretrained weights."""
    name, weights = plain(settings.teacher), weights_file(settings.weights)
    if weights is not None and weights.with_suffix(".json").is_file():
        held = read_description(weights)
        if name_in(held) not in (None, name):
            raise ValueError(f"{weights} holds a {name_in(held)}, not the teacher {name}.")
        if held.get("trained"):
            trained = load_trained(weights, "classify")
            check_classes(name, trained.classes, classes)
            teacher, wanted = trained.model, trained.preprocessing
        else:  # a converted release
            released = load(weights)
            teacher, wanted = released.model, released.preprocessing
    elif not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r} to be a teacher; give the run of another as distill.weights.")
    elif weights is not None:
        teacher = load_into(timm.create_model(name, num_classes=len(classes)), weights, fresh_head=False)
        wanted = preprocessing_of(teacher, input.size)
    else:
        teacher = timm.create_model(name, pretrained=True)
        wanted = preprocessing_of(teacher, None)
    if teacher.num_classes != len(classes):
        counts = f"answers with {teacher.num_classes} classes, but the data have {len(classes)}"
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
