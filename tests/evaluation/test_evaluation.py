"""Which images are evaluated: those of the recorded split, or others with the same class names."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from nearsight.console import percent
from nearsight.data import open_data
from nearsight.data.split import complete_splits
from nearsight.evaluation import evaluate
from nearsight.interval import wilson

DIGITS = open_data("digits").test


def names(evaluation) -> list[str]:
    return [evaluation.images.name(index) for index in range(len(evaluation.images))]


def write_digits(folder: Path, classes: dict[str, int], each: int = 2) -> Path:
    """Class folders with some digits in them."""
    for name, digit in classes.items():
        (folder / name).mkdir(parents=True)
        for index in np.flatnonzero(digit == DIGITS.labels)[:each]:
            DIGITS.read(int(index)).save(folder / name / f"{index}.png")
    return folder


def test_test_images_are_taken_first(digits_run) -> None:
    found = evaluate(digits_run)
    assert (found.split, found.own, found.metrics.images) == ("test", True, 359)
    assert found.default_folder == digits_run / "eval-test"


@pytest.mark.parametrize("source", [None, "digits"])
def test_validation_images_are_those_of_the_training(digits_run, source) -> None:
    expected = complete_splits(open_data("digits"), seed=3).val
    found = evaluate(digits_run, source, split="val")
    assert names(found) == [expected.name(index) for index in range(len(expected))]


def test_weight_file_instead_of_folder(digits_run) -> None:
    assert evaluate(digits_run / "model.safetensors", split="val").metrics.images == 143


def test_classes_of_other_data_are_found_by_name(digits_run, tmp_path) -> None:
    folder = write_digits(tmp_path / "three", {"7": 7, "2": 2, "5": 5})
    found = evaluate(digits_run, folder)
    assert (found.split, found.own) == ("all", False)
    assert found.metrics.support.tolist() == [0, 0, 2, 0, 0, 2, 0, 2, 0, 0]
    assert [Path(name).parent.name for name in names(found)] == [str(one.label) for one in found.meter.ranked()]
    assert found.default_folder == digits_run / "eval-three-all"


def test_one_class_alone_can_be_evaluated(digits_run, tmp_path) -> None:
    assert evaluate(digits_run, write_digits(tmp_path / "nines", {"9": 9})).metrics.support[9] == 2


def test_test_images_of_other_data_are_preferred(digits_run, tmp_path) -> None:
    for split, each in (("train", 3), ("val", 2), ("test", 1)):
        write_digits(tmp_path / split, {"0": 0, "1": 1}, each)
    assert evaluate(digits_run, tmp_path).metrics.images == 2
    assert evaluate(digits_run, tmp_path, split="train").metrics.images == 6


def test_unknown_classes_are_refused(digits_run, tmp_path) -> None:
    folder = write_digits(tmp_path, {"0": 0, "one": 1, "two": 2})
    with pytest.raises(ValueError) as caught:
        evaluate(digits_run, folder)
    assert str(caught.value) == (
        f"{folder} has 2 classes that the model does not know: one, two; it knows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9. "
        "Rename or remove them."
    )


def test_split_that_is_not_there(digits_run, tmp_path) -> None:
    folder = write_digits(tmp_path, {"0": 0, "1": 1})
    with pytest.raises(ValueError, match=r"has no test split; it has: train\."):
        evaluate(digits_run, folder, split="test")
    with pytest.raises(ValueError, match=r"There is no split 'testing'; splits are test, val, train\."):
        evaluate(digits_run, split="testing")


def test_model_without_a_record_of_its_data(digits_run, tmp_path) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(digits_run / name, tmp_path)
    with pytest.raises(ValueError, match=r"has no record of its data \(data\.json\); name the data: `nearsight eval"):
        evaluate(tmp_path)
    assert evaluate(tmp_path, "digits", split="test").metrics.images == 359


def test_changed_data_are_refused(digits_run, tmp_path) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(digits_run / name, tmp_path)
    record = json.loads((digits_run / "data.json").read_text())
    record["splits"]["test"]["count"], record["splits"]["test"]["fingerprint"] = 300, "other"
    (tmp_path / "data.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"The test split of digits has .*359 instead of 300"):
        evaluate(tmp_path)


def test_unfinished_run_is_refused(tmp_path) -> None:
    for name in ("recipe.yaml", "data.json"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"has no finished model; finish it with `nearsight train --resume"):
        evaluate(tmp_path)


def test_other_labels_are_judged_beside_the_own(digits_run, tmp_path) -> None:
    """By hand: half of the images allow what was predicted, beside the ground truth; a tenth has no labels."""
    plain = evaluate(digits_run)
    listed = names(plain)
    given = {
        name: [] if index % 10 == 9 else [one.label, *([one.predicted] if index % 2 else [])]
        for index, (name, one) in enumerate(zip(listed, plain.meter.ranked(), strict=True))
    }
    (tmp_path / "labels.json").write_text(json.dumps(given))
    found = evaluate(digits_run, labels=tmp_path / "labels.json")
    counted = [index for index in range(len(listed)) if index % 10 != 9]
    right = sum(bool(index % 2) or bool(plain.meter.scores()[index]) for index in counted)
    other = found.other_labels
    assert (other.images, other.left_out) == (len(counted), len(listed) - len(counted))
    assert other.accuracy == wilson(right, len(counted))
    assert found.metrics.top1 == plain.metrics.top1
    assert found.to_dict()["other_labels"]["images"] == len(counted)
    console = Console(width=100, file=io.StringIO())
    console.print(found.table())
    assert f"by labels.json: {percent(other.accuracy.value)} of {len(counted)} images right" in console.file.getvalue()
