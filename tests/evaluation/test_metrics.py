"""Figures of merit against scikit-learn, SciPy and sums done by hand."""

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binomtest
from sklearn import metrics as sklearn_metrics

from nearsight.interval import wilson
from nearsight.tasks.classification_metrics import (
    calibrate,
    confusion_matrix,
    measure,
    most_confused,
    rank,
    worst_classes,
)

GENERATOR = np.random.default_rng(5)
LABELS = GENERATOR.integers(0, 8, 400)
PROBABILITIES = softmax(GENERATOR.normal(size=(400, 8)) + 1.5 * np.eye(8)[LABELS], axis=1)
ANSWERS = PROBABILITIES.argmax(axis=1)


def test_metrics_are_those_of_scikit_learn() -> None:
    found = measure(PROBABILITIES, LABELS)
    assert found.images == 400
    assert found.top1.value == pytest.approx(sklearn_metrics.accuracy_score(LABELS, ANSWERS))
    assert found.top5 is not None
    assert found.top5.value == pytest.approx(sklearn_metrics.top_k_accuracy_score(LABELS, PROBABILITIES, k=5))
    assert found.balanced_accuracy == pytest.approx(sklearn_metrics.balanced_accuracy_score(LABELS, ANSWERS))
    assert found.macro_f1 == pytest.approx(sklearn_metrics.f1_score(LABELS, ANSWERS, average="macro"))
    assert found.nll == pytest.approx(sklearn_metrics.log_loss(LABELS, PROBABILITIES))
    np.testing.assert_array_equal(found.confusion, sklearn_metrics.confusion_matrix(LABELS, ANSWERS))
    precision, recall, f1, support = sklearn_metrics.precision_recall_fscore_support(LABELS, ANSWERS)
    np.testing.assert_allclose([s.value for s in found.precision], precision)
    np.testing.assert_allclose([s.value for s in found.recall], recall)
    np.testing.assert_allclose(found.f1, f1)
    np.testing.assert_array_equal(found.support, support)


@pytest.mark.parametrize(("hits", "total"), [(0, 7), (7, 7), (1, 2), (359, 360), (4870, 10_000)])
def test_interval_is_wilsons(hits: int, total: int) -> None:
    expected = binomtest(hits, total).proportion_ci(0.95, method="wilson")
    found = wilson(hits, total)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_a_class_without_images_has_no_fraction_and_does_not_count() -> None:
    present = LABELS < 6
    found = measure(PROBABILITIES[present], LABELS[present])
    labels = list(range(6))
    assert np.isnan(found.recall[7]).all()
    assert found.macro_f1 == pytest.approx(
        sklearn_metrics.f1_score(LABELS[present], ANSWERS[present], labels=labels, average="macro")
    )
    assert found.balanced_accuracy == pytest.approx(np.mean([found.recall[k].value for k in labels]))
    assert 7 not in worst_classes(found, 8)


def test_top_five_of_five_classes_says_nothing_and_is_left_out() -> None:
    assert measure(np.eye(5), np.arange(5)).top5 is None


def test_equal_probabilities_keep_the_order_of_the_classes() -> None:
    assert [rank(np.full(4, 0.25), label).rank for label in (0, 1, 3)] == [0, 1, 3]


def test_calibration_error_by_hand() -> None:
    # Two answers at 0.9, one of them right; two at 0.6, both right; 15 bins keep them apart.
    found = calibrate(np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True]))
    assert found.error == pytest.approx(0.5 * abs(0.9 - 0.5) + 0.5 * abs(0.6 - 1.0))
    assert found.images.sum() == 4 and (found.images > 0).sum() == 2


def test_a_certain_prediction_is_in_the_last_bin() -> None:
    found = calibrate(np.ones(3), np.ones(3, dtype=bool))
    assert found.images[-1] == 3 and found.error == 0


def test_bins_hold_their_upper_limit() -> None:
    found = calibrate(np.array([0.8, 0.8001]), np.ones(2, dtype=bool), bins=5)
    assert found.images.tolist() == [0, 0, 0, 1, 1]


def test_most_confused_pairs() -> None:
    table = confusion_matrix(np.array([0, 0, 0, 1, 2, 2]), np.array([0, 1, 1, 1, 2, 0]), 3)
    assert most_confused(table, 5) == [(0, 1, 2), (2, 0, 1)]
