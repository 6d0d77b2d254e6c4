"""The command: tables, files, sentences, signals."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nearsight import timing
from nearsight.benchmarking import measure
from nearsight.cli.bench import bench

SMALL = ["--runtimes", "eager,folded", "--batch", "1,2", "--rounds", "3", "--threads", "1", "--device", "cpu"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(type_in: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command; the matrix product that stands for the machine's peak takes a millisecond."""
    monkeypatch.setitem(measure.SIDE, "cpu", 256)
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words: type_in("bench", *map(str, words))


def test_a_benchmark_from_names_to_files(run: Run, tmp_path: Path) -> None:
    code, out, err = run(
        "deit_nano", "lit_nano", "--against", "resnet18", "--size", "32", *SMALL, "--json", tmp_path / "b.json"
    )
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 100
    for name in ("deit_nano", "lit_nano", "resnet18", "folded", "to resnet18 (eager)"):
        assert name in " ".join(out.split())
    record = json.loads((tmp_path / "b.json").read_text())
    assert len(record["measurements"]) == 3 * 2 * 2
    assert record["setting"]["reference"] == "resnet18"
    assert all(len(row["seconds"]) == 3 and row["memory_bytes"] > 0 for row in record["measurements"])
    assert record["missing"] == []


def test_growth_over_sizes_and_a_figure(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "growth.png"
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run("lit_nano", "--scaling", "32,48,64", "--rounds", "2", "--plot", picture)
    assert code == 0, err
    assert "exponent of latency" in out
    assert max(map(len, out.splitlines())) <= 80
    with Image.open(picture) as opened:
        assert opened.width > 600


def test_models_without_a_printed_accuracy_are_left_out_of_the_figure_with_a_sentence(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "accuracy.png"
    few = ["--runtimes", "eager", "--batch", "1", "--rounds", "1", "--size", "64", "--no-memory"]
    code, out, err = run("deit_nano", "deit_tiny", *few, "--plot", picture)
    assert code == 0, err
    assert "deit_nano is not in the plot: no paper prints its ImageNet accuracy." in err
    assert picture.is_file()
    assert "memory" not in out


@pytest.mark.parametrize(
    ("models", "options", "expected"),
    [
        (
            ["deit_nano"],
            {"runtimes": "eagre"},
            "--runtimes eagre is not known; use all, or some of eager, folded, compiled",
        ),
        (
            ["deit_nano"],
            {"batch": "0,x"},
            "--batch 0,x is not a list of whole numbers; write it like 224,320.",
        ),
        (["deit_nano"], {"scaling": "32,64", "size": 32}, "Give either --size or --scaling, not both."),
        (
            ["deit_nano"],
            {"scaling": "32,64", "batch": "1,2"},
            "--scaling measures one batch size; give one with --batch",
        ),
        (
            ["deit_nano"],
            {"json": Path("absent/b.json")},
            "--json absent/b.json can't be written; give the name of a file",
        ),
        (["deit_nano"], {"scaling": "32"}, "--scaling 32 is a single size; give two or more"),
        (["./absent"], {}, "absent is not there; give the folder of a run or a .safetensors file."),
        (["a=deit_nano", "a=lit_nano"], {}, "Two models are called 'a'; give one of them another name: LABEL=NAME."),
        (["deit_nano"], {"device": "tpu"}, "tpu"),
    ],
)
def test_what_can_not_be_measured_is_refused(models: list[str], options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        bench(models, **options)


def test_a_refusal_is_one_sentence(run: Run) -> None:
    code, out, err = run("deit_nanno")
    assert code == 1
    assert out == ""
    assert "Traceback" not in err
    sentence = "nearsight: Neither Nearsight nor timm has a model 'deit_nanno'; did you mean 'deit_nano'?"
    assert err.splitlines()[-1].startswith(sentence)


def test_an_interrupted_benchmark_shows_what_it_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turns, measured = timing.TimedCall.seconds, []

    def interrupting(task: timing.TimedCall) -> float:
        measured.append(take_turns(task))
        if len(measured) == 3 + 2 + 2 * 4:  # warming up the model and the product, then four rounds of both
            signal.raise_signal(signal.SIGINT)
        return measured[-1]

    monkeypatch.setattr(timing.TimedCall, "seconds", interrupting)
    few = ["--runtimes", "eager", "--batch", "1", "--rounds", "100000", "--no-memory", "--json", tmp_path / "b.json"]
    code, out, _ = run("deit_nano", *few)
    assert code == 130
    assert "Interrupted after 4 of 100000 rounds" in " ".join(out.split())
    record = json.loads((tmp_path / "b.json").read_text())
    assert record["setting"]["interrupted"]
    assert record["setting"]["rounds_measured"] == 4
