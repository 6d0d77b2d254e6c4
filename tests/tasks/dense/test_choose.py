"""What a recipe for objects or regions leaves open follows the data."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from nearsight import create_model, load, train
from nearsight.checkpoints.format import save_model
from nearsight.config.files import load_recipe
from nearsight.data import open_data
from nearsight.data.samples import Split
from nearsight.data.sizes import measure_sizes
from nearsight.heads import DenseModel
from nearsight.runs.run import Run
from nearsight.tasks import get_task
from nearsight.tasks.dense import choose_anchors, choose_boxes
from nearsight.training.session import prepare

from .conftest import SOURCE, write_coco


def test_the_choices_follow_the_objects() -> None:
    prepared = prepare(SOURCE, load_recipe("small-detect"))
    model, dense = prepared.recipe.model, prepared.recipe.dense
    assert (model.head, model.name) == ("mask-rcnn", "lit_nano")  # shapes have masks
    sizes = measure_sizes(prepared.train)
    assert dense.min_size <= max(32, sizes.side)  # never larger than the images are
    finest, scale, levels = (model.head_options[key] for key in ("finest", "anchor_scale", "levels"))
    assert finest * scale * 2 ** (levels - 1) >= 0.5 * sizes.large * dense.min_size


@pytest.mark.parametrize(("small", "large"), [(16, 50), (8, 300), (40, 60)])
def test_anchors_span_small_to_large(small: float, large: float) -> None:
    found = choose_anchors("mask-rcnn", 4, 512, small, large)
    sides = [found["anchor_scale"] * 4 * 2**level for level in range(found["levels"])]
    assert sides[0] <= 1.5 * small
    assert sides[-1] >= large / 1.5


def test_a_wish_is_not_overruled() -> None:
    given = load_recipe(
        "small-detect", {"dense.min_size": 80, "model.head": "retinanet", "model.head_options.levels": 2}
    )
    filled = get_task("detect").complete(given, open_data(SOURCE))
    assert (filled.dense.min_size, filled.model.head, filled.model.head_options["levels"]) == (80, "retinanet", 2)


@pytest.fixture
def cells(tmp_path: Path) -> Split:
    """Eight images with 18 objects of 80 pixels each; in one are two of 40 pixels as well, of another class."""
    many: list[tuple[int, ...]] = [(30 * index, 200, 80, 80) for index in range(18)]
    rare: list[tuple[int, ...]] = [(10, 10, 40, 40, 9), (100, 10, 40, 40, 9)]
    train = open_data(write_coco(tmp_path / "cells", [*[many] * 7, [*many, *rare]], size=(480, 640))).train
    assert train is not None
    return train


def test_a_rare_class_of_small_objects_has_anchors_too(cells: Split) -> None:
    sizes = measure_sizes(cells)
    assert sizes.small == pytest.approx(80 / 480)  # nine of ten objects
    assert sizes.range == pytest.approx((40 / 480, 80 / 480))
    boxes = choose_boxes("retinanet", 4, 256, sizes)
    assert boxes["finest"] * boxes["anchor_scale"] <= 1.5 * 256 * 40 / 480


def test_four_boxes_are_judged_for_each_object_of_a_full_image(cells: Split) -> None:
    assert choose_boxes("mask-rcnn", 4, 256, measure_sizes(cells))["rois"] == 4 * 18


def test_regions_are_shown_as_they_are_where_images_are_small() -> None:
    filled = prepare("shapes?images=24&size=128", load_recipe("small-segment")).recipe
    assert (filled.dense.min_size, filled.dense.max_size) == (128, 128)  # 128 × 128, 96 × 128 or 128 × 96


def test_the_largest_side_that_is_allowed_can_be_asked_for() -> None:
    filled = prepare("shapes?images=24&size=48", load_recipe("small-segment", {"dense.min_size": 4096})).recipe
    assert (filled.dense.max_size, filled.dense.crop) == (4096, 4096)


WEIGHTS = "deit_tiny_patch16_224.safetensors"


def test_without_weights_the_settings_of_a_start_from_scratch_hold() -> None:
    filled = prepare(SOURCE, load_recipe("small-segment")).recipe
    rates, model = filled.optimizer, filled.model
    assert (rates.lr, rates.lr_batch, rates.clip, rates.layer_decay, filled.ema) == (2e-3, 8, 5.0, None, None)
    assert (model.name, model.layers, model.detail, filled.dense.ratio) == ("lit_nano", None, None, (0.8, 1.25))
    assert (filled.dense.class_crop, filled.loss.class_weights) == (0.0, "none")


@pytest.mark.parametrize("task", ["detect", "segment"])
def test_weights_bring_layer_wise_rates_averaging_larger_images_and_maps_of_several_blocks(
    task: str, tmp_path: Path
) -> None:
    host = create_model("deit_nano", num_classes=4, img_size=224, patch_size=16)
    path = save_model(host, tmp_path / "model.safetensors")
    given = {"model.weights": str(path)}
    source = "shapes?images=24&size=128"
    filled = prepare(source, load_recipe(f"small-{task}", given)).recipe
    plain = prepare(source, load_recipe(f"small-{task}")).recipe
    rates, model = filled.optimizer, filled.model
    assert (rates.lr, rates.layer_decay, rates.clip, filled.ema) == (5e-4, 0.75, 1.0, 0.99)
    assert (model.layers, model.detail, model.patch_size) == (4, 32, None)
    assert plain.dense.min_size < 224 == filled.dense.min_size
    assert filled.epochs < plain.epochs
    balanced = (filled.dense.class_crop, filled.loss.class_weights)
    assert balanced == ((0.5, "sqrt") if task == "segment" else (0.0, "none"))
    said = given | {"optimizer.lr": 1e-5, "optimizer.layer_decay": 0.9, "ema": 0.5, "model.layers": 1, "epochs": 77}
    kept = prepare(source, load_recipe(f"small-{task}", said)).recipe
    assert (kept.optimizer.lr, kept.optimizer.layer_decay, kept.ema) == (1e-5, 0.9, 0.5)
    assert (kept.model.layers, kept.model.detail, kept.epochs) == (1, 32, 77)
    model = get_task(task).build(filled, prepare(source, load_recipe(f"small-{task}", given)).data).model
    assert model.pyramid.backbone.state_dict()["embed.proj.weight"].equal(host.embed.proj.weight)  # patches of 16
    staged = save_model(create_model("lit_nano", num_classes=4), tmp_path / "pyramid" / "model.safetensors")
    own = prepare(source, load_recipe(f"small-{task}", {"model.weights": str(staged)})).recipe.model
    assert (own.layers, own.detail) == (None, None)  # it has maps of its own


def test_the_weights_of_classes_follow_their_pixels() -> None:
    prepared = prepare(SOURCE, load_recipe("small-segment", {"loss.class_weights": "sqrt"}))
    task = get_task("segment")
    built = task.build(prepared.recipe, prepared.data)
    task.objective(prepared.recipe, prepared.data, built, torch.device("cpu"))
    maps = [np.asarray(prepared.train.annotation(index)) for index in range(len(prepared.train))]
    pixels = np.concatenate([one[one != 255] for one in maps])
    frequency = np.bincount(pixels, minlength=len(prepared.data.classes)) / len(pixels)
    expected = frequency**-0.5 / (frequency**0.5).sum()
    assert built.model.head.class_weights.numpy() == pytest.approx(expected, rel=1e-5)
    assert (expected * frequency).sum() == pytest.approx(1)  # a mean of 1 over the pixels


def test_detectors_refuse_weights_of_classes() -> None:
    with pytest.raises(ValueError, match=r"loss\.class_weights is not for detectors"):
        prepare(SOURCE, load_recipe("small-detect", {"loss.class_weights": "balanced"}))


@pytest.mark.parametrize("task", [pytest.param("detect", marks=pytest.mark.slow), "segment"])
def test_real_weights_are_taken_by_themselves_said_and_recorded(
    task: str, real_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (real_weights / WEIGHTS).is_file():
        pytest.skip(f"NEARSIGHT_WEIGHTS has no {WEIGHTS}")
    outcome = train(
        "shapes?images=8&size=64", task=task, epochs=1, batch=4, out=tmp_path, precision="float32", cpu=True
    )
    said = capsys.readouterr().err
    assert "Starts from the pretrained weights deit_tiny_patch16_224 (found in NEARSIGHT_WEIGHTS" in said
    assert "Plan: deit_tiny from weights, 1 epoch at 224 pixels: about" in said
    assert outcome.model == "deit_tiny"
    noted = Run(tmp_path).weights()
    assert noted is not None
    assert noted["sha256"] == hashlib.sha256((real_weights / WEIGHTS).read_bytes()).hexdigest()
    assert (noted["name"], noted["licence"]) == ("deit_tiny_patch16_224", "apache-2.0")
    model = load(tmp_path).model
    assert isinstance(model, DenseModel)
    held = load_file(real_weights / WEIGHTS)["blocks.0.attn.qkv.weight"]
    found = model.pyramid.backbone.state_dict()["stages.0.blocks.0.mixer.qkv.proj.weight"]
    assert (found - held).abs().max() < 1e-3  # the first block hardly moves in a step


def test_a_file_of_pretrained_weights_names_its_model(tmp_path: Path) -> None:
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "test_vit.safetensors")
    given = {"model.weights": str(tmp_path / "test_vit.safetensors")}
    assert prepare(SOURCE, load_recipe("small-segment", given)).recipe.model.name == "test_vit"
    assert get_task("segment").host_of("deit_tiny_patch16_224") == "deit_tiny"  # ours, which is the same network
    assert get_task("classify").host_of("deit_tiny_patch16_224") == "deit_tiny_patch16_224"
