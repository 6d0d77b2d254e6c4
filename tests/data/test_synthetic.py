"""The drawn shapes: always the same, and what is said of them is true."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nearsight.cli.shell import app
from nearsight.data import open_data
from nearsight.data.sources.synthetic import CLASSES, draw_image, make_shapes
from nearsight.data.split import complete_splits, describe_splits, limit_train, restore_splits


def test_the_set_that_is_always_there() -> None:
    data = open_data("shapes")
    assert (data.task, data.masks, data.classes, data.kind) == ("detect", True, CLASSES, "shapes")
    assert {name: len(split) for name, split in data.splits().items()} == {"train": 1200, "val": 150, "test": 300}
    regions = open_data("shapes", task="segment")
    assert (regions.task, regions.classes) == ("segment", ("background", *CLASSES))
    assert open_data("shapes?background=off", task="segment").classes == CLASSES
    small = open_data("shapes?images=8&size=48&seed=3")
    assert (len(small.train), len(small.val), max(small.train.read(0).size)) == (8, 1, 48)


def test_images_follow_from_seed_and_number_alone() -> None:
    first, again = draw_image(5, 17, 96), draw_image(5, 17, 96)
    assert first.pixels.tobytes() == again.pixels.tobytes()
    assert first.rles == again.rles
    assert draw_image(6, 17, 96).pixels.tobytes() != first.pixels.tobytes()
    data = open_data("shapes?images=8")
    assert {data.train.read(n).tobytes() for n in range(8)}.isdisjoint(data.val.read(n).tobytes() for n in range(2))
    copy = pickle.loads(pickle.dumps(data.train))
    assert copy.read(2).tobytes() == data.train.read(2).tobytes()
    assert len(pickle.dumps(data.train)) < 2000


def test_boxes_and_regions_are_those_of_the_masks() -> None:
    objects, regions = open_data("shapes?images=24").train, open_data("shapes?images=24", task="segment").train
    seen: set[int] = set()
    for index in range(24):
        target, classes = objects.target(index), regions.target(index)
        assert target["masks"].sum(0).max() <= 1  # what is hidden belongs to the shape in front
        painted = torch.zeros_like(classes)
        for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
            rows, columns = torch.nonzero(mask, as_tuple=True)
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            painted[mask] = label + 1
            seen.add(int(label))
        assert torch.equal(painted, classes)
        assert tuple(classes.shape) == objects.read(index).size[::-1]
    assert seen == set(range(len(CLASSES)))


def test_splits_are_made_kept_and_limited_as_for_labelled_images() -> None:
    data = open_data("shapes?images=40").with_splits(val=None, test=None)
    whole = complete_splits(data, val_fraction=0.2, need_test=True)
    assert len(whole.train) + len(whole.val) + len(whole.test) == 40
    assert (whole.task, whole.masks, whole.val.task, whole.val.masks) == ("detect", True, "detect", True)
    assert set(whole.val.target(0)) == {"boxes", "labels", "crowd", "area", "masks"}
    record = json.loads(json.dumps(describe_splits(whole)))
    assert record["task"] == "detect"
    again = restore_splits(data, record)
    assert [again.val.name(n) for n in range(len(again.val))] == [whole.val.name(n) for n in range(len(whole.val))]
    few = limit_train(whole, 10, seed=0)
    assert len(few.train) == 10
    assert len(np.unique(few.train.labels)) == len(np.unique(whole.train.labels))


def test_written_files_open_for_both_tasks_and_say_the_same(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(
        app, ["data", "make", "shapes", str(tmp_path / "out"), "--images", "8", "--size", "64"]
    )
    assert outcome.exit_code == 0
    assert "train 8, val 1, test 2 images" in outcome.output
    made, read = open_data("shapes?images=8&size=64"), open_data(tmp_path / "out")
    assert (read.kind, read.task, read.masks, read.classes) == ("coco", "detect", True, CLASSES)
    for index in range(8):
        assert made.train.read(index).tobytes() == read.train.read(index).tobytes()
        first, second = made.train.target(index), read.train.target(index)
        assert all(torch.equal(first[key], second[key]) for key in first)
    regions = open_data(tmp_path / "out", task="segment")
    assert (regions.kind, regions.classes) == ("masks", ("background", *CLASSES))
    made = open_data("shapes?images=8&size=64", task="segment")
    assert all(torch.equal(made.test.target(n), regions.test.target(n)) for n in range(2))


def test_what_is_refused(tmp_path: Path) -> None:
    for options, message in (
        ("images=2", "come in 4 to 1,000,000 images"),
        ("size=9999", "32 to 4096 pixels"),
        ("seed=x", "is not a whole number"),
        ("ignore=3", "ignore=3 means nothing to shapes"),
    ):
        with pytest.raises(ValueError, match=message):
            open_data(f"shapes?{options}")
    with pytest.raises(ValueError, match="no label for each image"):
        open_data("shapes", task="classify")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="is not an empty folder"):
        make_shapes(tmp_path, images=4)
