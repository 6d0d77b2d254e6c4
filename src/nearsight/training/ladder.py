"""The best model in the time there is: frozen features first, then fine-tuning from there, the better one kept.

The folder of such a run holds a folder for each stage, which is an ordinary run, and itself opens as the best model so
far. What is to be done is decided before the first stage, from the time of a few measured steps, and written down; a
run that is taken up again keeps to it.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..atomic import write_whole
from ..config.files import parse
from ..config.recipe import Recipe
from ..result import as_json
from ..runs.predictor import pick_device, save_trained
from ..runs.run import Outcome, Run, check_output_folder, processes, read_record, resume_flags
from ..tasks import get_task
from ..tasks.classify import typical_side
from .estimate import RunCost, measure
from .loop import run_training
from .progress import duration
from .session import Limits, Prepared, Session, prepare
from .signals import Interrupted

PLAN = "stages.json"
# What a run consists of once it is finished; `outcome.json` last, as the sign of it.
OF_MODEL = ("model.safetensors", "model.json", "recipe.yaml", "environment.json", "data.json")
OF_RESULT = ("metrics.jsonl", "predictions.npz", "curves.png", "summary.md", "outcome.json")
IMAGES_SEEN = 30_000  # in fine-tuning, unless a budget says otherwise
LEAST_EPOCHS, MOST_EPOCHS = 4, 20
ENOUGH_EPOCHS = 3  # with fewer, smaller images are the better use of the time
SIDES = (224, 160, 128)  # of images that fine-tuning may go down to
SMALL_SIDE, SIDE_FOR_SMALL = 96, 128  # images up to the first are shown as large as the second
RESERVE = 0.93  # fraction of a budget that is planned; steps vary
LONG = 3600  # seconds from which on a way to do it in less is named
# What docs/results/pretrained.md has, so that people know what a stage may bring.
GAINS = (
    "From 2,000 images of the CIFAR-10 subset, DeiT-Tiny got 65.2 % frozen and 79.2 % fine-tuned, near_nano from "
    "scratch 65.9 %; from 3,068 photos of clothing 86.0 % and 89.2 %."
)


@dataclass(frozen=True)
class TrainingStage:
    """A part of the work.

    Attributes:
        name: `frozen` or `fine-tune`; also of its folder.
        recipe: Everything about it.
        seconds: Expected time.
        about: What is done, for people.
        compared: Seconds of an image in each precision, if that decided the recipe's.
    """

    name: str
    recipe: Recipe
    seconds: float
    about: str
    compared: dict[str, float] | None = None


@dataclass(frozen=True)
class StagePlan:
    """What is to be done, decided before the first stage.

    Attributes:
        source: The data.
        asked: The recipe as it was asked for.
        budget: Seconds that all may take; None for no limit.
        stages: In their order.
        notes: What else there is to say of it.
    """

    source: str
    asked: Recipe
    budget: float | None
    stages: tuple[TrainingStage, ...]
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Expected time of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def lines(self) -> list[str]:
        """The plan for people, in 80 columns as far as names allow."""
        limit = "" if self.budget is None else f", within {duration(self.budget)}"
        wide = max(len(stage.name) for stage in self.stages)
        rows = [f"  {stage.name:<{wide}}  {stage.about}: about {duration(stage.seconds)}" for stage in self.stages]
        return [f"Plan: about {duration(self.seconds)}{limit}, measured here just now", *rows, *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `stages.json` holds them."""
        stages = [asdict(stage) | {"recipe": stage.recipe.model_dump(mode="json")} for stage in self.stages]
        asked = self.asked.model_dump(mode="json")
        return {"source": self.source, "asked": asked, "budget": self.budget, "stages": stages, "notes": self.notes}

    @classmethod
    def from_dict(cls, values: dict[str, Any], origin: str) -> "StagePlan":
        """What `to_dict` gave.

        Raises:
            ValueError: It was edited.
        """
        try:
            stages = tuple(
                TrainingStage(
                    one["name"],
                    parse(one["recipe"], origin),
                    float(one["seconds"]),
                    str(one["about"]),
                    one.get("compared"),
                )
                for one in values["stages"]
            )
            asked, budget = parse(values["asked"], origin), values["budget"]
            return cls(str(values["source"]), asked, budget, stages, tuple(values["notes"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{origin} was edited ({error}); put it back, or train anew.") from None


def is_ladder(folder: str | Path) -> bool:
    """Whether a folder holds a run in stages."""
    return (Path(folder) / PLAN).is_file()


def climb(
    source: str,
    recipe: Recipe,
    folder: str | Path,
    *,
    budget: float | None = None,
    epochs: int | None = None,
    track: Sequence[str] = (),
    quiet: bool = False,
    cpu: bool = False,
    notes: Sequence[str] = (),
) -> Outcome:
    """Frozen features, then fine-tuning from there; what is better on the validation images is the run's model.

    Args:
        source: The data; see `nearsight.data.open_data`.
        recipe: Of the fine-tuning, with the model and its weights.
        folder: Of the run.
        budget: Seconds that all may take.
        epochs: Of the fine-tuning; None follows the data and the time.
        track: Trackers of accelerate beside TensorBoard.
        quiet: Show no progress.
        cpu: Do not use a GPU.
        notes: What to say before the plan.

    Returns:
        The outcome of the better stage, in the folder of the whole run.
    """
    if processes() > 1:
        raise ValueError("Stages and budgets are for one process; name a recipe to train with several.")
    run, began = Run(folder), time.monotonic()
    settings: dict[str, Any] = {"track": track, "quiet": quiet, "cpu": cpu}
    if not is_ladder(folder):
        check_output_folder(run, source, anew=True)
    with run.locked():
        plan = read_plan(run)
        if plan is None:
            plan = make_plan(source, recipe, budget, epochs, cpu)
            write_whole(run.folder / PLAN, as_json(plan.to_dict()))
        elif (plan.source, plan.asked, plan.budget) != (source, recipe, budget):
            raise ValueError(
                f"{run.folder} holds a run with other settings; go on with it as it was "
                f"(`{run.resume_command}`), or give another folder with --out."
            )
        return follow(plan, run, settings, began, notes)


def climb_again(folder: str | Path, *, track: Sequence[str] = (), quiet: bool = False, cpu: bool = False) -> Outcome:
    """Go on with a run in stages."""
    run = Run(folder)
    with run.locked():
        plan = read_plan(run)
        assert plan is not None
        return follow(plan, run, {"track": track, "quiet": quiet, "cpu": cpu}, time.monotonic())


def read_plan(run: Run) -> StagePlan | None:
    """The plan of a run in stages that was begun."""
    path = run.folder / PLAN
    return StagePlan.from_dict(read_record(path, ("source", "asked", "stages")), str(path)) if path.is_file() else None


def follow(plan: StagePlan, run: Run, settings: dict[str, Any], began: float, notes: Sequence[str] = ()) -> Outcome:
    """Work off the stages that are not done yet; the best model so far is always in the folder of the run.

    Args:
        plan: What is to be done.
        run: Of all stages.
        settings: Of each stage, beside its recipe.
        began: When the work began that a budget counts from.
        notes: What to say before the plan.
    """
    done = run.outcome()
    if done is not None:
        return done
    if not settings["quiet"]:
        for line in (*notes, *plan.lines()):
            Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(line)
    best: Outcome | None = None
    elapsed = 0.0
    for stage in plan.stages:
        folder = run.folder / stage.name
        left = None if plan.budget is None else plan.budget - max(elapsed, time.monotonic() - began)
        recipe = stage.recipe
        if best is not None and best.folder is not None:  # the head of the frozen features is where to start from
            start = recipe.model.model_copy(update={"weights": str(best.folder.absolute())})
            recipe = recipe.model_copy(update={"model": start})
        try:
            limits = Limits(left, publish_epoch(run, best), stage.compared)
            outcome = run_training(plan.source, recipe, folder, **settings, limits=limits)
        except Interrupted as stop:  # it names the stage, but all of it is to go on
            command = Run(run.folder, resume_flags(settings["track"], settings["cpu"])).resume_command
            raise Interrupted(stop.number, stop.step, command) from None
        elapsed += outcome.elapsed
        if best is None or outcome.val_score > best.val_score:
            best = outcome
            publish(run, folder, OF_MODEL)
    assert best is not None and best.folder is not None
    publish(run, best.folder, (*OF_MODEL, *OF_RESULT[:-1]))
    whole = replace(best, elapsed=elapsed, folder=run.folder)
    run.finish(whole)
    return whole


def publish(run: Run, folder: Path, names: Sequence[str]) -> None:
    """Copy files of a stage to the run."""
    for name in names:
        if (folder / name).is_file():
            write_whole(run.folder / name, (folder / name).read_bytes())


def publish_epoch(run: Run, best: Outcome | None) -> "Callable[[Session], None]":
    """What makes the best epoch so far the model of the run, once it is better than what the stages before gave."""

    def show(session: "Session") -> None:
        if best is None or (session.progress.best or 0.0) <= best.val_score:
            return
        built = replace(session.built, model=session.eval_model)
        settings = session.best.metrics().settings() if session.best is not None else {}
        settings = {name: settings[name] for name in session.task.settings}
        save_trained(built, session.task.name, session.classes, run.folder / "model.safetensors", settings)
        publish(run, session.run.folder, ("recipe.yaml", "environment.json", "data.json"))

    return show


def make_plan(
    source: str, recipe: Recipe, budget: float | None, epochs: int | None = None, cpu: bool = False
) -> StagePlan:
    """Decide stages, image size and epochs from the time of some steps with the model at hand.

    Args:
        source: The data.
        recipe: Of the fine-tuning, with the model and its weights.
        budget: Seconds that all may take; None for no limit.
        epochs: Of the fine-tuning, where they are given.
        cpu: Do not use a GPU.
    """
    began = time.monotonic()
    prepared = prepare(source, recipe)
    preparing = time.monotonic() - began
    device = torch.device("cpu") if cpu else pick_device()
    side = recipe.model.img_size or fitting_side(prepared)

    def cost_at(side: int) -> tuple[Recipe, RunCost]:
        model = prepared.recipe.model.model_copy(update={"img_size": side})
        sized = prepared.recipe.model_copy(update={"model": model})
        return sized, measure(replace(prepared, recipe=sized), device, preparing)

    tuned, cost = cost_at(side)
    plain = tuned.model.model_dump() | {"localize": {}, "drop_path": None, "drop": 0.0}
    kept: dict[str, Any] = {name: getattr(tuned, name).model_dump() for name in ("data", "loss")}
    kept |= {"name": "frozen", "frozen": True, "task": tuned.task, "seed": tuned.seed, "model": plain}
    seconds = cost.frozen(prepared)
    about = f"logistic regression on features of {tuned.model.name} at {side} pixels"
    stages, notes = [TrainingStage("frozen", parse(kept, "The recipe frozen"), seconds, about)], list[str]()

    def left() -> float:
        """Seconds for epochs; measuring takes some itself."""
        if budget is None:
            return math.inf
        return RESERVE * (budget - time.monotonic() + began) - seconds - cost.training(prepared, 0)

    if epochs is None:
        epochs = min(MOST_EPOCHS, max(LEAST_EPOCHS, round(IMAGES_SEEN / len(prepared.train))))
        if budget is not None:
            for smaller in () if recipe.model.img_size else [one for one in SIDES if one < side]:
                if left() / cost.epoch(prepared) >= ENOUGH_EPOCHS:
                    break
                side = smaller
                tuned, cost = cost_at(side)
            epochs = min(MOST_EPOCHS, int(left() / cost.epoch(prepared)))
    if epochs < 1 or cost.epoch(prepared) > left():
        need = duration((seconds + cost.training(prepared, 1)) / RESERVE)
        notes.append(f"Fine-tuning would take from {need} on; it is left out.")
        return StagePlan(source, recipe, budget, tuple(stages), tuple(notes))
    settings = tuned.model_dump() | {"epochs": epochs, "precision": cost.precision}
    settings["schedule"]["warmup_epochs"] = round(0.1 * epochs, 2)
    about = f"all weights from there, {epochs} epoch{'s' * (epochs != 1)} at {side} pixels{in_precision(cost)}"
    about += ", with local parts" * bool(recipe.model.localize)
    tuning, expected = parse(settings, "The recipe"), cost.training(prepared, epochs)
    stages.append(TrainingStage("fine-tune", tuning, expected, about, cost.compared))
    notes.append(GAINS)
    if budget is None and sum(stage.seconds for stage in stages) > LONG:
        notes.append("`--budget 30m` gets what half an hour allows, `--recipe frozen` the first stage alone.")
    return StagePlan(source, recipe, budget, tuple(stages), tuple(notes))


def train_one(source: str, recipe: Recipe, folder: Path, budget: float | None, settings: dict[str, Any]) -> Outcome:
    """Train in one stage, after a plan of it was made and said.

    Args:
        source: The data.
        recipe: How to train.
        folder: Of the run.
        budget: Seconds that it may take; None for no limit.
        settings: `track`, `quiet`, `cpu` and perhaps `notes` of `run_training`.
    """
    if is_ladder(folder):
        raise ValueError(f"{folder} holds a run in stages; go on with --resume, or give another folder with --out.")
    limits, begun = Limits(budget), Run(folder).is_begun()
    if budget is not None and processes() > 1:
        raise ValueError("Budgets are for one process; give --epochs to train with several.")
    if budget is not None and begun:  # what was planned then stays
        kept = {"epochs": Run(folder).recipe().epochs}
        recipe = parse(recipe.model_dump(exclude_unset=True) | kept, f"The recipe {recipe.name}")
    elif budget is not None or not (settings["quiet"] or begun or processes() > 1):
        recipe, cost, lines = plan_one(source, recipe, budget, settings["cpu"])
        settings = settings | {"notes": (*settings.get("notes", ()), *lines)}
        limits = replace(limits, compared=cost.compared)
    return run_training(source, recipe, folder, **settings, limits=limits)


def in_precision(cost: RunCost) -> str:
    """The precision for people, where it was chosen."""
    if cost.compared is None:
        return ""
    ratio = cost.compared["float32"] / cost.compared["bfloat16"]
    return f" in {cost.precision}" + f" ({ratio:.1f} x as fast)" * (cost.precision == "bfloat16")


def fitting_side(prepared: Prepared) -> int:
    """Side of the images for weights: their own, or less where the images are small anyway."""
    native = get_task(prepared.recipe.task).build(prepared.recipe, prepared.data).preprocessing.size[0]
    is_small = native > SIDE_FOR_SMALL and typical_side(prepared.train) <= SMALL_SIDE
    return SIDE_FOR_SMALL if is_small else native


def suitable_side(source: str, recipe: Recipe, weights: str, model: str) -> int:
    """Side of the images for pretrained weights of a model, on some data."""
    choice = recipe.model.model_copy(update={"name": model, "weights": weights, "options": {}, "patch_size": None})
    return fitting_side(prepare(source, recipe.model_copy(update={"model": choice})))


def plan_one(source: str, recipe: Recipe, budget: float | None, cpu: bool = False) -> tuple[Recipe, RunCost, list[str]]:
    """A recipe whose epochs keep a budget, in the faster precision.

    Args:
        source: The data.
        recipe: Of a run in one stage.
        budget: Seconds that it may take; None leaves the epochs as they are.
        cpu: Do not use a GPU.

    Returns:
        The recipe, what was measured, and what to say of it before the run starts.

    Raises:
        ValueError: The budget is too small.
    """
    began = time.monotonic()
    prepared = prepare(source, recipe)
    preparing = time.monotonic() - began
    device, model = torch.device("cpu") if cpu else pick_device(), prepared.recipe.model
    cost = measure(prepared, device, preparing)
    size = f" at {model.img_size} pixels" if model.img_size else ""
    if recipe.frozen:
        seconds = cost.frozen(prepared)
        if budget is not None and seconds > budget:
            raise ValueError(
                f"--budget {duration(budget)} is less than frozen features take here, {duration(seconds)}."
            )
        about = f"Plan: logistic regression on features of {model.name}{size}: about {duration(seconds)}"
        return recipe, cost, [f"{about}, measured here just now"]
    one, epochs = cost.epoch(prepared), prepared.recipe.epochs
    changes: dict[str, Any] = {"precision": cost.precision}
    if budget is not None:
        left = RESERVE * (budget - time.monotonic() + began) - cost.training(prepared, 0)
        epochs = changes["epochs"] = min(epochs, int(left / one))
        if epochs < 1:
            need = duration(cost.training(prepared, 1))
            raise ValueError(f"--budget {duration(budget)} is less than one epoch, with which a run takes {need} here.")
    recipe = parse(recipe.model_dump(exclude_unset=True) | changes, f"The recipe {recipe.name}")
    how, seconds = "from weights" if model.weights else "from scratch", cost.training(prepared, epochs)
    how += f", {epochs} epoch{'s' * (epochs != 1)}{size}{in_precision(cost)}"
    about = f"Plan: {model.name} {how}: about {duration(seconds)}"
    lines = [f"{about}, measured here just now"]
    if budget is None and seconds > LONG:
        lines.append("`--budget 30m` gets what half an hour allows.")
    return recipe, cost, lines
