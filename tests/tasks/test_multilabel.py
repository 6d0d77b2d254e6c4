"""Several labels an image: metrics against scikit-learn, losses against formulas, and a run from table to report."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score
from torch import nn

import nearsight
from nearsight.config.files import load_recipe
from nearsight.data import open_data
from nearsight.data.loader import Batch
from nearsight.data.transforms import Preprocessing
from nearsight.evaluation import evaluate
from nearsight.tasks.multilabel import TASK, LabelLoss
from nearsight.tasks.multilabel_metrics import best_threshold, measure_labels
from nearsight.training import run_training

GENERATOR = np.random.default_rng(3)
LABELS = GENERATOR.random((300, 5)) < np.array([0.5, 0.3, 0.1, 0.05, 0.6])
PROBABILITIES = (0.3 * LABELS + 0.7 * GENERATOR.random((300, 5))).round(2)  # with ties
PLAIN = Preprocessing((2, 2), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def test_metrics_are_those_of_scikit_learn() -> None:
    thresholds = np.array([0.4, 0.5, 0.6, 0.7, 0.5])
    found, predicted = measure_labels(PROBABILITIES, LABELS, thresholds), thresholds <= PROBABILITIES
    assert found.map == pytest.approx(average_precision_score(LABELS, PROBABILITIES, average="macro"))
    assert found.f1_micro == pytest.approx(f1_score(LABELS, predicted, average="micro"))
    assert found.f1_macro == pytest.approx(f1_score(LABELS, predicted, average="macro"))
    np.testing.assert_allclose(found.f1, f1_score(LABELS, predicted, average=None))


def test_average_precision_by_its_definition() -> None:
    found = measure_labels(np.array([[0.9], [0.8], [0.7], [0.6]]), np.array([[True], [False], [True], [False]]))
    assert found.ap[0] == pytest.approx((1 / 1 + 2 / 3) / 2)  # precision at each image that has the class


@pytest.mark.parametrize("number", range(5))
def test_no_other_threshold_has_a_higher_f1(number: int) -> None:
    there, sure = LABELS[:, number], PROBABILITIES[:, number]
    best = f1_score(there, sure >= best_threshold(sure, there))
    assert best == pytest.approx(max(f1_score(there, sure >= value) for value in np.unique(sure)))


def test_a_class_that_no_image_has_counts_neither_for_map_nor_for_thresholds() -> None:
    labels = LABELS & (np.arange(5) != 2)
    found = measure_labels(PROBABILITIES, labels)
    assert np.isnan(found.ap[2]) and found.best_thresholds[2] == 0.5
    assert found.map == pytest.approx(np.mean([found.ap[k] for k in (0, 1, 3, 4)]))
    assert found.to_dict("abcde")["classes"]["c"]["ap"] is None


class Answers(nn.Module):
    """A model that gives these logits, whatever it sees."""

    def __init__(self, logits: torch.Tensor):
        super().__init__()
        self.logits = logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 images; red, green and blue are in or not, independently."""
    folder, generator = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    rows = []
    for number in range(80):
        has = generator.random(3) < 0.5
        pixels = (has * 180 + generator.integers(0, 60, (16, 16, 3))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        names = "|".join(name for name, there in zip(("red", "green", "blue"), has, strict=True) if there)
        rows.append(f"{number}.png,{names},{'test' if number < 16 else 'train'}")
    path = folder / "labels.csv"
    path.write_text("path,label,split\n" + "\n".join(rows) + "\n")
    return path


def objective(table: Path, **changes: object) -> LabelLoss:
    data = open_data(str(table), "multilabel")
    assert data.train is not None
    recipe = load_recipe("small-multilabel", {key.replace("__", "."): value for key, value in changes.items()})
    return LabelLoss(recipe, data.train, 3, PLAIN, torch.device("cpu"))


def test_the_losses_follow_their_formulas(table: Path) -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    images, chance = torch.zeros(2, 3, 2, 2), logits.sigmoid()
    plain = -(labels * chance.log() + (1 - labels) * (1 - chance).log()).mean()
    found = objective(table, loss__kind="bce").loss(Answers(logits), images, labels)
    torch.testing.assert_close(found, plain)
    absent = (chance - 0.05).clamp(min=0)  # eq. 7 of the paper: shifted, and focused with gamma 4; present with 1
    wanted = labels * (1 - chance) * chance.log() + (1 - labels) * absent**4 * (1 - absent).log()
    found = objective(table, loss__kind="asymmetric").loss(Answers(logits), images, labels)
    torch.testing.assert_close(found, -wanted.mean())


def test_balanced_weights_are_absent_by_present(table: Path) -> None:
    made = objective(table, loss__kind="bce", loss__class_weights="balanced")
    data = open_data(str(table), "multilabel")
    rows = np.stack([np.asarray(data.train.target(i)) for i in range(len(data.train))])  # type: ignore[union-attr, arg-type]
    assert made.weight is not None
    np.testing.assert_allclose(made.weight.numpy(), (~rows).sum(0) / rows.sum(0), rtol=1e-6)
    with pytest.raises(ValueError, match=r"weighs labels itself; set loss\.class_weights to none"):
        objective(table, loss__class_weights="balanced")


def test_mixing_is_refused_where_it_is_asked_for(table: Path) -> None:
    data = open_data(str(table), "multilabel")
    with pytest.raises(ValueError, match="Mixup and cutmix mix single classes"):
        TASK.complete(load_recipe("small-multilabel", {"augment.mixup": 0.5, "batch": 8}), data)


def test_a_run_from_table_to_report(table: Path, tmp_path: Path) -> None:
    changes = {"model.name": "deit_nano", "model.img_size": 16, "model.patch_size": 4, "epochs": 6, "batch": 16}
    recipe = load_recipe("small-multilabel", {**changes, "loss.kind": "bce", "augment.flip": 0.0, "data.workers": 0})
    outcome = run_training(str(table), recipe, tmp_path / "run", quiet=True, cpu=True)
    assert outcome.metric == "mAP" and outcome.test_score is not None
    saved = json.loads((tmp_path / "run" / "model.json").read_text())["trained"]
    assert saved["task"] == "multilabel" and len(saved["thresholds"]) == 3

    found = evaluate(tmp_path / "run", device="cpu")
    assert found.score == pytest.approx(outcome.test_score)
    assert found.metrics.thresholds.tolist() == saved["thresholds"]  # those of the validation images
    assert outcome.test is not None and found.metrics.f1_micro == pytest.approx(outcome.test["f1_micro"])
    folder = found.save(tmp_path / "report")
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.json", "precision_recall.png", "predictions.csv"]
    with (folder / "predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 16

    predictor = nearsight.load(tmp_path / "run")
    images = [table.parent / f"{number}.png" for number in range(16)]
    for row, one in zip(rows, predictor.predict(images, device="cpu"), strict=True):
        assert "|".join(one.labels) == row["predicted"]
    arrays = np.load(tmp_path / "run" / "predictions.npz")
    assert arrays["parts"].mean() == pytest.approx(outcome.test_score)
    assert len(arrays["scores"]) == 16


def test_an_empty_batch_has_no_predictions() -> None:
    empty = torch.zeros(0, 2, dtype=torch.long)
    batch = Batch(torch.zeros(0, 3, 0, 0), empty, torch.zeros(0), torch.zeros(0), empty, [], {})
    assert TASK.predict(Answers(torch.zeros(0, 3)), batch, PLAIN, torch.device("cpu"), ["a", "b", "c"]) == []
