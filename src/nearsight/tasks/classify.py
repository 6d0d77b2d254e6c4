"""Classification: defaults, loss with mixed, smoothed, weighted and distilled labels, metrics and report.

Every decision about what a recipe leaves open is a small table or rule with its reason; `fill_in` only applies them.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import Mixup
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.files import parse
from ..config.recipe import Recipe
from ..data.bands import channels_of, to_array
from ..data.loader import Batch, seed_draws
from ..data.samples import BadImage, Data, Split
from ..data.sizes import LARGEST_BY_ITSELF, choose_size
from ..data.transforms import Augmentation, Preprocessing
from ..data.unlabelled import UNLABELLED
from ..models import MODELS
from ..models.backbone import pair
from ..models.options import OF_BACKBONE, apply_options
from ..models.registry import OF_TIMM
from .base import Built, Labeller, Opinion, PooledFeatures, Task, class_weights, feature_loss
from .build import build, keep_known_classes, weights_file
from .classification_metrics import conformal_threshold, fit_temperature
from .classification_report import ClassificationEvaluator
from .predictions import Classification, temper
from .views import View

ERROR_RATES = (0.01, 0.02, 0.05, 0.1, 0.2)  # that thresholds for "don't know" are kept for
LOOKED_AT = 32  # images whose size stands for all

# Images up to this side: the model. The family that learns most from few images in a given time (docs/results/near.md).
MODEL_BY_SIZE = ((64, "near_nano"), (float("inf"), "near_tiny"))

# Tokens along a side on the coarsest map that a model should have at least, and its stride at most: a plain
# transformer needs some tokens to attend to; a pyramid has finer maps in front of its last one.
PLAIN_GRID, PLAIN_STRIDE = 7, 16
PYRAMID_GRID, PYRAMID_STRIDE = 4, 32

# About half a million images seen (an hour of a nano model on two cores), in between 20 and 300 passes.
EPOCHS = (300, 200, 150, 100, 75, 50, 30, 20)
IMAGES_SEEN = 500_000

# At least 20 steps in a pass, so that the schedule is smooth and batch statistics are renewed often enough.
BATCHES = (128, 64, 32, 16)
STEPS_PER_EPOCH = 20

# Up to so many passes: how much the images of `small-data` are varied. What is seen 300 times must look different
# every time; in a few passes it costs more than it gives (5,000 images of CIFAR-10, deit_nano, 5 of 12 epochs: 36 %
# without RandAugment, 27 % with rand-m5).
STRENGTH: tuple[tuple[float, dict[str, Any]], ...] = (
    (30, {"rand_augment": None, "mixup": 0.0, "cutmix": 0.0, "erase": 0.0}),
    (100, {"rand_augment": "rand-m5-mstd0.5-inc1", "mixup": 0.2, "cutmix": 0.5, "erase": 0.1}),
    (float("inf"), {"rand_augment": "rand-m9-mstd0.5-inc1", "mixup": 0.8, "cutmix": 1.0, "erase": 0.25}),
)
# What `small-data` does otherwise for a family, unless an optimizer is asked for: dense convolutions with batch norms
# bear a higher rate than a transformer and gain much from Muon (docs/results/near.md).
BY_FAMILY: dict[str, dict[str, dict[str, Any]]] = {
    "near": {"optimizer": {"kind": "muon", "lr": 4e-3, "beta2": 0.99}, "schedule": {"min_lr": 0.0}},
}
# The fraction of the epochs that recipes without a warm-up of their own warm up in, whatever the number of epochs.
WARM_UP = {"small-data": 0.05, "small-multilabel": 0.05, "fine-tune": 0.1, "retrofit": 0.1}


def fill_in(recipe: Recipe, images: int, classes: int, side: int) -> Recipe:
    """Make everything concrete that a recipe leaves to the data; what it says stays as it is.

    With `model.weights`, the model, its image size and its patch size are theirs and stay open.

    Args:
        recipe: The recipe with the changes of the user.
        images: Number of training images.
        classes: Number of classes.
        side: Median of the shorter sides of the images, in pixels.

    Raises:
        ValueError: There is nothing to train on, or the model can't be made for the image size.

    Example:
        >>> from nearsight.config.files import load_recipe
        >>> filled = fill_in(load_recipe("small-data"), images=5000, classes=10, side=32)
        >>> filled.model.name, filled.model.img_size, filled.model.patch_size, filled.epochs, filled.batch
        ('near_nano', 32, 2, 100, 128)
    """
    if images < 1 or classes < 2:
        raise ValueError(
            f"There are {images} training image(s) of {classes} class(es); training takes images of at least 2 classes."
        )
    settings = recipe.model_dump()
    settings["model"] |= choose_model(recipe, side)
    settings["epochs"] = recipe.epochs or choose_epochs(images)
    settings["batch"] = recipe.batch or choose_batch(images)
    if recipe.augment.crop == "auto":
        shown = settings["model"]["img_size"] or side
        # In small images an object fills the image, and a random part of it would lose the object.
        settings["augment"]["crop"] = "padded" if shown <= recipe.data.whole_up_to else "resized"
    if recipe.name in ("small-data", "small-multilabel"):
        given = recipe.augment.model_fields_set
        strength = next(strength for limit, strength in STRENGTH if settings["epochs"] <= limit)
        # RandAugment and the user's colour jitter exclude each other.
        given = given | {"rand_augment"} if recipe.augment.color_jitter else given
        settings["augment"] |= {key: value for key, value in strength.items() if key not in given}
        known = MODELS.get(settings["model"]["name"])
        if known is not None and "kind" not in recipe.optimizer.model_fields_set:
            for section, values in BY_FAMILY.get(known.family, {}).items():
                asked = getattr(recipe, section).model_fields_set
                settings[section] |= {key: value for key, value in values.items() if key not in asked}
    if recipe.name in WARM_UP and "warmup_epochs" not in recipe.schedule.model_fields_set:
        settings["schedule"]["warmup_epochs"] = round(WARM_UP[recipe.name] * settings["epochs"], 2)
    return parse(settings, f"The recipe {recipe.name}")


def choose_model(recipe: Recipe, side: int) -> dict[str, Any]:
    """Name, image size and patch size for the data, where the recipe gives neither them nor weights."""
    model = recipe.model
    if model.weights is not None:
        return {}
    size = model.img_size or choose_size(side)
    own = max(pair(MODELS[model.name].img_size)) if model.name in MODELS else 0
    if model.img_size is None and LARGEST_BY_ITSELF == size < own <= side:
        size = own  # of large images as much as the model was made for
    if model.spec is not None:  # its strides are what it was made with
        return {"img_size": size}
    name = model.name or next(name for limit, name in MODEL_BY_SIZE if size <= limit)
    return {"name": name, "img_size": size, "patch_size": model.patch_size or choose_patch(name, size, model.options)}


def choose_patch(name: str, img_size: int, options: Mapping[str, Any] | None = None) -> int | None:
    """The patch size for a model and an image size; None for a model of timm, which has its own.

    The largest stride, up to that of the paper's models, which leaves the coarsest map enough tokens.

    Args:
        name: One of `nearsight.list_models()`, or a model of timm.
        img_size: Side of the images in pixels.
        options: Options of `create_model` that the model gets, too.

    Example:
        >>> [choose_patch(name, 32) for name in ("deit_tiny", "swin_tiny", "swin_nano", "lightvit_tiny", "resnet18")]
        [4, 1, 2, 2, None]
        >>> [choose_patch(name, 224) for name in ("deit_tiny", "swin_tiny", "lightvit_tiny")]
        [16, 4, 8]
    """
    options = {key: value for key, value in (options or {}).items() if key not in (*OF_BACKBONE, *OF_TIMM)}
    if name not in MODELS or {"patch", "patch_size"} & set(options):
        return None
    spec = apply_options(name, MODELS[name], options)
    merges = 2 ** (len(spec.stages) - 1)
    tokens, limit = (PLAIN_GRID, PLAIN_STRIDE) if merges == 1 else (PYRAMID_GRID, PYRAMID_STRIDE)
    possible = spec.embed.possible_patches
    fine = [p for p in possible if p * merges <= limit and -(-img_size // (p * merges)) >= tokens]
    return max(fine, default=min(possible))


def choose_epochs(images: int) -> int:
    """Passes over so many images."""
    return next((epochs for epochs in EPOCHS if epochs * images <= IMAGES_SEEN), EPOCHS[-1])


def choose_batch(images: int) -> int:
    """Images in a step."""
    return next((batch for batch in BATCHES if images >= STEPS_PER_EPOCH * batch), BATCHES[-1])


class LabelTask(Task):
    """What tasks have in common that give an image one label or several."""

    is_linear = True
    most_labels: int | None = 1
    prediction: type[Classification] = Classification

    views: ClassVar[dict[str, tuple[View, ...]]] = {
        "flip": (View(flip=True),),
        "vflip": (View(flip_vertical=True),),
        "crops": tuple(View(corner=corner) for corner in ((0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.5))),
    }

    def build(self, recipe: Recipe, data: Data) -> Built:
        built = build(recipe.model, len(data.classes), recipe.data)
        keep_known_classes(built.model, weights_file(recipe.model.weights, recipe.model.name), data.classes)
        return built

    def preprocessing_from(self, values: Mapping[str, Any]) -> Preprocessing:
        known: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return Preprocessing(**known)

    def augmentation(self, recipe: Recipe, preprocessing: Preprocessing) -> Augmentation:
        return Augmentation(recipe.augment, preprocessing)

    def predict(
        self, model: nn.Module, batch: Batch, preprocessing: Preprocessing, device: torch.device, classes: Sequence[str]
    ) -> list[Any]:
        logits = logits_of(model, batch, preprocessing, device)
        return self.interpret(logits, batch.names, batch.originals.tolist(), classes)

    def interpret(
        self, logits: Tensor, names: Sequence[str], originals: Sequence[Sequence[int]], classes: Sequence[str]
    ) -> list[Any]:
        found = zip(names, originals, self.probabilities(logits).numpy(), strict=True)
        return [
            self.prediction(image=name, size=(height, width), probabilities=row, classes=tuple(classes))
            for name, (height, width), row in found
        ]


class Classify(ClassificationEvaluator, LabelTask):
    """Telling classes of images apart."""

    purpose = "tell which of these an image shows"
    hub_tag = "image-classification"
    default_recipe = "small-data"
    is_pretrained = True

    def calibrate(self, probabilities: NDArray[np.float64], targets: NDArray[Any]) -> dict[str, Any]:
        temperature = fit_temperature(probabilities, targets)
        own = temper(probabilities, temperature)[np.arange(len(targets)), targets]
        found = {f"{rate:g}": conformal_threshold(own, rate) for rate in ERROR_RATES}
        return {"temperature": temperature, "conformal": {rate: v for rate, v in found.items() if v is not None}}

    def complete(self, recipe: Recipe, data: Data) -> Recipe:
        assert data.train is not None
        recipe = choose_channels(recipe, data.train)
        return fill_in(recipe, len(data.train), len(data.classes), typical_side(data.train))

    def objective(
        self, recipe: Recipe, data: Data, built: Built, device: torch.device, teacher: Labeller | None = None
    ) -> "CrossEntropy":
        assert data.train is not None
        labels, classes = data.train.labels, len(data.classes)
        return CrossEntropy(recipe, labels, classes, built.preprocessing, device, teacher, built.model)


TASK = Classify()


def typical_side(split: Split) -> int:
    """Median of the shorter sides of some images, in pixels."""
    return int(np.median([min(image.size) for image in typical_images(split)]))


def typical_images(split: Split) -> list[Image.Image]:
    """Some images of a split that can be read."""
    images = []
    for index in np.linspace(0, len(split) - 1, min(LOOKED_AT, len(split))).astype(int):
        with suppress(BadImage):
            images.append(split.read(int(index)))
    if not images:
        raise ValueError("None of the first training images can be read; run `nearsight data check` on the data.")
    return images


def held_channels(split: Split) -> int:
    """Channels of the images of a split, by the first that can be read."""
    for index in range(len(split)):
        with suppress(BadImage):
            return channels_of(split.read(index, 1))
    return 3


def choose_channels(recipe: Recipe, split: Split) -> Recipe:
    """The recipe for the channels of the images, where these are not red, green and blue.

    What varies colours is left out of the augmentation of other channels, and their mean and standard deviation are
    those of some training images, unless the recipe has others.

    Raises:
        ValueError: The images have not the channels that the recipe asks for.
    """
    images = typical_images(split)
    held, wanted = channels_of(images[0]), recipe.model.channels
    if wanted not in (None, held) and (wanted, held) != (1, 3):
        raise ValueError(
            f"model.channels is {wanted}, but the images have {held} channels; leave it out, or give images of "
            f"{wanted} channels."
        )
    channels = wanted or held
    if channels == 3:
        return recipe
    settings = recipe.model_dump(exclude_unset=True)
    settings["model"] = settings.get("model", {}) | {"channels": channels}
    if channels != 1:
        settings["augment"] = settings.get("augment", {}) | {"rand_augment": None, "color_jitter": 0.0}
        some = [to_array(image, channels).reshape(channels, -1) for image in images if channels_of(image) == channels]
        pixels = np.concatenate(some, axis=1).astype(np.float64) / 255
        spread = np.maximum(pixels.std(axis=1), 1 / 255)  # of a channel that is the same everywhere, too
        found = {"mean": pixels.mean(axis=1).round(4).tolist(), "std": spread.round(4).tolist()}
        settings["data"] = found | {key: v for key, v in settings.get("data", {}).items() if v is not None}
    return parse(settings, f"The recipe {recipe.name}")


def to_device(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images on the scale 0 to 1, and labels, on the device."""
    images = batch.images.to(device, non_blocking=True).float() / 255
    return images, batch.targets.to(device, non_blocking=True)


@torch.no_grad()
def logits_of(model: nn.Module, batch: Batch, preprocessing: Preprocessing, device: torch.device) -> Tensor:
    """What a model that gives each image a row of numbers gives for a batch `[B, C]`, in float64."""
    if not len(batch.images):
        return torch.zeros(0, 1, dtype=torch.float64)
    images = batch.images.to(device, non_blocking=True).float() / 255
    return model(preprocessing.normalise(images)).float().cpu().double()


class Taught(NamedTuple):
    """What a teacher gives to learn.

    Attributes:
        probabilities: Of each class `[B, C]`, at the temperature of the recipe.
        features: Pooled ones `[B, D]`, if they are learnt.
    """

    probabilities: Tensor
    features: Tensor | None


class CrossEntropy:
    """Cross entropy with mixed, smoothed, weighted and distilled labels (`Objective`).

    With a teacher, the loss of a labelled image is `(1 - weight) CE(label) + weight T² KL(teacher ‖ student)`, both at
    temperature `T`; of an image without a label it is the second term, whole.

    Args:
        recipe: Settings of the labels, the loss and the mixing.
        labels: Class numbers of the training images `[n]`; negative ones are not known.
        classes: Number of classes.
        preprocessing: What the model wants to be fed.
        device: Where the model stands.
        teacher: Tells more of images than their labels, if the recipe distils.
        student: The model that learns, as it is outside of what processes share; for its features alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        labels: NDArray[np.int64],
        classes: int,
        preprocessing: Preprocessing,
        device: torch.device,
        teacher: Labeller | None = None,
        student: nn.Module | None = None,
    ):
        self.recipe, self.preprocessing, self.device, self.teacher = recipe, preprocessing, device, teacher
        self.classes, self.student = classes, student
        self.weight = class_weights(recipe.loss.class_weights, np.bincount(labels[labels >= 0], minlength=classes))
        if self.weight is not None:
            self.weight = self.weight.to(device)
        self.mixup = make_mixup(recipe, classes)
        self.pooled = PooledFeatures.taught(student, teacher)

    def prepare(self, batch: Batch, epoch: int, step: int) -> tuple[Any, ...]:
        """Training images `[B, 3, H, W]` on the scale 0 to 1, mixed if the recipe mixes, and their labels.

        Behind them stands what a teacher says of the same, if there is one.

        Args:
            batch: Images and labels.
            epoch: Epochs done.
            step: Steps done; it seeds the mixing, alike in all processes and parts of a batch.
        """
        images, labels = to_device(batch, self.device)
        mixes = self.mixup is not None and epoch < self.recipe.epochs - self.recipe.augment.stop_mixing
        if mixes:
            seed_draws(self.recipe.seed, step)
        if self.teacher is None:
            return self.mixup(images, labels) if mixes and self.mixup is not None else (images, labels)
        targets, mixing = labels, None
        if mixes:
            images, mixing = self.mix(images)
            targets = mixing @ self.soft_labels(labels)
        if self.teacher.settings.views is None:
            return images, targets, self.learnt(self.teacher.look(images))
        return images, targets, self.learnt(self.teacher.recall(batch.indices, epoch), mixing)

    def mix(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The images, mixed, and the fraction that each image `[column]` has in each of them `[row]`."""
        count = len(images)
        mixup = make_mixup(self.recipe, count, smoothing=0.0)
        assert mixup is not None
        return mixup(images, torch.arange(count, device=self.device))

    def soft_labels(self, labels: Tensor) -> Tensor:
        """Smoothed labels `[B, C]`; zeros where none is known."""
        smoothing = self.recipe.loss.smoothing
        rows = F.one_hot(labels.clamp(min=0), self.classes) * (1 - smoothing) + smoothing / self.classes
        return rows * (labels >= 0)[:, None]

    def learnt(self, opinion: Opinion, mixing: Tensor | None = None) -> Taught:
        """What is to be learnt of a teacher's opinion, mixed as the images were."""
        assert self.teacher is not None
        if self.teacher.settings.kind == "hard":
            probabilities = F.one_hot(opinion.logits.argmax(dim=1), self.classes).float()
        else:
            probabilities = (opinion.logits / self.teacher.settings.temperature).softmax(dim=1)
        if mixing is None:
            return Taught(probabilities, opinion.features)
        return Taught(mixing @ probabilities, None if opinion.features is None else mixing @ opinion.features)

    def loss(self, model: nn.Module, images: Tensor, targets: Tensor, taught: Taught | None = None) -> Tensor:
        """Mean loss over the images that `prepare` gave."""
        logits = model(self.preprocessing.normalise(self.preprocessing.resize(images)))
        by_class, by_teacher = logits if isinstance(logits, tuple) else (logits, logits)
        loss = self.cross_entropy(by_class.float(), targets)
        if self.teacher is None or taught is None:
            return loss.mean()
        settings, warm = self.teacher.settings, self.teacher.settings.temperature
        predicted = (by_teacher.float() / warm).log_softmax(dim=1)
        distance = warm**2 * F.kl_div(predicted, taught.probabilities, reduction="none").sum(dim=1)
        labelled = (targets >= 0).float() if targets.ndim == 1 else targets.sum(dim=1)
        mean = ((1 - settings.weight) * loss + (1 - (1 - settings.weight) * labelled) * distance).mean()
        if self.pooled is None or taught.features is None or self.student is None:
            return mean
        return mean + settings.features * feature_loss(self.student, self.pooled.last, taught.features)

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of each image `[B]`, weighted by class and not divided by the weights; 0 where no label is known."""
        smoothing = self.recipe.loss.smoothing if targets.ndim == 1 else 0.0  # mixed labels are smoothed already
        options: dict[str, Any] = {"ignore_index": UNLABELLED} if targets.ndim == 1 else {}
        return F.cross_entropy(logits, targets, self.weight, reduction="none", label_smoothing=smoothing, **options)


def make_mixup(recipe: Recipe, classes: int, smoothing: float | None = None) -> Mixup | None:
    """timm's mixup and cutmix, if the recipe mixes; labels are smoothed as the recipe says, unless told otherwise."""
    settings = recipe.augment
    if not settings.mixes:
        return None
    return Mixup(
        mixup_alpha=settings.mixup,
        cutmix_alpha=settings.cutmix,
        prob=settings.mix_probability,
        switch_prob=settings.mix_switch,
        label_smoothing=recipe.loss.smoothing if smoothing is None else smoothing,
        num_classes=classes,
    )
