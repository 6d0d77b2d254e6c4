"""Dense roll-out of segmenters and detectors from their runs."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from nearsight.checkpoints import save_model
from nearsight.cli.shell import app
from nearsight.data.transforms import DensePreprocessing
from nearsight.explanation.faithfulness import score
from nearsight.explanation.methods import explain
from nearsight.heads import DenseModel, DenseSpec, LinearHead, Retina
from nearsight.models import MODELS
from nearsight.runs.predictor import load_module

SHAPES = ("background", "disc", "square", "triangle", "star", "ring", "cross")


def write_run(folder: Path, backbone: str, head: object, task: str, classes: tuple[str, ...]) -> Path:
    torch.manual_seed(0)
    model = DenseModel(DenseSpec(MODELS[backbone], head), len(classes), masks=False)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.startswith("head") and parameter.ndim > 1:
                parameter.mul_(8.0)  # so that more than one class is found
    about = {"task": task, "classes": list(classes), "input": asdict(DensePreprocessing(40)), "threshold": 0.0}
    folder.mkdir()
    save_model(model, folder / "model.safetensors", name=backbone, trained=about)
    return folder


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    file = tmp_path / "scene.png"
    Image.fromarray(random.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(file)
    return file


def test_rows_for_two_models(picture: Path, tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", "deit_nano", LinearHead(), "segment", SHAPES)
    life = write_run(tmp_path / "life", "deit_nano_life", LinearHead(), "segment", SHAPES)
    words = [
        "explain",
        str(plain),
        str(picture),
        "-m",
        "dense-rollout",
        "--beside",
        str(life),
        "-o",
        str(tmp_path / "o"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    with np.load(tmp_path / "o" / "scene-dense-rollout.npz") as arrays:
        assert arrays["overall"].shape == arrays["overall_1"].shape == (1, 1, 10, 14)
        assert len(arrays["titles"]) == arrays["classes"].shape[1]
        # Rows sum to one, so what a class has beyond the rest sums to nothing, but for the class token's fraction.
        assert abs(arrays["classes"].sum(axis=(2, 3))).max() < 0.2


def test_a_window_model_and_a_detector(picture: Path, tmp_path: Path) -> None:
    swin = write_run(tmp_path / "swin", "swin_nano", LinearHead(), "segment", SHAPES)
    boxes = write_run(tmp_path / "boxes", "swin_nano", Retina(channels=16), "detect", SHAPES[1:])
    for run in (swin, boxes):
        # 40 x 53 pixels, padded to 40 x 56 for the strides.
        (made,) = explain(run, picture, method="dense-rollout")
        values = made.arrays["classes"]
        assert values.shape[2:] == (20, 28) and np.isfinite(values).all()
        assert len(made.figure().axes) >= 3 + values.shape[1]
        assert len(made.prediction) == values.shape[1] and all(0 <= value <= 1 for _, value in made.prediction)


def test_a_class_that_is_not_found_is_refused(picture: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "swin_nano", Retina(channels=16), "detect", SHAPES[1:])
    predictor = load_module(run)
    blind = replace(predictor, settings={"threshold": 1.1})
    with pytest.raises(ValueError, match="does not find star in this image"):
        explain(blind, picture, method="dense-rollout", classes="star")


def test_scores_of_a_segmenter_are_complete(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "deit_nano", LinearHead(), "segment", SHAPES)
    found = score(load_module(run), "shapes?size=40&images=40", limit=4, steps=3)
    names = ["grad-rollout", "dense-rollout", "rollout", "prediction", "random", "centre"]
    assert [row.method for row in found.methods] == names
    assert found.cases > 0 and 0 < found.covered < 0.5
    for row in found.methods:
        assert row.insertion_curve.shape == (4,) and 0 <= row.pointing.value <= 1
