"""Before anything is trained: does every model build, what does it cost, and is a ConvNet among them?"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from ..config.candidates import Entry, as_changes
from ..config.files import load_recipe
from ..config.recipe import Recipe
from ..data import Data
from ..models import MODELS
from ..models.counting import count
from ..runs.run import Run, first_difference
from ..training.session import Prepared, anchor, build_for, complete, prepare
from .plan import RunPlan, Shared

# ConvNets of timm by the parameters of the models they stand beside, up to which they are a match: ResNets, which learn
# well from little. Mobile ones of the same size have a tenth of the multiply-adds, and would be easily beaten.
CONVNETS = (
    (2e6, "test_resnet"),
    (8e6, "resnet10t"),
    (18e6, "resnet18"),
    (45e6, "resnet50"),
    (float("inf"), "resnet152"),
)


@dataclass(frozen=True)
class Contender:
    """A model that builds.

    Attributes:
        entry: As the user wrote it.
        recipe: With nothing left open.
        parameters: Numbers that training changes.
        macs: Multiply-adds of one image.
        convnet: Whether it is a ConvNet of timm.
    """

    entry: Entry
    recipe: Recipe
    parameters: int
    macs: int
    convnet: bool


def check_contenders(entries: Sequence[Entry], shared: Shared) -> tuple[list[Contender], Prepared]:
    """Build every model for the data; the first that can't be built is refused.

    Returns:
        The models, and the data that they will all be trained on.
    """
    prepared = prepare(shared.data, recipe_of(None, shared))
    contenders = []
    for entry in entries:
        try:
            recipe = complete(recipe_of(entry, shared), prepared.data, prepared.train)
            contenders.append(weigh(entry, recipe, prepared.data))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{entry.label} can't be compared: {error}") from None
    return contenders, prepared


def recipe_of(entry: Entry | None, shared: Shared, epochs: int | None = None) -> Recipe:
    """The recipe of a model's runs, or of no model in particular, as far as it is given."""
    changes = {
        "model.name": entry.name if entry else None,
        "model.img_size": shared.img_size,
        "data.limit": shared.limit,
        "epochs": epochs or shared.epochs,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    changed = [*shared.changes_of(entry.name), *entry.settings()] if entry else list(shared.changes)
    return load_recipe(shared.recipe, given | as_changes(changed))


def check_run(run: RunPlan, shared: Shared, prepared: Prepared) -> None:
    """Refuse a run that was begun with other data or settings, as after an edit of a recipe's file, or of the data.

    Raises:
        ValueError: It could not be compared with the others.
    """
    begun = Run(run.folder)
    if not begun.is_begun():
        return
    recipe = recipe_of(run.model.entry, shared, run.model.epochs).model_copy(update={"seed": run.seed})
    recipe = complete(anchor(recipe), prepared.data, prepared.train)
    reason = first_difference(begun.recipe(), recipe)
    if reason is None and {**begun.data(), "folder": None} != {**prepared.record, "folder": None}:
        reason = "the images or their labels have changed since"
    if reason is not None:
        raise ValueError(
            f"{run.folder} holds a run that can't be compared with those of now: {reason}; put back what was changed, "
            "or give another folder with --out."
        )


def weigh(entry: Entry, recipe: Recipe, data: Data) -> Contender:
    """Build a model, without memory where possible, and count what it costs."""
    bare = recipe.task == "classify" and not recipe.model.weights  # what detectors do depends on what they see
    with torch.device("meta" if bare else "cpu"):
        built = build_for(recipe, data)
        cost = count(built.model, built.input.size)
    return Contender(entry, recipe, cost.parameters, cost.macs, is_convnet(built.name, built.model))


def is_convnet(name: str, model: nn.Module) -> bool:
    """Whether a model is a ConvNet of timm: convolutions with neighbours, and no attention between places.

    Example:
        >>> import timm
        >>> [is_convnet(name, timm.create_model(name)) for name in ("resnet18", "deit_tiny_patch16_224")]
        [True, False]
    """
    if name in MODELS:
        return False
    kinds = {type(module).__name__ for module in model.modules()}
    attends = any("Attention" in kind or "MultiQuery" in kind for kind in kinds)
    near = [m for m in model.modules() if isinstance(m, nn.Conv2d) and max(m.kernel_size) > 1]
    return not attends and len(near) > 2


def suggest_convnet(contenders: Sequence[Contender]) -> str | None:
    """A ConvNet of timm about as large as the models; None if there is one already."""
    if any(contender.convnet for contender in contenders):
        return None
    size = median(contender.parameters for contender in contenders)
    return next(name for most, name in CONVNETS if size <= most)


def choose_baseline(contenders: Sequence[Contender], wanted: str | None) -> str:
    """The label of the model that the others are tested against: the wanted one, the first ConvNet, or the first."""
    labels = [contender.entry.label for contender in contenders]
    if wanted is not None:
        return wanted
    return next((contender.entry.label for contender in contenders if contender.convnet), labels[0])
