"""A recipe: everything that decides how a model is trained, as strictly typed values, each with its range."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from . import TaskName

LARGEST_SEED = 2**63 - 1  # torch takes no larger ones everywhere
MOST_EPOCHS = 100_000
WITH_HEAD = ("detect", "segment")  # tasks whose models have one of `nearsight.heads`


def ensure(holds: Callable[[Any], bool], sentence: str) -> AfterValidator:
    """A validator that refuses values for which a condition does not hold."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(sentence)
        return value

    return AfterValidator(check)


# `Strict(False)`, because YAML has lists where Python has tuples.
Range = Annotated[
    tuple[float, float],
    Strict(False),
    ensure(
        lambda pair: 0 < pair[0] <= pair[1] <= 100,
        "the first of the two numbers must be above 0 and not above the second, which is at most 100",
    ),
]
Fractions = Annotated[
    tuple[float, ...],
    Strict(False),
    ensure(
        lambda fractions: list(fractions) == sorted(set(fractions)) and all(0 < one < 1 for one in fractions),
        "the numbers must lie between 0 and 1 and rise, such as [0.3, 0.6, 0.9]",
    ),
]
Weights = Annotated[
    tuple[float, ...],
    Strict(False),
    ensure(lambda numbers: numbers and min(numbers) > 0, "give one number above 0 for each class"),
]
Sides = Annotated[
    tuple[int, ...],
    Strict(False),
    ensure(
        lambda sides: sides and min(sides) >= 16 and max(sides) <= 8192,
        "give one side or more, each of at least 16 and at most 8192 pixels",
    ),
]
SidePair = Annotated[
    tuple[int, int],
    Strict(False),
    ensure(
        lambda pair: 16 <= pair[0] <= pair[1] <= 8192,
        "the first of the two sides must be at least 16 and not above the second, at most 8192",
    ),
]
Mean = Annotated[
    tuple[float, ...],
    Strict(False),
    ensure(
        lambda mean: mean and all(0 <= one <= 1 for one in mean),
        "give a number from 0 to 1 for red, green and blue, or each channel, such as [0.485, 0.456, 0.406]",
    ),
]
Std = Annotated[
    tuple[float, ...],
    Strict(False),
    ensure(
        lambda std: std and all(0 < one <= 1 for one in std),
        "give a number above 0 and at most 1 for red, green and blue, or each channel, such as [0.229, 0.224, 0.225]",
    ),
]
Texts = Annotated[tuple[str, ...], Strict(False)]


def check_seed(seed: int) -> None:
    """Refuse a seed that a recipe would not take.

    Example:
        >>> check_seed(-1)
        Traceback (most recent call last):
        ValueError: --seed -1 won't do; give a whole number from 0 to ...
    """
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"--seed {seed} won't do; give a whole number from 0 to {LARGEST_SEED:,}.")


class ConfigBase(BaseModel):
    """Settings that belong together; unknown keys are refused, and so are values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class DenseAugment(ConfigBase):
    """Sizes of images for detection or segmentation, and what is done to training images, in this order.

    Attributes:
        min_size: Shorter side in pixels that images are shown with; None follows the data.
        max_size: Longest side that an image may get by that; None allows 5/3 of the shorter side, as in 1333 × 800.
        stretch: Show every image as a square of `min_size`, whatever its shape.
        sides: Shorter sides to draw from for a training image; None takes `min_size`.
        ratio: Smallest and largest factor for the size of a training image, beside `sides`.
        cut: Probability of DETR's way instead: resize to one of `cut_sides`, cut a random part of `cut_range`, resize.
        cut_sides: Shorter sides before cutting.
        cut_range: Smallest and largest side of the part that is cut.
        crop: Side of a random square that is cut out in the end; None for the whole image.
        class_crop: For segmentation: probability that the crop is laid around a pixel of a class that is drawn evenly
            from those in the image, so that rare ones are seen as often as others.
        max_class_fraction: For segmentation: crops of which one class has more than this fraction are drawn again, up
            to ten times.
        flip: Probability of mirroring left and right.
        flip_vertical: Probability of mirroring up and down.
        distort: Probability of each change of brightness, contrast, saturation and hue.
    """

    min_size: int | None = Field(default=None, ge=16, le=4096)
    max_size: int | None = Field(default=None, ge=16, le=8192)
    stretch: bool = False
    sides: Sides | None = None
    ratio: Range = (1.0, 1.0)
    cut: float = Field(default=0.0, ge=0, le=1)
    cut_sides: Sides = (400, 500, 600)
    cut_range: SidePair = (384, 600)
    crop: int | None = Field(default=None, ge=16, le=4096)
    class_crop: float = Field(default=0.0, ge=0, le=1)
    max_class_fraction: float = Field(default=1.0, gt=0, le=1)
    flip: float = Field(default=0.5, ge=0, le=1)
    flip_vertical: float = Field(default=0.0, ge=0, le=1)
    distort: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def check_together(self) -> "DenseAugment":
        """Refuse sizes that contradict each other."""
        if self.min_size is not None and self.max_size is not None and self.max_size < self.min_size:
            raise ValueError(f"dense.max_size {self.max_size} is less than dense.min_size {self.min_size}; set both")
        return self


RAND_AUGMENT = re.compile(r"rand(-(m|n|p|mstd|mmax|inc)\d+(\.\d+)?)+")
RAND_AUGMENT_MOST = {"m": 30, "n": 20, "p": 1, "mstd": 1000, "mmax": 30, "inc": 1}


def check_rand_augment(text: str) -> str:
    """Refuse what timm would not understand as RandAugment."""
    if not RAND_AUGMENT.fullmatch(text):
        raise ValueError("write timm's text for RandAugment, such as rand-m9-mstd0.5-inc1")
    for part in text.split("-")[1:]:
        name, number = re.match(r"([a-z]+)(.*)", part).groups()  # type: ignore[union-attr]
        if float(number) > RAND_AUGMENT_MOST[name]:
            raise ValueError(f"{name} is at most {RAND_AUGMENT_MOST[name]}")
    return text


def check_spec(spec: dict[str, Any] | None) -> dict[str, Any] | None:
    """Refuse a description that no model can be built from."""
    from ..models.spec import spec_from_json, to_json  # which needs torch

    try:
        return None if spec is None else to_json(spec_from_json(spec))
    except (ValueError, TypeError) as error:
        raise ValueError(str(error).removesuffix(".")) from None


class ModelChoice(ConfigBase):
    """Which model to train.

    Attributes:
        name: A model of `nearsight models` or of timm, or the file of a description (`spec.json` of a search), which is
            read at once and becomes `spec`; None lets the size of the images choose.
        spec: Description of a model of your own, which `name` is the label of; None for a model by its name.
        options: Options of `create_model`: parts by slot and their settings; for timm's models their own.
        weights: Where to start from: a file of weights, the folder of a former run, `pretrained` for the model's own
            pretrained weights, which are downloaded if need be, `auto` for those that are at hand, or `none`; another
            number of classes gets a fresh head.
        img_size: Side of the images in pixels; None follows the data, or the weights where some are given.
        patch_size: Stride of the embedding in pixels; None follows the image size, or the weights.
        channels: Of the images that a classifier sees: 1 makes photos grey; None takes 3, or those of the data.
        drop_path: Stochastic depth; None takes the model's.
        drop: Dropout in front of the head.
        localize: Local parts for the model with its weights: settings of `nearsight.localize`, by name.
        head: What detects or segments: `retinanet`, `mask-rcnn`, `cascade-mask-rcnn`, `detr`; `semantic-fpn`,
            `upernet`, `linear`.
        head_options: Settings of the head, by name.
        layers: In a detector or segmenter, blocks of a backbone of one stride whose maps the head is given, evenly
            spaced up to the last one; None leaves it to the task.
        detail: In a detector or segmenter, channels of a few convolutions on the image itself that join the finest map;
            None leaves it to the task.
        freeze_stem_norms: In a detector or segmenter, let the batch norms of the backbone's stem keep their statistics.
    """

    name: str | None = None
    spec: Annotated[dict[str, Any] | None, AfterValidator(check_spec)] = None
    options: dict[str, Any] = Field(default_factory=dict)
    weights: Annotated[str | None, AfterValidator(lambda given: None if given == "none" else given)] = None
    img_size: int | None = Field(default=None, ge=16, le=2048)
    patch_size: int | None = Field(default=None, ge=1, le=64)
    channels: int | None = Field(default=None, ge=1, le=64)
    drop_path: float | None = Field(default=None, ge=0, lt=1)
    drop: float = Field(default=0.0, ge=0, lt=1)
    localize: dict[str, Any] = Field(default_factory=dict)
    head: str | None = None
    head_options: dict[str, Any] = Field(default_factory=dict)
    layers: int | None = Field(default=None, ge=1, le=1024)
    detail: int | None = Field(default=None, ge=0, le=1024)
    freeze_stem_norms: bool = False

    @model_validator(mode="before")
    @classmethod
    def read_spec(cls, settings: Any) -> Any:
        """Take the description of a model out of the file that is named."""
        name = settings.get("name") if isinstance(settings, dict) else None
        if not isinstance(name, str) or not name.endswith(".json"):
            return settings
        from ..models.spec import read_spec, to_json  # which needs torch

        try:
            return {**settings, "name": Path(name).stem, "spec": to_json(read_spec(name))}
        except ValueError as error:
            raise ValueError(str(error).removesuffix(".")) from None

    def described(self) -> Any:
        """The `BackboneSpec` of a model of your own; None for a model by its name."""
        from ..models.spec import spec_from_json

        return None if self.spec is None else spec_from_json(self.spec)


class DataUse(ConfigBase):
    """How the data are used.

    Attributes:
        val_fraction: Fraction of the training images that is set aside where there is no validation split.
        limit: Train on this many images only, drawn evenly from the classes; None takes all.
        workers: Processes that read images; None follows the machine and the data.
        max_bad: Fraction of unreadable images beyond which training stops; three end no run unless it is 0.
        split_seed: Seed of the validation split, of folds and of `limit`; the run's seed does not change them.
        groups: Which images stay together in splits and folds: `folder` or `folder:2` for folders around the images,
            `pattern:REGEX` for what its parentheses find in an image's name; None where a table says it, or nothing.
        folds: Divide the training images into this many folds, of which one is the test split; None for no folds.
        fold: Which of the folds that is, from 1.
        mean: Of each channel on the scale 0 to 1, subtracted from every image; None takes the model's, or, for images
            of other channels than red, green and blue, that of some training images.
        std: Of each channel, by which images are divided then; None likewise.
        whole_up_to: Up to this side of the classifier's input, evaluation shows whole images and `augment.crop: auto`
            pads; above, it shows their middle, and training takes random parts.
        test: Look at the test images in the end; off while settings or models are still being chosen.
    """

    val_fraction: float = Field(default=0.1, gt=0, le=0.5)
    limit: int | None = Field(default=None, ge=1, le=LARGEST_SEED)
    workers: int | None = Field(default=None, ge=0, le=256)
    max_bad: float = Field(default=0.01, ge=0, le=1)
    split_seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    groups: str | None = None
    folds: int | None = Field(default=None, ge=2, le=1000)
    fold: int | None = Field(default=None, ge=1, le=1000)
    mean: Mean | None = None
    std: Std | None = None
    whole_up_to: int = Field(default=64, ge=0, le=2048)
    test: bool = True

    @model_validator(mode="after")
    def check_together(self) -> "DataUse":
        """Refuse half of what says which fold is meant."""
        if (self.folds is None) != (self.fold is None) or (self.fold or 1) > (self.folds or 1):
            raise ValueError("data.fold is one of data.folds, counted from 1; set both, or neither")
        return self


class Augment(ConfigBase):
    """What is done to training images, in this order.

    Attributes:
        crop: `resized` takes a random part of `crop_scale` and `crop_ratio` and resizes it; `padded` pads by an eighth
            of the side and cuts; `none` only resizes; `auto` follows the image size.
        crop_scale: Smallest and largest fraction of the image that `resized` takes.
        crop_ratio: Narrowest and widest shape that `resized` takes.
        flip: Probability of mirroring left and right.
        flip_vertical: Probability of mirroring up and down.
        rand_augment: timm's text for RandAugment, such as `rand-m9-mstd0.5-inc1`.
        color_jitter: Strength of random brightness, contrast and saturation; not together with `rand_augment`.
        erase: Probability of filling a random rectangle with noise.
        mixup: Strength of mixup; 0 for none.
        cutmix: Strength of cutmix; 0 for none.
        mix_probability: Probability that a batch is mixed at all.
        mix_switch: Probability of cutmix where both are on.
        repeats: Copies of each image in an epoch, each drawn anew; an epoch then has a `repeats`-th of the images.
        stop_mixing: Epochs at the end that are trained without mixup and cutmix.
    """

    crop: Literal["auto", "resized", "padded", "none"] = "auto"
    crop_scale: Range = (0.08, 1.0)
    crop_ratio: Range = (3 / 4, 4 / 3)
    flip: float = Field(default=0.5, ge=0, le=1)
    flip_vertical: float = Field(default=0.0, ge=0, le=1)
    rand_augment: Annotated[str, AfterValidator(check_rand_augment)] | None = None
    color_jitter: float = Field(default=0.0, ge=0, le=1)
    erase: float = Field(default=0.0, ge=0, le=1)
    mixup: float = Field(default=0.0, ge=0, le=100)
    cutmix: float = Field(default=0.0, ge=0, le=100)
    mix_probability: float = Field(default=1.0, ge=0, le=1)
    mix_switch: float = Field(default=0.5, ge=0, le=1)
    repeats: int = Field(default=1, ge=1, le=8)
    stop_mixing: int = Field(default=0, ge=0, le=MOST_EPOCHS)

    @model_validator(mode="after")
    def check_together(self) -> "Augment":
        """Refuse settings that exclude each other."""
        if self.rand_augment and self.color_jitter:
            raise ValueError(
                "augment.rand_augment changes colours already; set augment.color_jitter to 0, or the other to null"
            )
        if self.crop_scale[1] > 1:
            raise ValueError(
                f"augment.crop_scale ends at {self.crop_scale[1]:g}; a part of an image is at most 1 of it"
            )
        return self

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0


class Loss(ConfigBase):
    """What is minimised.

    Attributes:
        smoothing: Label smoothing.
        class_weights: `balanced` weighs classes by the inverse of their frequency, in images or, for segmentation, in
            pixels; `sqrt` by the square root of that; or one number for each class.
        kind: For several labels an image: `bce` (binary cross entropy) or `asymmetric`, which turns away from absent
            classes that are told easily.
    """

    smoothing: float = Field(default=0.0, ge=0, lt=1)
    class_weights: Literal["none", "balanced", "sqrt"] | Weights = "none"
    kind: Literal["bce", "asymmetric"] = "bce"


class Distillation(ConfigBase):
    """What a teacher's predictions add to the labels; models with a distillation token learn them there.

    Attributes:
        teacher: The folder of a run, a weight file, or a model of timm by its name.
        weights: Weights for a model of timm: a safetensors file, or the folder of a run; None asks timm for pretrained
            ones.
        kind: `hard` takes the teacher's class as a second label, as DeiT does; `soft` its probabilities.
        temperature: Of `soft`: logits of teacher and student are divided by it; the larger, the more the classes count
            that the teacher holds for less probable.
        weight: Fraction of the teacher in the loss of a labelled image; it is all that an image without a label has.
        features: Weight of a second loss, the cosine distance between the teacher's pooled features and a learned
            linear projection of the student's; 0 for none.
        views: Different views of each image that the epochs show in turn; the teacher predicts each once, and the run
            keeps that. None draws new ones in every epoch and asks the teacher every time.
        unlabelled: Images without labels that are learnt from, too: folders, or data whose labels are passed over.
    """

    teacher: str
    weights: str | None = None
    kind: Literal["hard", "soft"] = "hard"
    temperature: float = Field(default=1.0, gt=0, le=100)
    weight: float = Field(default=0.5, ge=0, le=1)
    features: float = Field(default=0.0, ge=0, le=1000)
    views: int | None = Field(default=None, ge=1, le=MOST_EPOCHS)
    unlabelled: Texts = ()

    @model_validator(mode="after")
    def check_together(self) -> "Distillation":
        """Refuse a temperature that nothing would use."""
        if self.kind == "hard" and self.temperature != 1:
            raise ValueError("distill.temperature belongs to distill.kind soft; set that, or leave the temperature out")
        return self


class Optimizer(ConfigBase):
    """How weights move.

    Attributes:
        kind: `adamw`, `sgd`, `lamb`, or `muon`: orthogonal steps for inner matrices, AdamW for the rest.
        lr: Learning rate for a batch of `lr_batch` images, in proportion to which it is scaled.
        lr_batch: Batch that `lr` is meant for; None leaves `lr` as it is.
        weight_decay: Not applied to biases, norms, positions and tokens.
        momentum: Momentum of `sgd`, first beta of the others.
        nesterov: Momentum of `sgd` in Nesterov's form.
        beta2: Second beta.
        eps: Term in the denominator.
        layer_decay: Factor of the learning rate from each layer to the one before; None for none.
        offsets: Factor of the learning rate for the offsets of deformable merging.
        offsets_flat: Let the rate of the offsets stay where the warm-up has led it, whatever the schedule does.
        backbone: Factor of the learning rate for the backbone of a detector or segmenter.
        localized: Factor of the learning rate for what `localize` has added.
        localized_clip: Largest norm of the gradient of what `localize` has added, which is then left out of `clip`;
            None clips all together.
        fallback: Factor of the learning rate for what `muon` leaves to AdamW: vectors, depth-wise kernels, the first
            and the last layer.
        clip: Largest norm of the gradient; None for none.
    """

    kind: Literal["adamw", "sgd", "lamb", "muon"] = "adamw"
    lr: float = Field(default=1e-3, gt=0, le=1e30)  # what 32 bits hold, with the factors below
    lr_batch: int | None = Field(default=None, ge=1, le=1_000_000)
    weight_decay: float = Field(default=0.05, ge=0, le=1000)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = True
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0, le=1000)
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    offsets: float = Field(default=0.01, gt=0, le=100)
    offsets_flat: bool = False
    backbone: float = Field(default=1.0, gt=0, le=100)
    localized: float = Field(default=1.0, gt=0, le=100)
    localized_clip: float | None = Field(default=None, gt=0, le=1e30)
    fallback: float = Field(default=0.3, gt=0, le=100)
    clip: float | None = Field(default=None, gt=0, le=1e30)


class Schedule(ConfigBase):
    """How the learning rate goes.

    Attributes:
        kind: `cosine`, `step` (by `gamma` at each of `milestones`), `poly` (the fraction that is left, to the power of
            `power`), or `constant`.
        warmup_epochs: Epochs of linear warm-up from `warmup_lr`; the rest of the schedule runs on under it.
        warmup_lr: Fraction of the learning rate to start from.
        min_lr: Fraction of the learning rate to end with.
        milestones: Fractions of the epochs at which `step` lowers the rate.
        gamma: Factor of `step`.
        power: Of `poly`.
    """

    kind: Literal["cosine", "step", "poly", "constant"] = "cosine"
    warmup_epochs: float = Field(default=0.0, ge=0, le=MOST_EPOCHS)
    warmup_lr: float = Field(default=0.001, ge=0, le=1)
    min_lr: float = Field(default=0.01, ge=0, le=1)
    milestones: Fractions = (0.3, 0.6, 0.9)
    gamma: float = Field(default=0.1, gt=0, le=1)
    power: float = Field(default=1.0, gt=0, le=100)


class Saving(ConfigBase):
    """What is kept on the way.

    Attributes:
        every: Minutes between checkpoints within an epoch; one is written at the end of every epoch, too.
        keep: Newest checkpoints to keep, beside the best one.
    """

    every: float = Field(default=10.0, gt=0, le=1_000_000)
    keep: int = Field(default=1, ge=1, le=MOST_EPOCHS)


def full_name(precision: Any) -> Any:
    """A precision under the name that torch has for it; accelerate's short names are understood, too."""
    names = {"fp32": "float32", "bf16": "bfloat16"}
    return names.get(precision, precision) if isinstance(precision, str) else precision


class Recipe(ConfigBase):
    """Everything that decides how a model is trained, except the data.

    Attributes:
        name: Name of the recipe this one started from.
        task: What is learned: to `classify` images, to tell which of several classes each has (`multilabel`), to
            `detect` objects in them, or to `segment` them.
        frozen: Keep the weights of the backbone, and make a logistic regression on its features the head; nothing
            below about optimizer, schedule and augmentation counts then.
        epochs: Passes over the training images; 0 follows their number.
        batch: Images in a step, over all processes; 0 follows the number of training images.
        accumulate: Parts in which a batch is worked off, to save memory.
        ema: Decay of the running mean of the weights; None for none. It is shortened at the start of training.
        precision: Of matrix products in training: `float32`, `bfloat16` (autocast, half the bits), or `auto` for
            bfloat16 where some steps of the model at hand are faster with it. Predictions, validation and frozen
            features are in float32 always.
        validate_every: Epochs from one validation to the next; the last epoch is always validated. The best validated
            epoch is the run's model.
        patience: Stop when validation has not improved for so many epochs; None never stops early.
        seed: Seed of the weights, the order and every random draw.

    Example:
        >>> from nearsight.config.files import load_recipe
        >>> recipe = load_recipe("deit", {"epochs": 10, "optimizer.lr": 3e-4})
        >>> recipe.epochs, recipe.optimizer.lr, recipe.augment.mixup
        (10, 0.0003, 0.8)
    """

    name: str = "custom"
    task: TaskName = "classify"
    model: ModelChoice = ModelChoice()
    data: DataUse = DataUse()
    frozen: bool = False
    epochs: int = Field(default=0, ge=0, le=MOST_EPOCHS)
    batch: int = Field(default=0, ge=0, le=1_000_000)
    accumulate: int = Field(default=1, ge=1, le=1_000_000)
    augment: Augment = Augment()
    dense: DenseAugment = DenseAugment()
    loss: Loss = Loss()
    distill: Distillation | None = None
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    ema: float | None = Field(default=None, gt=0, lt=1)
    precision: Annotated[Literal["auto", "float32", "bfloat16"], BeforeValidator(full_name)] = "auto"
    validate_every: int = Field(default=1, ge=1, le=MOST_EPOCHS)
    patience: int | None = Field(default=None, ge=1, le=MOST_EPOCHS)
    saving: Saving = Saving()
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)

    @model_validator(mode="after")
    def check_together(self) -> "Recipe":
        """Refuse a head without use, batches that can't be divided, and a warm-up that never ends."""
        if self.task not in WITH_HEAD and self.model.head is not None:
            raise ValueError(
                f"model.head {self.model.head} detects or segments, but the task is to classify; leave it out, or "
                "choose a recipe for that"
            )
        if self.task not in WITH_HEAD and self.model.freeze_stem_norms:
            raise ValueError("model.freeze_stem_norms is for detectors and segmenters; set it to false to classify")
        if self.task in WITH_HEAD and self.data.whole_up_to != DataUse().whole_up_to:
            raise ValueError(f"data.whole_up_to is for classifiers; leave it out to {self.task}, and see dense.crop")
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} can't be worked off in {self.accumulate} equal parts (accumulate)")
        if self.augment.mixes and (self.batch // self.accumulate) % 2:
            raise ValueError(f"mixup and cutmix pair images, but batch {self.batch} leaves parts of an odd number")
        if self.distill is not None and self.distill.views is not None and self.augment.repeats > 1:
            raise ValueError(
                f"distill.views shows one view of an image in an epoch, but augment.repeats is {self.augment.repeats}; "
                "set it to 1, or distill.views to null"
            )
        if 0 < self.epochs <= self.schedule.warmup_epochs:
            warmup = f"{self.schedule.warmup_epochs:g}"
            raise ValueError(f"schedule.warmup_epochs {warmup} must be less than epochs {self.epochs}; set both")
        return self
