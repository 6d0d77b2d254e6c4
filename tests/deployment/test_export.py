"""Exporting: what was trained is what runs, or there is a sentence and no folder."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from bundles import bundle, trained_run
from PIL import Image
from typer.testing import CliRunner

from nearsight.cli.export import export as command
from nearsight.deployment.calibration import find_calibration
from nearsight.deployment.export import export, open_exportable
from nearsight.deployment.verify import measure, sizes_to_try
from nearsight.evaluation import evaluate
from nearsight.runs import runtime
from nearsight.runs.bundle import read_bundle
from nearsight.runs.predictor import load_trained
from nearsight.runs.runtime import open_runner
from tests.rounding import assert_rounded, rounding

APP = typer.Typer()
APP.command()(command)


def run(*arguments: object):
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


def refuse(*arguments: object) -> str:
    outcome = run(*arguments)
    assert isinstance(outcome.exception, (ValueError, OSError)), outcome.output
    assert outcome.exit_code == 1
    assert outcome.stdout == ""
    return str(outcome.exception)


@pytest.mark.parametrize("kind", ["onnx", "pt2", "openvino"])
def test_a_bundle_predicts_like_the_model_at_sizes_that_were_not_verified(kind: str) -> None:
    trained, folder = load_trained(trained_run()), bundle(kind)
    runner = open_runner(folder, read_bundle(folder))
    generator = torch.Generator().manual_seed(1)
    for batch, height, width in ((1, 16, 16), (5, 29, 21), (2, 40, 17)):
        images = torch.randn(batch, 3, height, width, generator=generator)
        with torch.no_grad():
            expected = trained.model(images)
        assert_rounded(runner(images.numpy())["logits"], expected, trained.model)


@pytest.mark.parametrize("kind", ["onnx", "pt2", "openvino"])
def test_what_a_bundle_says_of_itself(kind: str) -> None:
    about, trained = read_bundle(bundle(kind)), load_trained(trained_run())
    shown = trained.preprocessing
    assert (about.labels, about.size, about.crop) == (trained.classes, shown.size, shown.crop)
    assert (about.mean, about.std, about.weights) == (shown.mean, shown.std, "trained")
    assert about.any_batch and about.any_size
    verified = json.loads((bundle(kind) / "verify.json").read_text())
    assert verified["images"] == "the validation images of digits"
    sizes = [tuple(one["size"]) for one in verified["sizes"]]
    assert sizes == [(16, 16), (16, 24), (23, 19)]
    assert all(
        one["max_rel"] < rounding(trained.model) and one["top1"] == 1 and one["images"] == 32
        for one in verified["sizes"]
    )
    assert all(one["score"][0] == one["score"][1] for one in verified["sizes"])  # accuracy of the export and of PyTorch
    assert verified["sizes"][0]["score"][0] > 0.5
    assert verified["versions"]["torch"] == torch.__version__.split("+")[0]


def test_metrics_of_agreement() -> None:
    theirs = np.array([[1.0, -4.0], [0.5, 0.0], [0.0, 2.0]], dtype=np.float32)
    mine = np.array([[1.0, -4.0], [0.5, 1.0], [0.0, 2.0]], dtype=np.float32)
    found = measure((8, 8), mine, theirs)
    assert (found.max_abs, found.max_rel, found.top1) == (1.0, 0.25, 2 / 3)
    assert not found.is_close
    assert not measure((8, 8), mine * np.nan, theirs).is_close


def test_three_sizes_one_of_them_not_square() -> None:
    for size in ((16, 16), (224, 224), (96, 160)):
        sizes = sizes_to_try(size, any_size=True)
        assert len(set(sizes)) == 3 and any(height != width for height, width in sizes)
    assert sizes_to_try((16, 16), any_size=False) == [(16, 16)]


def test_a_model_that_predicts_otherwise_is_not_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_module = import_module("nearsight.models.fold")
    right = fold_module.fold

    def wrong(model):
        folded = right(model)
        folded.head.weight[0, 0] += 0.5
        return folded

    monkeypatch.setattr(fold_module, "fold", wrong)
    with pytest.raises(ValueError, match=r"The export was given up: at 16×16 pixels .* nothing was written\."):
        export(trained_run(), tmp_path / "out", format="pt2")
    assert list(tmp_path.iterdir()) == []


def test_an_untrained_model_says_so_and_replaces_a_bundle_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "preprocess.json").write_text("{}")
    assert "holds a bundle" in refuse("deit_nano", "--format", "pt2", "--out", tmp_path / "out")
    outcome = run("deit_nano", "--format", "pt2", "--out", tmp_path / "out", "--size", "24x32", "--force")
    assert outcome.exit_code == 0, outcome.output
    assert "deit_nano with RANDOM weights: it was not trained, 1,000 classes" in outcome.stdout
    assert "two photographs of scikit-learn (china, flower) in 32 pieces" in outcome.stdout
    about = read_bundle(tmp_path / "out")
    assert (about.model, about.weights, about.size, about.labels[-1]) == ("deit_nano", "random", (24, 32), "999")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    out = ("--out", tmp_path / "out")
    assert (
        refuse("deit_nano", "--format", "tflite", *out) == "There is no format 'tflite'; use onnx, openvino, pt2, web."
    )
    assert "did you mean 'deit_nano'?" in refuse("deit_nan", *out)
    assert "is not there; give the folder of a run" in refuse(tmp_path / "run.safetensors", *out)
    assert "has no finished model" in refuse(tmp_path / "empty", *out)
    assert "--int8 is for the formats onnx and web, not for" in refuse(
        "deit_nano", "--int8", "--format", "openvino", *out
    )
    assert "--int8 needs images like those of the later use" in refuse("deit_nano", "--int8", *out)
    assert "--margin 5 is no fraction" in refuse("deit_nano", "--margin", 5, *out)
    assert "--size 22b is no size" in refuse("deit_nano", "--size", "22b", *out)
    assert "is a file; give the name of a folder" in refuse("deit_nano", "--out", trained_run() / "model.json")
    assert "is a bundle already" in refuse(bundle("onnx"), *out)
    nothing = refuse(trained_run(), *out, "--images", tmp_path / "empty")
    assert nothing == f"The folder {tmp_path / 'empty'} has no images in it, at any depth."
    assert "There is no file or folder nowhere" in refuse(trained_run(), *out, "--images", "nowhere")
    refuse("deit_nano", "--out", "/proc/nearsight")  # where nothing can be written
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "package", "extra"), [("onnx", "onnxscript", "deploy"), ("openvino",) * 3])
def test_a_missing_package_is_named_with_its_extra(kind, package, extra, tmp_path, monkeypatch) -> None:
    def absent(name):
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return import_module(name)

    monkeypatch.setattr(runtime, "import_module", absent)
    said = refuse("deit_nano", "--format", kind, "--out", tmp_path / "out")
    assert said == f"The format {kind} needs {package}, which is not installed; pip install 'nearsight[{extra}]'."


def test_only_classifiers_in_a_size_that_they_take(tmp_path: Path) -> None:
    import nearsight
    from nearsight.checkpoints.format import save_model

    file = save_model(nearsight.create_model("deit_nano", num_classes=0), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="deit_nano is no classifier"):
        open_exportable(file)
    with pytest.raises(ValueError, match=r"does not take RGB images of 100×100 pixels"):
        open_exportable("timm/vit_tiny_patch16_224", (100, 100))


def test_images_to_try_a_model_with(tmp_path: Path) -> None:
    predictor = open_exportable(trained_run())
    own = find_calibration(predictor)
    assert own.labelled and own.calibrate is not None
    assert {own.measure.name(i) for i in range(9)}.isdisjoint(own.calibrate.name(i) for i in range(len(own.calibrate)))
    (tmp_path / "flat").mkdir()
    for number in range(6):
        Image.new("RGB", (20, 20), (40 * number, 0, 0)).save(tmp_path / "flat" / f"{number}.png")
    flat = find_calibration(predictor, tmp_path / "flat")
    assert not flat.labelled and flat.calibrate is not None
    names = {split.name(i) for split in (flat.measure, flat.calibrate) for i in range(3)}
    assert len(names) == 6  # none is used for both
    (tmp_path / "classes" / "cat").mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "classes" / "cat" / "a.png")
    other = find_calibration(predictor, tmp_path / "classes")  # a class that the model does not know
    assert not other.labelled and other.calibrate is None
    assert not find_calibration(
        open_exportable("deit_nano"), "digits"
    ).labelled  # its labels are numbers, but not these


def test_a_bundle_is_evaluated_like_its_run(tmp_path: Path) -> None:
    own = evaluate(trained_run(), "digits", device="cpu")
    found = evaluate(bundle("onnx"), "digits", device="cpu")
    assert found.metrics.top1 == own.metrics.top1
    assert_rounded(found.meter.scores(), own.meter.scores(), load_trained(trained_run()).model)
    assert (found.save(tmp_path / "report") / "metrics.json").is_file()
