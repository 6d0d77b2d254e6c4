"""What a run leaves behind, opened again."""

import json
from pathlib import Path

import pytest
import torch

import nearsight
from nearsight.checkpoints.format import save_model
from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import load, load_trained, save_trained
from nearsight.tasks.build import build


@pytest.mark.parametrize("name", ["lit_nano", "resnet18"])
def test_a_model_comes_back_with_its_classes_and_its_input(name: str, tmp_path: Path) -> None:
    built = build(ModelChoice(name=name, img_size=32), classes=2)
    path = save_trained(built, "classify", ("Gänse", "чайка"), tmp_path / "model.safetensors")
    for place in (path, tmp_path, str(tmp_path)):
        trained = load_trained(place)
        assert (trained.name, trained.classes, trained.preprocessing, trained.path) == (
            name,
            ("Gänse", "чайка"),
            built.preprocessing,
            path,
        )
        assert not trained.model.training
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(trained.model(images), built.model.eval()(images))
        assert torch.equal(load(tmp_path).model(images), built.model(images))


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent is not there; give the folder of a run or"):
        load(tmp_path / "absent")
    with pytest.raises(ValueError, match="has no finished model and is no run; give the folder of a run or"):
        load_trained(tmp_path)
    begun = tmp_path / "my run"
    begun.mkdir()
    for name in ("recipe.yaml", "data.json"):
        (begun / name).write_text("")
    with pytest.raises(ValueError, match=r"has no finished model; finish it with `nearsight train --resume '.*run'`"):
        load_trained(begun)
    plain = save_model(nearsight.create_model("lit_nano", num_classes=2), tmp_path / "plain.safetensors")
    assert load(plain).model.num_classes == 2
    with pytest.raises(ValueError, match="was not trained by Nearsight and has no class names"):
        load_trained(plain)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    built = build(ModelChoice(name="resnet18", img_size=32), classes=2)
    path = save_trained(built, "classify", ("a", "b"), tmp_path / "model.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_trained(path)
    path.with_suffix(".json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(ValueError, match="does not describe a model of Nearsight"):
        load_trained(path)
