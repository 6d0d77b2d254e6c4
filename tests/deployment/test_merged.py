"""Bundles of several models, or of several views, predict what their average in PyTorch predicts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import nearsight
from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import fingerprint, save_trained
from nearsight.tasks.build import build
from tests.rounding import assert_rounded


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        built = build(ModelChoice(name="deit_nano", img_size=32), classes=3)
        torch.nn.init.normal_(built.model.head.weight, std=0.3)
        folders.append(tmp_path_factory.mktemp(f"run{seed}"))
        save_trained(built, "classify", ("cat", "cow", "dog"), folders[-1] / "model.safetensors")
    return ",".join(map(str, folders))


@pytest.mark.parametrize("format", ["onnx", pytest.param("pt2", marks=pytest.mark.slow)])
def test_a_bundle_averages_models_and_views_by_itself(runs: str, format: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript" if format == "onnx" else "torch")
    made = nearsight.export(runs, tmp_path / "bundle", format=format, tta="flip")
    images = np.random.default_rng(0).integers(0, 256, (5, 40, 36, 3), dtype=np.uint8)
    wanted = [one.probabilities for one in nearsight.load(runs).predict(images, tta="flip")]
    alone = [one.probabilities for one in nearsight.load(runs.partition(",")[0]).predict(images)]
    found = [one.probabilities for one in nearsight.load(made.folder).predict(images)]
    assert_rounded(found, wanted, nearsight.load(runs.partition(",")[0]).model)
    assert np.abs(np.array(found) - alone).max() > 1e-2
    assert made.bundle.model == "2 x deit_nano" and made.bundle.any_batch


@pytest.mark.slow
def test_a_calibration_for_views_goes_into_the_bundle_with_them(runs: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    nearsight.save(nearsight.load(runs.partition(",")[0]), run / "model.safetensors")
    settings = {"temperature": 2.0, "conformal": {"0.05": 0.2}, "tta": "flip"}
    about = {"settings": settings, "weights": fingerprint(nearsight.load(run))}
    (run / "calibration.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="was calibrated with --tta flip; export it so"):
        nearsight.export(run, tmp_path / "plain", format="pt2")
    bundle = nearsight.export(run, tmp_path / "bundle", format="pt2", tta="flip").folder
    image = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    (ours,) = nearsight.load(run).predict(image, tta="flip", error_rate=0.05)
    (theirs,) = nearsight.load(bundle).predict(image, error_rate=0.05)
    assert ours.possible == theirs.possible
    assert_rounded(theirs.probabilities, ours.probabilities, nearsight.load(run).model)


def test_what_no_graph_can_hold_is_refused(runs: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--tta crops can't be a part of a bundle; there are flip and vflip"):
        nearsight.export(runs, tmp_path / "no", format="pt2", tta="crops")
