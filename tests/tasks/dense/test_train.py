"""Detectors and segmenters train in the same loop, into the same kind of folder."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nearsight.config.files import load_recipe
from nearsight.config.recipe import Recipe
from nearsight.data import open_data
from nearsight.heads import DenseModel
from nearsight.runs.predictor import load, load_trained
from nearsight.runs.run import Outcome, Run
from nearsight.tasks import get_task
from nearsight.tasks.dense import build_dense
from nearsight.training import resume_training, run_training

from .conftest import SOURCE

Made = tuple[str, Path, Outcome]


def test_the_folder_of_a_run_has_what_every_run_has(trained: Made) -> None:
    task, folder, outcome = trained
    files = {"model.safetensors", "model.json", "recipe.yaml", "data.json", "metrics.jsonl", "summary.md", "curves.png"}
    assert files <= {entry.name for entry in folder.iterdir()}
    assert outcome.metric == {"detect": "box AP", "segment": "mIoU"}[task]
    epochs = [record for record in Run(folder).records() if record["kind"] == "epoch"]
    assert max(record["val_score"] for record in epochs) == outcome.val_score
    assert outcome.metric in (folder / "summary.md").read_text()


def test_the_model_opens_again_with_the_weights_of_its_best_epoch(trained: Made) -> None:
    task, folder, outcome = trained
    model = load(folder).model
    assert isinstance(model, DenseModel) and model.task == task
    best = next((folder / "checkpoints").glob(f"*-epoch-{outcome.epoch:04d}")) / "model.safetensors"
    kept = load_file(best)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    opened = load_trained(folder)
    assert (opened.task, opened.preprocessing.min_size) == (task, 48)
    assert opened.classes == open_data(SOURCE, task).classes


@pytest.mark.parametrize("task", ["detect", "segment", pytest.param("segment from weights", marks=pytest.mark.slow)])
def test_a_stopped_run_ends_with_the_same_bits(
    task: str, recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearsight import create_model
    from nearsight.checkpoints.format import save_model
    from nearsight.training import loop

    changes: dict[str, object] = {}
    if task == "segment from weights":  # with all that comes with them, and an epoch that is not validated
        path = save_model(create_model("deit_nano", num_classes=7), tmp_path / "model.safetensors")
        task, changes = "segment", {"model.weights": str(path), "model.name": "deit_nano", "validate_every": 2}
    settings = recipe(task, **changes)

    monkeypatch.setattr(loop, "write_summary", lambda folder: None)  # it is drawn longer than it is trained
    whole = run_training(SOURCE, settings, tmp_path / "whole", quiet=True, cpu=True)
    real = loop.take_step
    steps = iter(range(100))

    def failing(*arguments: object, **more: object) -> object:
        if next(steps) == 7:
            raise KeyboardInterrupt
        return real(*arguments, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", failing)
        with pytest.raises(KeyboardInterrupt):
            run_training(SOURCE, settings, tmp_path / "broken", quiet=True, cpu=True)
    again = resume_training(tmp_path / "broken", quiet=True, cpu=True)
    assert again.val_score == whole.val_score
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.drill
def test_a_killed_run_ends_with_the_same_bits(recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    options = ["--epochs", "6", "--batch", "4", "--workers", "0", "--cpu", "--set", "dense.min_size=48", "--quiet"]

    def command(out: str) -> list[str]:
        return [sys.executable, "-m", "nearsight", "train", SOURCE, *options, "--out", str(tmp_path / out)]

    subprocess.run(command("whole"), check=True, timeout=900)
    for wait in (8, 11, 14):
        process = subprocess.Popen(command("killed"))
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command("killed"), check=True, timeout=900)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_backbone_of_a_classifier_is_taken_over(tmp_path: Path, recipe: Callable[..., Recipe]) -> None:
    from nearsight import create_model
    from nearsight.checkpoints.format import save_model

    classifier = create_model("lit_nano", num_classes=7, patch_size=4)
    path = save_model(classifier, tmp_path / "model.safetensors")
    options = recipe("detect", **{"model.weights": str(path)})
    filled = get_task("detect").complete(options, open_data(SOURCE))
    built = build_dense(filled, 6, masks=True)
    own, theirs = built.model.pyramid.backbone.state_dict(), classifier.state_dict()
    # Tables of relative positions are resized with the images.
    shared = [name for name in own if name in theirs and not name.endswith(".table")]
    assert len(shared) > 20
    assert all(torch.equal(own[name], theirs[name]) for name in shared)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model.head": "upernet"}, "There is no head 'upernet' to detect with; use one of retinanet, mask-rcnn"),
        ({"model.head": "retinanet", "model.head_options": {"colour": 3}}, "retinanet has no setting 'colour'; it has"),
    ],
)
def test_a_head_that_is_not_there_is_refused(
    changes: dict[str, object], sentence: str, recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    options = load_recipe("small-detect", {"epochs": 1, **changes})
    with pytest.raises(ValueError, match=sentence):
        run_training(SOURCE, options, tmp_path, quiet=True, cpu=True)


def test_norms_of_the_stem_keep_their_statistics_where_asked_for(recipe: Callable[..., Recipe]) -> None:
    for frozen in (False, True):
        changes = {"model.name": "lightvit_nano", "model.freeze_stem_norms": frozen, "model.head": "semantic-fpn"}
        model = build_dense(recipe("segment", **changes), 3, masks=False).model.train()
        stem = [one for one in model.pyramid.backbone.embed.modules() if isinstance(one, torch.nn.BatchNorm2d)]
        before = [norm.running_mean.clone() for norm in stem]
        maps = model.pyramid(torch.randn(2, 3, 48, 48))
        kept = [torch.equal(norm.running_mean, old) for norm, old in zip(stem, before, strict=True)]
        assert kept == [frozen] * 4
        sum(one.sum() for one in maps).backward()
        assert all(norm.weight.grad is not None for norm in stem)  # scale and shift learn
    changes = {"model.name": "swin_nano", "model.freeze_stem_norms": True, "model.head": "semantic-fpn"}
    with pytest.raises(ValueError, match=r"the stem of swin_nano has no batch norms; set it to false"):
        build_dense(recipe("segment", **changes), 3, masks=False)


def test_classifiers_have_no_frozen_norms_and_detectors_no_whole_images(recipe: Callable[..., Recipe]) -> None:
    with pytest.raises(ValueError, match=r"model\.freeze_stem_norms is for detectors and segmenters"):
        load_recipe("small-data", {"model.freeze_stem_norms": True})
    with pytest.raises(ValueError, match=r"data\.whole_up_to is for classifiers; leave it out to detect"):
        recipe("detect", **{"data.whole_up_to": 32})


def test_mean_and_deviation_of_the_data_are_a_setting(recipe: Callable[..., Recipe]) -> None:
    changes = {"data.mean": [0.1, 0.2, 0.3], "data.std": [0.4, 0.5, 0.6], "model.name": "swin_nano"}
    built = build_dense(recipe("segment", **changes, **{"model.head": "semantic-fpn"}), 3, masks=False)
    assert (built.preprocessing.mean, built.preprocessing.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
