"""Corruptions are as strong as a peer's, shifts are undone in predictions, and both are judged for every image."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nearsight.data.instances import encode_masks
from nearsight.data.transforms import Preprocessing
from nearsight.evaluation import evaluate
from nearsight.robustness import CORRUPTIONS, Variant, Variants, corrupt, shift
from nearsight.runs.predictor import Predictor
from nearsight.tasks.predictions import Detection, Segmentation

# Peak signal-to-noise ratio in dB at the five strengths on `scene()`, mean over three seeds, measured with
# imagecorruptions 1.1.2. It has no glass blur for today's scikit-image: that one is only held to get worse.
PEER = {
    "gaussian noise": (22.08, 18.71, 15.5, 12.83, 10.47),
    "shot noise": (21.16, 17.6, 14.79, 11.64, 9.9),
    "impulse noise": (20.29, 17.36, 15.68, 12.85, 10.8),
    "defocus blur": (28.95, 27.06, 24.46, 23.5, 23.11),
    "motion blur": (25.48, 23.44, 21.65, 20.1, 19.17),
    "zoom blur": (22.86, 21.49, 20.65, 19.77, 18.94),
    "snow": (14.54, 10.44, 10.38, 8.82, 7.59),
    "fog": (15.91, 15.05, 14.48, 14.4, 13.87),
    "brightness": (22.63, 16.76, 13.96, 12.84, 12.23),
    "contrast": (17.16, 15.83, 14.67, 13.65, 13.17),
    "elastic transform": (26.61, 25.14, 23.71, 22.9, 22.02),
    "pixelate": (31.5, 31.67, 28.36, 27.21, 27.15),
    "JPEG compression": (28.8, 28.02, 27.48, 26.28, 25.3),
}
DRAWN = {"motion blur": 1.0, "snow": 1.0, "fog": 1.6}  # dB: what is drawn, or how clouds grow, makes more difference


def scene(side: int = 224) -> np.ndarray:
    """A made photo: smooth colours, sharp edges, fine texture."""
    y, x = np.mgrid[0:side, 0:side] / side
    pixels = np.stack((0.3 + 0.4 * x, 0.5 + 0.3 * np.sin(6 * y), 0.4 + 0.3 * np.cos(5 * x * y)), axis=-1)
    pixels[(x - 0.3) ** 2 + (y - 0.4) ** 2 < 0.04] = (0.9, 0.2, 0.1)
    pixels[(abs(x - 0.7) < 0.1) & (abs(y - 0.6) < 0.2)] = (0.1, 0.3, 0.8)
    pixels += 0.1 * np.sin(2 * np.pi * 24 * x)[..., None] * (y > 0.7)[..., None]
    return np.rint(pixels.clip(0, 1) * 255).astype(np.uint8)


def decibels(name: str, strength: int, side: int = 224) -> float:
    pixels = scene(side)
    worse = [np.asarray(corrupt(Image.fromarray(pixels), name, strength, seed), dtype=float) for seed in range(3)]
    return float(np.mean([10 * np.log10(255**2 / np.mean((one - pixels) ** 2)) for one in worse]))


@pytest.mark.parametrize("name", PEER)
def test_corruptions_are_as_strong_as_a_peers(name) -> None:
    found = [decibels(name, strength) for strength in range(1, 6)]
    assert found == pytest.approx(PEER[name], abs=DRAWN.get(name, 0.5))


def test_glass_gets_worse_and_every_other_corruption_has_a_peer() -> None:
    assert set(CORRUPTIONS) - set(PEER) == {"glass blur"}
    assert decibels("glass blur", 5) < decibels("glass blur", 1)


@pytest.mark.parametrize("name", ["defocus blur", "motion blur", "elastic transform"])  # glass moves whole pixels
def test_one_strength_means_the_same_for_images_of_other_sizes(name) -> None:
    assert decibels(name, 4, side=112) == pytest.approx(decibels(name, 4), abs=2.0)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_tiny_and_oblong_images_are_corrupted_too_and_the_same_way_again(name) -> None:
    for size in ((1, 1), (3, 40), (33, 7)):
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
        worse = corrupt(image, name, 5, seed=4)
        assert worse.size == image.size
        assert worse.tobytes() == corrupt(image, name, 5, seed=4).tobytes()


def test_unknown_corruptions_and_strengths_are_refused() -> None:
    with pytest.raises(ValueError, match="no corruption 'rain' of strength 1"):
        corrupt(Image.new("RGB", (8, 8)), "rain", 1)
    with pytest.raises(ValueError, match="strengths are 1 to 5"):
        corrupt(Image.new("RGB", (8, 8)), "fog", 6)


def test_a_shift_is_a_roll_away_from_the_edges() -> None:
    pixels = scene(32)
    moved = np.asarray(shift(Image.fromarray(pixels), -3, 5))
    assert np.array_equal(moved[5:, :-3], np.roll(pixels, (5, -3), (0, 1))[5:, :-3])
    assert np.array_equal(moved[:5, :-3], pixels[:5, 3:][::-1])  # the mirror image


def test_moved_predictions_go_back() -> None:
    mask = np.zeros((1, 6, 8), dtype=bool)
    mask[0, 2:4, 3:5] = True
    boxes, one = np.array([[3.0, 2, 5, 4]]), np.zeros(1, dtype=int)
    found = Detection(
        image="a",
        size=(6, 8),
        boxes=boxes,
        labels=one,
        scores=one + 0.9,
        classes=("x",),
        rles=tuple(encode_masks(mask)),
    )
    back = found.moved(2, -1).moved(-2, 1)
    assert np.array_equal(back.boxes, boxes)
    assert np.array_equal(back.masks(), mask)
    assert np.array_equal(found.moved(2, -1).masks(), np.roll(mask, (-1, 2), (1, 2)))
    labels = np.arange(48, dtype=np.uint8).reshape(6, 8)
    still = Segmentation(image="a", size=(6, 8), labels=labels, classes=tuple(map(str, range(48))))
    assert still.agreement(still.moved(2, -1)) == 0  # every pixel has another class
    assert still.agreement(still.moved(2, -1).moved(-2, 1)) == 1  # what left the image is not counted


class BrightestColumn(nn.Module):
    """Names the quarter of the image that its brightest column lies in."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(1, 2)).unflatten(1, (4, -1)).amax(dim=2)


@pytest.fixture
def columns(tmp_path) -> tuple[Predictor, str]:
    """A model, and images of 16 pixels with a bright line in the second column of their quarter."""
    for quarter in range(4):
        for number in range(4):
            pixels = np.full((16, 16, 3), 20 + 10 * number, dtype=np.uint8)
            pixels[:, 4 * quarter + 1] = 250
            (tmp_path / "data" / str(quarter)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / "data" / str(quarter) / f"{number}.png")
    shown = Preprocessing((16, 16), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 1.0)
    return Predictor(BrightestColumn(), "columns", "classify", tuple("0123"), shown, tmp_path / "columns"), str(
        tmp_path / "data"
    )


def test_predictions_for_shifted_images_are_those_of_the_model(columns) -> None:
    found = evaluate(*columns, shifts=True, workers=0)
    assert found.score == 1.0
    for by in range(1, 9):
        stays = []
        for index in range(16):
            _, right = Variant(pixels=by).direction(index)
            row = np.zeros(16)
            row[4 * (index // 4) + 1] = 1
            wide = np.concatenate((row[::-1], row, row[::-1]))  # what comes in at the edges is the mirror image
            seen = np.flatnonzero(wide[16 - right : 32 - right]) // 4
            stays.append(seen.min(initial=4) % 4 == index // 4)  # of equal ones the first
        assert found.robustness.shifts[by] == found.robustness.agreement[by] == pytest.approx(np.mean(stays))
    assert found.robustness.agreement[1] > found.robustness.agreement[3]
    assert not found.robustness.corruptions


def test_a_shift_is_in_pixels_that_the_model_sees(columns) -> None:
    """A smaller image is enlarged first: else a shift by one pixel would not move it at all."""
    predictor, data = columns
    whole = evaluate(predictor, data, workers=0).images
    shown = Variants(whole, [Variant(), Variant(pixels=1)], side=64)
    still, moved = (np.asarray(shown.read(number)) for number in range(2))
    assert still.shape == moved.shape == (64, 64, 3)
    down, right = Variant(pixels=1).direction(0)
    inside = (slice(2, -2), slice(2, -2))
    assert np.array_equal(moved[inside], np.roll(still, (down, right), (0, 1))[inside])


def test_predictions_for_corrupted_images_are_those_of_the_model(columns, tmp_path) -> None:
    predictor, data = columns
    found = evaluate(predictor, data, corruptions=True, workers=0)
    robustness = found.robustness
    assert list(robustness.corruptions) == list(CORRUPTIONS)
    for name in ("pixelate", "gaussian noise", "zoom blur"):
        worse = [corrupt(found.images.read(index), name, 5, seed=index) for index in range(16)]
        right = [one.top()[0][0] == str(index // 4) for index, one in enumerate(predictor.predict(worse))]
        assert robustness.corruptions[name][4] == np.mean(right)
    assert robustness.corrupted.value == pytest.approx(robustness.mean)  # accuracy is a mean over images
    assert robustness.corrupted.low < robustness.mean < 1
    written = json.loads((found.save(tmp_path / "report") / "metrics.json").read_text())
    assert written["corruptions"]["by_strength"]["fog"] == list(robustness.corruptions["fog"])
    assert (tmp_path / "report" / "robustness.png").stat().st_size > 10_000
