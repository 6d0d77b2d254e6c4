"""Overlaps of regions, against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score

from nearsight.tasks.segmentation_metrics import RegionTally


@pytest.fixture
def maps():
    random = np.random.default_rng(0)
    truth = random.integers(0, 4, (3, 20, 30))
    answer = np.where(random.random(truth.shape) < 0.7, truth, random.integers(0, 4, truth.shape))
    truth[:, :3] = 255
    return answer, truth


def test_figures_are_scikit_learns_on_the_pixels_that_count(maps) -> None:
    answer, truth = maps
    tally = RegionTally(4)
    for said, true in zip(answer, truth, strict=True):
        tally.add(said, true)
    figures = tally.metrics()
    counted = truth != 255
    flat = truth[counted], answer[counted]
    np.testing.assert_array_equal(tally.confusion, confusion_matrix(*flat))
    np.testing.assert_allclose(figures.iou, jaccard_score(*flat, average=None))
    assert figures.miou == pytest.approx(jaccard_score(*flat, average="macro"))
    assert figures.accuracy == pytest.approx(accuracy_score(*flat))


def test_always_the_most_frequent_class_is_what_beats_nothing(maps) -> None:
    _, truth = maps
    tally = RegionTally(4)
    frequent = int(np.bincount(truth[truth != 255]).argmax())
    for true in truth:
        tally.add(np.full_like(true, frequent), true)
    figures = tally.metrics()
    assert figures.most_frequent == frequent
    assert figures.miou == pytest.approx(figures.baseline)
    assert figures.accuracy == pytest.approx(figures.baseline_accuracy)


def test_a_class_that_is_nowhere_does_not_count_but_one_that_was_only_answered_does() -> None:
    tally = RegionTally(3)
    tally.add(np.array([[0, 0, 1, 1]]), np.array([[0, 0, 0, 0]]))
    figures = tally.metrics()
    assert figures.miou == pytest.approx((2 / 4 + 0) / 2)
    assert np.isnan(figures.iou[2])
    assert figures.to_dict(["a", "b", "c"])["regions"]["classes"]["c"]["iou"] is None


def test_each_image_has_its_own_overlap(maps) -> None:
    answer, truth = maps
    for said, true in zip(answer, truth, strict=True):
        alone = RegionTally(4)
        assert alone.add(said, true) == pytest.approx(alone.metrics().miou)
    assert np.isnan(RegionTally(4).add(answer[0], np.full_like(truth[0], 255)))


def test_processes_add_up_their_counts(maps) -> None:
    import torch

    answer, truth = maps
    parts = [RegionTally(4) for _ in range(3)]
    whole, total = RegionTally(4), RegionTally(4)
    for part, said, true in zip(parts, answer, truth, strict=True):
        part.add(torch.from_numpy(said), torch.from_numpy(true))
        whole.add(said, true)
        total.merge(torch.from_numpy(part.confusion))
    assert total.metrics().miou == whole.metrics().miou


def test_what_can_not_be_compared() -> None:
    with pytest.raises(ValueError, match="can't be compared"):
        RegionTally(2).add(np.zeros((2, 3)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="None of the pixels count"):
        RegionTally(2).metrics()
