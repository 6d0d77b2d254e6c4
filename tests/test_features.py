"""Features of frozen backbones: the cache on the disk, the regression, and the head that a model gets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import nearsight
from nearsight import features
from nearsight.config.recipe import ModelChoice
from nearsight.data import open_data
from nearsight.features import (
    FrozenFeatures,
    extract_features,
    fit_head,
    pool_features,
    read_chunk,
    regress,
    use_head,
    write_chunk,
)
from nearsight.models.pooling import PooledHead, set_pooling
from nearsight.tasks import get_task
from nearsight.tasks.build import build
from nearsight.timing import with_threads


def blobs(classes: int = 4, images: int = 160, dim: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds of points, with two kinds of features of which the second says more."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    centres = rng.normal(size=(classes, dim))
    values = np.stack([centres[labels] * weight + rng.normal(size=(images, dim)) for weight in (0.1, 0.8)], axis=1)
    return values.astype(np.float32), labels


@pytest.mark.parametrize("strength", [1.0, 0.01])
def test_regression_is_that_of_scikit_learn(strength: float) -> None:
    values, labels = blobs()
    flat = values[:, 1].astype(np.float64)
    found = regress(flat, np.eye(4)[labels], np.ones(len(flat)), strength, exclusive=True)
    theirs = LogisticRegression(C=1 / (strength * len(flat)), tol=1e-8, max_iter=1000).fit(flat, labels)
    ours = torch.from_numpy(flat @ found[:-1] + found[-1]).softmax(1).numpy()
    assert np.abs(ours - theirs.predict_proba(flat)).max() < 1e-3


def test_the_way_over_principal_axes_ends_at_the_same_regression() -> None:
    values, labels = blobs()
    values = (values @ np.random.default_rng(1).normal(size=(6, 6)) * 3 + 2).astype(np.float32)  # correlated, shifted
    head = fit_head(values, labels, 4)
    flat = features.pick(values, head.pooling).astype(np.float64)
    scaled = (flat - flat.mean(0)) / flat.std(0)
    theirs = LogisticRegression(C=1 / (head.strength * len(flat)), tol=1e-10, max_iter=5000).fit(scaled, labels)
    ours = head.logits(values).softmax(1).numpy()
    assert np.abs(ours - theirs.predict_proba(scaled)).max() < 1e-3


def test_several_labels_are_as_many_regressions() -> None:
    values, labels = blobs()
    flat = values[:, 1].astype(np.float64)
    several = np.stack([labels < 2, labels % 2 == 0], axis=1).astype(np.float64)
    found = regress(flat, several, np.ones(len(flat)), 0.1, exclusive=False)
    for number in range(2):
        theirs = LogisticRegression(C=1 / (0.1 * len(flat)), tol=1e-8, max_iter=1000).fit(flat, several[:, number])
        assert np.abs(found[:-1, number] - theirs.coef_[0]).max() < 1e-3


def test_cross_validation_takes_the_pooling_that_says_more() -> None:
    values, labels = blobs()
    head = fit_head(values, labels, 4)
    by_pooling = {name: max(score for one, _, score in head.tried if one == name) for name in ("token", "mean", "both")}
    assert head.pooling in ("mean", "both") and by_pooling["token"] < by_pooling["mean"]
    assert head.score == max(by_pooling.values())


def test_neighbours_are_those_of_scikit_learn() -> None:
    values, labels = blobs(classes=2)
    flat, folds = values[:, 1], np.arange(len(labels)) % 2
    ours = features.nearest(flat, np.eye(2)[labels], folds, [0], (1, 5), True)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    for count, score in ours.items():
        theirs = KNeighborsClassifier(count).fit(unit[folds != 0], labels[folds != 0])
        assert score == pytest.approx(theirs.score(unit[folds == 0], labels[folds == 0]), abs=1e-6)


@pytest.mark.parametrize("name", ["deit_nano", "lit_nano", "timm/resnet10t", "timm/deit_tiny_distilled_patch16_224"])
def test_a_model_with_the_head_says_what_the_head_says_of_its_features(name: str) -> None:
    torch.manual_seed(0)
    built = build(ModelChoice(name=name, img_size=32), 3)
    images = torch.randn(24, 3, 32, 32)
    model = built.model.eval()
    with torch.no_grad():
        values = pool_features(model, images).numpy()
    for pooling in ("token", "mean", "both") if values.shape[1] == 2 else (None,):
        picked = features.pick(values, pooling)
        rng = np.random.default_rng(0)
        head = features.FittedHead(rng.normal(size=(3, picked.shape[1])), rng.normal(size=3), pooling, 1, 1, (), 1, 1)
        fresh = build(ModelChoice(name=name, img_size=32), 3).model.eval()
        fresh.load_state_dict(model.state_dict())
        with torch.no_grad():
            said = use_head(fresh, head)(images)
        assert (said - head.logits(values)).abs().max() < 1e-4 * max(1, float(said.abs().max()))


@pytest.mark.parametrize("name", ["deit_nano", "timm/vit_tiny_patch16_224"])
def test_another_pooling_is_saved_and_opened_with_the_same_bits(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build(ModelChoice(name=name, img_size=32), 3).model
    set_pooling(model, "both").eval()
    assert isinstance(model.head, PooledHead)
    options = {} if name == "deit_nano" else {"img_size": 32}
    file = nearsight.save(model, tmp_path / "model.safetensors", **options)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(nearsight.load(file).model(images), model(images))


def test_models_that_norm_what_they_pooled_keep_their_pooling() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, global_pool="avg")
    with pytest.raises(ValueError, match="pools in its own way"):
        set_pooling(model, "both")


def extracted(folder: Path, **settings: object) -> FrozenFeatures:
    """Features of some digits."""
    torch.manual_seed(0)
    built = build(ModelChoice(name="deit_nano", img_size=16, patch_size=4), 10)
    data = open_data("digits")
    return extract_features(get_task("classify"), built, data.splits()["test"], folder, **settings)  # type: ignore[arg-type]


def test_what_is_on_the_disk_is_taken_and_what_is_damaged_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "CHUNK", 64)
    whole = extracted(tmp_path)
    files = sorted(tmp_path.glob("*.npz"))
    assert len(files) == -(-len(whole.indices) // 64)
    calls: list[int] = []
    real = features.pool_features
    monkeypatch.setattr(features, "pool_features", lambda *given: calls.append(1) or real(*given))
    again = extracted(tmp_path)
    assert not calls and np.array_equal(again.values, whole.values) and again.spared == pytest.approx(whole.seconds)
    files[1].write_bytes(files[1].read_bytes()[:-20])
    flipped = bytearray(files[2].read_bytes())
    flipped[300] ^= 255
    files[2].write_bytes(bytes(flipped))
    assert np.array_equal(extracted(tmp_path).values, whole.values)
    assert len(calls) == 4  # two chunks of two batches
    extracted(tmp_path, fingerprint="other images")
    assert len(calls) == 4 + -(-len(whole.indices) // 32)


@pytest.mark.parametrize(
    "edits",
    [
        {"values": np.full((4, 2, 3), np.nan, dtype=np.float32)},
        {"values": np.zeros((4, 2, 3))},
        {"indices": np.arange(4) + 100},
        {"indices": np.arange(4.0)},
        {"originals": np.zeros((4, 3), dtype=np.int64)},
        {"bad": np.array("x")},
        {"bad": np.array([["a", "b", "c"]])},
        {"seconds": np.ones(3)},
        {"seconds": np.array("long")},
        {"values": np.array([print] * 4, dtype=object)},
    ],
)
def test_a_file_that_was_edited_is_not_taken(tmp_path: Path, edits: dict[str, Any]) -> None:
    file = tmp_path / "0.npz"
    values, originals = np.ones((4, 2, 3), dtype=np.float32), np.ones((4, 2), dtype=np.int64)
    write_chunk(file, FrozenFeatures(values, np.arange(4), originals, {"a.png": "the file is empty"}, 1.0))
    kept = read_chunk(file, range(5))
    assert kept is not None and np.array_equal(kept.values, values) and kept.bad == {"a.png": "the file is empty"}
    with np.load(file) as held:
        arrays = dict(held)
    np.savez(file, **arrays | edits)
    assert read_chunk(file, range(5)) is None


def test_work_that_was_ended_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "CHUNK", 64)
    left = iter([False] * 5 + [True])

    def stop() -> None:
        if next(left):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extracted(tmp_path / "ended", check=stop)
    assert len(list((tmp_path / "ended").glob("*.npz"))) == 2
    assert np.array_equal(extracted(tmp_path / "ended").values, extracted(tmp_path / "whole").values)


def test_what_comes_out_does_not_depend_on_the_number_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "CHUNK", 64)
    found = []
    for threads in (1, 2, 5):
        with with_threads(threads):
            found.append(extracted(tmp_path / str(threads)))
            assert torch.get_num_threads() == threads
    alone, *others = found
    assert alone.indices.tolist() == list(range(len(alone.indices))) and len(alone.indices) > 5 * 64
    for other in others:
        assert np.array_equal(other.values, alone.values) and np.array_equal(other.indices, alone.indices)
