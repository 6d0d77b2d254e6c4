"""What a recipe for objects or regions leaves open follows the data."""

from pathlib import Path

import pytest

from nearsight.config.files import load_recipe
from nearsight.data import open_data
from nearsight.data.samples import Split
from nearsight.data.sizes import measure_sizes
from nearsight.tasks import get_task
from nearsight.tasks.dense import choose_anchors, choose_boxes
from nearsight.training.session import prepare

from .conftest import SOURCE, write_coco


def test_the_choices_follow_the_objects() -> None:
    prepared = prepare(SOURCE, load_recipe("small-detect"))
    model, dense = prepared.recipe.model, prepared.recipe.dense
    assert (model.head, model.name) == ("mask-rcnn", "lit_nano")  # shapes have masks
    sizes = measure_sizes(prepared.train)
    assert dense.min_size <= max(32, sizes.side)  # never larger than the images are
    finest, scale, levels = (model.head_options[key] for key in ("finest", "anchor_scale", "levels"))
    assert finest * scale * 2 ** (levels - 1) >= 0.5 * sizes.large * dense.min_size


@pytest.mark.parametrize(("small", "large"), [(16, 50), (8, 300), (40, 60)])
def test_anchors_span_small_to_large(small: float, large: float) -> None:
    found = choose_anchors("mask-rcnn", 4, 512, small, large)
    sides = [found["anchor_scale"] * 4 * 2**level for level in range(found["levels"])]
    assert sides[0] <= 1.5 * small
    assert sides[-1] >= large / 1.5


def test_a_wish_is_not_overruled() -> None:
    given = load_recipe(
        "small-detect", {"dense.min_size": 80, "model.head": "retinanet", "model.head_options.levels": 2}
    )
    filled = get_task("detect").complete(given, open_data(SOURCE))
    assert (filled.dense.min_size, filled.model.head, filled.model.head_options["levels"]) == (80, "retinanet", 2)


@pytest.fixture
def cells(tmp_path: Path) -> Split:
    """Eight images with 18 objects of 80 pixels each; in one are two of 40 pixels as well, of another class."""
    many: list[tuple[int, ...]] = [(30 * index, 200, 80, 80) for index in range(18)]
    rare: list[tuple[int, ...]] = [(10, 10, 40, 40, 9), (100, 10, 40, 40, 9)]
    train = open_data(write_coco(tmp_path / "cells", [*[many] * 7, [*many, *rare]], size=(480, 640))).train
    assert train is not None
    return train


def test_a_rare_class_of_small_objects_has_anchors_too(cells: Split) -> None:
    sizes = measure_sizes(cells)
    assert sizes.small == pytest.approx(80 / 480)  # nine of ten objects
    assert sizes.range == pytest.approx((40 / 480, 80 / 480))
    boxes = choose_boxes("retinanet", 4, 256, sizes)
    assert boxes["finest"] * boxes["anchor_scale"] <= 1.5 * 256 * 40 / 480


def test_four_boxes_are_judged_for_each_object_of_a_full_image(cells: Split) -> None:
    assert choose_boxes("mask-rcnn", 4, 256, measure_sizes(cells))["rois"] == 4 * 18


def test_regions_are_shown_as_they_are_where_images_are_small() -> None:
    filled = prepare("shapes?images=24&size=128", load_recipe("small-segment")).recipe
    assert (filled.dense.min_size, filled.dense.max_size) == (128, 128)  # 128 × 128, 96 × 128 or 128 × 96


def test_the_largest_side_that_is_allowed_can_be_asked_for() -> None:
    filled = prepare("shapes?images=24&size=48", load_recipe("small-segment", {"dense.min_size": 4096})).recipe
    assert (filled.dense.max_size, filled.dense.crop) == (4096, 4096)
