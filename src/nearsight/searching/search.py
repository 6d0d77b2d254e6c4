"""The verb `search`: which parts, widths and depths learn the data best within a limit of latency.

A trial is a model and its learning rate, drawn by Optuna. One that keeps the limit is trained as every other model is,
first for a ninth of the epochs, then for a third, then for all of them; only the best third of the trials goes on
from one rung to the next. Validation images decide; test images are not looked at.

Everything is in the folder: the trials in Optuna's database, each training as an ordinary run. After a kill the trial
that was running goes on from its last checkpoint.
"""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from ..arguments import checked
from ..atomic import write_whole
from ..config.candidates import parse_candidate
from ..config.files import load_recipe, parse_changes
from ..config.recipe import Recipe
from ..console import first_line
from ..data.samples import scramble
from ..factory import create_model
from ..models.spec import BackboneSpec, spec_from_json, to_json, write_spec
from ..result import as_json
from ..runs.predictor import pick_device
from ..runs.run import Run, check_plan_folder
from ..tasks import get_task
from ..timing import parse_duration
from ..training.loop import run_training
from ..training.progress import duration
from ..training.session import Prepared, prepare
from ..training.signals import Interrupted, StopFlag, end_in_order, listening
from ..training.train import default_recipe, refuse_nothing
from .limits import Limit, TrialCost, parse_macs
from .report import Ablated, SearchResult, Tried, importance, write_report
from .space import Smallest, draw, plain_forms, summarise

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

# Settings of the recipe that are not the user's here, and why.
DECIDED = {
    "model.name": "which finds the model itself",
    "model.spec": "which finds the model itself",
    "epochs": "which trains on several rungs; give --epochs",
    "seed": "which draws by one seed; give --seed",
    "data.test": "which never looks at test images",
}
PLAN, STUDY, SPEC = "search.json", "study.db", "spec.json"
FACTOR = 3  # of the trials of a rung, one goes on to the next, which is so much longer
TRIALS, EPOCHS = 50, 18  # where neither they nor a budget are given
RESERVED = 0.25  # fraction of a budget that is kept for the ablation
REJECTIONS = 300  # in a row, after which no model is expected to keep the limit


class SearchStopped(Exception):
    """A signal ended the search; the same call goes on where it stopped.

    Attributes:
        number: Of the signal.
    """

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.number = number


class SearchPlan(BaseModel):
    """What decides a search; the same folder goes on with the same plan."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str
    recipe: str
    changes: dict[str, Any]
    latency_of: str | None
    ms: float | None
    macs: int | None
    epochs: int
    img_size: int | None
    limit: int | None
    seed: int


@checked
def search(
    data: str | Path,
    *,
    latency_of: str | None = None,
    ms: float | None = None,
    macs: str | int | None = None,
    budget: str | float | None = None,
    trials: int | None = None,
    epochs: int = EPOCHS,
    recipe: str | Path | None = None,
    changes: Mapping[str, Any] | Sequence[str] | None = None,
    img_size: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    ablate: bool = False,
    out: str | Path | None = None,
    cpu: bool = False,
    quiet: bool = False,
) -> SearchResult:
    """Search the slots of the skeleton for the model that learns the data best within a limit.

    The same call goes on where it stopped, also after a kill; a larger budget or more trials go on, too. The folder
    gets `spec.json`, which `create_model(spec=...)`, `train` and `compare` take, `report.md` and `front.png`.

    Args:
        data: What to learn, to tell classes of images; see `nearsight.open_data`. Test images are not looked at.
        latency_of: A model of ours or of timm: those that are searched take no longer than it on this machine, for one
            image and for 32.
        ms: Milliseconds that one image may take on this machine, instead.
        macs: Multiply-adds that one image may take, such as `40M`, instead.
        budget: Time that all may take, such as `2h`.
        trials: Models to train; without budget and trials, 50.
        epochs: Passes over the training images on the last rung; the two before have a ninth and a third of them.
        recipe: A recipe by name or a YAML file.
        changes: Other settings of the recipe: `{"augment.mixup": 0}` or `["augment.mixup=0"]`.
        img_size: Side of the images in pixels.
        limit: Train on so many images only.
        seed: Of what is drawn, of the weights and the order.
        ablate: In the end, train the best model with each slot filled by the plain part, one at a time.
        out: Folder of the search; without, `runs/search-DATA`.
        cpu: Do not use a GPU.
        quiet: Show no progress.

    Returns:
        The best model and all that was tried.

    Raises:
        ValueError: Something can't be done, such as a limit that no model keeps; in one sentence.
        SearchStopped: A signal came; the same call goes on.

    Example:
        >>> import tempfile, nearsight
        >>> small = {"trials": 1, "epochs": 1, "limit": 64, "changes": {"batch": 32}, "quiet": True}
        >>> found = nearsight.search("digits", macs="2M", out=tempfile.mkdtemp(), **small)
        >>> found.best.cost.macs <= 2_000_000, nearsight.create_model(spec=found.spec).img_size
        (True, (32, 32))
    """
    refuse_nothing({"DATA": data, "--out": out, "--trials": trials, "--epochs": epochs, "--limit": limit})
    if sum(given is not None for given in (latency_of, ms, macs)) != 1:
        raise ValueError("Give one limit: --latency-of MODEL, --ms MILLISECONDS or --macs MULTIPLY-ADDS.")
    if ms is not None and not 0 < ms < 1e6:
        raise ValueError(f"--ms {ms:g} won't do; give the milliseconds that one image may take, such as 2.5.")
    source = os.fspath(data)
    plan = SearchPlan(
        data=source,
        recipe=os.fspath(recipe) if recipe is not None else default_recipe(source, None),
        changes=parse_changes(changes),
        latency_of=latency_of,
        ms=None if ms is None else float(ms),
        macs=None if macs is None else parse_macs(macs),
        epochs=epochs,
        img_size=img_size,
        limit=limit,
        seed=seed,
    )
    for key in plan.changes.keys() & DECIDED.keys():
        raise ValueError(f"--set {key} won't do in a search, {DECIDED[key]}.")
    seconds = None if budget is None else parse_duration(budget)
    folder = Path(out) if out is not None else Path("runs") / f"search-{Path(source.rstrip('/')).stem or 'data'}"
    check_plan_folder(folder, source, "search", PLAN)
    check_same(folder, plan)  # before anything is put there
    with Run(folder).locked(), listening() as flag, reading_study(folder / STUDY):
        return Searcher(plan, folder, flag, cpu, quiet).run(
            seconds, TRIALS if trials is None and seconds is None else trials, ablate
        )


@contextmanager
def reading_study(file: Path) -> Iterator[None]:
    """Say in a sentence that the database of trials is damaged, wherever in a search that is noticed.

    Raises:
        ValueError: It is, or it is no file.
    """
    optuna = import_optuna()
    from sqlalchemy.exc import SQLAlchemyError

    damaged = f"{file} is damaged or was edited ({{}}); restore it from a copy, or give another folder with --out."
    if file.exists() and not file.is_file():
        raise ValueError(damaged.format("it is no file"))
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.OptunaError, json.JSONDecodeError) as error:
        if "disk is full" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file)) from None
        raise ValueError(damaged.format(first_line(error)[:200])) from None


def check_same(folder: Path, plan: SearchPlan) -> None:
    """Refuse to go on with a search of other settings."""
    path = folder / PLAN
    if not path.is_file():
        return
    try:
        old = SearchPlan.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError):
        raise ValueError(f"{path} is not what `nearsight search` wrote; give another folder with --out.") from None
    for name in SearchPlan.model_fields:
        before, now = getattr(old, name), getattr(plan, name)
        if before != now:
            raise ValueError(
                f"{folder} holds a search with {name} = {before}, but now it is {now}; use the same setting, or "
                "another folder with --out."
            )


def rungs_of(epochs: int) -> tuple[int, ...]:
    """Epochs of each rung.

    Example:
        >>> rungs_of(18), rungs_of(5), rungs_of(1)
        ((2, 6, 18), (1, 5), (1,))
    """
    return tuple(part for part in (epochs // FACTOR**2, epochs // FACTOR, epochs) if part)


@dataclass
class Clock:
    """Time that a search has taken, over all its processes.

    Attributes:
        limit: Seconds it may take; None for no limit.
        before: Seconds of earlier processes.
        began: When this one began.
    """

    limit: float | None
    before: float
    began: float

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self.before + time.monotonic() - self.began

    def left(self, fraction: float = 1.0) -> float | None:
        """Seconds that are left of a fraction of the limit; None for no limit."""
        return None if self.limit is None else fraction * self.limit - self.spent


class TimeUp(Exception):
    """The budget is used up."""


class Searcher:
    """A search at work.

    Args:
        plan: What is searched.
        folder: Of the search.
        flag: Whether a signal has come.
        cpu: Do not use a GPU.
        quiet: Show no progress.
    """

    def __init__(self, plan: SearchPlan, folder: Path, flag: StopFlag, cpu: bool, quiet: bool):
        self.plan, self.folder, self.flag, self.cpu = plan, folder, flag, cpu
        self.began = time.monotonic()
        self.console = Console(stderr=True, quiet=quiet, highlight=False, markup=False, soft_wrap=True)
        check_same(folder, plan)
        optuna = import_optuna()
        self.optuna = optuna
        self.rungs = rungs_of(plan.epochs)
        self.prepared: Prepared = prepare(plan.data, self.recipe())
        task = get_task(self.prepared.recipe.task)
        if not task.is_linear:
            raise ValueError(f"{plan.data} is there to {task.name}; a search is for data that tell classes of images.")
        if self.prepared.recipe.model.channels not in (None, 3):
            raise ValueError(
                f"The images of {plan.data} have {self.prepared.recipe.model.channels} channels; a search is for red, "
                "green and blue. Train a model that `nearsight models` names on them."
            )
        self.img_size: int = self.prepared.recipe.model.img_size or 32
        self.lr = self.prepared.recipe.optimizer.lr
        self.limit = self.make_limit()
        self.fastest = self.limit.measure(self.build(draw(Smallest(), self.img_size, self.lr).spec))
        if not self.fastest.fits:
            raise ValueError(self.refusal(self.fastest))
        write_whole(folder / PLAN, as_json(plan.model_dump(mode="json")))
        self.study = self.open_study()
        if self.limit.reference_cost is not None:  # milliseconds stay comparable with those of an earlier process
            first = self.study.user_attrs.get("reference") or self.limit.reference_cost.to_dict()
            self.study.set_user_attr("reference", first)
            self.limit.reference_cost = TrialCost.from_dict(first)

    def recipe(self, spec: BackboneSpec | None = None, **changes: Any) -> Recipe:
        """The recipe of a training, without looking at test images."""
        plan = self.plan
        own: dict[str, Any] = {"model.img_size": plan.img_size, "data.limit": plan.limit}
        given = {key: value for key, value in own.items() if value is not None}
        if spec is not None:
            given |= {"model.name": "searched", "model.spec": to_json(spec)}
        forced = {"data.test": False, "seed": plan.seed, "epochs": plan.epochs}
        return load_recipe(plan.recipe, {**given, **plan.changes, **forced, **changes})

    def make_limit(self) -> Limit:
        """The limit, with the latency of the reference measured here and now."""
        plan, recipe = self.plan, self.prepared.recipe
        reference, size = None, (self.img_size, self.img_size)
        if plan.latency_of is not None:
            candidate = parse_candidate(plan.latency_of)
            asked = {
                "model.name": candidate.name,
                "model.img_size": self.img_size,
                **parse_changes(candidate.settings()),
            }
            model = load_recipe(plan.recipe, asked)
            filled = get_task(recipe.task).complete(model, self.prepared.data)
            reference = get_task(recipe.task).build(filled, self.prepared.data).model
        device = torch.device("cpu") if self.cpu else pick_device()
        name = plan.latency_of or ""
        return Limit(size, device, reference=reference, name=name, ms=plan.ms, macs=plan.macs)

    def build(self, spec: BackboneSpec) -> torch.nn.Module:
        """A model to be measured."""
        with torch.random.fork_rng(devices=[]):
            return create_model(spec=spec, img_size=self.img_size, num_classes=len(self.prepared.data.classes))

    def refusal(self, fastest: TrialCost) -> str:
        """The sentence for a limit that nothing keeps."""
        over = f"{fastest.fraction:.2f} times the limit"
        return (
            f"No model of the search keeps {self.limit}: the fastest that was found takes {fastest}, {over}; give more."
        )

    def open_study(self) -> "Study":
        """Optuna's database in the folder."""
        optuna = self.optuna
        from sqlalchemy.engine import URL

        url = URL.create("sqlite", database=str((self.folder / STUDY).absolute()))
        return optuna.create_study(
            storage=url.render_as_string(),
            study_name="search",
            direction="maximize",
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR),
            load_if_exists=True,
        )

    # The search itself

    def run(self, seconds: float | None, trials: int | None, ablate: bool) -> SearchResult:
        """Try models until time or trials are used up, and write what was found."""
        before = self.study.user_attrs.get("seconds", 0.0)
        if not isinstance(before, float):
            raise ValueError(f"{self.folder / STUDY} was edited (seconds are {before!r:.80}); begin the search anew.")
        self.clock = Clock(seconds, before, self.began)
        self.fraction = 1 - RESERVED if ablate else 1.0
        self.console.print(f"Searching on {self.plan.data} within {self.limit}; in {self.folder}")
        try:
            self.try_models(trials)
        except TimeUp:
            self.console.print(f"The time is up ({duration(self.clock.spent)}).")
        finally:
            self.note_time()
        found = self.tried()
        if not any(one.scores for one in found):
            raise ValueError(
                f"The time was up before a first model was trained for {self.rungs[0]} epoch(s); give a larger "
                "--budget, which goes on from here, or fewer --epochs or images (--limit)."
            )
        self.fraction = 1.0
        best = max(found, key=lambda one: one.rank)
        try:
            ablated = self.ablate(best) if ablate else ()
        finally:
            self.note_time()
        reference = self.limit.reference_cost
        result = SearchResult(
            best,
            found,
            ablated,
            str(self.limit),
            reference,
            self.rungs,
            self.clock.spent,
            self.plan.data,
            self.folder,
            importance(self.study),
        )
        write_spec(best.spec, self.folder / SPEC)
        write_report(result, self.img_size)
        return result

    def try_models(self, trials: int | None) -> None:
        """Try one model after another."""
        rejected = 0
        while trials is None or self.count_trained() < trials:
            self.check_time()
            trial = self.next_trial()
            if self.try_one(trial):
                rejected = 0
                continue
            rejected += 1
            if rejected >= REJECTIONS and not self.count_trained():
                raise ValueError(self.refusal(self.fastest))
            if rejected >= REJECTIONS:
                self.console.print(f"{rejected} models in a row exceeded the limit; that is enough.")
                return

    def check_time(self) -> None:
        """Leave if the time is up or a signal came."""
        left = self.clock.left(self.fraction)
        if left is not None and left <= 0:
            raise TimeUp
        if self.flag.number:
            raise SearchStopped(self.flag.number)

    def next_trial(self) -> "Trial":
        """The trial that a kill interrupted, or a new one; what is drawn follows from the seed, its number and before.

        Each trial has a sampler of its own: one that went on from its seed after a kill would draw the same again.
        """
        optuna, study = self.optuna, self.study
        running = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        number = running[0].number if running else len(study.get_trials(deepcopy=False))
        sampler = study.sampler = optuna.samplers.TPESampler(seed=scramble(self.plan.seed, number, 0) % 2**32)
        if not running:
            return study.ask()
        trial = optuna.trial.Trial(study, running[0]._trial_id)
        for name, distribution in running[0].distributions.items():  # what was drawn before the kill, in its order
            sampler.sample_independent(study, running[0], name, distribution)
        return trial

    def try_one(self, trial: "Trial") -> bool:
        """Train a model as far as its rungs go; False for one that exceeds the limit."""
        state = self.optuna.trial.TrialState
        drawn = draw(trial, self.img_size, self.lr)
        if "cost" not in trial.user_attrs:
            cost = self.limit.measure(self.build(drawn.spec))
            trial.set_user_attr("spec", to_json(drawn.spec))
            trial.set_constraint("limit", cost.fraction - 1)  # above 0: what is drawn next keeps away from it
            trial.set_user_attr("cost", cost.to_dict())
        cost = TrialCost.from_dict(trial.user_attrs["cost"])
        if cost.fraction < self.fastest.fraction:
            self.fastest = cost
        if not cost.fits:
            self.study.tell(trial, state=state.PRUNED)
            return False
        self.console.print(f"trial {trial.number}: {summarise(drawn.spec)}; {cost.fraction:.0%} of the limit")
        for index, epochs in enumerate(self.rungs):
            step = FACTOR**index
            recipe = self.recipe(drawn.spec, epochs=epochs, **{"optimizer.lr": drawn.lr})
            score = self.train(recipe, self.folder / "trials" / f"{trial.number:04d}-{epochs}")
            self.note_time()
            if step not in self.study.trials[trial.number].intermediate_values:
                trial.report(score, step)
            self.console.print(f"trial {trial.number}: {score:.2%} after {epochs} epoch(s){self.say_left()}")
            if epochs != self.rungs[-1] and trial.should_prune():
                self.study.tell(trial, state=state.PRUNED)
                return True
        self.study.tell(trial, score)
        return True

    def train(self, recipe: Recipe, folder: Path) -> float:
        """Train a model in a folder of its own, or go on with it, and give its score on the validation images.

        Raises:
            TimeUp: The budget was used up; the run has a checkpoint.
            SearchStopped: A signal came; the run has a checkpoint.
        """
        self.check_time()
        left = self.clock.left(self.fraction)
        title = f"training {folder.name}, {recipe.epochs} epoch(s)"
        with alarm(left) as rung, self.console.status(title) if self.console.is_terminal else nullcontext():
            try:
                outcome = run_training(self.plan.data, recipe, folder, quiet=True, cpu=self.cpu)
            except Interrupted as stop:
                raise (TimeUp() if rung.is_set() else SearchStopped(stop.number)) from None
            finally:
                if rung.is_set():
                    self.flag.number = 0  # it may have rung before the training listened
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # of a run that is finished
        return outcome.val_score

    def ablate(self, best: Tried) -> tuple[Ablated, ...]:
        """The best model with each slot made plain, trained as it was."""
        epochs, found = best.epochs, []
        for slot, spec in plain_forms(best.spec):
            cost = self.limit.measure(self.build(spec))
            recipe = self.recipe(spec, epochs=epochs, **{"optimizer.lr": best.lr})
            try:
                score = self.train(recipe, self.folder / "ablation" / f"{best.number:04d}-{epochs}-{slot}")
            except TimeUp:
                self.console.print("The time is up; the ablation is not complete.")
                break
            found.append(Ablated(slot, score, cost))
            self.console.print(f"without its {slot}: {score:.2%}, {score - best.score:+.2%}{self.say_left()}")
        return tuple(found)

    # What is known

    def count_trained(self) -> int:
        """Trials that were trained to the end of a rung, and are not going on."""
        return sum(
            bool(trial.intermediate_values)
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        )

    def tried(self) -> tuple[Tried, ...]:
        """All trials that were measured, first to last."""
        found = []
        for trial in self.study.get_trials(deepcopy=False):
            if "cost" not in trial.user_attrs or "lr" not in trial.params:
                continue
            scores = {self.rungs[i]: trial.intermediate_values.get(FACTOR**i) for i in range(len(self.rungs))}
            known = {epochs: score for epochs, score in scores.items() if score is not None}
            spec, cost = spec_from_json(trial.user_attrs["spec"]), TrialCost.from_dict(trial.user_attrs["cost"])
            found.append(Tried(trial.number, spec, trial.params["lr"], cost, known))
        return tuple(found)

    def note_time(self) -> None:
        """Keep the time that was spent, for a search that goes on later."""
        self.study.set_user_attr("seconds", self.clock.spent)

    def say_left(self) -> str:
        """The time that is left, for people."""
        left = self.clock.left()
        return "" if left is None else f"; {duration(max(0.0, left))} left"


@contextmanager
def alarm(seconds: float | None) -> Iterator[threading.Event]:
    """Ask the training to leave a checkpoint and end when the time is up, as the system would; gives whether it did."""
    rung = threading.Event()
    if seconds is None:
        yield rung
        return

    def ring() -> None:
        rung.set()
        end_in_order()

    timer = threading.Timer(max(0.0, seconds), ring)
    timer.daemon = True
    timer.start()
    try:
        yield rung
    finally:
        timer.cancel()


def import_optuna() -> Any:
    """Optuna, which speaks only of what is wrong."""
    try:
        import optuna
    except ImportError:
        advice = "pip install 'nearsight[search]'"
        raise ValueError(f"A search needs Optuna, which is not installed; install it with: {advice}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
