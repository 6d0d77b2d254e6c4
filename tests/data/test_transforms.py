"""Views of images: each setting against torchvision, NumPy, or a picture whose pixels tell where they were."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as TF

from nearsight.config.recipe import Augment
from nearsight.data.loader import seed_draws
from nearsight.data.transforms import Augmentation, Preprocessing

STILL = {"crop": "none", "flip": 0.0}


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(1, 256, (height, width, 3), dtype=np.uint8))


def smooth(width: int, height: int) -> Image.Image:
    """A picture without fine detail, on which ways of resizing agree."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    waves = np.stack([across, down, (np.sin(6 * across) * np.cos(4 * down) + 1) / 2], axis=-1)
    return Image.fromarray((255 * waves).astype(np.uint8))


def view(image: Image.Image, size: tuple[int, int], seed: int = 0, **settings: object) -> torch.Tensor:
    seed_draws(seed)
    return Augmentation(Augment(**(STILL | settings)), Preprocessing(size))(image)  # type: ignore[arg-type]


def as_array(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize(("width", "height"), [(100, 60), (60, 100), (80, 80), (20, 30)])
@pytest.mark.parametrize("size", [(32, 32), (24, 48)])
@pytest.mark.parametrize("crop", [1.0, 0.8])
def test_evaluation_shows_what_resizing_and_a_centre_crop_show(
    width: int, height: int, size: tuple[int, int], crop: float
) -> None:
    image = smooth(width, height)
    shown = Preprocessing(size, crop=crop).prepare(image)
    scale = min(width / size[1], height / size[0]) * crop
    resized = TF.resize(image, [round(height / scale), round(width / scale)], TF.InterpolationMode.BICUBIC)
    expected = as_array(TF.center_crop(resized, list(size)))
    assert shown.shape == (3, *size) and shown.dtype == torch.uint8
    assert (shown.int() - expected.int()).abs().float().mean() < 4  # torchvision cuts at whole pixels


def test_an_image_of_the_right_size_is_shown_as_it_is() -> None:
    image = noise(20, 12)
    assert torch.equal(Preprocessing((12, 20)).prepare(image), as_array(image))


def test_normalised_images_have_the_given_mean_and_spread() -> None:
    given = Preprocessing((4, 4), mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0))
    images = torch.rand(2, 3, 4, 4)
    expected = TF.normalize(images, list(given.mean), list(given.std))
    torch.testing.assert_close(given.normalise(images), expected)


def test_enough_is_what_the_crop_is_cut_from() -> None:
    assert Preprocessing((224, 224), crop=0.875).enough() == 256
    assert Preprocessing((32, 48)).enough() == 48


def test_without_a_crop_the_whole_image_is_resized() -> None:
    image = noise(50, 30)
    assert torch.equal(view(image, (12, 20)), as_array(image.resize((20, 12), Image.Resampling.BICUBIC)))


def test_mirrors() -> None:
    image, plain = noise(20, 12), as_array(noise(20, 12))
    assert torch.equal(view(image, (12, 20), flip=1.0), plain.flip(2))
    assert torch.equal(view(image, (12, 20), flip_vertical=1.0), plain.flip(1))
    mirrored = sum(torch.equal(view(image, (12, 20), seed, flip=0.25), plain.flip(2)) for seed in range(400))
    assert 60 < mirrored < 140


def test_a_padded_crop_is_the_image_moved_by_at_most_an_eighth() -> None:
    image, moves = noise(24, 16), set()
    plain = np.array(image)
    for seed in range(600):
        shown = view(image, (16, 24), seed, crop="padded").permute(1, 2, 0).numpy()
        filled = shown.any(axis=2)
        rows, columns = filled.any(axis=1), filled.any(axis=0)
        found = [
            (down, across)
            for down in range(-2, 3)
            for across in range(-3, 4)
            if np.array_equal(
                shown[max(0, -down) : 16 - max(0, down), max(0, -across) : 24 - max(0, across)],
                plain[max(0, down) : 16 + min(0, down), max(0, across) : 24 + min(0, across)],
            )
        ]
        assert len(found) == 1
        assert (rows.sum(), columns.sum()) == (16 - abs(found[0][0]), 24 - abs(found[0][1]))
        moves.add(found[0])
    assert len(moves) == 5 * 7  # all of them come


def test_a_resized_crop_shows_the_fraction_that_is_asked_for() -> None:
    across, down = np.meshgrid(np.arange(256), np.arange(256))
    image = Image.fromarray(np.stack([across, down, across], axis=-1).astype(np.uint8))
    fractions = []
    for seed in range(200):
        shown = view(image, (32, 32), seed, crop="resized", crop_scale=(0.2, 0.6), crop_ratio=(0.5, 2.0)).float()
        wide = (shown[0, 0, -1] - shown[0, 0, 0]) * 32 / 31
        high = (shown[1, -1, 0] - shown[1, 0, 0]) * 32 / 31
        fractions.append(float(wide * high) / 256**2)
        assert 0.4 < wide / high < 2.4
    assert 0.17 < min(fractions) < 0.27
    assert 0.5 < max(fractions) < 0.65


def test_erasing_fills_one_rectangle_of_a_bounded_area() -> None:
    image, fractions = Image.new("RGB", (32, 32), (255, 0, 255)), []
    plain = as_array(image)
    for seed in range(200):
        changed = (view(image, (32, 32), seed, erase=1.0) != plain).any(dim=0)
        rows, columns = changed.any(dim=1).nonzero(), changed.any(dim=0).nonzero()
        area = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        assert changed.sum() > 0.85 * area
        fractions.append(float(area) / 32**2)
    assert 0.015 <= min(fractions) < 0.08
    assert 0.2 < max(fractions) <= 1 / 3 + 0.01


def test_erased_pixels_have_the_mean_of_the_data() -> None:
    image = Image.new("RGB", (32, 32))
    erased = [view(image, (32, 32), seed, erase=1.0).float() for seed in range(100)]
    values = torch.cat([shown[:, shown.any(dim=0)] for shown in erased], dim=1) / 255
    torch.testing.assert_close(values.mean(dim=1), torch.tensor(Preprocessing((1, 1)).mean), atol=0.02, rtol=0)


def test_colours_change_only_as_much_as_is_asked_for() -> None:
    image = Image.new("RGB", (8, 8), (100, 100, 100))
    levels = [float(view(image, (8, 8), seed, color_jitter=0.4).float().mean()) for seed in range(100)]
    assert 55 <= min(levels) < 70 and 130 < max(levels) <= 145


def test_rand_augment_changes_images_and_follows_the_seed() -> None:
    image = smooth(32, 32)
    views = [view(image, (32, 32), seed, rand_augment="rand-m9-mstd0.5-inc1") for seed in range(10)]
    assert sum(torch.equal(shown, as_array(image)) for shown in views) < 5
    assert torch.equal(views[4], view(image, (32, 32), 4, rand_augment="rand-m9-mstd0.5-inc1"))


def test_rand_augment_that_timm_does_not_understand_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"rand_augment = 'rand-n2\.5' is not understood .* such as rand-m9-mstd0\.5-inc1"
    ):
        view(noise(8, 8), (8, 8), rand_augment="rand-n2.5")
