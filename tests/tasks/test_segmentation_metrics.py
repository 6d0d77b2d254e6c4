"""Metrics of segmentation, against scikit-learn and by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score

from nearsight.tasks.segmentation_metrics import SegmentationMeter, count_pixels, mean_iou, measure_segmentation


@pytest.fixture
def maps():
    random = np.random.default_rng(0)
    truth = random.integers(0, 4, (3, 20, 30))
    predicted = np.where(random.random(truth.shape) < 0.7, truth, random.integers(0, 4, truth.shape))
    truth[:, :3] = 255
    return predicted, truth


def count_all(predictions, truths, classes):
    """The pixels of all images, added up."""
    return sum(count_pixels(predicted, true, classes) for predicted, true in zip(predictions, truths, strict=True))


def test_metrics_are_scikit_learns_on_the_pixels_that_count(maps) -> None:
    predicted, truth = maps
    confusion = count_all(predicted, truth, 4)
    metrics = measure_segmentation(confusion)
    counted = truth != 255
    flat = truth[counted], predicted[counted]
    np.testing.assert_array_equal(confusion, confusion_matrix(*flat))
    np.testing.assert_allclose(metrics.iou, jaccard_score(*flat, average=None))
    assert metrics.miou == pytest.approx(jaccard_score(*flat, average="macro"))
    assert metrics.accuracy == pytest.approx(accuracy_score(*flat))


def test_always_the_most_frequent_class_is_what_beats_nothing(maps) -> None:
    _, truth = maps
    frequent = int(np.bincount(truth[truth != 255]).argmax())
    metrics = measure_segmentation(count_all(np.full_like(truth, frequent), truth, 4))
    assert metrics.most_frequent == frequent
    assert metrics.miou == pytest.approx(metrics.baseline)
    assert metrics.accuracy == pytest.approx(metrics.baseline_accuracy)


def test_a_class_that_is_nowhere_does_not_count_but_one_that_was_only_predicted_does() -> None:
    metrics = measure_segmentation(count_pixels(np.array([[0, 0, 1, 1]]), np.array([[0, 0, 0, 0]]), 3))
    assert metrics.miou == pytest.approx((2 / 4 + 0) / 2)
    assert np.isnan(metrics.iou[2])
    assert metrics.to_dict(["a", "b", "c"])["regions"]["classes"]["c"]["iou"] is None


def test_each_image_has_its_own_iou(maps) -> None:
    predicted, truth = maps
    for one, true in zip(predicted, truth, strict=True):
        alone = count_pixels(one, true, 4)
        counted = true != 255
        assert mean_iou(alone) == pytest.approx(jaccard_score(true[counted], one[counted], average="macro"))
        assert mean_iou(alone) == measure_segmentation(alone).miou
    assert np.isnan(mean_iou(count_pixels(predicted[0], np.full_like(truth[0], 255), 4)))


def test_processes_add_up_their_counts(maps, monkeypatch) -> None:
    predicted, truth = maps
    meters = [SegmentationMeter(4) for _ in predicted]
    for index, (meter, one, true) in enumerate(zip(meters, predicted, truth, strict=True)):
        meter.records[index] = meter.record(index, SimpleNamespace(labels=one), true)

    def gathered(mine: list) -> list:
        return [meter.records if isinstance(mine[0], dict) else meter.counts for meter in meters]

    monkeypatch.setattr("accelerate.utils.gather_object", gathered)
    meters[0].gather()
    assert meters[0].metrics().miou == measure_segmentation(count_all(predicted, truth, 4)).miou
    assert meters[0].indices.tolist() == [0, 1, 2]


def test_what_can_not_be_compared() -> None:
    with pytest.raises(ValueError, match="can't be compared"):
        count_pixels(np.zeros((2, 3)), np.zeros((3, 2)), 2)
    with pytest.raises(ValueError, match="None of the pixels count"):
        measure_segmentation(np.zeros((2, 2), dtype=np.int64))
