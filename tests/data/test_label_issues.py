"""Labels: those that were changed on purpose come first, and the page shows them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from nearsight import features, label_issues
from nearsight.data import open_data
from nearsight.data.check import check_surveyed
from nearsight.data.samples import Data, Subset
from nearsight.tasks import get_evaluator
from nearsight.tasks.predictions import Detection, Segmentation


class Relabelled(Subset):
    def __init__(self, whole: object, labels: np.ndarray):
        super().__init__(whole, np.arange(len(labels)))  # type: ignore[arg-type]
        self.labels = labels

    def target(self, index: int) -> int:
        return int(self.labels[index])


@pytest.fixture(scope="module")
def wrong() -> tuple[Data, set[int]]:
    """300 digits, of which 12 have the label of the next digit."""
    train = open_data("digits").train
    assert train is not None
    some = Subset(train, np.arange(300))
    chosen = np.random.default_rng(0).choice(300, 12, replace=False)
    labels = some.labels.copy()
    labels[chosen] = (labels[chosen] + 1) % 10
    return Data("digits", "digits", tuple("0123456789"), train=Relabelled(some, labels)), set(chosen.tolist())


def test_wrong_labels_come_first(wrong: tuple[Data, set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels stand for features, as no pretrained weights are at hand; scikit-learn's predictions rank alike."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    data, chosen = wrong
    assert data.train is not None
    pixels = np.stack([np.asarray(data.train.read(n).convert("L"), dtype=np.float32).ravel() for n in range(300)]) / 255

    def given(*_: object) -> tuple[list[tuple[str, int]], np.ndarray]:
        return [("train", n) for n in range(300)], pixels[:, None]

    monkeypatch.setattr(label_issues, "features_of", given)
    monkeypatch.setattr(label_issues, "find_pretrained", lambda _: type("W", (), {"model": "deit_nano", "path": ""}))
    choice = label_issues.ModelChoice
    monkeypatch.setattr(label_issues, "ModelChoice", lambda **_: choice(name="deit_nano"))
    report = label_issues.check_data(data, frozen=True, workers=0)
    first = {one.index for one in report.suspects[:12]}
    assert len(first & chosen) >= 9
    theirs = cross_val_predict(
        LogisticRegression(max_iter=500), pixels, data.train.labels, cv=5, method="predict_proba"
    )
    own = theirs[np.arange(300), data.train.labels]  # cleanlab's self-confidence
    assert len(first & set(np.argsort(own)[:12].tolist())) >= 9
    assert report.likely_wrong <= len(report.suspects)
    page = label_issues.draw_page(report, data).decode()
    assert page.count("data:image/jpeg;base64,") == min(100, len(report.suspects)) + 2 * len(report.look_alikes) + len(
        report.outliers
    )
    assert "http" not in page.replace("http-equiv", "")
    assert label_issues.is_page(page[:400].encode())


def test_look_alikes_and_outliers_are_found_by_their_features(wrong: tuple[Data, set[int]]) -> None:
    data, _ = wrong
    report, _ = check_surveyed(data, None, 0)
    rng = np.random.default_rng(2)
    values = rng.normal(size=(300, 1, 64)).astype(np.float32) * 0.05 + rng.normal(size=(1, 1, 64)).astype(np.float32)
    values[:, 0, :10] += np.eye(10, dtype=np.float32)[data.train.labels]  # type: ignore[union-attr]
    labels = data.train.labels  # type: ignore[union-attr]
    twin = int(np.flatnonzero(labels != labels[0])[0])
    values[twin] = values[0] + 1e-4
    values[7] = -20 * values[7]
    label_issues.compare_features(report, data, [("train", n) for n in range(300)], values)
    assert {key[1] for key in report.look_alikes[0].keys} == {0, twin}
    assert report.outliers[0].index == 7


def test_an_image_of_no_class_is_an_outlier_among_classes_that_scatter_widely(wrong: tuple[Data, set[int]]) -> None:
    """By cosine it would not be: in many dimensions every image is nearly at right angles to the others."""
    data, _ = wrong
    assert data.train is not None
    report, _ = check_surveyed(data, None, 0)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(300, 1, 384)) + 0.5 * rng.normal(size=(10, 1, 384))[data.train.labels]
    values[[5, 80]] = 1.6 * rng.normal(size=(2, 1, 384))
    label_issues.compare_features(report, data, [("train", n) for n in range(300)], values.astype(np.float32))
    assert {one.index for one in report.outliers} == {5, 80}


def test_out_of_fold_probabilities_are_of_regressions_without_the_fold() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    values = (labels[:, None, None] + 0.4 * rng.normal(size=(80, 1, 5))).astype(np.float32)
    folds = np.arange(80) // 20
    found = features.cross_predict(values, labels, 2, folds)
    strength = features.fit_head(values, labels, 2).strength
    known, variances, _ = features.decorrelate(values[:, 0])
    keep = folds != 2
    alone = features.regress(known[keep], np.eye(2)[labels[keep]], np.ones(60), strength, True, variances=variances)
    logits = torch.from_numpy(known[folds == 2] @ alone[:-1] + alone[-1])
    np.testing.assert_allclose(found[folds == 2], nn.functional.softmax(logits, dim=1).numpy(), atol=1e-6)


def detection(boxes: Sequence[Sequence[float]], labels: Sequence[int], scores: Sequence[float]) -> Detection:
    arrays = {
        "boxes": np.array(boxes, dtype=float).reshape(-1, 4),
        "labels": np.array(labels),
        "scores": np.array(scores),
    }
    return Detection(image="a", size=(50, 50), classes=("cat", "dog"), **arrays)


def test_boxes_of_another_class_and_objects_that_nobody_annotated_are_doubted() -> None:
    target = {"boxes": np.array([[0, 0, 10, 10], [20, 20, 30, 30]]), "labels": np.array([0, 1]), "crowd": np.zeros(2)}
    said = detection([[0, 0, 10, 10], [20, 20, 30, 30], [40, 0, 48, 8]], [1, 1, 0], [0.9, 0.8, 0.95])
    found = get_evaluator("detect").doubts(said, target, ("cat", "dog"))
    assert [(one.given, one.suggestion.split()[0]) for one in found] == [("cat", "dog"), ("nothing", "cat")]
    assert found[0].score == pytest.approx(0.1) and found[0].box == (0, 0, 10, 10)
    assert get_evaluator("detect").doubts(detection([], [], []), target, ("cat", "dog")) == []


def test_masks_are_doubted_where_most_of_a_class_is_seen_as_another() -> None:
    truth = np.zeros((10, 10), dtype=np.uint8)
    truth[:, 5:] = 1
    said = Segmentation(
        image="a", size=(10, 10), labels=np.where(truth == 1, 2, 0).astype(np.uint8), classes=("a", "b", "c")
    )
    (doubt,) = get_evaluator("segment").doubts(said, truth, ("a", "b", "c"))
    assert (doubt.given, doubt.score) == ("b", 0.0) and doubt.suggestion.startswith("c in 50")
    same = Segmentation(image="a", size=(10, 10), labels=truth, classes=("a", "b", "c"))
    assert get_evaluator("segment").doubts(same, truth, ("a", "b", "c")) == []
