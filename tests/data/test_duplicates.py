"""Copies are found after editing, look-alikes are not."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from nearsight.data.duplicates import Groups, candidates, describe, make_thumbnail, near_duplicates, same_bytes


def shared_file(name):
    folder = os.environ.get("NEARSIGHT_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"NEARSIGHT_DATA names no folder with {name}")
    return Path(folder) / name


def save_anew(image, quality):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def trim(image, fraction):
    dx, dy = max(1, round(image.width * fraction / 2)), max(1, round(image.height * fraction / 2))
    return image.crop((dx, dy, image.width - dx, image.height - dy))


EDITS = {
    "saved at quality 40": lambda image: save_anew(image, 40),
    "halved": lambda image: image.resize((image.width // 2, image.height // 2)),
    "enlarged": lambda image: image.resize((image.width * 3 // 2, image.height * 3 // 2)),
    "brightened": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "darkened": lambda image: ImageEnhance.Brightness(image).enhance(0.85),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.2),
    "trimmed by 2 %": lambda image: trim(image, 0.02),
    "all of it": lambda image: save_anew(ImageEnhance.Brightness(trim(image, 0.02)).enhance(1.08), 70),
}


@pytest.fixture(scope="module")
def photos():
    with zipfile.ZipFile(shared_file("photos30.zip")) as archive:
        return [Image.open(io.BytesIO(archive.read(name))).convert("RGB") for name in archive.namelist()]


@pytest.fixture(scope="module")
def cifar():
    with np.load(shared_file("cifar10_subset.npz")) as arrays:
        return arrays["x_train"][:4000], arrays["y_train"][:4000].astype(np.int64)


def thumbnails_of(images):
    return np.stack([make_thumbnail(image) for image in images])


@pytest.mark.parametrize("edit", EDITS)
def test_every_edited_photo_is_paired_with_its_original_and_with_nothing_else(photos, edit):
    both = thumbnails_of([*photos, *map(EDITS[edit], photos)])
    pairs = near_duplicates(both, np.zeros(len(both), dtype=np.int64))
    assert pairs.tolist() == [[number, number + len(photos)] for number in range(len(photos))]


@pytest.mark.parametrize(
    ("edit", "recall"), [("saved at quality 40", 1.0), ("brightened", 0.99), ("trimmed by 2 %", 0.85)]
)
def test_edited_images_of_32_pixels_are_found(cifar, edit, recall):
    """Trimming takes at least a pixel from each side here: 6 %."""
    originals = [Image.fromarray(pixels) for pixels in cifar[0][:300]]
    both = thumbnails_of([*originals, *map(EDITS[edit], originals)])
    pairs = near_duplicates(both, np.tile(cifar[1][:300], 2))
    found = np.sum(pairs[:, 1] - pairs[:, 0] == 300)
    assert found >= recall * 300
    assert len(pairs) == found


def test_hashing_finds_what_comparing_all_pairs_finds(cifar):
    """Of all pairs with a cosine above 0.9, the random hashes miss hardly any, and look at few others."""
    directions = describe(thumbnails_of([Image.fromarray(pixels) for pixels in cifar[0]]))
    edited = describe(thumbnails_of([trim(Image.fromarray(pixels), 0.02) for pixels in cifar[0][:500]]))
    everything = np.concatenate([directions, edited])
    left, right = np.nonzero(np.triu(everything @ everything.T, 1) >= 0.92)
    looked_at = {tuple(sorted(pair)) for piece in candidates(everything) for pair in np.stack(piece, 1).tolist()}
    hits = sum(pair in looked_at for pair in zip(left.tolist(), right.tolist(), strict=True))
    assert len(left) > 400
    assert hits >= 0.97 * len(left)
    assert len(looked_at) < 0.05 * len(everything) ** 2 / 2


def test_different_digits_of_8_pixels_are_not_copies():
    from sklearn.datasets import load_digits

    digits = load_digits()
    pictures = thumbnails_of([Image.fromarray(np.uint8(image * 15)).convert("RGB") for image in digits.images])
    labels = digits.target.astype(np.int64)
    assert len(near_duplicates(pictures, labels)) == 0


def smooth_picture(seed, side=96):
    values = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((side, side), Image.Resampling.BICUBIC)


def test_different_images_in_the_same_frame_are_not_copies():
    framed = []
    for seed in range(20):
        page = Image.new("RGB", (96, 96), "white")
        page.paste(ImageEnhance.Contrast(smooth_picture(seed, 72)).enhance(0.2), (12, 12))
        framed.append(page)
    assert len(near_duplicates(thumbnails_of(framed), np.zeros(20, dtype=np.int64))) == 0


def test_the_same_shape_in_another_colour_is_no_copy():
    picture = np.asarray(smooth_picture(0).convert("L"), dtype=np.float32) / 255
    red = np.stack([200 * picture, 40 * picture, 40 * picture], axis=-1)
    blue = red[..., ::-1]
    pictures = thumbnails_of([Image.fromarray(np.uint8(values)) for values in (red, blue)])
    assert len(near_duplicates(pictures, np.zeros(2, dtype=np.int64))) == 0


def test_a_crowd_of_copies_is_found_without_comparing_each_with_each():
    """600 copies of one picture among others share every bucket; they still end in one group."""
    noise = np.random.default_rng(0)
    picture = np.asarray(make_thumbnail(smooth_picture(0)), dtype=np.int64)
    crowd = np.clip(picture + noise.integers(-2, 3, (600, 16, 16, 3)), 0, 255).astype(np.uint8)
    others = thumbnails_of([smooth_picture(seed) for seed in range(1, 201)])
    pairs = near_duplicates(np.concatenate([crowd, others]), np.arange(800) % 30)
    groups = Groups(800)
    groups.join(pairs.tolist())
    assert groups.several() == [list(range(600))]
    assert len(pairs) < 600 * 20


def test_no_images_and_one_image_have_no_copies():
    for count in (0, 1):
        assert near_duplicates(np.zeros((count, 16, 16, 3), np.uint8), np.zeros(count, np.int64)).shape == (0, 2)


def test_equal_digests_are_grouped():
    assert same_bytes([b"x", b"y", b"x", b"z", b"y", b"x"]) == [[0, 2, 5], [1, 4]]


def test_linked_numbers_are_grouped_through_others():
    groups = Groups(8)
    groups.join([(7, 2), (5, 6), (2, 4), (6, 5)])
    assert groups.several() == [[2, 4, 7], [5, 6]]
