"""Models looking at pictures: opened once, and each picture taken in once."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import RLock
from typing import Generic, TypeVar

import torch
from PIL import Image
from torch import Tensor

from ..data.augment import Input
from ..data.image import show_middle
from ..deploy.subject import Subject, open_subject
from ..explain import Capture, Layer, Maps, capture, grad_cam, rollout
from ..explain.capture import evaluating
from ..explain.receptive_field import output_of
from ..predict.answers import Answer

UNTRAINED = 64  # pixels: the side in which a model with random weights sees pictures, unless told otherwise
LARGEST = 384
SHOWN = 448  # pixels of the longer side of what is drawn
ANSWERS = 5

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A few values that were used last."""

    def __init__(self, most: int):
        self.most = most
        self.kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there."""
        if key not in self.kept:
            self.kept[key] = make()
        self.kept.move_to_end(key)
        while len(self.kept) > self.most:
            self.kept.popitem(last=False)
        return self.kept[key]


@dataclass(eq=False)
class View:
    """A picture as one model saw it.

    Attributes:
        subject: The model.
        input: What it was fed: its own settings, at the size that was wished for.
        picture: The whole picture.
    """

    subject: Subject
    input: Input
    picture: Image.Image = field(repr=False)
    graphs: Recent[str, tuple[Tensor, Tensor]] = field(default_factory=lambda: Recent(2), repr=False)

    @cached_property
    def images(self) -> Tensor:
        """What the model is given `[1, 3, H, W]`."""
        return self.input.normalise(self.input.prepare(self.picture)[None].float() / 255)

    @cached_property
    def seen(self) -> Capture:
        """The model's work on the picture."""
        try:
            return capture(self.subject.model, self.images)
        except ValueError:
            raise
        except Exception as error:  # whatever a foreign model says to a size that it was not made for
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            height, width = self.input.size
            raise ValueError(f"{self.subject.name} does not take {width}×{height} pixels: {first}") from None

    @cached_property
    def shown(self) -> Image.Image:
        """What the model sees, large enough to look at."""
        height, width = self.input.size
        scale = SHOWN / max(height, width)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        return Image.fromarray(show_middle(self.picture, size, self.input.crop).transpose(1, 2, 0))

    @cached_property
    def rolled(self) -> Maps:
        """What reaches the answer through all layers."""
        return rollout(self.seen)

    @cached_property
    def cam(self) -> Maps:
        """Which places speak for the answer."""
        return grad_cam(self.subject.model, self.images)

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """The likeliest classes."""
        shares = self.seen.output[0].double().softmax(dim=-1)
        best = shares.topk(min(ANSWERS, len(shares)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(Answer(self.subject.labels[number], share) for number, share in pairs)

    def to_model(self, place: tuple[float, float]) -> tuple[float, float]:
        """From a place in the picture, as shares of its width and height, to the nearest pixel (x, y) that was seen."""
        height, width = self.input.size
        scale = self.input.crop * min(self.picture.width / width, self.picture.height / height)
        left, top = (self.picture.width - scale * width) / 2, (self.picture.height - scale * height) / 2
        x, y = (place[0] * self.picture.width - left) / scale, (place[1] * self.picture.height - top) / scale
        return min(max(x, 0.0), width - 1e-3), min(max(y, 0.0), height - 1e-3)

    def from_shown(self, x: float, y: float) -> tuple[float, float]:
        """From a pixel of `shown` to a place in the picture, as shares of its width and height."""
        height, width = self.input.size
        scale = self.input.crop * min(self.picture.width / width, self.picture.height / height)
        left, top = (self.picture.width - scale * width) / 2, (self.picture.height - scale * height) / 2
        at_x, at_y = x / self.shown.width * width * scale + left, y / self.shown.height * height * scale + top
        return at_x / self.picture.width, at_y / self.picture.height

    def dependence(self, layer: Layer, token: int) -> Tensor:
        """How strongly a token behind a layer depends on each pixel: shares `[H, W]`.

        As `receptive_field`, but the way from pixels to the layer is recorded once and walked back for each token.
        """

        def record() -> tuple[Tensor, Tensor]:
            given = self.images.clone().requires_grad_()
            with torch.enable_grad(), evaluating(self.subject.model):
                return given, output_of(self.subject.model, layer.module, given)

        given, tokens = self.graphs.get(layer.name, record)
        (gradient,) = torch.autograd.grad(tokens[:, token].sum(), given, retain_graph=True)
        strength = gradient[0].abs().sum(dim=0)
        return strength / strength.sum().clamp(min=1e-30)

    def layers(self) -> list[Layer]:
        """The layers that mix positions."""
        return [layer for layer in self.seen.layers if layer.recompute is not None]

    def layer(self, wanted: str | None) -> Layer:
        """A layer by its name; the middle one of those that mix positions if there is none of that name."""
        mixing = self.layers()
        if not mixing:
            raise ValueError(f"No layer of {self.subject.name} mixes positions, so there is nothing to show.")
        return next((layer for layer in mixing if layer.name == wanted), mixing[len(mixing) // 2])


class Looking:
    """The models that can be chosen, and what they saw last.

    Args:
        sources: Runs, weight files and names of models, first those to offer first.

    Example:
        >>> from .samples import sample
        >>> looking = Looking(["deit_nano"])
        >>> view = looking.view("deit_nano", sample("Cat"), "cat", None)
        >>> view.input.size, view.layer(None).grid
        ((64, 64), Grid(height=16, width=16, aux=1))
    """

    def __init__(self, sources: list[str]):
        self.sources = sources
        self.lock = RLock()  # looking hangs hooks into models: one at a time
        self.opened: Recent[str, Subject] = Recent(6)
        self.views: Recent[tuple[str, str, int | None], View] = Recent(12)

    def open(self, source: str) -> Subject:
        """A model; one with new weights always gets the same ones."""
        if source not in self.sources:
            raise ValueError(f"The model {source!r} is not offered here; choose one of the list.")

        def make() -> Subject:
            torch.manual_seed(0)
            return open_subject(source)

        return self.opened.get(source, make)

    def view(self, source: str, picture: Image.Image, key: str, side: int | None) -> View:
        """A picture as a model sees it.

        Args:
            source: The model.
            picture: In mode RGB.
            key: Tells this picture from others.
            side: Longer side in pixels of what it sees; None: its own, or `UNTRAINED` with random weights.
        """
        if side is not None and not 16 <= side <= LARGEST:
            raise ValueError(f"A side of {side} pixels is not offered; choose 16 to {LARGEST}.")

        def make() -> View:
            subject = self.open(source)
            return View(subject, fed(subject, side), picture)

        return self.views.get((source, key, side), make)


def fed(subject: Subject, side: int | None) -> Input:
    """What a model is fed at a size."""
    own = subject.input
    if side is None:
        if subject.weights != "random" or max(own.size) >= UNTRAINED:
            return own
        side = UNTRAINED
    scale = side / max(own.size)
    return replace(own, size=(max(1, round(own.size[0] * scale)), max(1, round(own.size[1] * scale))))
