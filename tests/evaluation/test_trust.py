"""Averages, views, temperatures and conformal sets, each against a value that does not come from here."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import nearsight
from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import save_trained
from nearsight.tasks import get_task
from nearsight.tasks.build import build
from nearsight.tasks.classification_metrics import conformal_threshold, fit_temperature, measure
from nearsight.tasks.predictions import Classification, temper
from nearsight.tasks.views import Merged, View, fuse_detections, parse_views
from tests.rounding import assert_rounded


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two classifiers with different random weights."""
    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        built = build(ModelChoice(name="deit_nano"), classes=10)
        nn.init.normal_(built.model.get_classifier().weight, std=0.5)  # type: ignore[operator]
        folder = tmp_path_factory.mktemp(f"seed{seed}")
        save_trained(built, "classify", tuple("0123456789"), folder / "model.safetensors")
        folders.append(folder)
    return folders


IMAGES = np.random.default_rng(0).integers(0, 255, (4, 20, 20, 3), dtype=np.uint8)


def test_an_average_has_the_mean_of_the_probabilities(runs: list[Path]) -> None:
    alone = [[one.probabilities for one in nearsight.load(run).predict(IMAGES)] for run in runs]  # type: ignore[attr-defined]
    for source in (runs, f"{runs[0]},{runs[1]}"):
        both = [one.probabilities for one in nearsight.load(source).predict(IMAGES)]  # type: ignore[attr-defined]
        assert_rounded(both, np.mean(alone, axis=0), nearsight.load(runs[0]).model)


def test_what_does_not_belong_together_is_not_averaged(runs: list[Path]) -> None:
    first, second = (nearsight.load(run) for run in runs)
    with pytest.raises(ValueError, match="can't be averaged"):
        nearsight.load([first, replace(second, classes=tuple("abcdefghij"))])
    with pytest.raises(ValueError, match="average of several models"):
        nearsight.explain(f"{runs[0]},{runs[1]}", IMAGES[0])


class Blind(nn.Module):
    """Says the same of an image and its mirror images: it sees colours alone."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3)) @ torch.arange(12.0).reshape(3, 4)


def test_mirrored_views_change_nothing_for_a_model_that_does_not_see_them() -> None:
    task, images = get_task("classify"), torch.randn(3, 3, 16, 18)
    merged = Merged(task, [Blind()], parse_views(task, "flip,vflip"))
    assert len(merged.views) == 4
    expected = Blind()(images).softmax(dim=1)
    assert_rounded(merged(images).softmax(dim=1).float(), expected, sums=16 * 18)


class Tops(nn.Module):
    """A segmenter that gives the class by the brightness of each pixel."""

    def forward(self, images: torch.Tensor, sizes: object) -> torch.Tensor:
        grey = images.mean(dim=1, keepdim=True)
        return torch.cat((grey, -grey), dim=1)


def test_maps_of_views_lie_on_each_other_again() -> None:
    task = get_task("segment")
    images = torch.zeros(2, 3, 16, 24)
    images[:, :, :, :7], images[:, :, :5, 12:] = 3.0, -3.0
    sizes = torch.tensor([[14, 20]] * 2)
    merged = Merged(task, [Tops()], parse_views(task, "flip,vflip"))
    found = merged(images, sizes)
    expected = Tops()(images[..., :14, :20], None).log_softmax(dim=1)
    assert_rounded(found.float(), expected, sums=3)


def test_boxes_of_views_are_where_the_objects_are() -> None:
    box = torch.tensor([[2.0, 3.0, 8.0, 9.0]])
    mirrored = {
        "boxes": torch.tensor([[12.0, 3.0, 18.0, 9.0]]),
        "labels": torch.tensor([1]),
        "scores": torch.tensor([0.5]),
    }
    torch.testing.assert_close(View(flip=True).undo_objects(mirrored, (16, 20))["boxes"], box)
    larger = {**mirrored, "boxes": 1.25 * box}
    torch.testing.assert_close(View(scale=1.25).undo_objects(larger, (16, 20))["boxes"], box)


def test_fused_boxes_are_the_weighted_means_of_the_paper() -> None:
    """Two views see one object, one of them another: formulas of weighted boxes fusion, by hand."""
    boxes, labels, scores = [[0.0, 0, 10, 10], [20, 20, 30, 30]], [0, 1], [0.9, 0.6]
    first = {"boxes": torch.tensor(boxes), "labels": torch.tensor(labels), "scores": torch.tensor(scores)}
    second = {"boxes": torch.tensor([[1.0, 0, 11, 10]]), "labels": torch.tensor([0]), "scores": torch.tensor([0.3])}
    found = fuse_detections([first, second])
    torch.testing.assert_close(found["boxes"], torch.tensor([[0.25, 0, 10.25, 10], [20, 20, 30, 30]]))
    torch.testing.assert_close(found["scores"], torch.tensor([(0.9 + 0.3) / 2, 0.6 / 2]))
    assert found["labels"].tolist() == [0, 1]
    other = fuse_detections([first, {**second, "labels": torch.tensor([2])}])
    assert len(other["boxes"]) == 3  # of another class


def test_views_that_a_task_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match="'scales' is no view to classify with"):
        parse_views(get_task("classify"), "scales")


def confident(count: int, temperature: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a model that is too confident by a temperature, and classes drawn from the honest ones."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, 5)) * 1.5
    honest = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(5, p=row) for row in honest])
    return temper(honest, 1 / temperature), labels


def test_the_temperature_minimises_the_log_loss() -> None:
    probabilities, labels = confident(4000, 2.5)
    found = fit_temperature(probabilities, labels)
    logits = torch.from_numpy(np.log(probabilities))

    def loss(value: float) -> float:
        return float(nn.functional.cross_entropy(logits / value, torch.from_numpy(labels)))

    assert found == pytest.approx(minimize_scalar(loss, bounds=(0.1, 10), method="bounded").x, rel=1e-3)
    assert found == pytest.approx(2.5, rel=0.1)
    before, now = measure(probabilities, labels), measure(temper(probabilities, found), labels)
    assert now.calibration.error < 0.3 * before.calibration.error
    assert now.nll < before.nll
    assert now.top1 == before.top1


def test_tempering_is_dividing_logits() -> None:
    logits = torch.randn(6, 4, dtype=torch.float64)
    one = temper(logits.softmax(dim=1).numpy(), 1.7)
    np.testing.assert_allclose(one, (logits / 1.7).softmax(dim=1).numpy(), atol=1e-12)
    many = temper(logits.sigmoid().numpy(), 1.7, exclusive=False)
    np.testing.assert_allclose(many, (logits / 1.7).sigmoid().numpy(), atol=1e-12)


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_conformal_sets_miss_as_often_as_the_theorem_says(rate: float) -> None:
    """Of n + 1 exchangeable images, the last is among the k lowest with probability k/(n+1), k = floor((n+1) rate)."""
    rng, count, missed = np.random.default_rng(1), 60, []
    for _ in range(4000):
        own = rng.random(count + 1) ** 2
        least = conformal_threshold(own[:-1], rate)
        assert least is not None
        missed.append(own[-1] < least)
    expected = np.floor((count + 1) * rate) / (count + 1)
    assert np.mean(missed) == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 4000) ** 0.5)
    assert expected <= rate


def test_a_calibrated_run_says_what_it_does_not_know_and_its_bundle_says_the_same(
    runs: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("model.safetensors", "model.json"):
        (folder / name).write_bytes((runs[0] / name).read_bytes())
    with pytest.raises(ValueError, match="was not calibrated"):
        nearsight.predict(folder, IMAGES, error_rate=0.1)
    raw = nearsight.evaluate(folder, "digits", workers=0)
    found = nearsight.calibrate(folder, "digits", split="test", workers=0)
    assert found.settings["temperature"] > 1  # random weights are sure of nothing that is true
    judged = nearsight.evaluate(folder, "digits", workers=0)
    assert judged.metrics.nll < raw.metrics.nll
    rows = {gain.what: gain for gain in judged.gains}
    assert float(rows["true class missed, at 10.0 % promised"].now.removesuffix(" %")) <= 10.0
    said = list(nearsight.predict(folder, IMAGES, error_rate=0.1))
    assert all(isinstance(one, Classification) and not one.known and "don't know" in one.text() for one in said)
    nearsight.export(folder, tmp_path / "bundle", format="pt2")
    again = list(nearsight.predict(tmp_path / "bundle", IMAGES, error_rate=0.1))
    assert [one.to_dict()["possible"] for one in said] == [one.to_dict()["possible"] for one in again]
    (folder / "model.safetensors").write_bytes((runs[1] / "model.safetensors").read_bytes())
    (folder / "model.json").write_bytes((runs[1] / "model.json").read_bytes())
    with pytest.raises(ValueError, match="is of other weights"):
        nearsight.load(folder)
