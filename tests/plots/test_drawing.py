"""Pictures of answers: everything is inside, nothing hides a label, and files say what was answered."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearsight.data import open_data
from nearsight.data.formats import coco_detections, index_png
from nearsight.plots.overlays import (
    FIRST,
    Area,
    chip_size,
    class_colours,
    draw_detections,
    draw_segmentation,
    ink_on,
    put_label,
    side_by_side,
)


def contrast(first: tuple[int, int, int], second: tuple[int, int, int]) -> float:
    """The ratio by which the guidelines for web content judge whether text can be read."""

    def light(colour: tuple[int, int, int]) -> float:
        fractions = [value / 255 for value in colour]
        linear = [
            fraction / 12.92 if fraction <= 0.03928 else ((fraction + 0.055) / 1.055) ** 2.4 for fraction in fractions
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)


def test_every_class_has_a_colour_of_its_own_on_which_text_can_be_read() -> None:
    colours = class_colours(200)
    assert len(set(colours)) == 200
    assert colours[:7] == FIRST
    assert min(contrast(colour, ink_on(colour)) for colour in colours) > 4.5
    assert class_colours(3, background=True)[1:] == FIRST[:2]


def test_the_first_colours_differ_also_for_people_without_green_cones() -> None:
    # Deuteranopia, by the usual matrix on linear light.
    matrix = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    seen = (np.array(FIRST) / 255) ** 2.2 @ matrix.T
    seen = seen.clip(0) ** (1 / 2.2) * 255
    distances = np.linalg.norm(seen[:, None] - seen[None], axis=2)[np.triu_indices(len(FIRST), 1)]
    assert distances.min() > 35


@pytest.mark.parametrize("size", [(64, 48), (7, 300), (640, 480), (4000, 3000)])
def test_images_of_any_size_become_legible_ones(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (90, 90, 90))
    picture = draw_detections(image, [[0, 0, size[0], size[1]]], [0], ["cat"], [0.5])
    assert 560 <= max(picture.size) <= 1600
    assert picture.width / picture.height == pytest.approx(size[0] / size[1], rel=0.1)
    assert FIRST[0] in {colour for _, colour in picture.getcolors(1 << 24)}


def test_labels_neither_collide_nor_leave_the_image() -> None:
    random = np.random.default_rng(0)
    placed: list[Area] = []
    for _ in range(60):
        left, top = random.uniform(-20, 600, 2)
        box = (left, top, left + random.uniform(2, 200), top + random.uniform(2, 200))
        spot = put_label(box, chip_size("black-and-white cat 100 %", 12), (640, 480), placed)
        if spot is not None:
            assert 0 <= spot.left < spot.right <= 640
            assert 0 <= spot.top < spot.bottom <= 480
            assert not any(spot.meets(other) for other in placed)
            placed.append(spot)
    assert len(placed) > 20


def test_where_labels_find_no_room_a_legend_tells_the_classes() -> None:
    image = Image.new("RGB", (640, 480))
    boxes = [[100, 100, 140, 140]] * 200
    picture = draw_detections(image, boxes, [n % 3 for n in range(200)], ["a", "b", "c"], np.linspace(0, 1, 200))
    assert picture.height > 480
    few = draw_detections(image, boxes[:2], [0, 1], ["a", "b", "c"])
    assert few.size == (640, 480)


def test_masks_colour_their_pixels_and_no_others() -> None:
    image = Image.new("RGB", (600, 600))
    mask = np.zeros((1, 600, 600), dtype=bool)
    mask[0, 200:400, 200:400] = True
    picture = np.asarray(draw_detections(image, [[200, 200, 400, 400]], [1], ["a", "b"], masks=mask)).astype(int)
    expected = np.array(FIRST[1]) * 0.42
    assert np.abs(picture[300, 300] - expected).max() <= 1
    assert (picture[500:, 500:] == 0).all()


def test_nothing_to_draw() -> None:
    image = Image.new("L", (600, 400), 77)
    assert draw_detections(image, [], [], ["a"]).size == (600, 400)
    assert (np.asarray(draw_detections(image, np.zeros((0, 4)), [], ["a"], [], np.zeros((0, 400, 600)))) == 77).all()


def test_regions_and_their_legend() -> None:
    image = Image.new("RGB", (600, 400))
    classes = np.zeros((400, 600), dtype=np.uint8)
    classes[:, 300:] = 2
    classes[:100] = 255
    picture = draw_segmentation(image, classes, ["sky", "road", "car"])
    assert picture.width == 600
    assert picture.height > 400
    pixels = np.asarray(picture).astype(int)
    assert np.abs(pixels[300, 100] - np.array(FIRST[0]) * 0.6).max() <= 1
    assert np.abs(pixels[300, 500] - np.array(FIRST[2]) * 0.6).max() <= 1
    assert draw_segmentation(image, classes, ["sky", "road", "car"], legend=False).size == (600, 400)


def test_images_side_by_side_have_one_height() -> None:
    page = side_by_side(
        [("truth", Image.new("RGB", (300, 600))), ("a very long title " * 9, Image.new("RGB", (900, 300)))]
    )
    assert page.height < 700
    assert page.width > 300 + 1200
    with pytest.raises(ValueError, match="no images"):
        side_by_side([])


def test_a_written_file_of_objects_opens_as_data(tmp_path: Path) -> None:
    data = open_data("shapes?images=4")
    truths = [data.train.annotation(index).ground_truth() for index in range(4)]
    answers = [
        (f"{n}.png", data.train.size(n), {**truth, "scores": np.full(len(truth["labels"]), 0.5)})
        for n, truth in enumerate(truths)
    ]
    for n in range(4):
        data.train.read(n).save(tmp_path / f"{n}.png")
    (tmp_path / "found.json").write_text(json.dumps(coco_detections(answers, data.classes)))
    again = open_data(tmp_path)
    assert again.classes == data.classes
    for n, truth in enumerate(truths):
        target = again.train.target(n)
        assert target["boxes"].tolist() == truth["boxes"].tolist()
        assert target["labels"].tolist() == truth["labels"].tolist()
        assert (target["masks"].numpy() == data.train.annotation(n).dense()).all()


def test_a_written_map_keeps_its_numbers_and_shows_colours() -> None:
    numbers = np.array([[0, 1, 2], [2, 1, 255]])
    picture = Image.open(io.BytesIO(index_png(numbers, ["background", "cat", "dog"])))
    assert (np.asarray(picture) == numbers).all()
    assert picture.mode == "P"
    assert picture.convert("RGB").getpixel((1, 0)) == FIRST[0]
