"""What came of a comparison: `results.json`, from which the report can be made again."""

import json
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from ..arguments import why_no_json
from ..atomic import write_whole
from ..interval import Interval

VERSION: Literal[1] = 1  # of results.json


class Record(BaseModel):
    """A part of the results; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


def read_interval(found: Any) -> Any:
    """An interval from JSON, where its value is called `mean`."""
    is_written = isinstance(found, dict) and found.keys() == {"mean", "low", "high"}
    return Interval(found["mean"], found["low"], found["high"]) if is_written else found


Measured = Annotated[
    Interval,
    BeforeValidator(read_interval),
    PlainSerializer(lambda found: {"mean": found.value, "low": found.low, "high": found.high}),
]


class Difference(Record):
    """A paired difference of scores, with its 95 % interval.

    Attributes:
        mean: Difference of the means.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p: Probability of such a difference by chance, corrected by Holm for the number of models.
        seeds: Seeds that both models have.
        verdict: In words.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    verdict: Literal["better", "worse", "no difference shown"]

    @property
    def interval(self) -> Interval:
        """The difference as a number with its interval."""
        return Interval(self.mean, self.low, self.high)


class Latency(Record):
    """Measured time of prediction.

    Attributes:
        milliseconds: For one image: median and its interval.
        images_per_second: In batches of 32: median and its interval.
    """

    milliseconds: Measured
    images_per_second: Measured


class Curve(Record):
    """How a run went, epoch by epoch; `val_top5` is empty where there is no such metric."""

    epoch: list[int]
    seconds: list[float]
    loss: list[float]
    val_score: list[float]
    val_top5: list[float] = []


class RunResult(Record):
    """One training of one model.

    Attributes:
        seed: Of everything random in it.
        failure: The sentence it ended with; None if it finished.
        score: On the images that decide.
        val_score: Of the best epoch.
        seconds: Of training and validation.
        epochs: That were trained.
        curve: How it went.
    """

    seed: int
    failure: str | None = None
    score: float | None = None
    val_score: float | None = None
    seconds: float | None = None
    epochs: int | None = None
    curve: Curve | None = None


class ModelResult(Record):
    """One model of the comparison.

    Attributes:
        label: What the user calls it.
        name: Its name, ours or timm's.
        options: YAML text of its options.
        convnet: Whether it is a ConvNet of timm.
        parameters: Numbers that training changes.
        macs: Multiply-adds of one image.
        runs: One for each seed.
        score: Mean over seeds; None if no run finished.
        difference: To the baseline; None for the baseline itself.
        behind_best: To the best model; None for the best one itself.
        latency: Measured; None if no run finished.
    """

    label: str
    name: str
    options: dict[str, str]
    convnet: bool
    parameters: int
    macs: int
    runs: list[RunResult]
    score: Measured | None = None
    difference: Difference | None = None
    behind_best: Difference | None = None
    latency: Latency | None = None

    @property
    def seconds(self) -> float | None:
        """Mean training time of the finished runs."""
        times = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(times) / len(times) if times else None


class ExamplePrediction(Record):
    """What a model predicts for an image: the class that most seeds gave, and how many were right.

    Files of version 0.1 have other names for some of it, here and in `Example`; these are read.
    """

    label: str
    prediction: str = Field(validation_alias=AliasChoices("prediction", "answer"))
    right: int
    seeds: int


class Example(Record):
    """An image on which models disagree.

    Attributes:
        name: Of the image.
        ground_truth: Its class.
        image: PNG as base64.
        predictions: Of the two models that the example tells apart, the right one first.
        models_right: How many models are mostly right on it.
    """

    name: str
    ground_truth: str = Field(validation_alias=AliasChoices("ground_truth", "truth"))
    image: str = Field(validation_alias=AliasChoices("image", "picture"))
    predictions: list[ExamplePrediction] = Field(validation_alias=AliasChoices("predictions", "answers"))
    models_right: int


class Disagreement(Record):
    """Images that one model mostly gets right and another mostly wrong."""

    right: str
    wrong: str
    images: int
    examples: list[Example]


class Comparison(Record):
    """A whole comparison.

    Attributes:
        format: Says what this file is.
        version: Of the format.
        data: What was named, the number of classes, and the sizes of the splits.
        task: `classify`, `detect` or `segment`.
        metric: What the scores are.
        split: Which split decides.
        recipe: Name of the recipe, changes, image size, epochs or budget: what all models share.
        seeds: Seeds of the runs.
        baseline: Label of the model that the others are tested against.
        suggestion: A ConvNet to add, if there is none.
        models: In the order the user gave.
        disagreements: Between the best model and the baseline, or the next.
        machine: Where it was measured.
        command: What was typed.
        folder: Of the comparison; not in the file.
    """

    format: Literal["nearsight-comparison"] = "nearsight-comparison"
    version: Literal[1] = VERSION
    data: dict[str, Any]
    task: str
    metric: str
    split: str
    recipe: dict[str, Any]
    seeds: list[int]
    baseline: str
    suggestion: str | None
    models: list[ModelResult]
    disagreements: list[Disagreement]
    machine: dict[str, Any]
    command: str

    folder: Path | None = Field(default=None, exclude=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `results.json` holds them."""
        return self.model_dump(mode="json")

    def save(self, folder: str | Path) -> None:
        """Write `results.json` and `report.html` into a folder."""
        from .report import render

        write_whole(Path(folder) / "results.json", (self.model_dump_json(indent=1) + "\n").encode())
        write_whole(Path(folder) / "report.html", render(self).encode())

    def __repr__(self) -> str:
        from .report import percent, verdict

        scores = ", ".join(f"{model.label} {percent(model.score)}" for model in self.ranked)
        return f"Comparison({scores or 'no finished run'}). {verdict(self)[0]}".replace("\N{NO-BREAK SPACE}", " ")

    def _repr_html_(self) -> str:
        """The report in a frame of its own, for notebooks."""
        from .report import render

        page = escape(render(self), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 800px; border: 0" title="Comparison"></iframe>'

    def model(self, label: str) -> ModelResult:
        """A model by its label."""
        return next(model for model in self.models if model.label == label)

    @property
    def ranked(self) -> list[ModelResult]:
        """Models with a score, the best first."""
        done = [model for model in self.models if model.score is not None]
        return sorted(done, key=lambda model: -model.score.value)  # type: ignore[union-attr]

    @property
    def failures(self) -> list[tuple[ModelResult, RunResult]]:
        """Runs that failed."""
        return [(model, run) for model in self.models for run in model.runs if run.failure is not None]


def read_results(folder: Path) -> Comparison:
    """Read `results.json` of a folder.

    Raises:
        ValueError: It is not there, or not what `nearsight compare` writes.
    """
    path = folder / "results.json"
    if not path.is_file():
        raise ValueError(f"{path} is not there; give the folder of a comparison that has ended.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("version", VERSION) != VERSION:
            raise ValueError(f"it is of version {content['version']!r}, and this Nearsight reads version {VERSION}")
        return Comparison.model_validate({**content, "folder": folder})
    except (ValidationError, TypeError, ValueError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error).splitlines()[0]
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
            reason = why_no_json(error)
        raise ValueError(
            f"{path} is not what `nearsight compare` writes ({reason}); run the comparison again."
        ) from None
