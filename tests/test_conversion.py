"""A released file is converted and evaluated as its release does; the loading path is proven with a trained file."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo
from timm.data.transforms_factory import create_transform

import nearsight
from nearsight.conversion import ReleasedPreprocessing, check_accuracy
from nearsight.reproduction.papers import published_accuracy
from tests.rounding import assert_rounded

WORDNET = ImageNetInfo("imagenet-1k").label_names()


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A file in the layout of DeiT's release, for 1000 classes and images of 32 pixels, with random weights."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=1000)
    torch.save({"model": model.state_dict()}, tmp_path / "released.pth")
    return tmp_path / "released.pth"


def write_images(folder: Path, classes: list[str]) -> Path:
    generator = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        Image.fromarray(generator.integers(0, 255, (50, 70, 3), dtype=np.uint8)).save(folder / name / "image.png")
    return folder


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (231, 224), (300, 300)])
def test_images_are_shown_as_the_releases_show_them(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    ours = ReleasedPreprocessing((224, 224))
    theirs = create_transform(224, is_training=False, interpolation="bicubic", crop_pct=224 / 256)
    shown = ours.normalise(ours.prepare(image)[None].float() / 255)[0]
    assert_rounded(shown, theirs(image), sums=1)  # a difference and a quotient


def test_what_is_checked_is_what_the_model_predicts(released: Path, tmp_path: Path) -> None:
    classes = [WORDNET[number] for number in (3, 14, 159)] + ["n02123045_tabby"]
    folder = write_images(tmp_path / "val", classes)
    weights = nearsight.convert(released, tmp_path / "ours.safetensors")
    found = check_accuracy(weights, folder)
    model, shown = nearsight.create_model(weights=weights).eval(), ReleasedPreprocessing((32, 32))
    right = {1: 0, 5: 0}
    for name in classes:
        image = shown.normalise(shown.prepare(Image.open(folder / name / "image.png"))[None].float() / 255)
        with torch.no_grad():
            first = model(image)[0].topk(5).indices.tolist()
        for count in right:
            right[count] += WORDNET.index(name.partition("_")[0]) in first[:count]
    assert (found.images, found.bad) == (4, {})
    assert (4 * found.top1.value, 4 * found.top5.value) == (right[1], right[5])
    assert found.published is None and "none of the five papers prints" in str(found)


def test_the_command_prints_the_accuracy_beside_the_published_one(
    released: Path, tmp_path: Path, type_in: Callable[..., tuple[int, str, str]]
) -> None:
    folder = write_images(tmp_path / "val", ["0", "7", "999"])
    words = ("convert", str(released), str(tmp_path / "a.safetensors"), "--check", str(folder))
    code, out, err = type_in(*words)
    assert code == 0, err
    assert "on 3 images of ImageNet, with 95 % intervals:\n  top-1 " in out and "top-5" in out
    assert "Wrote" in out


@pytest.mark.parametrize(("classes", "sentence"), [(["cat", "dog"], "a class 'cat', which"), (["3", "1000"], "'1000'")])
def test_other_classes_are_refused_before_anything_is_written(
    classes: list[str], sentence: str, released: Path, tmp_path: Path
) -> None:
    folder = write_images(tmp_path / "val", classes)
    with pytest.raises(ValueError, match=f"{sentence}.* is no class of ImageNet-1K; call the folders by WordNet ids"):
        nearsight.convert(released, tmp_path / "ours.safetensors", check=folder)
    assert not (tmp_path / "ours.safetensors").exists()


def test_a_model_of_other_classes_is_not_checked(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=10)
    torch.save({"model": model.state_dict()}, tmp_path / "ten.pth")
    folder = write_images(tmp_path / "val", ["0", "1"])
    with pytest.raises(ValueError, match=r"tells 10 classes apart, but ImageNet has 1000; it can't be checked\."):
        nearsight.convert(tmp_path / "ten.pth", tmp_path / "ours.safetensors", check=folder)


def test_published_accuracies_are_those_of_the_papers() -> None:
    known = {name: published_accuracy(name) for name in nearsight.list_models()}
    found = {name: (row.top1, row.top5) for name, row in known.items() if row is not None}
    assert found["localvit_small"] == ("80.8", "95.4") and found["lit_base"] == ("83.4", None)
    assert found["iddwnet_base"] == ("83.4", None) and found["swinv2_tiny_life"] == ("81.71", None)
    assert found["lightvit_small"] == ("80.8", None) and found["deit_tiny"] == ("72.2", "91.1")
    assert not any(name.endswith("nano") for name in found)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Thirty photos of `photos30.zip`, called by WordNet id and class, in class folders."""
    archive = Path(os.environ.get("NEARSIGHT_DATA", "")) / "photos30.zip"
    if not archive.is_file():
        pytest.skip("NEARSIGHT_DATA names no folder with photos30.zip")
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            target = tmp_path / "photos" / Path(name).stem
            target.mkdir(parents=True)
            (target / name).write_bytes(opened.read(name))
    return tmp_path / "photos"


def test_a_trained_file_goes_through_the_reader_and_classifies_photos(
    real_weights: Path, photos: Path, tmp_path: Path
) -> None:
    file = real_weights / "deit_tiny_patch16_224.safetensors"
    if not file.is_file():
        pytest.skip(f"NEARSIGHT_WEIGHTS has no {file.name}")
    weights = nearsight.convert(file, tmp_path / "deit.safetensors")
    ours = nearsight.create_model(weights=weights).eval()
    theirs = timm.create_model("deit_tiny_patch16_224", pretrained=True, pretrained_cfg_overlay={"file": str(file)})
    theirs.eval()
    shown = ReleasedPreprocessing((224, 224))
    paths = sorted(photos.rglob("*.jpg"))
    bytes_ = torch.stack([shown.prepare(Image.open(path).convert("RGB")) for path in paths])
    images = shown.normalise(bytes_.float() / 255)
    with torch.no_grad():
        logits, wanted = ours(images), theirs(images)
    assert len(paths) == 30
    assert_rounded(logits, wanted, ours)
    truth = torch.tensor([WORDNET.index(path.name.partition("_")[0]) for path in paths])
    right = int((logits.argmax(1) == truth).sum())
    found = check_accuracy(weights, photos)
    assert found.model == "deit_tiny" and round(30 * found.top1.value) == right
    assert right >= 27 and round(30 * found.top5.value) == 30  # 72 % of ImageNet, more of photos with one clear subject
    assert "published: 72.2 %" in str(found) and "published: 91.1 %" in str(found)
