"""What a recipe left open, decided from the data: model, image and patch size, epochs, batch, augmentation.

Every decision is a small table or rule with its reason; `fill_in` only applies them.
"""

from collections.abc import Mapping
from typing import Any

from ..config.files import parse
from ..config.recipe import Recipe
from ..data.sizes import choose_size
from ..models import MODELS
from ..models.options import OF_BACKBONE, apply_options
from ..models.registry import OF_TIMM
from ..models.spec import BackboneSpec
from ..parts import ConvStem, PixelEmbed, TokensToToken
from ..parts.tokens_to_token import SPLITS

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

# Up to this side an object fills the image, and a random part of it would lose the object.
PADDED_UP_TO = 64

# Up to so many passes: how much the images of `small-data` are varied. What is seen 300 times must look different
# every time; in a few passes it costs more than it gives (5,000 images of CIFAR-10, deit_nano, 5 of 12 epochs: 36 %
# without RandAugment, 27 % with rand-m5).
STRENGTH: tuple[tuple[float, dict[str, Any]], ...] = (
    (30, {"rand_augment": None, "mixup": 0.0, "cutmix": 0.0, "erase": 0.0}),
    (100, {"rand_augment": "rand-m5-mstd0.5-inc1", "mixup": 0.2, "cutmix": 0.5, "erase": 0.1}),
    (float("inf"), {"rand_augment": "rand-m9-mstd0.5-inc1", "mixup": 0.8, "cutmix": 1.0, "erase": 0.25}),
)
# The share of the epochs that recipes without a warm-up of their own warm up in, whatever the number of epochs.
WARM_UP = {"small-data": 0.05, "fine-tune": 0.1, "retrofit": 0.1}


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
        settings["augment"]["crop"] = choose_crop(settings["model"]["img_size"] or side)
    if recipe.name == "small-data":
        given = recipe.augment.model_fields_set
        wish = choose_strength(settings["epochs"])
        # RandAugment and the user's colour jitter exclude each other.
        given = given | {"rand_augment"} if recipe.augment.color_jitter else given
        settings["augment"] |= {key: value for key, value in wish.items() if key not in given}
    if recipe.name in WARM_UP and "warmup_epochs" not in recipe.schedule.model_fields_set:
        settings["schedule"]["warmup_epochs"] = round(WARM_UP[recipe.name] * settings["epochs"], 2)
    return parse(settings, f"The recipe {recipe.name}")


def choose_model(recipe: Recipe, side: int) -> dict[str, Any]:
    """Name, image size and patch size for the data, where the recipe gives neither them nor weights."""
    model = recipe.model
    if model.weights is not None:
        return {}
    size = model.img_size or choose_size(side)
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
    possible = possible_patches(spec)
    fine = [p for p in possible if p * merges <= limit and -(-img_size // (p * merges)) >= tokens]
    return max(fine, default=min(possible))


def possible_patches(spec: BackboneSpec) -> tuple[int, ...]:
    """Patch sizes that a model's embedding can have."""
    if isinstance(spec.embed, TokensToToken):
        return tuple(SPLITS)
    if isinstance(spec.embed, ConvStem):
        return (2, 4, 8)
    if isinstance(spec.embed, PixelEmbed):  # one pixel token alone has nothing to attend to
        return tuple(spec.embed.pixel_stride * side for side in (2, 4))
    return (1, 2, 4, 8, 16)


def choose_epochs(images: int) -> int:
    """Passes over so many images."""
    return next((epochs for epochs in EPOCHS if epochs * images <= IMAGES_SEEN), EPOCHS[-1])


def choose_batch(images: int) -> int:
    """Images in a step."""
    return next((batch for batch in BATCHES if images >= STEPS_PER_EPOCH * batch), BATCHES[-1])


def choose_crop(side: int) -> str:
    """How training images of a side are cropped."""
    return "padded" if side <= PADDED_UP_TO else "resized"


def choose_strength(epochs: int) -> dict[str, Any]:
    """The augmentation of `small-data` for a number of passes."""
    return next(settings for limit, settings in STRENGTH if epochs <= limit)
