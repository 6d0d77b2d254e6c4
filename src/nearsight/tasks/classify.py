"""Classification: defaults, loss with mixed, smoothed, weighted and distilled labels, metrics and report.

Every decision about what a recipe leaves open is a small table or rule with its reason; `fill_in` only applies them.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from timm.data import Mixup
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.files import parse
from ..config.recipe import Recipe
from ..console import percent, titled
from ..data.labels import shorten
from ..data.loader import Batch, seed_draws
from ..data.samples import BadImage, Data, Split, Subset
from ..data.sizes import LARGEST_BY_ITSELF, choose_size
from ..data.transforms import Augmentation, Preprocessing
from ..data.unlabelled import UNLABELLED
from ..interval import Interval
from ..models import MODELS
from ..models.backbone import pair
from ..models.options import OF_BACKBONE, apply_options
from ..models.registry import OF_TIMM
from ..plots.overlays import draw_labels
from ..plots.style import abbreviate, to_png
from .base import Built, Judged, Labeller, Meter, Metric, Opinion, PooledFeatures, Task, feature_loss
from .build import build
from .classification_metrics import ClassificationMetrics, Ranked, measure_ranked, most_confused, rank, worst_classes
from .classification_plots import ACROSS, Mistake, draw_confusion, draw_mistakes, draw_reliability
from .predictions import Classification

LOOKED_AT = 32  # images whose size stands for all
ROWS = 5  # worst classes and most frequent confusions to list
NAME = 30  # characters of a class name
SHOWN = 4 * ACROSS  # mistakes on the contact sheet

# Images up to this side: the model. The local feed-forward part gained most in trials on small data, and costs little.
MODEL_BY_SIZE = ((64, "localvit_nano"), (float("inf"), "localvit_tiny"))

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
        ('localvit_nano', 32, 4, 100, 128)
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

    batch = 64
    is_linear = True
    prediction: type[Classification] = Classification

    def build(self, recipe: Recipe, data: Data) -> Built:
        return build(recipe.model, len(data.classes), recipe.data)

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


class Classify(LabelTask):
    """Telling classes of images apart."""

    name = "classify"
    purpose = "tell which of these an image shows"
    hub_tag = "image-classification"
    default_recipe = "small-data"
    metric = Metric("accuracy", "accuracy")
    files = ("predictions.csv", "confusion.png", "reliability.png", "mistakes.png")

    def complete(self, recipe: Recipe, data: Data) -> Recipe:
        assert data.train is not None
        return fill_in(recipe, len(data.train), len(data.classes), typical_side(data.train))

    def objective(
        self, recipe: Recipe, data: Data, built: Built, device: torch.device, teacher: Labeller | None = None
    ) -> "CrossEntropy":
        assert data.train is not None
        labels, classes = data.train.labels, len(data.classes)
        return CrossEntropy(recipe, labels, classes, built.preprocessing, device, teacher, built.model)

    def meter(self, classes: int, settings: Mapping[str, Any] | None = None) -> "ClassificationMeter":
        return ClassificationMeter(classes)

    def match_split(self, split: Split, data: Data, classes: Sequence[str]) -> Split:
        if data.classes == tuple(classes):
            return split
        known = {name: number for number, name in enumerate(classes)}
        present = np.unique(split.labels).tolist()
        unknown = [data.classes[number] for number in present if data.classes[number] not in known]
        if unknown:
            count = "a class" if len(unknown) == 1 else f"{len(unknown)} classes"
            raise ValueError(
                f"{data.source} has {count} that the model does not know: {shorten(unknown, 10)}; it knows "
                f"{shorten(classes, 10)}. Rename or remove {'it' if len(unknown) == 1 else 'them'}."
            )
        return Renumbered(split, np.array([known.get(name, -1) for name in data.classes], dtype=np.int64))

    def draw_truth(self, split: Split, index: int, classes: Sequence[str]) -> tuple[Image.Image, Image.Image]:
        image = split.read(index)
        return image, draw_labels(image, [(classes[int(split.labels[index])], None)])

    def tables(self, judged: Judged) -> list[RenderableType]:
        return classification_tables(judged.metrics, judged.classes)

    def report_files(self, judged: Judged) -> dict[str, bytes]:
        metrics: ClassificationMetrics = judged.metrics
        wrong = int(metrics.images - metrics.confusion.trace())
        return {
            "predictions.csv": to_csv(judged),
            "confusion.png": to_png(draw_confusion(metrics.confusion, judged.classes)),
            "reliability.png": to_png(draw_reliability(metrics.calibration)),
            "mistakes.png": to_png(draw_mistakes(find_mistakes(judged), metrics.images, wrong)),
        }

    def sentence(self, score: float, split: str) -> str:
        return f"**{100 * score:.1f} %** of the {split} images are classified correctly"


TASK = Classify()


class Renumbered(Subset):
    """A split whose class numbers are those of a model."""

    def __init__(self, whole: Split, numbers: NDArray[np.int64]):
        super().__init__(whole, np.arange(len(whole)))
        self.labels = numbers[whole.labels]

    def target(self, index: int) -> int:
        return int(self.labels[index])


def typical_side(split: Split) -> int:
    """Median of the shorter sides of some images, in pixels."""
    sides = []
    for index in np.linspace(0, len(split) - 1, min(LOOKED_AT, len(split))).astype(int):
        try:
            sides.append(min(split.read(int(index)).size))
        except BadImage:
            continue
    if not sides:
        raise ValueError("None of the first training images can be read; run `nearsight data check` on the data.")
    return int(np.median(sides))


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
        self.weight = class_weights(recipe.loss.class_weights, labels[labels >= 0], classes)
        if self.weight is not None:
            self.weight = self.weight.to(device)
        self.mixup = make_mixup(recipe, classes)
        learns_features = teacher is not None and teacher.settings.features > 0
        self.pooled = PooledFeatures(student) if learns_features and student is not None else None

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


def class_weights(setting: Any, labels: NDArray[np.int64], classes: int) -> Tensor | None:
    """A weight for each class, balanced ones with a mean of 1 over the images; None where all are alike."""
    if setting == "none":
        return None
    counts = np.bincount(labels, minlength=classes)
    if setting == "balanced":
        weights = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    elif len(setting) != classes:
        raise ValueError(f"loss.class_weights has {len(setting)} numbers, but there are {classes} classes.")
    else:
        weights = np.asarray(setting, dtype=float)
    return torch.tensor(weights, dtype=torch.float32)


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


class ClassificationMeter(Meter):
    """True class, prediction and its probabilities for each image (`Ranked`)."""

    def record(self, index: int, prediction: Classification, target: Any) -> Ranked:
        return rank(prediction.probabilities, int(target))

    def metrics(self) -> ClassificationMetrics:
        if not self.records:
            raise ValueError("None of the images can be read; run `nearsight data check` on the data.")
        return measure_ranked(self.ranked(), self.classes)

    def ranked(self) -> list[Ranked]:
        """What is known of each image, in the order of `indices`."""
        return [self.records[index] for index in sorted(self.records)]

    def scores(self) -> NDArray[np.float64]:
        return np.array([float(found.predicted == found.label) for found in self.ranked()])

    def compared(self) -> dict[str, NDArray[Any]]:
        found = self.ranked()
        classes = np.array([[one.predicted for one in found], [one.label for one in found]], dtype=np.int64)
        return {
            "scores": classes[0] == classes[1],
            "classes": classes,
            "confidence": np.array([one.confidence for one in found], dtype=np.float32),
        }


def find_mistakes(judged: Judged) -> list[Mistake]:
    """The wrong predictions that the model was most confident of, with their images."""
    found = zip(judged.meter.indices.tolist(), judged.meter.ranked(), strict=True)
    wrong = [(index, one) for index, one in found if one.predicted != one.label]
    wrong.sort(key=lambda pair: -pair[1].confidence)
    return [
        Mistake(
            judged.images.read(index, enough=256),
            judged.classes[one.label],
            judged.classes[one.predicted],
            one.confidence,
        )
        for index, one in wrong[:SHOWN]
    ]


def to_csv(judged: Judged) -> bytes:
    """A line for each image: its name, the true class, the prediction, and how probable the model held both."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["image", "true", "predicted", "right", "probability", "probability_of_true"])
    for index, one in zip(judged.meter.indices.tolist(), judged.meter.ranked(), strict=True):
        names = judged.classes[one.label], judged.classes[one.predicted]
        values = (f"{value:.6f}" for value in (one.confidence, one.probability))
        writer.writerow([judged.images.name(index), *names, int(one.predicted == one.label), *values])
    return stream.getvalue().encode(errors="surrogateescape")


def classification_tables(metrics: ClassificationMetrics, classes: Sequence[str]) -> list[RenderableType]:
    """One line for each metric, then the worst classes and the most frequent confusions, if there are mistakes."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(style="dim")
    table.add_row("top-1", percent(metrics.top1.value), f"95 % interval {limits(metrics.top1)}")
    if metrics.top5 is not None:
        table.add_row("top-5", percent(metrics.top5.value), f"95 % interval {limits(metrics.top5)}")
    table.add_row("balanced accuracy", percent(metrics.balanced_accuracy), "mean of the classes' accuracies")
    table.add_row("macro F1", percent(metrics.macro_f1), "mean of the classes' F1")
    calibration = metrics.calibration
    confidence = float(np.nansum(calibration.images * calibration.confidence)) / metrics.images
    tendency = "overconfident" if confidence > metrics.top1.value else "underconfident"
    table.add_row("calibration error", percent(calibration.error), f"{tendency}: mean confidence {percent(confidence)}")
    table.add_row("log loss", f"{metrics.nll:.3f}", "mean of -log p(true class)")
    worst = [number for number in worst_classes(metrics, ROWS) if metrics.recall[number].value < 1]
    if not worst:
        return [table, Text("\nNo mistake.", style="green")]
    by_class = titled("worst classes", "images", "accuracy", "95 % interval", "precision")
    for number in worst:
        recall, precision = metrics.recall[number], metrics.precision[number]
        shown = percent(precision.value) if precision.value == precision.value else "never predicted"
        cells = (f"{metrics.support[number]:,}", percent(recall.value), limits(recall), shown)
        by_class.add_row(short(classes[number]), *cells)
    confusions = titled("most frequent confusions", "images", "of the class")
    for true, predicted, count in most_confused(metrics.confusion, ROWS):
        pair = Text.assemble(short(classes[true]), (" taken for ", "dim"), short(classes[predicted]))
        confusions.add_row(pair, f"{count:,}", percent(count / metrics.support[true]))
    return [table, Text(), by_class, Text(), confusions]


def short(name: str) -> Text:
    """A class name that leaves room for the numbers; taken literally, whatever brackets it holds."""
    return Text(abbreviate(name, NAME))


def limits(value: Interval) -> str:
    """The limits of an interval for people."""
    return f"{100 * value.low:.1f} – {100 * value.high:.1f} %"
