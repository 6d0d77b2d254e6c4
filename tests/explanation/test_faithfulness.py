"""Scores of maps: what must score best scores best, and intervals hold what they should."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest
from torch import Tensor, nn

from nearsight.data import open_data
from nearsight.data.transforms import Preprocessing
from nearsight.explanation import faithfulness as scoring
from nearsight.explanation.faithfulness import (
    area,
    centre_map,
    class_masks,
    curves,
    fraction_interval,
    highest,
    interval,
    mask_in_view,
    order,
    score,
    to_markdown,
)
from nearsight.explanation.maps import view_of
from nearsight.explanation.targets import class_confidence, predicted_targets
from nearsight.runs.predictor import Predictor, load_module


class Corner(nn.Module):
    """Sure of class 1 as far as the upper left quarter of the image is bright."""

    num_classes = 2

    def forward(self, images: Tensor) -> Tensor:
        bright = images[:, :, :8, :8].mean(dim=(1, 2, 3))
        return torch.stack((-4 * bright, 4 * bright), dim=1)


PLAIN = Preprocessing((16, 16), mean=(0, 0, 0), std=(1, 1, 1))
CORNER = Predictor(Corner(), "corner", "classify", ("no", "yes"), PLAIN, None)


def test_a_map_of_what_counts_deletes_faster_and_inserts_sooner() -> None:
    view = view_of(Image.new("RGB", (16, 16), "white"), PLAIN)
    true = np.zeros((16, 16), dtype=np.float32)
    true[:8, :8] = 1
    random = np.random.default_rng(0)
    fall, rise = curves(CORNER, view, 1, None, true, 4, random)
    other_fall, other_rise = curves(CORNER, view, 1, None, -true, 4, random)
    blind_fall, _ = curves(CORNER, view, 1, None, np.zeros_like(true), 4, random)
    np.testing.assert_allclose(fall[[0, 1]], [1 / (1 + np.exp(-8)), 0.5], atol=1e-6)
    assert area([fall])[0] < area([blind_fall])[0] < area([other_fall])[0]
    assert fall[0] == other_fall[0] and fall[-1] == pytest.approx(0.5) and rise[-1] == pytest.approx(fall[0])
    assert area([rise])[0] >= area([other_rise])[0]


def test_every_step_takes_as_many_pixels_the_highest_first() -> None:
    values = np.arange(30, dtype=np.float32).reshape(5, 6)
    values[0, 0] = np.nan
    step = order(values, 6, np.random.default_rng(0))
    assert np.bincount(step.ravel()).tolist() == [5] * 6
    assert (np.diff(step.ravel()[1:]) <= 0).all() and step[0, 0] == 5


@pytest.mark.parametrize("hit", [0, 1])
def test_few_images_that_all_agree_are_no_certainty(hit: int) -> None:
    found = fraction_interval(np.full(14, float(hit)), np.repeat(np.arange(7), 2).tolist(), seed=0)
    exact = binomtest(7 * hit, 7).proportion_ci(0.95, "exact")
    assert (found.low, found.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
    mixed = np.tile([0.0, 1.0], 7)
    assert fraction_interval(mixed, range(14), seed=0) == interval(mixed, range(14), seed=0)


def test_intervals_are_wider_when_maps_share_an_image() -> None:
    values = np.tile([0.0, 1.0], 50)
    apart = interval(values, range(100), seed=0)
    together = interval(np.repeat([0.0, 1.0], 50), np.repeat(np.arange(10), 10), seed=0)
    assert apart.value == together.value == 0.5
    assert apart.high - apart.low == pytest.approx(2 * 1.96 * 0.05, rel=0.1)  # standard error of 100 coins
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_highest_pixel_and_the_middle() -> None:
    assert highest(centre_map((5, 9)), np.random.default_rng(0)) == (2, 4)
    drawn = {highest(np.zeros((2, 2), dtype=np.float32), np.random.default_rng(seed)) for seed in range(40)}
    assert drawn == {(0, 0), (0, 1), (1, 0), (1, 1)}, "ties are drawn"


def test_pixels_follow_the_view() -> None:
    image = Image.new("RGB", (40, 20))
    boxes = torch.tensor([[10.0, 0.0, 20.0, 10.0], [0.0, 0.0, 5.0, 5.0]])
    positions = class_masks({"boxes": boxes, "labels": torch.tensor([3, 1])}, image)
    view = view_of(image, Preprocessing((16, 16)))  # the middle 20 x 20
    expected = np.zeros((16, 16), dtype=bool)
    expected[:8, :8] = True
    np.testing.assert_array_equal(mask_in_view(positions[3], view), expected)
    assert not mask_in_view(positions[1], view).any()


def test_predicted_classes_of_segmenters_and_detectors() -> None:
    logits = torch.zeros(1, 3, 4, 6)
    logits[0, 2, :, :2] = 5
    segmenter = Predictor(nn.Identity(), "", "segment", ("a", "b", "c"), PLAIN, None)
    found = predicted_targets(segmenter, logits, (4, 6))
    assert found.numbers == (0, 2) and found.masks.sum(dim=(1, 2)).tolist() == [16, 8]
    assert predicted_targets(segmenter, logits, (4, 6), only=[2]).numbers == (2,)
    objects = {
        "boxes": torch.tensor([[0.0, 0.0, 2.0, 2.0], [3.0, 1.0, 6.0, 4.0], [0.0, 0.0, 6.0, 4.0]]),
        "labels": torch.tensor([4, 1, 0]),
        "scores": torch.tensor([0.9, 0.5, 0.1]),
    }
    detector = replace(segmenter, task="detect")
    found = predicted_targets(detector, [objects], (4, 6))
    assert found.numbers == (1, 4) and found.masks.sum(dim=(1, 2)).tolist() == [9, 4] and len(found.boxes) == 2
    assert predicted_targets(detector, [{key: value[:0] for key, value in objects.items()}], (4, 6)).numbers == ()


def test_several_labels_have_probabilities_and_thresholds_of_their_own() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    both = Predictor(nn.Identity(), "", "multilabel", ("a", "b", "c"), PLAIN, None, settings={"thresholds": [0.6] * 3})
    found = predicted_targets(both, logits, (4, 6))
    assert found.numbers == (1, 2) and found.confidences == pytest.approx((1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1))))
    assert found.masks is None
    np.testing.assert_allclose(class_confidence(both, logits, 0, None), [0.5])
    one = replace(both, task="classify")
    assert predicted_targets(one, logits, (4, 6)).numbers == (1,)
    assert sum(class_confidence(one, logits, number, None)[0] for number in range(3)) == pytest.approx(1)


def test_a_perfect_map_points_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segmenter that gives the truth: its own prediction hits always, blind maps as often as things are large."""

    class Oracle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = load_module("deit_nano").model

        def forward(self, images: Tensor) -> Tensor:
            self.inside(images)
            return logits

    data = scoring.open_annotated(
        "shapes?size=32&images=60",
        Predictor(nn.Identity(), "", "segment", ("disc", "square", "triangle", "star", "ring", "cross"), PLAIN, None),
    )
    assert set(data.numbers) and data.split_name in ("test", "val")
    logits = torch.zeros(1, 6, 16, 16)
    logits[:, 1, :, 8:] = 9
    position = np.zeros((16, 16), dtype=bool)
    position[:, 8:] = True
    known = scoring.AnnotatedImage("one", view_of(Image.new("RGB", (16, 16)), PLAIN), {1: position})
    predictor = Predictor(Oracle().eval(), "oracle", "segment", ("a", "b", "c", "d", "e", "f"), PLAIN, None)
    cases = scoring.cases_of(predictor, known, ["prediction", "dense-rollout"], np.random.default_rng(0))
    assert [case.number for case in cases] == [1] and set(cases[0].maps) == {
        "prediction",
        "dense-rollout",
        "random",
        "centre",
    }
    assert position[highest(cases[0].maps["prediction"], np.random.default_rng(0))]


def test_what_can_not_be_scored_is_refused(tmp_path: Path) -> None:
    predictor = load_module("deit_nano")
    with pytest.raises(ValueError, match="knows none of the classes"):
        score(predictor, "shapes?size=32&images=10")
    with pytest.raises(ValueError, match=r"No method 'rolout' is known; did you mean rollout\?"):
        score(predictor, "shapes?size=32&images=10", method="rolout")
    knowing = replace(predictor, classes=tuple(open_data("shapes?size=32&images=10").classes))
    with pytest.raises(
        ValueError, match="predicts classes of images, and dense-rollout does not fit; use grad-rollout"
    ):
        score(knowing, "shapes?size=32&images=10", method="dense-rollout")


def test_images_without_boxes_are_scored_by_their_curves_alone(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), "teal").save(tmp_path / "a.png")
    for data, images in (("digits", 3), (str(tmp_path), 1)):
        found = score("deit_nano", data, method="rollout", limit=3, steps=2)
        assert found.images == found.cases == images and found.covered is None
        row = found["rollout"]
        assert row.pointing is None and row.gap.value == pytest.approx(row.insertion.value - row.deletion.value)
        assert to_markdown(found).startswith("| method | deletion ↓ | insertion ↑ | difference ↑ |")


def test_scores_of_a_classifier_are_complete(tmp_path: Path) -> None:
    model = load_module("localvit_nano")
    shapes = ("disc", "square", "triangle", "star", "ring", "cross")
    torch.manual_seed(0)
    model.model.reset_classifier(6)
    predictor = Predictor(model.model, "untrained", "classify", shapes, model.preprocessing, None, "random")
    found = score(predictor, "shapes?size=32&images=40", limit=8, steps=4)
    names = ["grad-rollout", "rollout", "attention", "grad-cam", "random", "centre"]
    assert [row.method for row in found.methods] == names
    for row in found.methods:
        assert 0 <= row.pointing.low <= row.pointing.value <= row.pointing.high <= 1
        assert row.deletion_curve.shape == (5,) and row.deletion_curve[0] == pytest.approx(row.insertion_curve[-1])
    assert found.cases <= found.images and found["centre"].method == "centre"
    found.save(tmp_path)
    first = json.loads((tmp_path / "scores.json").read_text())["methods"][0]
    assert first["method"] == "grad-rollout" and set(first["pointing"]) == {"mean", "low", "high"}
    assert (tmp_path / "scores.md").read_text().count("\n") == 8 and (tmp_path / "curves.png").stat().st_size > 5000
