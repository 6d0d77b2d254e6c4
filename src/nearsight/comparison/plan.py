"""What a comparison consists of: settings that all models share, and one run for each model and seed.

The plan is written before the first run and read again when the same command goes on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from ..atomic import write_whole
from ..config.candidates import Candidate, is_ours
from ..config.files import load_recipe, parse_changes
from ..config.recipe import LARGEST_SEED, Recipe
from ..data import Data
from ..models import MODELS, Backbone
from ..models.counting import count
from ..runs.run import PREDICTIONS, Run, first_difference
from ..tasks import get_task
from ..training.session import Prepared, anchor, prepare

MOST_SEEDS = 1000


class Shared(BaseModel):
    """Settings that are the same for all models.

    Attributes:
        data: What to train on.
        recipe: Name or file of the recipe.
        changes: Other settings of the recipe, as `KEY=VALUE`.
        img_size: Side of the images in pixels; None follows the data.
        limit: Number of training images; None takes all.
        epochs: Of every run; None leaves them to the recipe or the budget.
        budget: Seconds of every run, from its start to its predictions; None for no such limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str
    recipe: str
    changes: tuple[str, ...] = ()
    img_size: int | None = None
    limit: int | None = None
    epochs: int | None = None
    budget: float | None = None

    def changes_of(self, name: str) -> list[str]:
        """The changes that apply to a model; the patch size of ours is none of a ConvNet beside them."""
        ours = is_ours(name)
        return [change for change in self.changes if ours or change.partition("=")[0].strip() != "model.patch_size"]


class Planned(BaseModel):
    """A model of the plan, with the epochs that its runs get.

    Its precision is chosen once for all of them, so that seeds alone make the difference; None in plans without one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    label: str
    name: str
    options: dict[str, str]
    epochs: int
    precision: str | None = None

    @property
    def candidate(self) -> Candidate:
        """The model as the user wrote it."""
        return Candidate(self.label, self.name, dict(self.options))


class RunPlan(NamedTuple):
    """One run: the model, the seed, and its folder."""

    model: Planned
    seed: int
    folder: Path

    def is_finished(self) -> bool:
        """Whether it is done: trained, and its predictions written."""
        return (self.folder / "outcome.json").is_file() and (self.folder / PREDICTIONS).is_file()


class Job(BaseModel):
    """What a worker is given to do, in a file: one run.

    Attributes:
        source: The data.
        recipe: As far as it is given; the rest follows the data.
        folder: Of the run.
        threads: Of the CPU.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    recipe: Recipe
    folder: Path
    threads: int


class Plan(BaseModel):
    """A whole comparison.

    Attributes:
        shared: What all runs have in common.
        models: What is compared.
        seeds: Each model is trained once with each.
        baseline: Label of the model that the others are tested against.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    shared: Shared
    models: tuple[Planned, ...]
    seeds: tuple[int, ...]
    baseline: str

    def runs(self, folder: Path) -> list[RunPlan]:
        """All runs; first every model with the first seed, so that something can be seen early."""
        return [
            RunPlan(model, seed, folder / "runs" / f"{model.candidate.slug}-seed{seed}")
            for seed in self.seeds
            for model in self.models
        ]


def read_plan(folder: Path) -> Plan | None:
    """The plan of a folder; None if there is none."""
    path = folder / "plan.json"
    if not path.is_file():
        return None
    try:
        return Plan.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError):
        raise ValueError(
            f"{path} is not a plan that `nearsight compare` wrote; give another folder with --out."
        ) from None


def write_plan(plan: Plan, folder: Path) -> None:
    """Write `plan.json`."""
    write_whole(folder / "plan.json", (json.dumps(plan.model_dump(mode="json"), indent=1) + "\n").encode())


def check_same(old: Plan, shared: Shared, candidates: list[Candidate], folder: Path) -> None:
    """Refuse settings that differ from those of the runs in a folder; models and seeds may come and go."""
    for name in Shared.model_fields:
        before, now = getattr(old.shared, name), getattr(shared, name)
        if before != now:
            raise ValueError(
                f"{folder} holds a comparison with {name} = {spelled(before)}, but now it is {spelled(now)}; "
                "use the same setting, or another folder with --out."
            )
    known = {model.candidate.slug: model.candidate for model in old.models}
    for candidate in candidates:
        if candidate.slug in known and str(known[candidate.slug]) != str(candidate):
            raise ValueError(
                f"{folder} holds runs of {candidate.label!r} that stand for {known[candidate.slug]}, but now it is "
                f"{candidate}; give it another label, or another folder with --out."
            )


def spell_changes(changes: Mapping[str, Any] | Sequence[str] | None) -> tuple[str, ...]:
    """Changes of a recipe as texts `KEY=VALUE`.

    Example:
        >>> spell_changes({"augment.crop_scale": [0.5, 1], "ema": None})
        ('augment.crop_scale=[0.5, 1]', 'ema=null')
    """
    if isinstance(changes, Mapping):
        return tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())
    return tuple(changes or ())


def spelled(value: object) -> str:
    """A setting for people."""
    if isinstance(value, tuple):
        return " ".join(value) or "nothing"
    return "nothing" if value is None else str(value)


def parse_seeds(given: str | int | Sequence[int]) -> tuple[int, ...]:
    """Seeds: a number of them, or the seeds themselves, as text with commas.

    Example:
        >>> parse_seeds("3"), parse_seeds(3), parse_seeds("5,7"), parse_seeds([5, 7])
        ((0, 1, 2), (0, 1, 2), (5, 7), (5, 7))
    """
    text = (
        given if isinstance(given, str) else str(given) if isinstance(given, int) else f"{','.join(map(str, given))},"
    )
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise ValueError(f"{text!r} are no seeds; give their number, such as 3, or the seeds, such as 5,7,11.")
    numbers = [int(part) for part in parts]
    if "," not in text:
        if not 1 <= numbers[0] <= MOST_SEEDS:
            raise ValueError(f"{text} seeds were asked for; give at least 1 and at most {MOST_SEEDS}.")
        return tuple(range(numbers[0]))
    for number in numbers:
        if numbers.count(number) > 1:
            raise ValueError(f"The seed {number} comes twice in {text}, and would be trained once; name each once.")
        if number > LARGEST_SEED:
            raise ValueError(f"The seed {number} is too large; the largest is {LARGEST_SEED}.")
    return tuple(numbers)


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
class BuiltCandidate:
    """A model that builds.

    Attributes:
        candidate: As the user wrote it.
        recipe: With nothing left open.
        img_size: Shorter side of the images that it is shown, in pixels.
        parameters: Numbers that training changes.
        macs: Multiply-adds of one image.
        convnet: Whether it is a ConvNet of timm.
    """

    candidate: Candidate
    recipe: Recipe
    img_size: int
    parameters: int
    macs: int
    convnet: bool


def build_candidates(candidates: Sequence[Candidate], shared: Shared) -> tuple[list[BuiltCandidate], Prepared]:
    """Build every model for the data; the first that can't be built is refused.

    Returns:
        The models, and the data that they will all be trained on.
    """
    prepared = prepare(shared.data, recipe_of(None, shared))
    built = []
    for candidate in candidates:
        try:
            recipe = anchor(recipe_of(candidate, shared))
            recipe = get_task(recipe.task).complete(recipe, prepared.data)
            built.append(build_candidate(candidate, recipe, prepared.data))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{candidate.label} can't be compared: {error}") from None
    return built, prepared


def make_job(run: RunPlan, shared: Shared, threads: int) -> Job:
    """What a worker needs to know for a run."""
    recipe = recipe_of(run.model.candidate, shared, run.model.epochs, run.seed, run.model.precision)
    return Job(source=shared.data, recipe=recipe, folder=run.folder, threads=threads)


def recipe_of(
    candidate: Candidate | None,
    shared: Shared,
    epochs: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
) -> Recipe:
    """The recipe of a model's runs, or of no model in particular, as far as it is given."""
    changes = {
        "model.name": candidate.name if candidate else None,
        "model.img_size": shared.img_size,
        "data.limit": shared.limit,
        "epochs": epochs or shared.epochs,
        "seed": seed,
        "precision": precision,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    changed = [*shared.changes_of(candidate.name), *candidate.settings()] if candidate else list(shared.changes)
    recipe = (candidate.recipe if candidate else None) or shared.recipe
    return load_recipe(recipe, given | parse_changes(changed))


def check_run(run: RunPlan, shared: Shared, prepared: Prepared) -> None:
    """Refuse a run that was begun with other data or settings, as after an edit of a recipe's file, or of the data.

    Raises:
        ValueError: It could not be compared with the others.
    """
    begun = Run(run.folder)
    if not begun.is_begun():
        return
    recipe = recipe_of(run.model.candidate, shared, run.model.epochs, run.seed, run.model.precision)
    recipe = get_task(recipe.task).complete(anchor(recipe, begun), prepared.data)
    reason = first_difference(begun.recipe(), recipe)
    if reason is None and {**begun.data(), "folder": None} != {**prepared.record, "folder": None}:
        reason = "the images or their labels have changed since"
    if reason is not None:
        raise ValueError(
            f"{run.folder} holds a run that can't be compared with those of now: {reason}; put back what was changed, "
            "or give another folder with --out."
        )


def build_candidate(candidate: Candidate, recipe: Recipe, data: Data) -> BuiltCandidate:
    """Build a model, without memory where possible, and count what it costs."""
    task = get_task(recipe.task)
    with torch.device("cpu" if task.follows_content or recipe.model.weights else "meta"):
        built = task.build(recipe, data)
        cost = count(built.model, built.preprocessing.size)
    size, convnet = min(built.preprocessing.size), is_convnet(built.name, built.model)
    return BuiltCandidate(candidate, recipe, size, cost.parameters, cost.macs, convnet)


def is_convnet(name: str, model: nn.Module) -> bool:
    """Whether a model is a ConvNet of timm: convolutions with neighbours, and no attention between positions.

    Example:
        >>> import timm
        >>> [is_convnet(name, timm.create_model(name)) for name in ("resnet18", "deit_tiny_patch16_224")]
        [True, False]
    """
    if name in MODELS or any(isinstance(module, Backbone) for module in model.modules()):
        return False
    kinds = {type(module).__name__ for module in model.modules()}
    attends = any("Attention" in kind or "MultiQuery" in kind for kind in kinds)
    near = [m for m in model.modules() if isinstance(m, nn.Conv2d) and max(m.kernel_size) > 1]
    return not attends and len(near) > 2


def suggest_convnet(built: Sequence[BuiltCandidate]) -> str | None:
    """A ConvNet of timm about as large as the models; None if there is one already."""
    if any(one.convnet for one in built):
        return None
    size = median(one.parameters for one in built)
    return next(name for most, name in CONVNETS if size <= most)


def choose_baseline(built: Sequence[BuiltCandidate], wanted: str | None) -> str:
    """The label of the model that the others are tested against: the wanted one, the first ConvNet, or the first."""
    labels = [one.candidate.label for one in built]
    if wanted is not None:
        return wanted
    return next((one.candidate.label for one in built if one.convnet), labels[0])
