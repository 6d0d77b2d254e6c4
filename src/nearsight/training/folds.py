"""Cross-validation: a run for each fold, and how good the model is on all images that it was not trained with.

The folder of it holds a folder for each fold, which is an ordinary run and goes on by itself; together they open as one
predictor that averages them.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..atomic import write_whole
from ..config.files import parse
from ..config.recipe import Recipe
from ..data.groups import group_keys
from ..data.loader import Batch, default_workers
from ..data.open import open_again
from ..data.samples import Subset
from ..interval import Interval
from ..result import Result, as_json
from ..runs.predictor import FOLDS, load_weights, model_file, pick_device
from ..runs.run import (
    FoldsRecord,
    Outcome,
    Run,
    check_output_folder,
    processes,
    read_data_record,
    read_record,
    resume_flags,
)
from ..tasks import get_task
from .ladder import climb, train_one
from .progress import duration
from .session import prepare
from .signals import Interrupted

RESULT = "cross_validation.json"


@dataclass(frozen=True, repr=False)
class CrossValidation(Result):
    """What came of training on all folds but one, for each in turn.

    Attributes:
        folder: Of all folds.
        model: Name of the model.
        task: Name of the task.
        metric: What the score is, such as `accuracy`.
        score: Of all out-of-fold predictions together, with its 95 % interval.
        folds: The outcome of each fold, whose `test_score` is of its held-out images.
        metrics: All metrics of the out-of-fold predictions.
        images: How many there are.
    """

    folder: Path
    model: str
    task: str
    metric: str
    score: Interval
    folds: tuple[Outcome, ...]
    metrics: dict[str, Any]
    images: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `cross_validation.json` holds them."""
        about = {"model": self.model, "task": self.task, "metric": self.metric, "images": self.images}
        return {
            **about,
            "score": self.score._asdict(),
            "folds": [one.to_dict() for one in self.folds],
            "metrics": self.metrics,
        }

    def lines(self) -> list[str]:
        """The result for people."""
        each = ", ".join(f"{100 * (one.test_score or 0):.1f}" for one in self.folds)
        low, high = 100 * self.score.low, 100 * self.score.high
        return [
            f"{self.model}: {self.metric} {self.score.value:.2%} over {self.images:,} out-of-fold images "
            f"(95 % interval {low:.1f} – {high:.1f} %; folds {each} %).",
            f"Together the {len(self.folds)} folds open as one predictor: nearsight predict {self.folder} IMAGE...",
        ]

    def __repr__(self) -> str:
        reached = f"{self.metric} {self.score.value:.2%} [{self.score.low:.2%}, {self.score.high:.2%}]"
        return f"CrossValidation({self.model}: {reached}; {len(self.folds)} folds in {self.folder})"


def train_folds(
    source: str,
    recipe: Recipe,
    folder: Path,
    folds: int,
    settings: dict[str, Any],
    *,
    staged: bool = False,
    budget: float | None = None,
    epochs: int | None = None,
) -> CrossValidation:
    """Train on all folds but one, for each in turn, and judge the predictions for the held-out images together.

    Args:
        source: The data.
        recipe: Of every run.
        folder: Of all of them.
        folds: How many there are.
        settings: `track`, `quiet`, `cpu` and perhaps `notes` of every run.
        staged: Whether each run goes in stages (`climb`).
        budget: Seconds that all may take together; None for no limit.
        epochs: Of fine-tuning, where runs go in stages.

    Raises:
        ValueError: The folder holds something else, or the data can't be divided so.
        Interrupted: A signal ended it; what is done is kept.
    """
    if processes() > 1:
        raise ValueError("Folds are trained by one process; leave torchrun or accelerate launch out.")
    run = Run(folder, resume_flags(settings["track"], settings["cpu"]))
    asked = {"source": source, "folds": folds, "staged": staged, "budget": budget, "epochs": epochs}
    asked |= {"recipe": recipe.model_dump(mode="json")}
    path = folder / FOLDS
    if path.is_file():
        noted = read_record(path, kind=FoldsRecord)
        if {key: noted[key] for key in asked} != json.loads(json.dumps(asked)):
            raise ValueError(
                f"{folder} holds folds of other settings; go on with them as they were (`{run.resume_command}`), or "
                "give another folder with --out."
            )
        recipe = parse(noted["resolved"], str(path))
    else:
        check_output_folder(run, source, anew=True)
        prepared = prepare(source, of_fold(recipe, folds, 1))  # refuses what can't be divided
        if not staged:  # what the data decide is decided once for all folds
            recipe = prepared.recipe.model_copy(update={"data": recipe.data})
        write_whole(path, as_json(asked | {"resolved": recipe.model_dump(mode="json")}))
    outcomes, share = [], None if budget is None else budget / folds
    for fold in range(1, folds + 1):
        if not settings["quiet"]:
            print(f"Fold {fold} of {folds}", file=sys.stderr, flush=True)
        part, one = folder / f"fold-{fold}", of_fold(recipe, folds, fold)
        try:
            if staged:
                outcomes.append(climb(source, one, part, budget=share, epochs=epochs, **settings))
            else:
                outcomes.append(train_one(source, one, part, share, settings))
        except Interrupted as stop:  # it names the fold, but all of them are to go on
            raise Interrupted(stop.number, stop.step, run.resume_command) from None
    return judge_folds(folder, tuple(outcomes), recipe.data.groups, torch.device("cpu") if settings["cpu"] else None)


def of_fold(recipe: Recipe, folds: int, fold: int) -> Recipe:
    """The recipe of one fold."""
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"folds": folds, "fold": fold})})


def resume_folds(folder: str | Path, settings: dict[str, Any]) -> CrossValidation:
    """Go on with the folds in a folder, as they were begun."""
    path = Path(folder) / FOLDS
    noted = read_record(path, kind=FoldsRecord)
    recipe, rest = parse(noted["recipe"], str(path)), {key: noted[key] for key in ("staged", "budget", "epochs")}
    return train_folds(noted["source"], recipe, Path(folder), noted["folds"], settings, **rest)


def judge_folds(
    folder: Path, outcomes: tuple[Outcome, ...], groups: str | None, device: torch.device | None
) -> CrossValidation:
    """The out-of-fold predictions together, and what to read of them."""
    task, meter, keys, classes = get_task(outcomes[0].task), None, dict[int, str](), tuple[str, ...]()
    for fold in range(1, len(outcomes) + 1):
        trained = load_weights(model_file(folder / f"fold-{fold}"))
        data = open_again(read_data_record(folder / f"fold-{fold}" / "data.json"))
        split, classes = data.test, trained.classes
        assert isinstance(split, Subset)
        meter = meter or task.meter(len(classes), trained.settings)
        where, numbers = pick_device(device), torch.from_numpy(split.indices)
        workers = default_workers(data.kind, where)
        for group, predictions in trained.predict_annotated(split, workers=workers, device=where):
            assert isinstance(group, Batch)
            meter.add(group._replace(indices=numbers[group.indices]), predictions)
        found = group_keys(split, groups)
        if found is not None:
            keys |= dict(zip(split.indices.tolist(), found, strict=True))
    assert meter is not None
    together = [keys[index] for index in meter.indices.tolist()] if keys else None
    result = CrossValidation(
        folder=folder,
        model=outcomes[0].model,
        task=task.name,
        metric=task.metric.title,
        score=meter.interval(together),
        folds=outcomes,
        metrics=meter.metrics().to_dict(classes),
        images=len(meter.records),
    )
    result.save(folder / RESULT)
    elapsed = duration(sum(one.elapsed for one in outcomes))
    text = "\n\n".join([f"# {result.model}, {len(outcomes)} folds", *result.lines(), f"Trained for {elapsed}."])
    write_whole(folder / "summary.md", (text + "\n").encode())
    return result
