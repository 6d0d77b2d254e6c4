"""What is measured: models of ours or of timm by name, runs, and weight files."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..config.candidates import Candidate, parse_candidate
from ..config.files import load_recipe, parse_changes
from ..models.counting import count
from ..runs.predictor import is_path, load_module
from ..tasks.build import build

CLASSES = 1000


@dataclass(frozen=True)
class Subject:
    """A model that is measured.

    Attributes:
        label: What to call it.
        name: Its name, ours or timm's; empty for a model with other parts, which no paper printed.
        model: In evaluation mode; takes images `[B, 3, H, W]`.
        size: Height and width of its images.
        parameters: Numbers that training changes.
        macs: Multiply-adds of one image.
    """

    label: str
    name: str
    model: nn.Module
    size: tuple[int, int]
    parameters: int
    macs: int


@dataclass(frozen=True)
class Refused:
    """A model that can't be measured at a size.

    Attributes:
        label: What to call it.
        size: Height and width.
        reason: In words.
    """

    label: str
    size: tuple[int, int]
    reason: str


def open_subject(text: str, size: int | None = None) -> Subject | Refused:
    """The model that a text stands for, as `nearsight train` would build it, with 1000 classes.

    Args:
        text: A name of ours or of timm (`timm/NAME` too), with options as in `nearsight compare`
            (`[LABEL=]NAME[:KEY=VALUE]...`); or the folder of a run or a `.safetensors` file.
        size: Side of the images in pixels; None takes the model's own.

    Raises:
        ValueError: There is no such model.

    Example:
        >>> subject = open_subject("deit_nano", 64)
        >>> subject.size, subject.macs
        ((64, 64), 247896960)
    """
    label, name, model, own = open_given(Path(text)) if is_path(text) else open_named(parse_candidate(text), size)
    sides = (size, size) if size else own
    model = model.eval().requires_grad_(False)
    try:
        cost = count(model, sides)
    except Exception as error:  # whatever a foreign model says to a size that it was not made for
        return Refused(label, sides, reason_of(error))
    return Subject(label, name, model, sides, cost.parameters, cost.macs)


def open_given(path: Path) -> tuple[str, str, nn.Module, tuple[int, int]]:
    """Label, name, model and image size of a run or a file; what was trained here is no paper's model any more."""
    given = load_module(path.expanduser())
    label = path.resolve().stem if path.is_file() and path.stem != "model" else model_folder(path)
    return label, given.name if given.weights == "converted" else "", given.model, given.preprocessing.size


def model_folder(path: Path) -> str:
    """Name of a run's folder."""
    return (path if path.is_dir() else path.parent).resolve().name


def open_named(candidate: Candidate, size: int | None) -> tuple[str, str, nn.Module, tuple[int, int]]:
    """Label, name, model and image size of a candidate."""
    wanted = {
        "model.name": candidate.name,
        **({"model.img_size": size} if size else {}),
        **parse_changes(candidate.settings()),
    }
    torch.manual_seed(0)
    built = build(load_recipe("small-data", wanted).model, CLASSES)
    return candidate.label, "" if candidate.options else built.name, built.model, built.preprocessing.size


def reason_of(error: BaseException, most: int = 160) -> str:
    """The first line of what an error says, in a length that a table can show.

    Example:
        >>> reason_of(RuntimeError("It is too long: " + "a" * 200), most=30)
        'It is too long: aaaaaaaaaaaaa…'
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= most else f"{text[: most - 1]}…"
