"""`nearsight explain`: figures and arrays for every method, and refusals in one sentence."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Annotation
from PIL import Image
from typer.testing import CliRunner

import nearsight
from nearsight.cli.shell import app
from nearsight.config.recipe import ModelChoice
from nearsight.explanation.figures import Panel, draw_rows, panels_of
from nearsight.explanation.maps import Maps
from nearsight.plots.style import to_png
from nearsight.runs.predictor import RANDOM, load_module, save_trained
from nearsight.tasks.build import build

RUNNER = CliRunner()


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    file = tmp_path / "a picture.png"
    Image.fromarray(random.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(file)
    return file


def explain(*words: object) -> tuple[int, str]:
    """Exit code and the message of what was refused."""
    result = RUNNER.invoke(app, ["explain", *map(str, words)])
    return result.exit_code, str(result.exception or "")


METHODS = {
    "grad-rollout": ("lit_nano", "values"),
    "attention": ("deit_nano_life", "weights"),
    "rollout": ("swin_nano", "aux"),
    "global-tokens": ("lightvit_nano", "aggregate"),
    "sampling": ("lit_nano", "points"),
    "kernels": ("ddwnet_nano", "weights"),
    "receptive-field": ("iddwnet_nano", "mean"),
    "grad-cam": ("localvit_nano", "classes"),
    "probability-grids": ("deit_nano", "layer_1.6"),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_a_figure_and_its_numbers(method: str, picture: Path, tmp_path: Path) -> None:
    model, array = METHODS[method]
    code, message = explain(model, picture, "--method", method, "--out", tmp_path / "out")
    assert (code, message) == (0, "")
    stem = method if method == "probability-grids" else f"a picture-{method}"
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [f"{stem}.npz", f"{stem}.png"]
    with np.load(tmp_path / "out" / f"{stem}.npz", allow_pickle=False) as arrays:
        assert array in arrays and all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f")
    with Image.open(tmp_path / "out" / f"{stem}.png") as figure:
        assert min(figure.size) > 200


def test_a_pixel_is_one_of_the_image_file(picture: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert explain("deit_nano", picture, "-m", "attention", "--at", "9,2", "--out", out)[0] == 0
    with np.load(out / "a picture-attention.npz") as arrays:  # the middle 48 x 48 in 32 x 32: x 9 is 2/3 of a pixel in
        np.testing.assert_allclose(arrays["marks"], [[2.0, 2.0]])
    code, message = explain("deit_nano", picture, "-m", "attention", "--at", "3,2", "--out", out)
    assert code == 1 and "not in the part that the model is shown" in message
    assert explain("deit_nano", picture, "-m", "attention", "--at", "3,2", "--size", 36, "--out", out)[0] == 0
    with np.load(out / "a picture-attention.npz") as arrays:
        assert arrays["image_size"].tolist() == [36, 48] and arrays["values"].shape == (1, 1, 9, 12)


def test_a_run_is_explained_with_its_classes(picture: Path, tmp_path: Path) -> None:
    built = build(ModelChoice(name="localvit_nano"), classes=3)
    save_trained(built, "classify", ("cat", "cow", "dog"), tmp_path / "run" / "model.safetensors")
    predictor = load_module(tmp_path / "run")
    assert (
        predictor.learned
        and predictor.note == ""
        and predictor.class_number("cow") == 1
        and predictor.class_number("2") == 2
    )
    assert explain(tmp_path / "run", picture, "-m", "grad-cam", "--class", "dog", "--out", tmp_path / "out")[0] == 0
    with np.load(tmp_path / "out" / "a picture-grad-cam.npz") as arrays:
        assert arrays["classes"].tolist() == [2]
    code, message = explain(tmp_path / "run", picture, "--class", "horse")
    assert code == 1 and "There is no class 'horse'; give a name (cat, cow, dog) or a number from 0 to 2" in message


def test_unreadable_images_are_passed_over(picture: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    assert explain("deit_nano", tmp_path, "--out", tmp_path / "out")[0] == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 1
    code, message = explain("deit_nano", tmp_path / "broken.jpg")
    assert code == 1 and "No image can be read" in message


REFUSED = {
    "an unknown method": (("deit_nano", "--method", "rolout"), "did you mean rollout?"),
    "an unknown model": (("deit_nanno",), "did you mean 'deit_nano'?"),
    "a run that is not there": (("./runs/none",), "is not there"),
    "a method without meaning": (("swin_nano", "--method", "sampling"), "no deformable merge"),
    "dense roll-out of a classifier": (("deit_nano", "--method", "dense-rollout"), "classifies images"),
    "a layer that is not there": (("deit_nano", "--layer", "7.1"), "There is no layer 7.1"),
    "a head that is not there": (("deit_nano", "-m", "attention", "--head", "9"), "There is no head 9"),
    "no place": (("deit_nano", "--at", "here"), "--at here is no pixel"),
    "a wrong fusion": (("deit_nano", "--fusion", "sum"), "fusion='sum' is not known"),
    "a wrong fraction": (("deit_nano", "--discard", "1"), "discard=1.0 is no fraction"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused_in_a_sentence(what: str, picture: Path, tmp_path: Path) -> None:
    (model, *rest), sentence = REFUSED[what]
    result = RUNNER.invoke(app, ["explain", model, str(picture), *rest, "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, ValueError), result.output
    assert sentence in str(result.exception) and "\n" not in str(result.exception)


def test_two_images_of_one_name_do_not_overwrite_each_other(picture: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "more" / "a picture.png")
    assert explain("deit_nano", picture, tmp_path / "more", "--out", tmp_path / "out")[0] == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def pixels(figure: object) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(to_png(figure))).convert("RGB")).astype(int)


def test_cells_have_sharp_borders_and_end_at_the_image() -> None:
    values = np.array([[[[0.0, 1.0], [0.0, 0.0]]]], dtype=np.float32)
    maps = Maps("demo", values, ("a",), (8, 8), (16, 12), "share")  # the right cells reach beyond the image
    drawn = pixels(draw_rows([panels_of(maps, Image.new("RGB", (24, 32), "white"))]))
    inside = drawn[60:-120, 20:-20].reshape(-1, 3)
    _, counts = np.unique(inside, axis=0, return_counts=True)
    assert (counts > 0.05 * len(inside)).sum() <= 3, "two colours of cells and the page, nothing in between"
    flat = maps.in_pixels()[0, 0]
    assert flat.shape == (16, 12) and flat[:8, 8:].all() and flat.sum() == 8 * 4


def test_figures_say_that_weights_are_random() -> None:
    panel = Panel("input", Image.new("RGB", (20, 20)), (20, 20))
    with_note, without = draw_rows([[panel]], note=RANDOM), draw_rows([[panel]])
    assert "".join(with_note.get_supxlabel().split("\n")).startswith("Random weights") and not without.get_supxlabel()


def test_the_verb_takes_images_as_they_are_and_gives_what_the_command_writes(picture: Path, tmp_path: Path) -> None:
    assert explain("deit_nano", picture, "-m", "rollout", "-m", "grad-cam", "--out", tmp_path / "out")[0] == 0
    found = nearsight.explain("deit_nano", Image.open(picture), method=["rollout", "grad-cam"])
    assert [made.method for made in found] == ["rollout", "grad-cam"] and found[0].image == "image 0"
    for made in found:
        with np.load(tmp_path / "out" / f"a picture-{made.method}.npz") as arrays:
            assert set(arrays) == set(made.arrays)
            np.testing.assert_array_equal(arrays["values"], made.maps.values)
    ((name, confidence),) = found[0].prediction
    assert name == f"class {found[1].maps.raw['classes'][0]}" and 0 < confidence < 1
    title = found[1].figure().get_suptitle()
    assert title.startswith(f"Grad-CAM for {name}")
    assert json.loads(json.dumps(found.to_dict()))["explanations"][1]["prediction"][0]["class"] == name
    assert found._repr_html_().count("<img") == 2 and "rollout" in repr(found[0])
    assert [file.name for file in found[0].save(tmp_path / "one.png")] == ["one.png"]


def test_the_default_figure_names_prediction_confidence_and_true_class(tmp_path: Path) -> None:
    names = ("dress", "shirt", "hat", "shoes")
    build_and_save(tmp_path / "run", names)
    (tmp_path / "hat").mkdir()
    Image.new("RGB", (48, 40), "teal").save(tmp_path / "hat" / "a.png")
    (made,) = nearsight.explain(tmp_path / "run", tmp_path / "hat" / "a.png")
    ((name, confidence),) = made.prediction
    assert made.method == "grad-rollout" and made.truth == "hat" == made.to_dict()["truth"]
    page = made.figure()
    said = page.get_suptitle().split("\n")[0]
    assert said == f"Prediction: {name} ({100 * confidence:.1f} %)"
    assert any("True class: hat. Model: deit_nano" in text.get_text() for text in page.findobj(Annotation))
    titles = [axes.get_title(loc="left") for axes in page.axes]
    classes = {title.split(",")[0] for title in titles[1:4]}
    assert titles[0] == "input" and titles[1].startswith(f"{name}, ") and {name, "hat"} <= classes < set(names)
    assert page.get_figwidth() < 6, "two panels in a line can be read on a narrow screen"
    smooth, cells = (nearsight.explain(tmp_path / "run", tmp_path / "hat", overlay=o)[0] for o in (None, "cells"))
    assert to_png(smooth.figure()) != to_png(cells.figure())
    with pytest.raises(ValueError, match="overlay='round' is not known; use smooth or cells"):
        nearsight.explain(tmp_path / "run", tmp_path / "hat", overlay="round")


def build_and_save(folder: Path, classes: tuple[str, ...]) -> None:
    """A run with random weights that counts as trained."""
    save_trained(
        build(ModelChoice(name="deit_nano"), classes=len(classes)), "classify", classes, folder / "model.safetensors"
    )


def test_many_images_are_averaged_beside_those_of_each(picture: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    found = nearsight.explain("deit_nano", tmp_path, method=["attention", "probability-grids"])
    assert [made.method for made in found] == ["attention", "probability-grids"]
    assert list(found.skipped) == [str(tmp_path / "broken.jpg")] and found[1].image == "1 image"


def test_a_verb_keeps_its_name_when_all_is_imported() -> None:
    import nearsight.explanation.probing.paper

    assert callable(nearsight.explain) and callable(nearsight.score) and callable(nearsight.probe)
