"""Models looking at images: opened once, and each image taken in once."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from PIL import Image
from torch import Tensor

from ..console import first_line, percent
from ..data.transforms import Preprocessing
from ..explanation import Capture, CapturedLayer, Maps, capture, dense_rollout, grad_cam, grad_rollout, rollout
from ..explanation.capture import evaluating
from ..explanation.gradients import output_of
from ..explanation.maps import ImageView as Part
from ..explanation.maps import view_of
from ..explanation.targets import Targets, predicted_targets
from ..runs.bundle import is_bundle
from ..runs.predictor import Predictor, load
from ..tasks import get_task
from ..tasks.predictions import Classification

UNTRAINED = 64  # pixels: the side in which a model with random weights sees images, unless told otherwise
LARGEST = 384
SHOWN = 448  # pixels of the longer side of what is drawn
TOP = 5
BESIDE = 2  # classes whose maps a classifier shows side by side

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ClassScore(NamedTuple):
    """A class and its probability; of a segmenter or detector its confidence."""

    name: str
    probability: float
    number: int


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
class ModelView:
    """An image as one model saw it.

    Attributes:
        label: What the model is called here.
        opened: The model.
        image: The whole image.
        side: Shorter side in pixels in which it is shown the whole image; None: as in evaluation.
        whole: What predicts, where this is more than the model: an average of several, or several views.
        error_rate: How often the true class may be none of the possible ones; None promises nothing.
    """

    label: str
    opened: Predictor
    image: Image.Image = field(repr=False)
    side: int | None = None
    whole: Predictor | None = None
    error_rate: float | None = None
    graphs: Recent[str, tuple[Tensor, Tensor]] = field(default_factory=lambda: Recent(2), repr=False)

    @cached_property
    def part(self) -> Part:
        """What the model is shown, and where that lies in the image."""
        preprocessing = self.opened.preprocessing
        small = isinstance(preprocessing, Preprocessing) and max(preprocessing.size) < UNTRAINED
        if self.side is None and not self.opened.learned and small:
            preprocessing = replace(preprocessing, size=(UNTRAINED, UNTRAINED))
        return view_of(self.image, preprocessing, self.side)

    @cached_property
    def input(self) -> Tensor:
        """What the model is given `[1, 3, H, W]`."""
        return self.part.normalised(self.opened.preprocessing)

    @cached_property
    def seen(self) -> Capture:
        """The model's work on the image."""
        try:
            return capture(self.opened.model, self.input)
        except ValueError:
            raise
        except Exception as error:  # whatever a foreign model says to a size that it was not made for
            height, width = self.part.size
            raise ValueError(
                f"{self.opened.name} does not take {width}×{height} pixels: {first_line(error)}."
            ) from None

    @cached_property
    def shown(self) -> Image.Image:
        """What the model sees, large enough to look at."""
        height, width = self.part.size
        scale = SHOWN / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        return self.part.image.resize(size, Image.Resampling.BICUBIC)

    @cached_property
    def output(self) -> Any:
        """What the model gives for the image, or the average of several models or views."""
        if self.whole is None:
            return self.seen.output
        with torch.no_grad():
            return self.whole.model(self.input)

    @cached_property
    def predicted(self) -> Targets:
        """The classes that the model predicts, and of a segmenter or detector where they are."""
        return predicted_targets(self.whole or self.opened, self.output, self.part.size)

    @cached_property
    def classified(self) -> Classification:
        """What a classifier predicts, calibrated where it was."""
        task: Any = get_task(self.opened.task)  # one of whole images
        settings = self.opened.settings
        (found,) = task.interpret(self.output.double(), [""], [self.part.size], self.opened.classes)
        rates = settings.get("conformal") or {}
        if self.error_rate is not None and f"{self.error_rate:g}" in rates:
            settings = settings | {"error_rate": self.error_rate}
        return found.at_settings(settings, TOP, None)

    @property
    def doubt(self) -> str:
        """What to say of a promised error rate; empty where none is promised."""
        if self.opened.preprocessing.dense or self.error_rate is None or self.classified.least is None:
            return ""
        promise = f"(the true class is missed at most {percent(self.error_rate)} of the time)"
        said = self.classified.doubt()
        return f"{said[0].upper()}{said[1:]} {promise}." if said else f"One class alone is possible {promise}."

    @cached_property
    def predictions(self) -> tuple[ClassScore, ...]:
        """The likeliest classes; of a segmenter or detector those that it found."""
        if self.opened.preprocessing.dense:
            pairs = zip(self.predicted.numbers[:TOP], self.predicted.confidences, strict=False)
            return tuple(ClassScore(self.opened.class_name(number), fraction, number) for number, fraction in pairs)
        if not isinstance(self.output, Tensor) or self.output.ndim != 2:
            raise ValueError(f"{self.opened.name} gives no number for each class, so it has no prediction to show.")
        fractions = torch.from_numpy(self.classified.probabilities)
        best = fractions.topk(min(TOP, len(fractions)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(ClassScore(self.opened.class_name(number), fraction, number) for number, fraction in pairs)

    @property
    def found(self) -> tuple[str, ...]:
        """Names of the classes that the model predicts."""
        return tuple(self.opened.class_name(number) for number in self.predicted.numbers)

    @cached_property
    def dense(self) -> Maps:
        """What each class that was found looks at, beyond what all do."""
        if not self.predicted.numbers:
            raise ValueError(f"{self.opened.name} finds nothing in this image, so there is no map of a class.")
        found = self.predicted.masks
        assert found is not None
        names = [self.opened.class_name(number) for number in self.predicted.numbers]
        return dense_rollout(self.seen, masks=found[None], names=names).classes

    @cached_property
    def classes(self) -> Maps:
        """Which patches speak for the likeliest classes of a classifier."""
        shown = self.predictions[:BESIDE]
        numbers = [score.number for score in shown]
        return grad_rollout(self.seen, classes=numbers, names=[score.name for score in shown])

    @cached_property
    def rolled(self) -> Maps:
        """What reaches the prediction through all layers."""
        return rollout(self.seen)

    @cached_property
    def cam(self) -> Maps:
        """Which points speak for the prediction."""
        return grad_cam(self.opened.model, self.input)

    def to_model(self, position: tuple[float, float]) -> tuple[float, float]:
        """From a point in the image, as fractions of its width and height, to the nearest seen pixel (x, y)."""
        left, top, right, bottom = self.part.box
        height, width = self.part.size
        x = (position[0] * self.image.width - left) / (right - left) * width
        y = (position[1] * self.image.height - top) / (bottom - top) * height
        return min(max(x, 0.0), width - 1e-3), min(max(y, 0.0), height - 1e-3)

    def from_shown(self, x: float, y: float) -> tuple[float, float]:
        """From a pixel of `shown` to a point in the image, as fractions of its width and height."""
        left, top, right, bottom = self.part.box
        at_x = left + x / self.shown.width * (right - left)
        at_y = top + y / self.shown.height * (bottom - top)
        return at_x / self.image.width, at_y / self.image.height

    def dependence(self, layer: CapturedLayer, token: int) -> Tensor:
        """How strongly a token behind a layer depends on each pixel: fractions `[H, W]`.

        As `receptive_field`, but the way from pixels to the layer is recorded once and walked back for each token.
        """

        def record() -> tuple[Tensor, Tensor]:
            given = self.input.clone().requires_grad_()
            with torch.enable_grad(), evaluating(self.opened.model):
                return given, output_of(self.opened.model, layer.module, given)

        given, tokens = self.graphs.get(layer.name, record)
        (gradient,) = torch.autograd.grad(tokens[:, token].sum(), given, retain_graph=True)
        strength = gradient[0].abs().sum(dim=0)
        return strength / strength.sum().clamp(min=1e-30)

    def layers(self) -> list[CapturedLayer]:
        """The layers that mix positions."""
        return [layer for layer in self.seen.layers if layer.recompute is not None]

    def layer(self, wanted: str | None) -> CapturedLayer:
        """A layer by its name; the middle one of those that mix positions if there is none of that name."""
        mixers = self.layers()
        if not mixers:
            raise ValueError(f"No layer of {self.opened.name} mixes positions, so there is nothing to show.")
        return next((layer for layer in mixers if layer.name == wanted), mixers[len(mixers) // 2])


class ViewCache:
    """The models that can be chosen, and what they saw last.

    Args:
        sources: Runs, weight files and names of models, first those to offer first.
        tta: Views that are merged to a prediction; None shows a model the image once.
        error_rate: Promised by models that were calibrated for it.

    Example:
        >>> from .samples import sample
        >>> cache = ViewCache(["deit_nano"])
        >>> view = cache.view("deit_nano", sample("Cat"), "cat", None)
        >>> view.part.size, view.layer(None).grid
        ((64, 64), Grid(height=16, width=16, aux=1))
    """

    def __init__(self, sources: list[str], tta: str | None = None, error_rate: float | None = None):
        self.sources, self.tta, self.error_rate = sources, tta, error_rate
        self.lock = RLock()  # looking hangs hooks into models: one at a time
        self.opened: Recent[str, Predictor] = Recent(6)
        self.views: Recent[tuple[str, str, int | None], ModelView] = Recent(12)

    def open(self, source: str) -> Predictor:
        """A model, of several the first; one with new weights always gets the same ones."""
        whole = self.open_whole(source)
        members = getattr(whole.model, "members", None)
        return whole if members is None else replace(whole, model=members[0])

    def open_whole(self, source: str) -> Predictor:
        """What predicts: a model, or several or several views of it."""
        if source not in self.sources:
            raise ValueError(f"The model {source!r} is not offered here; choose one of the list.")
        return self.opened.get(source, lambda: open_shown(source, self.tta))

    def view(self, source: str, image: Image.Image, key: str, side: int | None) -> ModelView:
        """An image as a model sees it.

        Args:
            source: The model.
            image: In mode RGB.
            key: Tells this image from others.
            side: Shorter side in pixels of what it sees; None: as in evaluation, or `UNTRAINED` with random weights.
        """
        if side is not None and not 16 <= side <= LARGEST:
            raise ValueError(f"A side of {side} pixels is not offered; choose 16 to {LARGEST}.")
        opened, whole = self.open(source), self.open_whole(source)
        merged = whole if hasattr(whole.model, "members") else None
        label = label_of(source, opened)
        return self.views.get(
            (source, key, side), lambda: ModelView(label, opened, image, side, merged, self.error_rate)
        )


def open_shown(source: str, tta: str | None = None) -> Predictor:
    """A model that can be looked into, or several that are averaged, with views where they are learned.

    Raises:
        ValueError: It is a bundle, there is no such model, or it has no such views.
    """
    if is_bundle(source):
        raise ValueError(f"{source} is a bundle; give the folder of a run, a weight file or a model's name.")
    opened = load(source)
    if opened.preprocessing.channels not in (1, 3):
        raise ValueError(
            f"{source} sees images of {opened.preprocessing.channels} channels; the page is for photos. Leave it out."
        )
    return opened.with_views(tta) if opened.learned else opened


def label_of(source: str, opened: Predictor) -> str:
    """What to call a model: its name, and of a run the name of its folder too, since runs may have the same model."""
    path = Path(source)
    if not path.exists():
        return opened.name
    folder = path if path.is_dir() else path.parent
    return f"{folder.resolve().name} ({opened.name})"
