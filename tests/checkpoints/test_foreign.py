"""Models of timm in our files."""

import json
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from nearsight.checkpoints import load_model, save_model
from nearsight.checkpoints.safe import WeightFileError
from nearsight.checkpoints.timm import fit_stem, load_into


def write(model: nn.Module, path: Path, **options: object) -> Path:
    return save_model(model, path / "m.safetensors", name="resnet10t", timm_options=options, img_size=(32, 32))


def test_a_model_comes_back_bit_by_bit(tmp_path: Path) -> None:
    model = timm.create_model("resnet10t", num_classes=3, drop_rate=0.2)
    steps = fit_stem(model, 32)
    path = write(model, tmp_path, drop_rate=0.2, stem_stride=steps)
    again = load_model(path)
    assert not again.training and again.drop_rate == 0.2
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(images), model.eval()(images))  # also the strides, which no tensor tells
    assert json.loads((tmp_path / "m.json").read_text())["timm"] == {"drop_rate": 0.2, "stem_stride": steps}


def test_other_classes_get_a_fresh_head_and_nothing_else(tmp_path: Path) -> None:
    model = timm.create_model("resnet10t", num_classes=3)
    other = load_model(write(model, tmp_path), num_classes=5)
    same = {key for key, value in model.state_dict().items() if torch.equal(value, other.state_dict()[key])}
    assert model.state_dict().keys() - same == {"fc.weight", "fc.bias"}


def test_weights_that_do_not_fit_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path = write(timm.create_model("resnet10t", num_classes=3), tmp_path)
    with pytest.raises(WeightFileError, match=r"does not fit the model: \d+ tensors are missing and \d+ unknown"):
        load_into(timm.create_model("vit_tiny_patch16_224"), path)
    with pytest.raises(WeightFileError, match=r"fc\.bias has the shape \(3,\) instead of \(4,\)"):
        load_into(timm.create_model("resnet10t", num_classes=4), path, fresh_head=False)


def test_only_models_that_shrink_too_far_lose_strides() -> None:
    assert [fit_stem(timm.create_model("resnet10t"), side) for side in (16, 32, 64, 128)] == [2, 1, 0, 0]
    assert fit_stem(timm.create_model("vit_tiny_patch16_224", img_size=32), 32) == 0
