"""Cross-validation: every image is predicted once, by a model that was not trained with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

import nearsight
from nearsight.runs.run import Run
from nearsight.tasks.evaluator import group_values
from nearsight.training.folds import CrossValidation

SETTINGS = {
    "model": "deit_nano",
    "weights": "none",
    "epochs": 1,
    "batch": 32,
    "folds": 3,
    "quiet": True,
    "cpu": True,
}


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> CrossValidation:
    folder = tmp_path_factory.mktemp("folds") / "run"
    found = nearsight.train("digits", out=folder, changes={"data.limit": 64}, **SETTINGS)  # type: ignore[arg-type]
    assert isinstance(found, CrossValidation)
    return found


def test_pooled_accuracy_is_the_mean_over_all_images(validated: CrossValidation) -> None:
    right = total = 0
    for fold in (1, 2, 3):
        with np.load(validated.folder / f"fold-{fold}" / "predictions.npz") as held:
            assert str(held["split"]) == "test"
            right, total = right + int(held["scores"].sum()), total + len(held["scores"])
    assert validated.images == total == 1438
    assert validated.score.value == pytest.approx(right / total)
    assert validated.metrics["top1"]["value"] == pytest.approx(right / total)
    assert validated.score.low < validated.score.value < validated.score.high


def test_each_image_is_tested_by_a_run_that_did_not_see_it(validated: CrossValidation) -> None:
    tested: list[str] = []
    for fold in (1, 2, 3):
        splits = Run(validated.folder / f"fold-{fold}").data()["splits"]
        test, rest = set(splits["test"]["names"]), {*splits["train"]["names"], *splits["val"]["names"]}
        assert not test & rest
        tested += splits["test"]["names"]
    assert len(tested) == len(set(tested)) == 1438


def test_what_was_done_is_not_done_again_and_a_lost_fold_comes_back(validated: CrossValidation, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(validated.folder, folder)
    shutil.rmtree(folder / "fold-2")
    (folder / "fold-1" / "outcome.json").touch()
    before = (folder / "fold-3" / "model.safetensors").stat().st_mtime_ns
    again = nearsight.train(resume=folder, quiet=True, cpu=True)
    assert isinstance(again, CrossValidation)
    assert (folder / "fold-3" / "model.safetensors").stat().st_mtime_ns == before
    assert again.score == validated.score  # the same seed trains the same model
    assert json.loads((folder / "cross_validation.json").read_text())["score"] == validated.score._asdict()


def test_other_settings_are_refused(validated: CrossValidation) -> None:
    with pytest.raises(ValueError, match="holds folds of other settings"):
        nearsight.train("digits", out=validated.folder, **SETTINGS | {"epochs": 2})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds folds"):
        nearsight.train("digits", model="deit_nano", weights="none", out=validated.folder, quiet=True)


def test_the_command_says_the_score_with_its_interval(
    validated: CrossValidation, type_in: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = type_in("train", "--resume", str(validated.folder), "--cpu")
    assert code == 0, err
    assert "out-of-fold images (95 % interval" in out


def test_images_of_a_group_are_no_independent_evidence() -> None:
    """With equal groups the interval is that of the groups' means, by Student's t."""
    rng = np.random.default_rng(0)
    scores = (rng.random((12, 10)) < rng.random((12, 1))).astype(float)
    groups = np.repeat([f"g{n}" for n in range(12)], 10).tolist()
    values, means = group_values(scores.ravel(), groups), scores.mean(axis=1)
    np.testing.assert_allclose(np.sort(values), np.sort(means), atol=1e-12)
    low, high = student.interval(0.95, 11, means.mean(), means.std(ddof=1) / 12**0.5)

    from nearsight.tasks.classification_report import ClassificationMeter

    meter = ClassificationMeter(2)
    meter.records = {
        index: meter.record(index, type("P", (), {"probabilities": np.array([1 - s, s])}), 1)  # type: ignore[arg-type]
        for index, s in enumerate(scores.ravel())
    }
    found = meter.interval(groups)
    assert found.value == pytest.approx(scores.mean())
    assert (found.low, found.high) == pytest.approx((max(low, 0), min(high, 1)))
    alone = meter.interval()
    assert alone.half_width < found.half_width
