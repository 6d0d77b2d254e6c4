"""eval, predict and compare work on runs that detect or segment."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearsight.data import open_data
from nearsight.evaluation import evaluate
from nearsight.prediction import predict
from nearsight.runs.run import Outcome
from nearsight.tasks.evaluator import TALL

from .conftest import SMALL, SOURCE

Made = tuple[str, Path, Outcome]
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three images, one of them damaged, one odd in size and mode."""
    folder = tmp_path / "photos"
    folder.mkdir()
    data = open_data(SOURCE)
    assert data.test is not None
    data.test.read(0).save(folder / "a.png")
    data.test.read(1).convert("L").resize((101, 67)).save(folder / "b.png")
    (folder / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    return folder


def test_an_evaluation_agrees_with_the_training(trained: Made) -> None:
    _, folder, outcome = trained
    found = evaluate(folder, device="cpu", batch=SMALL["batch"])  # kernels round otherwise in other batches
    assert found.split == "test"
    assert found.score == pytest.approx(outcome.test_score, abs=1e-6)
    scores = found.meter.scores()
    assert len(scores) == len(found.meter.indices) == 6
    assert ((scores >= 0) & (scores <= 1)).all()


def test_the_report_of_an_evaluation(trained: Made, tmp_path: Path, type_in: Typed) -> None:
    task, folder, outcome = trained
    words = ("eval", str(folder), "--out", str(tmp_path / "out"), "--json", "--device", "cpu")
    code, _, err = type_in(*words, "--batch", str(SMALL["batch"]))
    assert code == 0, err
    values = json.loads((tmp_path / "out" / "metrics.json").read_text())
    score = values["boxes"]["ap"] if task == "detect" else values["regions"]["miou"]
    assert score == pytest.approx(outcome.test_score, abs=1e-6)
    picture = Image.open(tmp_path / "out" / "cases.png")
    assert picture.height > 4 * TALL  # the four worst of six, with their titles
    assert picture.width > 2 * 3 * TALL * 3 / 4  # beside the two best: image, ground truth and prediction


def test_other_data_are_read_for_the_task_of_the_run(trained: Made) -> None:
    task, folder, _ = trained
    found = evaluate(folder, "shapes?images=8&size=48&seed=5", device="cpu")  # has objects and regions
    assert (found.task.name, found.own) == (task, False)
    assert len(found.meter.indices) > 0


def test_other_data_need_the_same_classes(trained: Made, tmp_path: Path, type_in: Typed) -> None:
    _, folder, _ = trained
    code, _, err = type_in("eval", str(folder), "digits")
    assert code == 1
    assert "Traceback" not in err and "nearsight: " in err


def test_a_prediction_is_drawn_and_written(trained: Made, photos: Path, tmp_path: Path, type_in: Typed) -> None:
    task, folder, _ = trained
    out = tmp_path / "found"
    code, _, err = type_in("predict", str(folder), str(photos), "--out", str(out), "--device", "cpu")
    assert code == 0, err
    assert "skipped" in err and "c.png" in err
    assert {"a.png", "b.png"} <= {entry.name for entry in out.iterdir()}
    if task == "segment":
        numbers = np.asarray(Image.open(out / "regions" / "b.png"))
        assert numbers.shape == (67, 101) and numbers.max() < 7
    else:
        known = {image["file_name"] for image in json.loads((out / "objects.json").read_text())["images"]}
        assert {Path(name).name for name in known} == {"a.png", "b.png"}


def test_what_is_found_lies_in_the_image(trained: Made, photos: Path) -> None:
    task, folder, _ = trained
    found = {Path(p.image).name: p for p in predict(folder, photos, device="cpu", min_score=0.0)}
    assert found["c.png"].problem is not None
    assert found["b.png"].size == (67, 101)
    if task == "segment":
        assert found["b.png"].labels.shape == (67, 101)
        return
    boxes = found["b.png"].boxes
    assert (boxes >= 0).all() and (boxes[:, 2] <= 101).all() and (boxes[:, 3] <= 67).all()


def test_tables_hold_what_json_holds(trained: Made, photos: Path, tmp_path: Path, type_in: Typed) -> None:
    task, folder, _ = trained
    table, lines = tmp_path / "x.csv", tmp_path / "x.jsonl"
    for option, file in (("--csv", table), ("--jsonl", lines)):
        code, _, err = type_in("predict", str(folder), str(photos), option, str(file), "--min-score", "0.01")
        assert code == 0 and f"Wrote {file}." in err
    assert not Path("found").exists()  # a table was asked for, and no pictures
    objects = [json.loads(line) for line in lines.read_text().splitlines()]
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert {row[0] for row in rows} <= {item["image"] for item in objects}
    if task == "segment":
        expected = sum(value > 0 for item in objects for value in item["shares"].values())
    else:
        expected = sum(len(item["objects"]) for item in objects)
    assert len(rows) == expected


@pytest.mark.drill  # test_contract.py compares every task in seconds
@pytest.mark.parametrize("task", ["detect", "segment"])
def test_a_comparison_of_two_backbones(task: str, tmp_path: Path, type_in: Typed) -> None:
    arguments = ["compare", SOURCE, "--task", task, "--models", "dwnet_nano,resnet18", "--epochs", "1", "--seeds", "1"]
    options = ["--set", "dense.min_size=48", "--set", "batch=4", "--set", "data.workers=0", "--quiet", "--jobs", "1"]
    if task == "detect":
        options += ["--set", "model.head=retinanet"]
    code, _, err = type_in(*arguments, *options, "--out", str(tmp_path))
    assert code == 0, err
    values = json.loads((tmp_path / "results.json").read_text())
    assert values["metric"] == {"detect": "box AP", "segment": "mIoU"}[task]
    assert [model["convnet"] for model in values["models"]] == [False, True]
    for model in values["models"]:
        assert model["score"]["mean"] == pytest.approx(np.mean([run["score"] for run in model["runs"]]))
        for run in model["runs"]:
            outcome = json.loads(
                (tmp_path / "runs" / f"{model['label']}-seed{run['seed']}" / "outcome.json").read_text()
            )
            assert run["score"] == pytest.approx(outcome["test_score"], abs=1e-6)
    assert values["metric"][1:] in (tmp_path / "report.html").read_text()
