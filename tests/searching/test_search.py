"""A search keeps its limit, goes on after a kill with nothing lost, never reads a test image, and ends with a model."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

import nearsight
from nearsight.data import Data, Split, open_data
from nearsight.models.counting import count
from nearsight.models.spec import read_spec
from nearsight.searching.limits import TrialCost
from nearsight.searching.report import SearchResult, Tried
from nearsight.searching.search import reading_study, rungs_of
from nearsight.searching.space import Smallest, draw, plain_forms
from nearsight.training import session

SMALL: dict[str, Any] = {"epochs": 3, "limit": 64, "changes": {"batch": 32}, "quiet": True}
WORDS = ["search", "digits", "--macs", "3M", "--epochs", "3", "--limit", "64", "--set", "batch=32"]


def run(folder: Path, **changes: Any) -> SearchResult:
    return nearsight.search("digits", **{"macs": "3M", "trials": 3, **SMALL, "out": folder, **changes})


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    """What a search finds that nobody interrupts."""
    return run(tmp_path_factory.mktemp("whole") / "search", ablate=True)


def trials(folder: Path) -> list[tuple[Any, ...]]:
    """What does not depend on the clock."""
    held = json.loads((folder / "trials.json").read_text())["trials"]
    return [(one["number"], one["lr"], one["spec"], one["scores"], one["cost"]["macs"]) for one in held]


def test_it_ends_with_the_best_of_the_longest_rung_and_its_page(searched: SearchResult) -> None:
    assert len(searched.trained) == 3 and searched.rungs == (1, 3)
    assert searched.best.epochs == 3
    assert searched.best.score == max(one.scores[3] for one in searched.trained if 3 in one.scores)
    assert all(one.cost.macs <= 3_000_000 for one in searched.trained)
    assert all(one.cost.macs > 3_000_000 for one in searched.trials if not one.scores)
    model = nearsight.create_model(spec=searched.folder / "spec.json", num_classes=10)
    assert model.spec == searched.spec
    assert count(model, 32).macs == searched.best.cost.macs
    page = (searched.folder / "report.md").read_text()
    assert f"{searched.best.score:.2%}" in page and "front.png" in page
    assert (searched.folder / "front.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("drawn", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_trial_that_was_killed_while_it_was_drawn_is_drawn_alike(
    searched: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: int
) -> None:
    class Killed(Exception):
        pass

    def suggest(trial: optuna.Trial, name: str, choices: Any) -> Any:
        if len(trial.params) == drawn:
            raise Killed
        return whole(trial, name, choices)

    whole = optuna.Trial.suggest_categorical
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(optuna.Trial, "suggest_categorical", suggest)
        run(tmp_path, trials=1)
    found = trials(run(tmp_path, trials=1).folder)
    assert found == trials(searched.folder)[: len(found)]


def test_the_ablation_trains_the_winner_with_each_slot_made_plain(searched: SearchResult) -> None:
    assert [one.slot for one in searched.ablated] == [slot for slot, _ in plain_forms(searched.spec)]
    held = json.loads((searched.folder / "trials.json").read_text())["ablation"]
    for one in searched.ablated:
        folder = searched.folder / "ablation" / f"{searched.best.number:04d}-3-{one.slot}"
        outcome = json.loads((folder / "outcome.json").read_text())
        assert outcome["val_score"] == one.score == held[one.slot]["score"]


@pytest.mark.slow
def test_the_first_trial_follows_from_the_seed(searched: SearchResult, tmp_path: Path) -> None:
    again = run(tmp_path / "again", trials=1)
    first = next(one for one in searched.trained)
    assert again.trained[0].spec == first.spec and again.trained[0].scores == first.scores
    drawn = {seed: draw(trial_of(seed), 32, 1e-3) for seed in (0, 1)}
    assert drawn[0] != drawn[1] and drawn[0] == draw(trial_of(0), 32, 1e-3)


def trial_of(seed: int) -> Any:
    import optuna

    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed)).ask()


@pytest.mark.slow
def test_killed_twice_it_ends_as_if_nothing_had_happened(searched: SearchResult, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "nearsight", *WORDS, "--trials", "3", "--out", str(folder)]
    runs = folder / "trials"
    for moment in (lambda: any(runs.glob("*-1/metrics.jsonl")), lambda: any(runs.glob("*-3/metrics.jsonl"))):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 200
        while not moment() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (folder / "spec.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert trials(folder) == trials(searched.folder)
    assert read_spec(folder / "spec.json") == searched.spec


class Forbidden(Split):
    """A split whose images must not be read."""

    def __init__(self, split: Split):
        self.split, self.labels = split, split.labels

    def name(self, index: int) -> str:
        return self.split.name(index)

    def read(self, index: int, enough: int | None = None) -> Any:
        raise AssertionError("a test image was read")

    def content(self, index: int) -> bytes:
        raise AssertionError("a test image was read")


def test_no_test_image_is_ever_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def guarded(source: str, task: str | None = None) -> Data:
        data = open_data(source, task)
        assert data.test is not None
        return data.with_splits(train=data.train, val=data.val, test=Forbidden(data.test))

    monkeypatch.setattr(session, "open_data", guarded)
    settings: dict[str, Any] = {"epochs": 1, "limit": 64, "quiet": True}
    with pytest.raises(AssertionError, match="a test image was read"):  # an ordinary run does, in the end
        nearsight.train("digits", model="deit_nano", batch=32, weights="none", out=tmp_path / "run", **settings)
    found = run(tmp_path / "search", trials=1, epochs=1, ablate=True)
    assert found.best.scores
    assert json.loads(next(found.folder.glob("trials/*/outcome.json")).read_text())["test_score"] is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--macs", "10k"], "No model of the search keeps 0.01 M multiply-adds: the fastest that was found takes "),
        (["--ms", "0.0001"], "No model of the search keeps 0.0001 ms an image: the fastest that was found takes "),
    ],
)
def test_a_limit_that_nothing_keeps_is_refused_with_the_fastest(
    options: list[str], expected: str, tmp_path: Path, type_in: Callable[..., Any]
) -> None:
    code, _, err = type_in("search", "digits", *options, "--limit", "64", "--out", str(tmp_path / "search"))
    assert code == 1 and expected in err and " ms for 1 · " in err and err.count("\n") == 1
    assert "times the limit; give more." in err
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["digits"], "Give one limit: --latency-of MODEL, --ms MILLISECONDS or --macs MULTIPLY-ADDS."),
        (["digits", "--ms", "3", "--macs", "3M"], "Give one limit"),
        (["digits", "--ms", "-1"], "--ms -1 won't do"),
        (["digits", "--macs", "many"], "--macs many is no number of multiply-adds; write it like 40M or 1.5G."),
        (["digits", "--macs", "3M", "--trials", "0"], "--trials 0 won't do"),
        (["digits", "--macs", "3M", "--budget", "soon"], "'soon' is not a time"),
        (["shapes", "--macs", "3M"], "shapes is there to detect; a search is for data that tell classes of images."),
        (["digits", "--latency-of", "localvit_nan"], "localvit_nano"),
    ],
)
def test_what_can_not_be_searched_gets_a_sentence(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_in: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = type_in("search", *words)
    assert code == 1 and expected in err and err.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_other_settings_and_other_folders_are_refused(searched: SearchResult, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds a search with seed = 0, but now it is 1"):
        run(searched.folder, seed=1)
    (tmp_path / "photos").mkdir()
    with pytest.raises(ValueError, match="holds other things than a search"):
        run(tmp_path)


@pytest.mark.slow
def test_a_budget_that_is_up_ends_in_a_sentence_and_more_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The time was up before a first model was trained"):
        run(tmp_path / "search", trials=None, budget=0.05)
    found = run(tmp_path / "search", trials=1)
    assert len(found.trained) == 1


@pytest.mark.slow
def test_a_budget_that_is_up_in_a_training_leaves_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"The time was up before a first model was trained for 10,?000 epoch"):
        run(tmp_path / "search", trials=None, budget=15, epochs=90_000)
    (training,) = (tmp_path / "search" / "trials").iterdir()
    assert training.name.endswith("-10000") and any((training / "checkpoints").iterdir())
    assert not (training / "outcome.json").exists()


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"hello" * 100), lambda file: file.mkdir()])
def test_a_damaged_study_is_named(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    file = tmp_path / "study.db"
    damage(file)
    with (
        pytest.raises(ValueError, match=r"study\.db is damaged or was edited \(.*restore it from a copy"),
        reading_study(file),
    ):
        optuna.create_study(storage=f"sqlite:///{file}")


@pytest.mark.parametrize("cost", [5, {}, {"parameters": "x"}, {"ms": {"a": 1}}])
def test_an_edited_cost_of_a_trial_is_named(cost: Any) -> None:
    whole = TrialCost(5, 7, {1: 0.5, 32: 2.0}, 0.25)
    assert TrialCost.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    with pytest.raises(ValueError, match="The cost of a trial was edited"):
        TrialCost.from_dict(cost)


@pytest.mark.slow
def test_latency_is_measured_beside_the_reference(tmp_path: Path) -> None:
    found = run(tmp_path / "search", macs=None, latency_of="localvit_nano", trials=1, epochs=1)
    assert found.reference is not None and found.reference.parameters == parameters("localvit_nano")
    cost = found.best.cost
    assert cost.fits and cost.fraction == max(cost.ms[batch] / found.reference.ms[batch] for batch in (1, 32))


def parameters(name: str) -> int:
    model = nearsight.create_model(name, num_classes=10, patch_size=4)
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_front_keeps_what_nothing_beats() -> None:
    from nearsight.searching.limits import TrialCost

    spec = draw(Smallest(), 32, 1e-3).spec

    def tried(number: int, ms: float, score: float, epochs: int = 9) -> Tried:
        return Tried(number, spec, 1e-3, TrialCost(1, 1, {1: ms, 32: ms}, 0.5), {epochs: score})

    every = (tried(0, 3, 0.5), tried(1, 1, 0.4), tried(2, 2, 0.3), tried(3, 1, 0.2), tried(4, 1, 0.9, epochs=3))
    result = SearchResult(every[0], every, (), "", None, (3, 9), 1.0, "digits", Path())
    assert [one.number for one in result.front()] == [1, 0]


def test_every_drawn_model_can_be_built_and_takes_any_size() -> None:
    for seed in range(12):
        spec = draw(trial_of(seed), 32, 1e-3).spec
        model = nearsight.create_model(spec=spec, num_classes=3).eval()
        assert model(torch.randn(1, 3, 21, 34)).shape == (1, 3)


def test_importance_finds_the_parameter_that_decides() -> None:
    import optuna

    from nearsight.searching.report import importance

    study = optuna.create_study(direction="maximize")
    for seed in range(24):
        trial = trial_of(seed)
        drawn = draw(trial, 32, 1e-3)
        frozen = optuna.trial.create_trial(
            params=trial.params,
            distributions=trial.distributions,
            intermediate_values={1: float(drawn.spec.pool == "sequence")},
            state=optuna.trial.TrialState.PRUNED,
            value=0.0,
        )
        study.add_trial(frozen)
    found = importance(study)
    assert next(iter(found)) == "pool" and found["pool"] > 0.9 and sum(found.values()) == pytest.approx(1)


def test_rungs_grow_by_three() -> None:
    assert [rungs_of(epochs) for epochs in (1, 3, 9, 20)] == [(1,), (1, 3), (1, 3, 9), (2, 6, 20)]
