"""What a comparison consists of: settings that all models share, and one run for each model and seed.

The plan is written before the first run and read again when the same command goes on.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from ..atomic import write_whole
from ..config.candidates import Entry

UNITS = {"s": 1, "m": 60, "h": 3600}


class Shared(BaseModel):
    """Settings that are the same for all models.

    Attributes:
        data: What to train on.
        recipe: Name or file of the recipe.
        changes: Other settings of the recipe, as `KEY=VALUE`.
        img_size: Side of the images in pixels; None follows the data.
        limit: Number of training images; None takes all.
        epochs: Of every run; None leaves them to the recipe or the budget.
        budget: Seconds of training for every run; None for no such limit.
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
        from ..models import MODELS

        ours = name in MODELS
        return [change for change in self.changes if ours or change.partition("=")[0].strip() != "model.patch_size"]


class Planned(BaseModel):
    """A model of the plan, with the epochs that its runs get."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    label: str
    name: str
    options: dict[str, str]
    epochs: int

    @property
    def entry(self) -> Entry:
        """The model as the user wrote it."""
        return Entry(self.label, self.name, dict(self.options))


class RunPlan(NamedTuple):
    """One run: the model, the seed, and its folder."""

    model: Planned
    seed: int
    folder: Path


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
            RunPlan(model, seed, folder / "runs" / f"{model.entry.slug}-seed{seed}")
            for seed in self.seeds
            for model in self.models
        ]


def train_arguments(shared: Shared, run: RunPlan) -> list[str]:
    """What follows `nearsight` on the command line of a run."""
    arguments = ["train", shared.data, "--out", str(run.folder), "--model", run.model.name, "--recipe", shared.recipe]
    arguments += ["--epochs", str(run.model.epochs), "--seed", str(run.seed)]
    if shared.img_size is not None:
        arguments += ["--img-size", str(shared.img_size)]
    if shared.limit is not None:
        arguments += ["--limit", str(shared.limit)]
    for change in (*shared.changes_of(run.model.name), *run.model.entry.settings()):
        arguments += ["--set", change]
    return arguments


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


def check_same(old: Plan, shared: Shared, entries: list[Entry], folder: Path) -> None:
    """Refuse settings that differ from those of the runs in a folder; models and seeds may come and go."""
    for name in Shared.model_fields:
        before, now = getattr(old.shared, name), getattr(shared, name)
        if before != now:
            raise ValueError(
                f"{folder} holds a comparison with {name} = {spelled(before)}, but now it is {spelled(now)}; "
                "use the same setting, or another folder with --out."
            )
    known = {model.entry.slug: model.entry for model in old.models}
    for entry in entries:
        if entry.slug in known and str(known[entry.slug]) != str(entry):
            raise ValueError(
                f"{folder} holds runs of {entry.label!r} that stand for {known[entry.slug]}, but now it is {entry}; "
                "give it another label, or another folder with --out."
            )


def spelled(value: object) -> str:
    """A setting for people."""
    if isinstance(value, tuple):
        return " ".join(value) or "nothing"
    return "nothing" if value is None else str(value)


def parse_duration(text: str) -> float:
    """Seconds of a text like `90s`, `20m`, `1.5h` or `1h30m`.

    Example:
        >>> parse_duration("20m"), parse_duration("1h30m")
        (1200.0, 5400.0)
    """
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+", text):
        raise ValueError(f"{text!r} is not a time; write it like 90s, 20m or 1h30m.")
    seconds = sum(float(number) * UNITS[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)([smh])", text))
    if seconds <= 0:
        raise ValueError(f"A budget of {text} leaves no time to train; give some minutes, such as 20m.")
    return seconds


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds: a number of them, or the seeds themselves with commas.

    Example:
        >>> parse_seeds("3"), parse_seeds("5,7")
        ((0, 1, 2), (5, 7))
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} are no seeds; give their number, such as 3, or the seeds, such as 5,7,11.")
    numbers = [int(part) for part in parts]
    if "," in text:
        return tuple(dict.fromkeys(numbers))
    if not numbers[0]:
        raise ValueError("No seeds were asked for; give at least 1.")
    return tuple(range(numbers[0]))
