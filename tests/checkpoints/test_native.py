"""Our own format: what was converted opens again and answers the same, also with other classes, channels and sizes."""

import json
from pathlib import Path

import pytest
import torch
from recorded import Recorded
from torch import nn

from nearsight import convert
from nearsight.checkpoints import WeightFileError, load_model, load_official, save_model
from nearsight.models import MODELS, Backbone
from tests.rounding import assert_rounded


def small(name: str = "lit_nano", **settings) -> Backbone:
    torch.manual_seed(0)
    return Backbone(MODELS[name], num_classes=7, **settings).eval()


@pytest.mark.parametrize("name", ["localvit__localvit_tiny_mlp4_act1", "lightvit__tiny_det_tokens8_200x264"])
def test_a_converted_release_predicts_like_the_release(name: str, tmp_path: Path):
    recorded = Recorded.load(name)
    torch.save(recorded.state(), tmp_path / "released.pth")
    path = convert(tmp_path / "released.pth", tmp_path / "ours.safetensors", **recorded.options())
    assert json.loads(path.with_suffix(".json").read_text())["origin"]["file"] == "released.pth"
    model = load_model(path)
    with torch.inference_mode():
        outputs = model(recorded.images())
        direct = load_official(tmp_path / "released.pth", **recorded.options())(recorded.images())
    for ours, theirs in zip(outputs, direct, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(("_nano", "_nano_life"))])
def test_a_saved_model_opens_with_the_same_outputs(name: str, tmp_path: Path):
    model = small(name)
    images = torch.randn(2, 3, 32, 32)
    again = load_model(save_model(model, tmp_path / "model.safetensors"))
    assert again.spec == model.spec
    assert torch.equal(again(images), model(images))


def test_another_number_of_classes_gets_a_fresh_head_on_the_same_features(tmp_path: Path):
    model = small()
    path = save_model(model, tmp_path / "model.safetensors")
    other = load_model(path, num_classes=3)
    images = torch.randn(2, 3, 32, 32)
    assert other(images).shape == (2, 3)
    assert torch.equal(other.forward_features(images), model.forward_features(images))


def test_grey_images_are_predicted_like_grey_images_in_colour(tmp_path: Path):
    model = small("deit_nano")
    path = save_model(model, tmp_path / "model.safetensors")
    grey = torch.randn(2, 1, 32, 32)
    other = load_model(path, in_chans=1)
    assert_rounded(other(grey), model(grey.expand(-1, 3, -1, -1)), model)


def test_another_image_size_predicts_like_the_running_model_on_that_size(tmp_path: Path):
    model = small("deit_nano")
    path = save_model(model, tmp_path / "model.safetensors")
    larger = load_model(path, img_size=48)
    images = torch.randn(2, 3, 48, 48)
    assert_rounded(larger(images), model(images), model)


def test_nothing_half_written_is_left_behind(tmp_path: Path):
    save_model(small(), tmp_path / "model.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]


def test_bad_files_get_a_sentence(tmp_path: Path):
    path = save_model(small(), tmp_path / "model.safetensors")
    description = json.loads(path.with_suffix(".json").read_text())
    with pytest.raises(WeightFileError, match="is not a file"):
        load_model(tmp_path / "absent.safetensors")

    description["spec"]["type"] = "Popen"
    path.with_suffix(".json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="names the type 'Popen', which Nearsight does not have"):
        load_model(path)

    path.with_suffix(".json").write_text("{")
    with pytest.raises(WeightFileError, match="not whole JSON"):
        load_model(path)

    path.with_suffix(".json").unlink()
    with pytest.raises(WeightFileError, match=r"model\.json is missing"):
        load_model(path)


def test_convert_writes_over_nothing_that_is_not_its_own(tmp_path: Path, type_in):
    recorded = Recorded.load("localvit__localvit_tiny_mlp4_act1")
    source = tmp_path / "released.pth"
    torch.save(recorded.state(), source)
    target, beside = tmp_path / "ours.safetensors", tmp_path / "ours.json"

    def tried(*words: str) -> tuple[int, str]:
        code, _, err = type_in("convert", str(source), str(target), *words)
        return code, err

    beside.write_text('{"mine": 1}')
    code, err = tried()
    assert code == 1 and "ours.json was not written by this command; give another name, or write over" in err
    assert beside.read_text() == '{"mine": 1}' and not target.exists()
    beside.unlink()
    target.write_bytes(b"mine")
    code, err = tried()
    assert code == 1 and "ours.safetensors was not written by this command" in err
    assert target.read_bytes() == b"mine" and not beside.exists()
    assert tried("--force")[0] == 0
    first = target.read_bytes(), beside.read_bytes()
    assert first[0] != b"mine" and tried()[0] == 0  # its own files again, without being forced
    assert (target.read_bytes(), beside.read_bytes()) == first
    source = target  # and never over what is read, whatever is said
    for words in ((), ("--force",)):
        code, err = tried(*words)
        assert code == 1 and "is read here as well and would be lost" in err
    assert (target.read_bytes(), beside.read_bytes()) == first


def test_other_targets_and_models_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"does not end in \.safetensors"):
        convert(tmp_path / "in.pth", tmp_path / "out.pth")
    with pytest.raises(TypeError, match="A Linear is not a model of Nearsight"):
        save_model(nn.Linear(1, 1), tmp_path / "model.safetensors")
