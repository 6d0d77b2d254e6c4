"""Images of one channel, or of more than three: read, learnt, shared and refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import nearsight
from nearsight.app.session import offered
from nearsight.checkpoints.timm import load_into
from nearsight.config.recipe import ModelChoice
from nearsight.data import BadImage, open_data
from nearsight.data.bands import BandImage
from nearsight.data.file_system import find_images
from nearsight.data.image import decode
from nearsight.tasks.build import build
from tests.rounding import assert_rounded

DRAW = np.random.default_rng(0)
LABELS = np.arange(120) % 2


def six_bands() -> np.ndarray:
    """Noise `[120, 16, 16, 6]` in which the fifth channel alone tells the class."""
    pixels = DRAW.integers(0, 256, (120, 16, 16, 6), dtype=np.uint8)
    pixels[..., 4] = np.where(LABELS[:, None, None], pixels[..., 4] // 2 + 128, pixels[..., 4] // 2)
    return pixels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bands")
    pixels = six_bands()
    parts = {"x_train": pixels[:80], "y_train": LABELS[:80], "x_test": pixels[80:], "y_test": LABELS[80:]}
    np.savez(folder / "six.npz", **parts)
    nearsight.train(
        folder / "six.npz",
        model="deit_nano",
        img_size=16,
        patch_size=4,
        weights="none",
        epochs=6,
        batch=8,
        out=folder / "run",
        changes={"augment.erase": 1.0},
        workers=0,
        cpu=True,
        quiet=True,
    )
    return folder / "run"


def test_what_one_band_alone_tells_is_learnt_and_exported(run: Path) -> None:
    recipe = (run / "recipe.yaml").read_text()
    assert "channels: 6" in recipe and "rand_augment: null" in recipe
    found = nearsight.evaluate(run)
    assert found.score > 0.9
    bundle = nearsight.export(run, run.parent / "bundle", format="pt2").folder
    assert json.loads((bundle / "preprocess.json").read_text())["input"]["colour"] == "6 channels"
    images = np.load(run.parent / "six.npz")["x_test"][:5]
    ours, theirs = ([one.probabilities for one in nearsight.load(which).predict(images)] for which in (run, bundle))
    assert_rounded(theirs, ours, nearsight.load(run).model)
    assert nearsight.load(run).preprocessing.mean[4] == pytest.approx(images[..., 4].mean() / 255, abs=0.1)


def test_images_of_other_channels_are_named_and_left_out(run: Path) -> None:
    predictor = nearsight.load(run)
    (photo,) = predictor.predict(Image.new("RGB", (16, 16)))
    assert photo.problem == "it has 3 channels, and the model sees 6"
    (five,) = predictor.predict(np.zeros((16, 16, 5), dtype=np.uint8))
    assert "16 x 16 x 5 has no 6 channels" in five.problem
    with pytest.raises(ValueError, match="sees images of 6 channels; the page is for photos"):
        offered([str(run)])


def test_npy_files_in_class_folders_are_images(run: Path, tmp_path: Path) -> None:
    pixels = six_bands()
    for number in range(6):
        file = tmp_path / ("odd" if LABELS[number] else "even") / f"{number}.npy"
        file.parent.mkdir(exist_ok=True)
        np.save(file, pixels[number].transpose(2, 0, 1) if number % 3 else pixels[number])
    data = open_data(tmp_path)
    for index in range(6):
        number = int(Path(data.train.name(index)).stem)
        assert (np.asarray(data.train.read(index)) == pixels[number]).all()
    report = nearsight.check_data(data, workers=0)
    assert report.modes == {"6 channels": 6} and not report.unreadable
    assert nearsight.load(run).task == "classify"
    with pytest.raises(BadImage, match="neither bytes, nor 16 bits, nor fractions"):
        np.save(tmp_path / "a.npy", np.full((4, 4, 5), 7.5))
        decode("a.npy", tmp_path / "a.npy")


def test_arrays_beside_images_are_none(tmp_path: Path) -> None:
    """As masks or features that somebody keeps there."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
        np.save(tmp_path / name / "1.npy", np.zeros((8, 8), dtype=np.uint8))
    assert [open_data(tmp_path).train.name(index) for index in range(2)] == ["a/1.png", "b/1.png"]
    assert [Path(path).name for path in find_images([str(tmp_path)])] == ["1.png", "1.png"]


def test_a_pickle_in_an_npy_file_is_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(BadImage, match="damaged"):
        decode("a.npy", tmp_path / "a.npy")


def test_a_fourth_channel_is_transparency_unless_it_is_said_to_be_none(tmp_path: Path) -> None:
    pixels = DRAW.integers(0, 256, (6, 4, 4, 4), dtype=np.uint8)
    pixels[0, 0, 0] = 255
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=LABELS[:6])
    assert open_data(tmp_path / "a.npz").train.read(0).mode == "RGB"
    data = open_data(f"{tmp_path / 'a.npz'}?alpha=off")
    assert (np.asarray(data.train.read(3)) == pixels[3]).all() and data.source.endswith("?alpha=off")


def test_resizing_bands_is_resizing_each() -> None:
    pixels = DRAW.integers(0, 256, (9, 7, 5), dtype=np.uint8)
    small = np.asarray(BandImage(pixels).resize((4, 3), Image.Resampling.BICUBIC))
    for channel in range(5):
        alone = Image.fromarray(pixels[..., channel]).resize((4, 3), Image.Resampling.BICUBIC)
        assert (small[..., channel] == np.asarray(alone)).all()


def test_a_grey_model_sees_photos_in_grey() -> None:
    built = build(ModelChoice(name="deit_nano", img_size=16, channels=1), classes=3)
    photo = Image.fromarray(DRAW.integers(0, 256, (20, 20, 3), dtype=np.uint8))
    shown = built.preprocessing.prepare(photo)
    assert shown.shape == (1, 16, 16) and len(built.preprocessing.mean) == 1
    resized = photo.resize((16, 16), Image.Resampling.BICUBIC)
    assert (shown[0].numpy() == np.asarray(resized.convert("L"))).all()


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_pretrained_weights_for_one_channel_see_grey_as_before(name: str, tmp_path: Path) -> None:
    """The first layer of one channel adds up what that of three says of red, green and blue."""
    colour = build(ModelChoice(name=name), 5).model
    torch.manual_seed(0)
    nearsight.save(colour, tmp_path / "model.safetensors")
    grey = load_into(build(ModelChoice(name=name, channels=1), 5).model, tmp_path / "model.safetensors")
    first = colour.pretrained_cfg["first_conv"]
    one, three = (model.get_submodule(first) for model in (grey, colour))
    assert isinstance(one, nn.Conv2d) and one.in_channels == 1
    image = torch.randn(1, 1, 32, 32)
    assert_rounded(one(image), three(image.expand(1, 3, 32, 32)), three)


def test_channels_that_the_data_do_not_have_are_refused(run: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.channels is 4, but the images have 6 channels"):
        nearsight.train(run.parent / "six.npz", channels=4, weights="none", out=run.parent / "no", quiet=True)
    with pytest.raises(ValueError, match="detectors and segmenters see red, green and blue"):
        nearsight.train("shapes?images=8", channels=1, weights="none", out=run.parent / "no", quiet=True)
    with pytest.raises(ValueError, match=r"data\.mean has 3 numbers, but the model sees 6 channels"):
        changes = {"data.mean": [0.5, 0.5, 0.5]}
        nearsight.train(run.parent / "six.npz", weights="none", out=run.parent / "no", quiet=True, changes=changes)
