"""The real command: tables, files, sentences, signals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nearsight.cli.bench import bench

SMALL = ["--runtimes", "eager,folded", "--batch", "1,2", "--rounds", "3", "--threads", "1", "--device", "cpu"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "nearsight", "bench", *map(str, arguments)]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=ENVIRONMENT | environment
    )


@pytest.mark.slow
def test_a_benchmark_from_names_to_files(tmp_path: Path) -> None:
    outcome = run(
        "deit_nano", "lit_nano", "--against", "resnet18", "--size", "32", *SMALL, "--json", tmp_path / "b.json"
    )
    assert outcome.returncode == 0, outcome.stderr
    assert max(map(len, outcome.stdout.splitlines())) <= 100
    for name in ("deit_nano", "lit_nano", "resnet18", "folded", "to resnet18 (eager)"):
        assert name in " ".join(outcome.stdout.split())
    record = json.loads((tmp_path / "b.json").read_text())
    assert len(record["measurements"]) == 3 * 2 * 2
    assert record["setting"]["reference"] == "resnet18"
    assert all(len(row["seconds"]) == 3 and row["memory_bytes"] > 0 for row in record["measurements"])
    assert record["missing"] == []


@pytest.mark.slow
def test_growth_over_sizes_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "growth.png"
    outcome = run("lit_nano", "--scaling", "32,48,64", "--rounds", "2", "--plot", picture, COLUMNS="80")
    assert outcome.returncode == 0, outcome.stderr
    assert "exponent of latency" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    with Image.open(picture) as opened:
        assert opened.width > 600


@pytest.mark.slow
def test_models_without_a_printed_accuracy_are_left_out_of_the_picture_with_a_sentence(tmp_path: Path) -> None:
    picture = tmp_path / "accuracy.png"
    few = ["--runtimes", "eager", "--batch", "1", "--rounds", "1", "--size", "64", "--no-memory"]
    outcome = run("deit_nano", "deit_tiny", *few, "--plot", picture)
    assert outcome.returncode == 0, outcome.stderr
    assert "deit_nano is not in the plot: no paper prints its ImageNet accuracy." in outcome.stderr
    assert picture.is_file()
    assert "memory" not in outcome.stdout


@pytest.mark.parametrize(
    ("models", "options", "expected"),
    [
        (["deit_nano"], {"runtimes": "eagre"}, "--runtimes eagre is not known; use some of eager, folded, compiled"),
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


def test_a_refusal_is_one_sentence() -> None:
    outcome = run("deit_nanno")
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    sentence = "nearsight: Neither Nearsight nor timm has a model 'deit_nanno'; did you mean 'deit_nano'?"
    assert outcome.stderr.splitlines()[-1].startswith(sentence)


@pytest.mark.slow
def test_an_interrupted_benchmark_shows_what_it_measured(tmp_path: Path) -> None:
    few = ["--runtimes", "eager", "--batch", "1", "--rounds", "100000", "--no-memory", "--json", tmp_path / "b.json"]
    process = subprocess.Popen(
        command("deit_nano", *few), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stderr is not None
    said = ""
    while "Measuring" not in said:
        said = process.stderr.readline()
        assert said, "it ended before it measured"
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Interrupted after" in shown
    record = json.loads((tmp_path / "b.json").read_text())
    assert record["setting"]["interrupted"]
    assert 0 < record["setting"]["rounds_measured"] < 100000
