"""What a run leaves behind, opened again."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nearsight
from nearsight.checkpoints.format import save_model
from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import load, load_trained, save_trained
from nearsight.runs.run import Run
from nearsight.tasks.build import build


@pytest.mark.parametrize("name", ["lit_nano", "resnet18"])
def test_a_model_comes_back_with_its_classes_and_its_input(name: str, tmp_path: Path) -> None:
    built = build(ModelChoice(name=name, img_size=32), classes=2)
    path = save_trained(built, "classify", ("Gänse", "чайка"), tmp_path / "model.safetensors")
    for where in (path, tmp_path, str(tmp_path)):
        trained = load_trained(where)
        assert (trained.name, trained.classes, trained.preprocessing, trained.path) == (
            name,
            ("Gänse", "чайка"),
            built.preprocessing,
            path,
        )
        assert not trained.model.training
    assert repr(trained) == f"Predictor({name}: classify, 2 classes, trained weights, {path})"
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


def test_images_of_every_form_get_the_same_prediction(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    fractions = pixels.astype(np.float32) / 255
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    forms = [
        tmp_path / "a.png",
        str(tmp_path),
        (tmp_path / "a.png").read_bytes(),
        Image.fromarray(pixels),
        pixels,
        fractions,
        pixels[None],
        tensor,
        tensor[None].float() / 255,
        (one for one in [pixels]),
    ]
    predictor = load("localvit_nano", seed=1)
    expected = next(predictor.predict(pixels)).probabilities
    for form in forms:
        (found,) = predictor.predict(form)
        np.testing.assert_array_equal(found.probabilities, expected)


def test_a_stream_is_read_as_it_is_wanted_and_bad_images_keep_their_place() -> None:
    taken = []

    def stream() -> Iterator[object]:
        for number in range(10):
            taken.append(number)
            yield np.full((8, 8, 3), number, dtype=np.uint8) if number != 1 else b"junk"

    found = load("localvit_nano").predict(stream(), batch=2)
    assert next(found).image == "image 0" and len(taken) == 2
    assert next(found).problem == "it holds no image, or one in an unknown format"
    assert [one.image for one in found] == [f"image {number}" for number in range(2, 10)]


WRONG = [np.zeros((8, 8, 7), np.uint8), np.full((8, 8, 3), 7.0), np.zeros((0, 8), np.uint8)]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_image_is_answered_with_its_problem(wrong: object) -> None:
    (found,) = load("localvit_nano").predict([wrong])
    assert found.problem


def test_what_can_be_no_image_is_refused() -> None:
    for wrong, sentence in ((5, "A int is no image"), (np.zeros(3), "An array of 1 axes is no image")):
        with pytest.raises(ValueError, match=sentence):
            list(load("localvit_nano").predict(wrong))


@pytest.mark.parametrize("record", ["data.json", "outcome.json"])
@pytest.mark.parametrize("content", ['{"source": "di', "[1]", "{}", "[" * 100_000])
def test_a_damaged_record_of_a_run_is_named_in_a_sentence(record: str, content: str, tmp_path: Path) -> None:
    (tmp_path / record).write_text(content)
    with pytest.raises(ValueError, match=rf"{record} is damaged"):
        Run(tmp_path).data() if record == "data.json" else Run(tmp_path).outcome()
