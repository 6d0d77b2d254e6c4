"""What is exported: a trained model, converted weights, or a model by name."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ..checkpoints.format import read_description
from ..config.recipe import ModelChoice
from ..data.transforms import Input
from ..runs.bundle import is_bundle
from ..runs.predictor import load, model_file, open_trained
from ..tasks.build import build, input_of

IMAGENET = 1000  # classes of a model that is built by its name
WEIGHTS = {"trained": "trained by Nearsight", "converted": "from a converted file", "random": "random, not trained"}


@dataclass(frozen=True)
class Subject:
    """A model that is to be exported.

    Attributes:
        model: In evaluation mode; takes images `[B, 3, H, W]`, returns `[B, len(labels)]`.
        name: Its name.
        weights: `trained`, `converted` or `random`.
        labels: Names of the classes, by number; the numbers themselves where there are no names.
        input: What the model is fed.
        path: File of the weights; None for a model by name.
    """

    model: nn.Module
    name: str
    weights: str
    labels: tuple[str, ...]
    input: Input
    path: Path | None


def open_subject(source: str | Path, size: tuple[int, int] | None = None) -> Subject:
    """The model that somebody names.

    Args:
        source: Folder of a run, weight file, or name of a model, ours or timm's.
        size: Height and width that images are to be shown in; None takes the model's own.

    Raises:
        ValueError: There is no such model, it is no classifier of RGB images, or it does not take that size.

    Example:
        >>> subject = open_subject("lit_nano", size=(48, 64))
        >>> subject.weights, subject.input.size, len(subject.labels)
        ('random', (48, 64), 1000)
    """
    text = str(source)
    subject = open_file(Path(source)) if is_file(text) else build_new(text)
    if size is not None:
        subject = replace(subject, input=replace(subject.input, size=size))
    subject.model.eval()
    refuse_others(subject)
    return subject


def is_file(text: str) -> bool:
    """Whether a text means a run or a file of weights."""
    return Path(text).exists() or text.endswith(".safetensors") or text.startswith((".", "/", "~"))


def open_file(path: Path) -> Subject:
    """The model of a run, or of a weight file."""
    if is_bundle(path):
        raise ValueError(f"{path} is a bundle already; give the folder of a run, a weight file or a model's name.")
    file = model_file(path)
    about = read_description(file)
    if about.get("trained"):
        trained = open_trained(file)
        return Subject(trained.model, trained.name, "trained", trained.classes, trained.input, file)
    model = load(file)
    name = about["name"] or about.get("origin", {}).get("model", "model")
    return Subject(model, name, "converted", numbers(about["num_classes"]), input_of(model, None), file)


def build_new(name: str) -> Subject:
    """A model with random weights."""
    built = build(ModelChoice(name=name), IMAGENET)
    return Subject(built.model, built.name, "random", numbers(IMAGENET), built.input, None)


def numbers(count: int) -> tuple[str, ...]:
    """Class numbers in place of names."""
    return tuple(map(str, range(count)))


@torch.inference_mode()
def refuse_others(subject: Subject) -> None:
    """Refuse a model that does not turn RGB images of its size into a number for each class."""
    height, width = subject.input.size
    try:
        logits = subject.model(torch.zeros(1, 3, height, width))
    except Exception as error:  # timm's models fail in many ways on sizes that they were not made for
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{subject.name} does not take RGB images of {height}×{width} pixels ({reason}); give another --size."
        ) from None
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, len(subject.labels)) or not subject.labels:
        raise ValueError(f"{subject.name} is no classifier (it gives no number for each class); it can't be exported.")


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of a text such as `224` or `224x320`.

    Example:
        >>> parse_size("224x320"), parse_size("96")
        ((224, 320), (96, 96))
    """
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", text.strip().lower())
    if match is None:
        raise ValueError(f"--size {text} is no size; write height and width in pixels like 224x320, or 224 for both.")
    return int(match[1]), int(match[2] or match[1])
