"""Pictures are whole: no text leaves the page or runs into its neighbour."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib import rcParams
from PIL import Image

from nearsight.plots.style import to_png
from nearsight.tasks.classification_metrics import calibrate
from nearsight.tasks.classification_report import Mistake, draw_confusion, draw_mistakes, draw_reliability

LONG = "American Staffordshire terrier, or $pit_bull$"


def text_boxes(picture) -> list:
    """Where each visible text is drawn, in pixels."""
    picture.canvas.draw()
    texts = [text for text in picture.findobj(lambda artist: hasattr(artist, "get_text")) if text.get_text().strip()]
    return [(text, text.get_window_extent()) for text in texts if text.get_visible()]


def assert_inside(picture) -> None:
    width, height = picture.bbox.width, picture.bbox.height
    for text, box in text_boxes(picture):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, text.get_text()


@pytest.mark.parametrize("count", [2, 12, 40, pytest.param(200, marks=pytest.mark.slow)])
def test_confusion_of_few_and_many_classes(count: int) -> None:
    table = np.diag(np.arange(90, 90 + count))
    table[0, 1] = 12345
    picture = draw_confusion(table, [f"{LONG} {number}" for number in range(count)])
    assert_inside(picture)
    labels = [label for label in picture.axes[0].get_yticklabels() if label.get_text()]
    assert len(labels) == count
    boxes = [label.get_window_extent() for label in labels]
    gaps = [upper.y0 - lower.y1 for upper, lower in pairwise(boxes)]
    assert min(gaps) > -1  # pixels: names don't overlap
    numbers = {text.get_text() for text in picture.axes[0].texts}
    assert numbers == ({"12345", *map(str, range(90, 90 + count))} if count <= 15 else set())


@pytest.mark.parametrize("count", [0, 1, 13])
def test_mistakes_with_long_names(count: int) -> None:
    images = [Image.new("RGB", size) for size in ((8, 8), (32, 32), (500, 100), (30, 400))]
    mistakes = [Mistake(images[i % 4], f"{LONG} {i}", f"{LONG} {i + 1}", 0.97) for i in range(count)]
    picture = draw_mistakes(mistakes, 1000, count)
    assert_inside(picture)
    captions = [(text, box) for text, box in text_boxes(picture) if text.get_text().startswith(("true", "predicted"))]
    assert len(captions) == 2 * count
    for text, box in captions:
        assert box.x1 <= text.axes.get_window_extent().x1 + 18  # pixels between the images
    assert sum("97 % confident" in text.get_text() for text, _ in text_boxes(picture)) == count


def test_reliability_of_a_model_that_is_always_certain() -> None:
    assert_inside(draw_reliability(calibrate(np.ones(3), np.array([True, True, False]))))


def test_drawing_leaves_global_settings_alone() -> None:
    before = dict(rcParams)
    assert to_png(draw_confusion(np.eye(2, dtype=np.int64), ["a", "b"])).startswith(b"\x89PNG")
    assert dict(rcParams) == before
