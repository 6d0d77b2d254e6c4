"""Loss and figures of classification, against the formulas."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nearsight.config.recipe import Distillation
from nearsight.data.loader import Batch
from nearsight.data.transforms import Preprocessing
from nearsight.tasks.base import Opinion, class_weights
from nearsight.tasks.classification_report import ClassificationMeter
from nearsight.tasks.classify import TASK, CrossEntropy
from nearsight.training import load_recipe
from tests.rounding import assert_rounded

PLAIN = Preprocessing((2, 2), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2])


def make_objective(classes: int = 3, teacher: Any = None, **changes: Any) -> CrossEntropy:
    settings = {"epochs": 10, "batch": 4, "augment.mixup": 0.0, "augment.cutmix": 0.0, "loss.smoothing": 0.0}
    recipe = load_recipe("small-data", settings | {key.replace("__", "."): value for key, value in changes.items()})
    return CrossEntropy(recipe, LABELS, classes, PLAIN, torch.device("cpu"), teacher)


def expected_loss(logits: torch.Tensor, targets: torch.Tensor, weights: list[float]) -> float:
    """Mean over images of the weighted sum over classes of -target * log(softmax), in plain Python."""
    losses = []
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        total = math.log(sum(math.exp(value) for value in row))
        losses.append(sum(w * t * (total - v) for w, t, v in zip(weights, target, row, strict=True)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 2.0, 1.5]])
def test_cross_entropy_with_smoothing_and_weights(smoothing: float, weights: list[float]) -> None:
    objective = make_objective(loss__smoothing=smoothing, loss__class_weights=weights)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 0])
    hard = torch.eye(3)[labels] * (1 - smoothing) + smoothing / 3
    assert float(objective.cross_entropy(logits, labels).mean()) == pytest.approx(
        expected_loss(logits, hard, weights), rel=1e-5
    )
    soft = torch.rand(5, 3).softmax(dim=1)  # mixed labels are taken as they are
    assert float(objective.cross_entropy(logits, soft).mean()) == pytest.approx(
        expected_loss(logits, soft, weights), rel=1e-5
    )


def test_the_loss_is_a_mean_over_images_so_that_parts_of_a_batch_add_up() -> None:
    objective = make_objective(loss__class_weights="balanced")
    logits, labels = torch.randn(8, 3), torch.from_numpy(LABELS)
    halves = [objective.cross_entropy(logits[part], labels[part]).mean() for part in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(objective.cross_entropy(logits, labels).mean(), sum(halves) / 2)


def test_balanced_weights_are_the_inverse_of_the_fractions() -> None:
    weights = class_weights("balanced", np.bincount(LABELS))
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([8 / 12, 8 / 6, 8 / 6]))
    assert float(weights[LABELS].mean()) == pytest.approx(1)
    with_empty = class_weights("balanced", np.bincount(LABELS, minlength=4))
    assert with_empty is not None and bool(with_empty.isfinite().all())
    assert class_weights("none", np.bincount(LABELS)) is None


def test_weights_by_the_square_root_stand_between_equal_and_balanced_ones() -> None:
    counts = np.bincount(LABELS)
    weights, balanced = class_weights("sqrt", counts), class_weights("balanced", counts)
    assert weights is not None and balanced is not None
    torch.testing.assert_close(weights[1] / weights[0], (balanced[1] / balanced[0]).sqrt())
    assert float(weights[LABELS].mean()) == pytest.approx(1)


def test_another_number_of_weights_than_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 numbers, but there are 3 classes"):
        make_objective(loss__class_weights=[1.0, 2.0])


class Answers(nn.Module):
    """A model that answers with given logits, whatever it sees."""

    def __init__(self, *logits: torch.Tensor):
        super().__init__()
        self.logits = logits

    def forward(self, images: torch.Tensor) -> Any:
        return self.logits if len(self.logits) > 1 else self.logits[0]


class Fixed:
    """A teacher of one opinion, the class 2."""

    def __init__(self, **settings: Any):
        self.settings = Distillation(teacher="fixed", **settings)

    def look(self, images: torch.Tensor) -> Opinion:
        return Opinion(torch.tensor([[0.0, -1.0, 2.0]]).repeat(len(images), 1), None)

    def recall(self, indices: torch.Tensor, epoch: int) -> Opinion:
        return Opinion(torch.stack([indices * 1.0, indices * 0.0, indices * -0.5], dim=1) + epoch, None)


def test_distillation_weighs_both_labels_each_on_its_head() -> None:
    objective = make_objective(teacher=Fixed(weight=0.3))
    own, other, labels = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    truth, opinion = torch.eye(3)[labels], torch.eye(3)[torch.full((4,), 2)]
    ones = [1.0, 1.0, 1.0]
    images = torch.zeros(4, 3, 2, 2)
    both = 0.7 * expected_loss(own, truth, ones) + 0.3 * expected_loss(other, opinion, ones)
    taught = objective.learnt(objective.teacher.look(images))
    assert float(objective.loss(Answers(own, other), images, labels, taught)) == pytest.approx(both, rel=1e-5)
    one = 0.7 * expected_loss(own, truth, ones) + 0.3 * expected_loss(own, opinion, ones)
    assert float(objective.loss(Answers(own), images, labels, taught)) == pytest.approx(one, rel=1e-5)


def expected_distance(teacher: list[float], student: list[float], temperature: float) -> float:
    """T² times the sum over classes of p log(p / q), in plain Python."""
    both = []
    for row in (teacher, student):
        powers = [math.exp(value / temperature) for value in row]
        both.append([power / sum(powers) for power in powers])
    return temperature**2 * sum(p * math.log(p / q) for p, q in zip(*both, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_soft_labels_are_learnt_by_their_divergence_at_a_temperature(temperature: float) -> None:
    objective = make_objective(teacher=Fixed(kind="soft", temperature=temperature, weight=0.9))
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, -1, 2])  # nothing is known of the third
    images = torch.zeros(4, 3, 2, 2)
    found = objective.loss(Answers(logits), images, labels, objective.learnt(objective.teacher.look(images)))
    expected = 0.0
    for row, label in zip(logits, labels.tolist(), strict=True):
        distance = expected_distance([0.0, -1.0, 2.0], row.tolist(), temperature)
        known = label >= 0
        cross = expected_loss(row[None], torch.eye(3)[[label]], [1.0] * 3) if known else 0.0
        expected += (0.1 * cross + 0.9 * distance if known else distance) / 4
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_what_a_teacher_said_is_mixed_as_the_images_and_labels_are() -> None:
    teacher = Fixed(kind="soft", temperature=2.0, views=3)
    objective = make_objective(teacher=teacher, augment__mixup=1.0, loss__smoothing=0.1)
    batch = batch_of(4, [0, 1, -1, 2])
    whole = batch.images.float() / 255
    images, targets, taught = objective.prepare(batch, epoch=5, step=7)
    said = (teacher.recall(batch.indices, 5).logits / 2).softmax(dim=1)
    labels = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]])
    smooth = (labels * 0.9 + 0.1 / 3) * torch.tensor([1.0, 1, 0, 1])[:, None]
    fraction = ((images - whole.flip(0)) / (whole - whole.flip(0))).mean()
    assert 0 < float(fraction) < 1
    for found, unmixed in ((images, whole), (taught.probabilities, said), (targets, smooth)):
        # the fraction is itself a mean over the pixels
        assert_rounded(found, fraction * unmixed + (1 - fraction) * unmixed.flip(0), whole.numel())


def batch_of(count: int, labels: list[int]) -> Batch:
    images = torch.arange(count * 12, dtype=torch.uint8).reshape(count, 3, 2, 2)
    sizes = torch.full((count, 2), 2)
    return Batch(images, sizes, torch.tensor(labels), torch.arange(count), sizes, [f"x[{i}]" for i in range(count)], {})


def validate(classes: int, *batches: tuple[torch.Tensor, Batch]) -> ClassificationMeter:
    meter = TASK.meter(classes)
    for logits, batch in batches:
        names = [str(number) for number in range(classes)]
        meter.add(batch, TASK.predict(Answers(logits), batch, PLAIN, torch.device("cpu"), names))
    return meter


def test_the_metrics_of_a_validation() -> None:
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3, 2]]).repeat(4, 1)
    meter = validate(8, (logits, batch_of(4, [0, 4, 5, 0])), (logits[:0], batch_of(0, [])))  # ranks 1, 5, 6, 1
    values = meter.metrics().values()
    assert (values["accuracy"], values["top5"]) == (0.5, 0.75)
    truth = torch.eye(8)[[0, 4, 5, 0]]
    assert values["loss"] == pytest.approx(expected_loss(logits, truth, [1.0] * 8), rel=1e-5)


def test_among_five_classes_the_first_five_say_nothing() -> None:
    values = validate(5, (torch.eye(5)[[0, 1, 2, 3]], batch_of(4, [0, 1, 2, 4]))).metrics().values()
    assert set(values) == {"loss", "accuracy"}
    assert values["accuracy"] == 0.75


def test_a_validation_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match="None of the images can be read; run `nearsight data check`"):
        TASK.meter(3).metrics()


def test_what_a_comparison_pairs() -> None:
    arrays = validate(3, (torch.eye(3)[[0, 2]] * 9, batch_of(2, [0, 1]))).compared()
    assert arrays["scores"].tolist() == [True, False]
    assert arrays["classes"].tolist() == [[0, 2], [0, 1]]
    assert arrays["confidence"] == pytest.approx(1, abs=1e-3)


def test_mixing_keeps_the_sum_of_labels_and_stops_in_the_last_epochs() -> None:
    objective = make_objective(augment__mixup=0.8, augment__cutmix=1.0, augment__stop_mixing=2)
    batch = batch_of(4, [0, 1, 2, 0])
    images, targets = objective.prepare(batch, epoch=7, step=3)
    assert targets.shape == (4, 3)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(4))
    again = objective.prepare(batch, epoch=7, step=3)
    assert torch.equal(images, again[0]) and torch.equal(targets, again[1])  # a function of seed and step
    assert not torch.equal(targets, objective.prepare(batch, epoch=7, step=4)[1])
    plain, labels = objective.prepare(batch, epoch=8, step=3)
    assert torch.equal(plain, batch.images / 255) and torch.equal(labels, batch.targets)
