"""Predictions for files: in order, streamed, with unreadable images named and passed over."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from nearsight.atomic import writing
from nearsight.cli.evaluate import predict as command
from nearsight.config.recipe import ModelChoice
from nearsight.prediction import predict
from nearsight.runs.predictor import load_trained, save_trained
from nearsight.tasks.build import build

APP = typer.Typer()
APP.command()(command)
CLASSES = ("cat", "cow", "dog", "a class with, a comma")


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    save_trained(build(ModelChoice(name="localvit_nano"), classes=4), "classify", CLASSES, folder / "model.safetensors")
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Ten images at two depths, two of them broken, and what is to be passed over."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "pictures"
    (folder / "deep" / "er").mkdir(parents=True)
    for number in range(10):
        target = folder if number < 6 else folder / "deep" / "er"
        pixels = generator.integers(0, 255, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(target / f"{number}.png")
    (folder / "2.png").write_bytes(b"")
    (folder / "4.png").write_bytes((folder / "5.png").read_bytes()[:200])
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"junk")
    return folder


def test_predictions_are_the_likeliest_classes_of_the_model(small_run, pictures) -> None:
    trained = load_trained(small_run)
    (found,) = predict(trained, pictures / "3.png", top=4)
    shown = trained.preprocessing.prepare(Image.open(pictures / "3.png")).float()[None] / 255
    with torch.no_grad():
        expected = trained.model(trained.preprocessing.normalise(shown)).softmax(1)[0]
    names, probabilities = zip(*found.top(4), strict=True)
    assert list(names) == [CLASSES[k] for k in expected.argsort(descending=True)]
    assert list(probabilities) == pytest.approx(expected.sort(descending=True)[0].tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_order_is_that_of_the_files_and_bad_ones_keep_their_place(small_run, pictures, workers) -> None:
    found = list(predict(small_run, pictures, top=9, batch=3, workers=workers))
    assert [Path(item.image).stem for item in found] == list("0123456789")
    problems = {Path(item.image).stem: item.problem for item in found if item.problem}
    assert problems == {"2": "the file is empty", "4": "the file is cut off"}
    assert {len(item.to_dict()["answers"]) for item in found if not item.problem} == {4}  # there are no more classes


def test_a_batch_of_bad_images_only(small_run, pictures) -> None:
    found = list(predict(small_run, [pictures / "2.png", pictures / "4.png", pictures / "5.png"], batch=2))
    assert [bool(item.problem) for item in found] == [True, True, False]


def test_an_image_that_is_named_twice_is_shown_once(small_run, pictures) -> None:
    found = list(predict(small_run, [pictures / "deep", pictures / "deep" / "er" / "7.png"]))
    assert [Path(item.image).name for item in found] == ["6.png", "7.png", "8.png", "9.png"]


def test_predictions_come_as_they_are_made(small_run, pictures) -> None:
    seen = []

    def watched(batches):
        for batch in batches:
            seen.append(len(batch.indices))
            yield batch

    found = predict(small_run, pictures, batch=2, workers=0, progress=watched)
    next(found)
    assert seen == [2]


def refuse(*arguments: object) -> str:
    outcome = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert isinstance(outcome.exception, (ValueError, OSError)), outcome.output
    assert outcome.exit_code == 1
    assert outcome.stdout == ""
    return str(outcome.exception)


def test_refusals(small_run, pictures, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    assert refuse(small_run, pictures, "gone.png", "lost") == (
        "There is no file or folder gone.png (and 1 more are missing); give image files or folders."
    )
    assert (
        refuse(small_run, tmp_path / "empty") == f"The folder {tmp_path / 'empty'} has no images in it, at any depth."
    )
    assert "is no image by its name; give image files" in refuse(small_run, pictures / "notes.txt")
    assert "has no finished model" in refuse(tmp_path / "empty", pictures)
    assert "--csv and --json were given; choose one." in refuse(small_run, pictures, "--csv", "a", "--json")
    assert "is a folder; give the name of a file to write." in refuse(small_run, pictures, "--jsonl", tmp_path)
    assert "There is no device" in refuse(small_run, pictures, "--device", "xpu")


def test_no_readable_image_leaves_with_code_1_and_no_file(small_run, pictures, tmp_path) -> None:
    target = tmp_path / "out.csv"
    target.write_text(earlier := "image,class_1,probability_1\na.png,cat,0.900000\n")
    sentence = refuse(small_run, pictures / "2.png", pictures / "4.png", "--csv", target)
    assert sentence == "No image can be read: 2 of 2 are unreadable."
    assert target.read_text() == earlier
    assert list(tmp_path.glob(".*.part")) == []


def test_wrong_numbers_in_python(small_run, pictures) -> None:
    with pytest.raises(ValueError, match=r"0 predictions were asked for; ask for at least 1\."):
        predict(small_run, pictures, top=0)
    with pytest.raises(ValueError, match=r"A batch of 0 images was asked for"):
        predict(small_run, pictures, batch=0)
    with pytest.raises(ValueError, match=r"No image was named"):
        predict(small_run, [])


def test_csv_and_json_lines_hold_the_same(small_run, pictures, tmp_path) -> None:
    table, lines = tmp_path / "new" / "out.csv", tmp_path / "out.jsonl"
    for option, target in (("--csv", table), ("--jsonl", lines)):
        outcome = CliRunner().invoke(APP, [str(small_run), str(pictures), option, str(target), "--top", "2"])
        assert outcome.exit_code == 0, outcome.output
        assert outcome.stdout == ""
        assert f"skipped {pictures}/2.png: the file is empty" in outcome.stderr
        assert outcome.stderr.endswith(f"8 images predicted, 2 unreadable skipped. Wrote {target}.\n")
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    objects = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(rows) == len(objects) == 8
    for row, item in zip(rows, objects, strict=True):
        assert row["image"] == item["image"]
        assert [row["class_1"], row["class_2"]] == [answer["class"] for answer in item["answers"]]
        assert float(row["probability_1"]) == item["answers"][0]["probability"]


def test_json_is_one_array(small_run, pictures) -> None:
    outcome = CliRunner().invoke(APP, [str(small_run), str(pictures), "--json", "--top", "1"])
    assert [Path(item["image"]).stem for item in json.loads(outcome.stdout)] == list("01356789")


def test_screen(small_run, pictures) -> None:
    image = str(pictures / "0.png")
    block = CliRunner().invoke(APP, [str(small_run), image, "--top", "3"]).stdout.splitlines()
    assert block[0] == image and len(block) == 4
    assert all(" %" in line and line.startswith("  ") and len(line) <= 80 for line in block[1:])
    (line,) = CliRunner().invoke(APP, [str(small_run), image, "--top", "1"]).stdout.splitlines()
    assert line.startswith(f"{image}: ") and line.endswith(" %")


def test_file_appears_only_when_it_is_whole(tmp_path) -> None:
    target = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt), writing(target) as stream:
        stream.write(b"half")
        stream.flush()
        assert [part.read_text() for part in tmp_path.glob(".out.csv.*.part")] == ["half"] and not target.exists()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.posix
def test_nothing_of_the_users_is_written_over(small_run, pictures, tmp_path) -> None:
    image, mine = pictures / "0.png", tmp_path / "mine.csv"
    kept = image.read_bytes()
    assert "is read here as well and would be lost" in refuse(small_run, pictures, "--csv", image, "--force")
    mine.write_text("name,age\n")
    assert "was not written by this command" in refuse(small_run, pictures, "--csv", mine)
    assert mine.read_text() == "name,age\n" and image.read_bytes() == kept
    for option in ((), ("--force",)):
        table = mine if option else tmp_path / "ours.csv"
        for _ in range(2):  # its own table of before is replaced
            outcome = CliRunner().invoke(APP, [str(small_run), str(image), "--csv", str(table), *option])
            assert outcome.exit_code == 0, outcome.output
        assert table.read_text().startswith("image,class_1,probability_1")
    assert CliRunner().invoke(APP, [str(small_run), str(image), "--csv", "/dev/null"]).exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_a_classifier_draws_where_it_is_asked_to(small_run, pictures, tmp_path) -> None:
    outcome = CliRunner().invoke(APP, [str(small_run), str(pictures / "deep"), "--out", str(tmp_path / "drawn")])
    assert outcome.exit_code == 0 and f"Wrote {tmp_path / 'drawn'}: images." in outcome.stderr
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["6.png", "7.png", "8.png", "9.png"]
    assert Image.open(tmp_path / "drawn" / "6.png").width >= 560
