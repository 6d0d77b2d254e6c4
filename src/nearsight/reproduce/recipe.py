"""How the model of a row is built, and what it costs."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Protocol

import timm
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..models import BackboneSpec
from ..models.counting import Cost, count
from ..models.registry import create_from_spec


@dataclass(frozen=True)
class Measured:
    """What a recipe costs.

    Attributes:
        cost: The count.
        formula: Multiply-adds by the formula behind the printed figure, if there is one.
    """

    cost: Cost
    formula: int | None = None


@dataclass(frozen=True)
class Recipe:
    """A model that `create_model` builds, at one image size.

    Attributes:
        model: Name of one of our models or of a timm model.
        options: Options of `create_model`, sorted by name.
        image_size: Side of the image that multiply-adds are counted for.
        change: What is done to the model after it was built.
        spec: The whole model, where options of `model` cannot describe it.
        formula: The counting formula behind the printed figure, where it is not a count.
    """

    model: str
    options: tuple[tuple[str, Any], ...] = ()
    image_size: int = 224
    change: Callable[[nn.Module], nn.Module] | None = None
    spec: BackboneSpec | None = None
    formula: Callable[[BackboneSpec, int], int] | None = None

    def __str__(self) -> str:
        options = "".join(f", {key}={short(value)}" for key, value in self.options)
        change = f", {self.change.__name__.replace('_', ' ')}" if self.change else ""
        spec = ", another table of stages" if self.spec else ""
        size = f" at {self.image_size}" if self.image_size != 224 else ""
        return f"{self.model}{options}{change}{spec}{size}"

    def build(self) -> nn.Module:
        """The model, on the meta device: shapes without numbers."""
        with torch.device("meta"), WithoutNumbers():
            if self.spec:
                model = create_from_spec(self.model, self.spec, **dict(self.options))
            else:
                model = timm.create_model(self.model, **dict(self.options))
            return self.change(model) if self.change else model

    def measure(self) -> Measured:
        """Count the model."""
        model = self.build()
        formula = self.formula(model.spec, self.image_size) if self.formula else None  # type: ignore[arg-type]
        return Measured(count(model, self.image_size), formula)


@dataclass(frozen=True)
class NotBuilt:
    """Why there is no model for a row."""

    reason: str


@dataclass(frozen=True)
class Derived:
    """A figure of the text that is computed from models, not counted for one."""

    what: str
    figures: Callable[[], dict[str, float]]


NOT_SHIPPED = NotBuilt("neither timm nor torchvision ships it")


def recipe(model: str, image_size: int = 224, **options: Any) -> Recipe:
    """A recipe from keyword options."""
    return Recipe(model, tuple(sorted(options.items())), image_size)


class Countable(Hashable, Protocol):
    """A recipe of a classifier, a detector or a segmenter."""

    def build(self) -> nn.Module:
        """What is counted, on the meta device."""
        ...

    def measure(self) -> Measured:
        """Count it."""
        ...


@cache
def measure(what: Countable) -> Measured:
    """Count a recipe, once."""
    return what.measure()


def short(value: Any) -> str:
    """An option's value: of a part what differs from its defaults, of a tuple of equal things one of them."""
    if isinstance(value, tuple):
        items = [short(item) for item in value]
        return items[0] if len(set(items)) == 1 else f"({', '.join(items)})"
    if not is_dataclass(value):
        return str(value)
    changed = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
    return f"{type(value).__name__}({', '.join(f'{name}={short(item)}' for name, item in changed.items())})"


class WithoutNumbers(TorchFunctionMode):
    """Leaves out the filling of new tensors, which on the meta device changes nothing and takes most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "zero_", "fill_", "trunc_normal_", "copy_"):
            return (args or tuple((kwargs or {}).values()))[0]
        return func(*args, **(kwargs or {}))
