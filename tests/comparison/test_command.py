"""The real command on the digits: sentences, exit codes, and what survives a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearsight.comparison.results import Comparison, read_results

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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["digits"], "nearsight: Give DATA and --models A,B,... to compare, or --report FOLDER"),
        (
            ["digits", "-m", "deit_nano", "--epochs", "1", "--budget", "5m"],
            "nearsight: Give either --epochs or --budget",
        ),
        (["--report", "absent"], "results.json is not there; give the folder of a comparison that has ended."),
    ],
)
def test_what_can_not_be_compared_gets_a_sentence(arguments: list[str], expected: str) -> None:
    assert expected in sentence(run(*arguments))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = sentence(run("digits", "-m", "deit_nano", "--out", tmp_path / "file"))
    assert said == f"nearsight: {tmp_path / 'file'} is a file; give a folder with --out."


def test_a_comparison_in_its_own_data_would_be_a_class(tmp_path: Path) -> None:
    said = sentence(run(tmp_path, "-m", "deit_nano", "--out", tmp_path / "runs"))
    assert said == f"nearsight: {tmp_path / 'runs'} lies inside the data {tmp_path}; give a folder outside with --out."
    assert not any(tmp_path.iterdir())


def test_a_folder_that_holds_other_things_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    said = sentence(run("digits", "-m", "deit_nano", "--out", tmp_path))
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
    wish = ["digits", "-m", "deit_nano,localvit_nano", *SMALL]
    whole = run(*wish, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr

    out = tmp_path / "killed"
    process = subprocess.Popen(command(*wish, "--out", out), stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    wait_for(out / "runs" / "deit_nano-seed0" / "checkpoints")
    process.kill()
    process.wait()
    process = subprocess.Popen(command(*wish, "--out", out), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("Training 2 runs"):
        assert process.poll() is None
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    if process.returncode != 0:  # it may have been quick enough to end
        assert process.returncode == 130
        assert said.splitlines()[-1].startswith("nearsight: Stopped; nothing is lost. Go on with the same command: ")
    last = run(*wish, "--out", out)
    assert last.returncode == 0, last.stderr
    assert scores(read_results(out)) == scores(read_results(tmp_path / "whole"))

    said = sentence(run("digits", "-m", "deit_nano", "--epochs", "4", "--seeds", "1", "--out", out))
    assert "holds a comparison with changes = " in said or "holds a comparison with epochs = 3, but now it is 4" in said


def scores(results: Comparison) -> list[list[float | None]]:
    return [[run.score for run in model.runs] for model in results.models]


@pytest.mark.drill
def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    wish = ["digits", "-m", "deit_nano,lit_nano", *SMALL, "--out", out]
    first = run(*wish)
    assert first.returncode == 0, first.stderr
    folder = out / "runs" / "lit_nano-seed0"
    for name in ("outcome.json", "predictions.npz"):
        (folder / name).unlink()
    for state in folder.glob("checkpoints/*/state.json"):
        state.write_text("{")  # as a failing disk may leave it
    again = run(*wish)
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
