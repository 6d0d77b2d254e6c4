"""Weights of detectors and segmenters: written, read, and taken over from classifiers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_heads import SMALL

from nearsight import create_model
from nearsight.checkpoints import load_model, save_model
from nearsight.checkpoints.backbone import load_backbone
from nearsight.config.recipe import Optimizer
from nearsight.heads import DenseModel, DenseSpec, LinearHead, TimmBackbone, from_json, to_json
from nearsight.models import MODELS
from nearsight.training.optim import parameter_groups
from tests.rounding import assert_rounded


@pytest.mark.parametrize("head", SMALL)
def test_a_saved_model_comes_back(head: str, tmp_path: Path) -> None:
    model = DenseModel(DenseSpec(MODELS["dwnet_nano"], SMALL[head]), 4, masks=False)
    again = load_model(save_model(model, tmp_path / "model.safetensors", name="dwnet_nano"))
    assert (again.spec, again.num_classes, again.masks) == (model.spec, 4, False)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_description_does_not_ask_for_pretrained_weights() -> None:
    fetched = DenseSpec(TimmBackbone("resnet18", (("drop_path_rate", 0.1), ("pretrained", True))), LinearHead())
    assert from_json(to_json(fetched)).backbone == TimmBackbone("resnet18", (("drop_path_rate", 0.1),))


@pytest.mark.parametrize("name", ["lit_nano", "lightvit_nano", "deit_nano_life", "swin_nano"])
def test_a_backbone_comes_from_a_classifier_of_another_size(name: str, tmp_path: Path) -> None:
    classifier = create_model(name, num_classes=3, img_size=32).eval()
    save_model(classifier, tmp_path / "model.safetensors")
    model = DenseModel(DenseSpec(replace(MODELS[name], img_size=64), LinearHead()), 2).eval()
    sentence = load_backbone(model, tmp_path)
    assert "left out there: head" in sentence and "the head." in sentence
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        theirs = classifier.forward_intermediates(images, intermediates_only=True, norm=name.startswith("deit"))[-1]
        if name.startswith("deit"):
            ours = model.pyramid(images)[-1]
        else:
            ours = model.pyramid.backbone.forward_intermediates(images, intermediates_only=True)[-1]
    assert_rounded(ours, theirs, model)


def test_a_class_token_that_joins_late_stays_behind(tmp_path: Path) -> None:
    """LIT-Ti's detector has no class token (as released); the patches keep their positions."""
    classifier = create_model("lit_tiny", num_classes=3, img_size=64).eval()
    save_model(classifier, tmp_path / "model.safetensors")
    model = DenseModel(DenseSpec(replace(MODELS["lit_tiny"], img_size=64), LinearHead()), 2).eval()
    assert "left out there: head, norm, stages;" in load_backbone(model, tmp_path)
    ours, theirs = (one.stages[3].position.table for one in (model.pyramid.backbone, classifier))
    assert torch.equal(ours, theirs[:, 1:])
    assert not any("aux_tokens" in name for name, _ in model.named_parameters())


def test_a_backbone_comes_from_another_dense_model(tmp_path: Path) -> None:
    first = DenseModel(DenseSpec(MODELS["deit_nano"], SMALL["semantic-fpn"]), 2)
    save_model(first, tmp_path / "model.safetensors", name="deit_nano")
    second = DenseModel(DenseSpec(replace(MODELS["deit_nano"], img_size=48), SMALL["mask-rcnn"]), 5)
    sentence = load_backbone(second, tmp_path)
    assert "left out there: nothing" in sentence
    ours, theirs = second.pyramid.backbone.state_dict(), first.pyramid.backbone.state_dict()
    same = [name for name in ours if ours[name].shape == theirs[name].shape]
    assert len(same) == len(ours) - 1 and all(torch.equal(ours[name], theirs[name]) for name in same)  # positions


@pytest.mark.parametrize(
    ("name", "options"), [("resnet18", {}), ("vit_tiny_patch16_224", {"img_size": 64}), ("convnext_atto", {})]
)
def test_a_backbone_comes_from_a_classifier_of_timm(name: str, options: dict, tmp_path: Path) -> None:
    import timm

    classifier = timm.create_model(name, num_classes=3, **options).eval()
    save_model(classifier, tmp_path / "model.safetensors", name=name, timm_options=options, img_size=(64, 64))
    model = DenseModel(DenseSpec(TimmBackbone(name, tuple(options.items())), LinearHead()), 2).eval()
    assert "left out there:" in load_backbone(model, tmp_path)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        theirs = classifier.forward_intermediates(images, intermediates_only=True)[-1]
        assert_rounded(model.pyramid.backbone(images)[-1], theirs, model)


def test_weights_of_another_model_are_refused_in_one_sentence(tmp_path: Path) -> None:
    save_model(create_model("lit_nano", num_classes=3), tmp_path / "lit.safetensors")
    model = DenseModel(DenseSpec(MODELS["dwnet_nano"], LinearHead()), 2)
    with pytest.raises(ValueError, match="does not fit this backbone"):
        load_backbone(model, tmp_path / "lit.safetensors")
    with pytest.raises(ValueError, match="There are no weights at"):
        load_backbone(model, tmp_path / "absent")
    with pytest.raises(ValueError, match="holds the weights of lit_nano, not of resnet18"):
        load_backbone(DenseModel(DenseSpec(TimmBackbone("resnet18"), LinearHead()), 2), tmp_path / "lit.safetensors")


@pytest.mark.parametrize(
    "backbone", [MODELS["lit_nano"], TimmBackbone("resnet18"), TimmBackbone("vit_tiny_patch16_224")]
)
def test_layers_of_the_backbone_learn_slower_and_the_head_at_full_rate(backbone: object) -> None:
    with torch.device("meta"):
        model = DenseModel(DenseSpec(backbone, SMALL["retinanet"]), 2)  # type: ignore[arg-type]
    groups = parameter_groups(model, Optimizer(layer_decay=0.5, weight_decay=0.1, offsets=1.0))
    rates = {name: group["lr_scale"] for group in groups for name in group["names"]}
    assert rates.keys() == dict(model.named_parameters()).keys()
    head = {rate for name, rate in rates.items() if not name.startswith("pyramid.backbone.")}
    inner = {rate for name, rate in rates.items() if name.startswith("pyramid.backbone.")}
    assert head == {1.0} and max(inner) == 0.5 and len(inner) >= 4


def test_positions_and_queries_do_not_decay() -> None:
    model = DenseModel(DenseSpec(MODELS["deit_nano"], SMALL["detr"]), 2)
    names = model.no_weight_decay()
    assert {"pyramid.backbone.stages.0.position.table", "pyramid.backbone.stages.0.aux_tokens", "head.queries"} <= names
    assert names <= dict(model.named_parameters()).keys()


@pytest.mark.parametrize("backbone", [MODELS["lit_nano"], TimmBackbone("vit_tiny_patch16_224")])
def test_checkpointing_changes_no_gradient(backbone: object) -> None:
    model = DenseModel(DenseSpec(backbone, LinearHead()), 2).train()  # type: ignore[arg-type]
    for module in model.modules():
        if type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    images, truth = torch.randn(2, 3, 32, 32), [torch.zeros(32, 32)] * 2
    gradients = []
    for enabled in (False, True):
        model.set_grad_checkpointing(enabled)
        model.zero_grad()
        sum(model(images, targets=truth).values()).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert_rounded(one, other, model)
