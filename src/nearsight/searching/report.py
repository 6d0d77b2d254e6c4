"""What came of a search: its page, the front of accuracy against latency, and what each slot is worth."""

import html
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..atomic import write_whole
from ..models.spec import BackboneSpec, to_json
from ..plots.style import COLOURS, LINE, SMALL, SOFT, figure, image_html, tidy, to_png, write
from ..result import Result
from ..training.progress import duration
from .limits import TrialCost
from .space import SLOTS, summarise

if TYPE_CHECKING:
    from optuna import Study

SEVERAL = 4  # trials without which nothing is said of importance


@dataclass(frozen=True)
class Tried:
    """A model that was tried.

    Attributes:
        number: Of the trial.
        spec: The model.
        lr: Learning rate.
        cost: What it costs.
        scores: On the validation images, by the epochs of the rung.
    """

    number: int
    spec: BackboneSpec
    lr: float
    cost: TrialCost
    scores: dict[int, float] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """Of the longest rung that it was trained to the end of; 0 for none."""
        return max(self.scores, default=0)

    @property
    def score(self) -> float:
        """Of the longest rung."""
        return self.scores[self.epochs]

    @property
    def rank(self) -> tuple[int, float]:
        """By which trials are ordered: longer training first, then the score."""
        return (self.epochs, self.score) if self.scores else (0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        about = {"number": self.number, "lr": self.lr, "scores": self.scores, "cost": self.cost.to_dict()}
        return about | {"summary": summarise(self.spec), "spec": to_json(self.spec)}


@dataclass(frozen=True)
class Ablated:
    """The best model with one slot made plain.

    Attributes:
        slot: Which.
        score: On the validation images, after as many epochs as the best had.
        cost: What it costs.
    """

    slot: str
    score: float
    cost: TrialCost


@dataclass(frozen=True)
class SearchResult(Result):
    """What came of a search.

    Attributes:
        best: The best model of the longest rung that any reached.
        trials: All models that were measured.
        ablated: The best model with one slot at a time made plain.
        limit: In words.
        reference: What the reference model costs; None without one.
        rungs: Epochs of each rung.
        seconds: That it took.
        data: What was learned.
        folder: Where it is.
        importance: What fraction of the difference between trials each slot explains; empty where they are too few.
    """

    best: Tried
    trials: tuple[Tried, ...]
    ablated: tuple[Ablated, ...]
    limit: str
    reference: TrialCost | None
    rungs: tuple[int, ...]
    seconds: float
    data: str
    folder: Path
    importance: dict[str, float] = field(default_factory=dict)

    @property
    def spec(self) -> BackboneSpec:
        """The best model."""
        return self.best.spec

    @property
    def trained(self) -> tuple[Tried, ...]:
        """The models that kept the limit and were trained."""
        return tuple(one for one in self.trials if one.scores)

    def front(self) -> list[Tried]:
        """Of the models on the longest rung, those that none is both faster and better than; fast ones first."""
        longest = [one for one in self.trained if one.epochs == self.best.epochs]
        kept: list[Tried] = []
        for one in sorted(longest, key=lambda one: (speed(one), -one.score)):
            if not kept or one.score > kept[-1].score:
                kept.append(one)
        return kept

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `trials.json` holds them."""
        return {
            "data": self.data,
            "limit": self.limit,
            "reference": None if self.reference is None else self.reference.to_dict(),
            "rungs": list(self.rungs),
            "seconds": round(self.seconds, 1),
            "best": self.best.number,
            "importance": self.importance,
            "ablation": {one.slot: {"score": one.score, "cost": one.cost.to_dict()} for one in self.ablated},
            "trials": [one.to_dict() for one in self.trials],
        }

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{image_html(draw_front(self), 'accuracy against latency')}"

    def __repr__(self) -> str:
        return (
            f"SearchResult({self.best.score:.2%} after {self.best.epochs} epochs, {self.best.cost}; "
            f"{len(self.trained)} trained of {len(self.trials)}; {self.folder})"
        )


def speed(one: Tried) -> float:
    """Milliseconds of one image."""
    return one.cost.ms[1]


def importance(study: "Study", seed: int = 0) -> dict[str, float]:
    """What fraction of the difference between trials each slot explains, by the score of the first rung.

    All trained trials have that score, also those that went no further.

    Returns:
        Slots with their fractions, the largest first; nothing where there are too few trials to tell.
    """
    import optuna

    trained = [trial for trial in study.get_trials(deepcopy=False) if 1 in trial.intermediate_values]
    scores = {trial.intermediate_values[1] for trial in trained}
    if len(trained) < SEVERAL or len(scores) < 2:
        return {}
    first = optuna.create_study(direction="maximize")
    for trial in trained:
        first.add_trial(
            optuna.trial.create_trial(
                params=trial.params, distributions=trial.distributions, value=trial.intermediate_values[1]
            )
        )
    found = optuna.importance.get_param_importances(
        first, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=seed)
    )
    slots: dict[str, float] = defaultdict(float)
    for name, fraction in found.items():
        slots[SLOTS[name.rstrip("0123456789")]] += fraction
    return dict(sorted(slots.items(), key=lambda pair: -pair[1]))


def write_report(result: SearchResult, img_size: int) -> None:
    """Write `trials.json`, `front.png` and `report.md` into the folder of the search."""
    result.save(result.folder / "trials.json")
    write_whole(result.folder / "front.png", draw_front(result))
    write_whole(result.folder / "report.md", page(result, img_size).encode())


def page(result: SearchResult, img_size: int) -> str:
    """The page, in Markdown."""
    best = result.best
    lines = [
        f"# Search on {result.data}",
        "",
        f"Best of {len(result.trained)} models that were trained ({len(result.trials)} were measured) within "
        f"{result.limit}, in {duration(result.seconds)}: **{best.score:.2%}** on the validation images after "
        f"{best.epochs} epoch(s) at {img_size} pixels. The score chose the model, so it is somewhat too good; test "
        "images were not looked at.",
        "",
        f"    {summarise(best.spec)}",
        "",
        f"It has {best.cost.parameters:,} parameters and takes {best.cost}, {best.cost.fraction:.0%} of the limit. It "
        f"was trained with a learning rate of {best.lr:.2g}.",
        "",
        "![accuracy against latency](front.png)",
        "",
        f"| trial | {' | '.join(f'epoch {epochs}' for epochs in result.rungs)} | ms for 1 | ms for 32 | of the limit "
        "| model |",
        f"| --- |{' ---: |' * (len(result.rungs) + 3)} --- |",
    ]
    for one in sorted(result.trained, key=lambda one: one.rank, reverse=True):
        scores = " | ".join(f"{one.scores[epochs]:.2%}" if epochs in one.scores else "" for epochs in result.rungs)
        times = " | ".join(f"{ms:.2f}" for ms in one.cost.ms.values())
        lines.append(f"| {one.number} | {scores} | {times} | {one.cost.fraction:.0%} | {summarise(one.spec)} |")
    lines += ["", "## What each slot is worth", ""]
    if result.importance:
        lines += [
            f"The fraction of the difference between the {len(result.trained)} trained models that each slot explains "
            f"(fANOVA, by the score after {result.rungs[0]} epoch(s)); of few models it says little.",
            "",
            "| slot | fraction |",
            "| --- | ---: |",
            *(f"| {slot} | {fraction:.1%} |" for slot, fraction in result.importance.items()),
        ]
    else:
        lines += [f"Too few models were trained to tell; it takes {SEVERAL}."]
    if result.ablated:
        lines += [
            "",
            f"The best model ({best.score:.2%}) with one slot at a time filled by the plain part, trained alike with "
            "one seed:",
            "",
            "| slot made plain | score | difference | of the limit |",
            "| --- | ---: | ---: | ---: |",
            *(
                f"| {one.slot} | {one.score:.2%} | {100 * (one.score - best.score):+.2f} points | "
                f"{one.cost.fraction:.0%} |"
                for one in result.ablated
            ),
        ]
    command = f"nearsight train {result.data} --model {result.folder / 'spec.json'} --lr {best.lr:.2g}"
    lines += ["", "## Next", "", f"    {command}", ""]
    return "\n".join(lines)


def draw_front(result: SearchResult) -> bytes:
    """Accuracy against latency of all trained models, with the front of the longest rung."""
    drawn = figure(7, 4.5)
    axes = tidy(
        drawn.add_subplot(),
        title="Accuracy against latency",
        x="milliseconds for one image",
        y="accuracy on the validation images",
    )
    for index, epochs in enumerate(result.rungs):
        of_rung = [one for one in result.trained if one.epochs == epochs]
        if of_rung:
            points = [speed(one) for one in of_rung], [one.score for one in of_rung]
            axes.scatter(*points, s=26, color=COLOURS[index], label=f"{epochs} epoch(s)", zorder=3)
    front = result.front()
    axes.plot([speed(one) for one in front], [one.score for one in front], color=SOFT, linewidth=1.2, label="front")
    if result.reference is not None:
        axes.axvline(result.reference.ms[1], color=LINE, linestyle="--", label="reference")
    legend = axes.legend(frameon=False, loc="best")
    for text in legend.get_texts():
        write(text, SMALL, SOFT)
    return to_png(drawn)
