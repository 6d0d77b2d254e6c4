"""The files of a report, the table for the terminal, and the command."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from rich.console import Console
from scipy.special import softmax
from typer.testing import CliRunner

from nearsight.cli.evaluate import evaluate as command
from nearsight.data.sources.npz import Arrays
from nearsight.evaluation import Evaluation, evaluate
from nearsight.tasks.classification_metrics import rank
from nearsight.tasks.classification_report import to_csv
from nearsight.tasks.classify import TASK

APP = typer.Typer()
APP.command()(command)
FILES = ["confusion.png", "metrics.json", "mistakes.png", "predictions.csv", "reliability.png"]


def made_up(classes: tuple[str, ...], right: float) -> Evaluation:
    """An evaluation of noise; so many of the answers are right."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, len(classes), 300)
    said = np.where(generator.random(300) < right, labels, (labels + 1) % len(classes))
    logits = (generator.normal(size=(300, len(classes))) + 9 * np.eye(len(classes))[said]).astype(np.float32)
    pixels = generator.integers(0, 255, (300, 8, 8, 3), dtype=np.uint8)
    return judged(logits, labels, classes, pixels, {"x[300]": "the file is cut off"})


def judged(logits, labels, classes: tuple[str, ...], pixels, bad: dict[str, str]) -> Evaluation:
    meter = TASK.meter(len(classes))
    rows = zip(softmax(logits.astype(np.float64), axis=1), labels, strict=True)
    meter.records = {index: rank(row, int(label)) for index, (row, label) in enumerate(rows)}
    return Evaluation(
        classes=classes,
        images=Arrays("x", pixels, labels),
        meter=meter,
        metrics=meter.metrics(),
        again=lambda index: None,
        model="some_model",
        path=Path("run/model.safetensors"),
        task=TASK,
        source="data",
        own=True,
        split="test",
        bad=bad,
    )


def test_json_and_csv_say_the_same(digits_run, tmp_path) -> None:
    found = evaluate(digits_run)
    folder = found.save(tmp_path / "report")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    figures = json.loads((folder / "metrics.json").read_text())
    with (folder / "predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == figures["images"] == 359
    right = [row["true"] == row["predicted"] for row in rows]
    assert [row["right"] == "1" for row in rows] == right
    assert figures["top1"]["value"] == pytest.approx(np.mean(right))
    assert figures["nll"] == pytest.approx(
        np.mean([-np.log(float(row["probability_of_true"])) for row in rows]), abs=1e-4
    )
    assert np.trace(figures["confusion"]) == sum(right)
    by_class = {item["name"]: item for item in figures["classes"]}
    threes = [row["predicted"] == "3" for row in rows if row["true"] == "3"]
    assert by_class["3"]["images"] == len(threes)
    assert by_class["3"]["recall"]["value"] == pytest.approx(np.mean(threes))
    assert sum(item["images"] for item in figures["calibration"]) == 359


def test_names_of_images_and_classes_survive_csv() -> None:
    found = made_up(('a "b", c', "día|日", "x\ny"), right=0.9)
    rows = list(csv.DictReader(io.StringIO(to_csv(found).decode("utf-8"), newline="")))
    assert {row["true"] for row in rows} == set(found.classes)


def test_metrics_that_do_not_exist_are_null() -> None:
    classes = ("a", "b", "never seen")
    labels = np.zeros(4, dtype=np.int64)
    pixels = np.zeros((4, 8, 8), np.uint8)
    figures = json.loads(judged(np.float32([[2, 0, -9]] * 4), labels, classes, pixels, {}).to_json())
    assert figures["classes"][2] == {"name": "never seen", "images": 0, "recall": None, "precision": None, "f1": None}
    assert figures["top5"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_its_width(width: int) -> None:
    names = tuple(f"Staffordshire bull terrier with [bold]long[/bold] hair {number}" for number in range(30))
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(made_up(names, right=0.7).table(), highlight=False)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert "300 images of 30 classes; 1 unreadable left out." in lines
    assert any(line.startswith("top-5") for line in lines)
    assert any("taken for" in line for line in lines)


def test_table_without_mistakes() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(made_up(("a", "b"), right=1.0).table())
    text = console.export_text()
    assert "No mistake." in text and "100.0 %" in text and "top-5" not in text


def test_command_writes_beside_the_model_and_prints_pure_json(digits_run) -> None:
    outcome = CliRunner().invoke(APP, [str(digits_run), "--split", "val", "--json", "--batch", "50"])
    assert outcome.exit_code == 0, outcome.output
    folder = digits_run / "eval-val"
    assert json.loads(outcome.stdout) == json.loads((folder / "metrics.json").read_text())
    assert f"Wrote {folder}" in outcome.stderr
    with Image.open(folder / "mistakes.png") as sheet:
        sheet.load()


def test_command_prints_a_table(digits_run, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = CliRunner().invoke(APP, [str(digits_run), "--out", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.startswith("localvit_nano on the test images of digits\n359 images of 10 classes.\n")
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_report_folder_that_is_a_file(digits_run, tmp_path) -> None:
    (tmp_path / "out").write_text("")
    outcome = CliRunner().invoke(APP, [str(digits_run), "--out", str(tmp_path / "out")])
    assert str(outcome.exception) == f"--out {tmp_path / 'out'} is a file; give the name of a folder."
