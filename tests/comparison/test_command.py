"""The real command on the digits: sentences, exit codes, what survives a kill, budgets and latency."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nearsight
from nearsight import timing
from nearsight.cli.compare import compare as command_compare
from nearsight.comparison import compare as comparing
from nearsight.comparison import runner, worker
from nearsight.comparison.compare import measure_latency
from nearsight.comparison.plan import Shared, build_candidates
from nearsight.comparison.results import Comparison, read_results
from nearsight.comparison.runner import Slot, epochs_within
from nearsight.config.candidates import parse_candidates

SMALL = ["--epochs", "3", "--seeds", "1", "--limit", "160", "--set", "batch=32", "--set", "schedule.warmup_epochs=0"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "COLUMNS"}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "nearsight", "compare", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, env=ENVIRONMENT)


def sentence(outcome: subprocess.CompletedProcess[str]) -> str:
    assert outcome.returncode == 1, outcome.stderr
    assert "Traceback" not in outcome.stderr
    return outcome.stderr.splitlines()[-1]


@pytest.fixture
def refused(type_in: Callable[..., Any]) -> Callable[..., str]:
    """Runs a comparison that is refused, in this process; gives the sentence."""

    def refuse(*arguments: str | Path) -> str:
        code, _, err = type_in("compare", *map(str, arguments))
        assert code == 1 and "Traceback" not in err
        return str(err.splitlines()[-1])

    return refuse


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["digits"], "nearsight: Give DATA and --models A,B,... to compare, or --report FOLDER"),
        (
            ["digits", "-m", "deit_nano", "--epochs", "1", "--budget", "5m"],
            "nearsight: Give either --epochs or --budget",
        ),
        (["digits", "-m", "deit_nano", "--epochs", "0"], "--epochs 0 won't do; leave it out to have it chosen."),
        (["digits", "-m", "deit_nano", "--budget", ""], "--budget is empty, as a shell variable that is not set;"),
        (["digits", "-m", "deit_nano", "--seeds", "5,5"], "The seed 5 comes twice in 5,5"),
        (["", "-m", "deit_nano"], "Word 2 of the command is empty, as a shell variable that is not set;"),
        (["--report", "absent"], "results.json is not there; give the folder of a comparison that has ended."),
    ],
)
def test_what_can_not_be_compared_gets_a_sentence(
    arguments: list[str], expected: str, type_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = type_in("compare", *arguments)
    assert code == 1 and "Traceback" not in err
    assert expected in err.splitlines()[-1]
    assert not any(tmp_path.iterdir())


def test_python_compares_with_the_options_of_the_command_line() -> None:
    command, verb = (list(inspect.signature(one).parameters) for one in (command_compare, nearsight.compare))
    assert [name for name in command if name != "report"] == verb


def test_a_file_is_no_folder(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "file").touch()
    said = refused("digits", "-m", "deit_nano", "--out", tmp_path / "file")
    assert said == f"nearsight: {tmp_path / 'file'} is a file; give a folder with --out."


def test_a_comparison_in_its_own_data_would_be_a_class(tmp_path: Path, refused: Callable[..., str]) -> None:
    said = refused(tmp_path, "-m", "deit_nano", "--out", tmp_path / "runs")
    assert said == f"nearsight: {tmp_path / 'runs'} lies inside the data {tmp_path}; give a folder outside with --out."
    assert not any(tmp_path.iterdir())


def test_a_folder_that_holds_other_things_is_refused_and_stays_as_it_was(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "photos").mkdir()
    said = refused("digits", "-m", "deit_nano", "--out", tmp_path)
    expected = f"{tmp_path} holds other things than a comparison (such as photos); give --out a new or an empty folder."
    assert said == f"nearsight: {expected}"
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def wait_for(path: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_a_comparison_that_is_killed_and_stopped_goes_on_and_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    options = ["digits", "-m", "deit_nano,localvit_nano", *SMALL]
    whole = run(*options, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr

    out = tmp_path / "killed"
    process = subprocess.Popen(command(*options, "--out", out), stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    wait_for(out / "runs" / "deit_nano-seed0" / "checkpoints")
    process.kill()
    process.wait()
    process = subprocess.Popen(command(*options, "--out", out), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("Training 2 runs"):
        assert process.poll() is None
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    if process.returncode != 0:  # it may have been quick enough to end
        assert process.returncode == 130
        assert said.splitlines()[-1].startswith("nearsight: Stopped; nothing is lost. Go on with the same command: ")
    last = run(*options, "--out", out)
    assert last.returncode == 0, last.stderr
    assert scores(read_results(out)) == scores(read_results(tmp_path / "whole"))

    said = sentence(run("digits", "-m", "deit_nano", "--epochs", "4", "--seeds", "1", "--out", out))
    assert "holds a comparison with changes = " in said or "holds a comparison with epochs = 3, but now it is 4" in said


def scores(results: Comparison) -> list[list[float | None]]:
    return [[run.score for run in model.runs] for model in results.models]


@pytest.mark.drill
def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["digits", "-m", "deit_nano,lit_nano", *SMALL, "--out", out]
    first = run(*options)
    assert first.returncode == 0, first.stderr
    folder = out / "runs" / "lit_nano-seed0"
    for name in ("outcome.json", "predictions.npz"):
        (folder / name).unlink()
    for state in folder.glob("checkpoints/*/state.json"):
        state.write_text("{")  # as a failing disk may leave it
    again = run(*options)
    assert again.returncode == 1
    assert "lit_nano · seed 0 failed: The checkpoint " in again.stderr
    results = read_results(out)
    assert [model.label for model, _ in results.failures] == ["lit_nano"]
    assert results.model("deit_nano").score is not None
    assert "Runs that failed" in (out / "report.html").read_text()


@pytest.mark.drill
def test_the_report_is_made_again_from_its_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run("digits", "-m", "deit_nano,lcnet_050", *SMALL, "--out", out)
    assert first.returncode == 0, first.stderr
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    again = run("--report", out)
    assert again.returncode == 0, again.stderr
    assert (out / "report.html").read_text() == page
    assert again.stdout == first.stdout
    assert f"Report: {out / 'report.html'}" in again.stdout
    results = read_results(out)
    assert results.baseline == "lcnet_050"
    for model in results.models:
        kept = out / "runs" / f"{model.label}-seed0" / "outcome.json"
        assert model.runs[0].score == pytest.approx(json.loads(kept.read_text())["test_score"])


@pytest.mark.slow
def test_a_run_in_a_process_of_its_own_is_that_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "ROUNDS", 1)
    settings: dict[str, Any] = {"epochs": 1, "limit": 40, "img_size": 16, "changes": ["batch=20"], "quiet": True}
    found = nearsight.compare("digits", "deit_nano", seeds=1, scratch_only=True, out=tmp_path / "both", **settings)
    ((run,),) = [model.runs for model in found.models]
    recipe = tmp_path / "both" / "runs" / "deit_nano-seed0" / "recipe.yaml"
    alone = nearsight.train("digits", recipe=recipe, cpu=True, quiet=True, out=tmp_path / "alone")
    assert not found.failures and run.score == pytest.approx(alone.test_score)


SHARED = Shared(data="digits", recipe="small-data", limit=160, changes=("batch=16",), img_size=16)


@pytest.mark.drill
def test_a_dearer_model_gets_fewer_epochs_of_the_same_time() -> None:
    built, _ = build_candidates(parse_candidates("deit_nano:patch_size=8,wide=deit_nano:patch_size=1"), SHARED)
    few, many = sorted(epochs_within(60, built, "digits", slots=[Slot(1)]))
    assert epochs_within(60, built[1:], "digits", slots=[Slot(1)])[0] < many
    assert 1 <= few < many


def test_an_epoch_is_timed_by_a_few_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    built, _ = build_candidates(parse_candidates("deit_nano"), SHARED)
    monkeypatch.setattr(worker, "LEAST_SECONDS", 0.0)
    epoch, around = worker.time_run("digits", built[0].recipe)
    assert epoch > 0 and around > 0


@pytest.mark.parametrize("program", ["print(20, 5)", pytest.param(None, id="real", marks=pytest.mark.slow)])
def test_a_budget_below_one_epoch_is_refused(program: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a process says of an epoch; a real one takes some seconds to find out."""
    built, _ = build_candidates(parse_candidates("deit_nano"), SHARED)
    if program is not None:
        monkeypatch.setattr(runner, "worker_command", lambda *given: [sys.executable, "-c", program])
    took = r"[\d.]+" if program is None else "25"
    refused = rf"A run of deit_nano with one epoch takes about {took} s, more than the budget of 0\.001 s"
    with pytest.raises(ValueError, match=refused):
        epochs_within(0.001, built, "digits", slots=[Slot(1)])


class Slow(nn.Module):
    """Sleeps for a while for each batch."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        timing.time.sleep(self.seconds)
        return images


@pytest.mark.usefixtures("clock")
def test_a_model_that_takes_20_milliseconds_is_measured_so() -> None:
    models = {"fast": (Slow(0.005), (4, 4)), "slow": (Slow(0.02), (4, 4))}
    before = torch.get_num_threads()
    found = measure_latency(models, torch.device("cpu"), 1, range(7))
    assert found["slow"].milliseconds == pytest.approx([20.0] * 3)
    assert found["fast"].milliseconds == pytest.approx([5.0] * 3)
    assert found["slow"].images_per_second == pytest.approx([32 / 0.02] * 3)
    assert torch.get_num_threads() == before
