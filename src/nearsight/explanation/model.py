"""What is explained: the model of a run, weights, or a model by name with random weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..data.transforms import Input

if TYPE_CHECKING:
    from ..data.dense.transforms import SceneInput

RANDOM = "Random weights: this model has not learned anything yet."


@dataclass(frozen=True)
class Opened:
    """A model that is to be explained.

    Attributes:
        model: In evaluation mode.
        name: Its name.
        task: `classify`, `detect` or `segment`.
        classes: Names of its classes; empty if they are not known.
        input: What it wants to be fed.
        learned: Whether its weights are learned.
        threshold: Of a detector: score from which an object counts as found.
    """

    model: nn.Module
    name: str
    task: str
    classes: tuple[str, ...]
    input: "Input | SceneInput"
    learned: bool
    threshold: float = 0.5

    @property
    def note(self) -> str:
        """A warning for figures."""
        return "" if self.learned else RANDOM

    def class_name(self, number: int) -> str:
        """The name of a class, or its number."""
        return self.classes[number] if number < len(self.classes) else f"class {number}"

    def class_number(self, given: str) -> int:
        """The number of a class that was given by name or number."""
        if given in self.classes:
            return self.classes.index(given)
        count: int = len(self.classes) or getattr(self.model, "num_classes", 0)
        if given.isdigit() and int(given) < count:
            return int(given)
        known = f" ({', '.join(self.classes[:8])}{', ...' if len(self.classes) > 8 else ''})" if self.classes else ""
        raise ValueError(f"There is no class {given!r}; give a name{known} or a number from 0 to {count - 1}.")


def open_model(target: str | Path, seed: int = 0) -> Opened:
    """Open a run's folder, a weight file that Nearsight wrote, or a model by name with random weights.

    Args:
        target: Folder, file, or name of a model, ours or timm's.
        seed: Of random weights.

    Raises:
        ValueError: It is none of these.

    Example:
        >>> opened = open_model("deit_nano")
        >>> opened.task, opened.learned, opened.input.size
        ('classify', False, (32, 32))
    """
    from ..config.recipe import ModelChoice
    from ..tasks.build import build, input_of

    text = str(target)
    if not Path(target).exists() and not is_path(text):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            built = build(ModelChoice(name=text), classes=1000)
        return Opened(built.model.eval(), built.name, "classify", (), built.input, learned=False)
    from ..checkpoints.format import read_description
    from ..runs.predictor import load, model_file, open_trained

    file = model_file(target)
    about = read_description(file)
    if about.get("trained"):
        run = open_trained(target)
        return Opened(run.model.eval(), run.name, run.task, run.classes, run.input, True, run.threshold)
    model = load(file)
    return Opened(model.eval(), about["name"] or "model", "classify", (), input_of(model, None), learned=True)


def is_path(text: str) -> bool:
    """Whether a text is meant as a path, not as the name of a model."""
    return text.endswith(".safetensors") or text.startswith((".", "/", "~")) or text.count("/") > 1
