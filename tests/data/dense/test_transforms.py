"""Whatever is done to an image is done to its objects and regions, and can be undone."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.ops import masks_to_boxes

from nearsight.config.recipe import DenseAugment
from nearsight.data import open_data
from nearsight.data.instances import Instances, encode_masks
from nearsight.data.loader import seed_draws
from nearsight.data.restore import fit_sides
from nearsight.data.samples import read_sample
from nearsight.data.transforms import DenseAugmentation, DensePreprocessing, resize_map

SETTINGS = {
    "sizes": DenseAugment(sides=(96, 160, 250), flip=0.5, flip_vertical=0.5),
    "detr": DenseAugment(sides=(96, 160), cut=1.0, cut_sides=(110, 140), cut_range=(60, 100)),
    "crop": DenseAugment(ratio=(0.5, 2.0), crop=100, max_class_fraction=0.75),
    "stretch": DenseAugment(ratio=(0.8, 1.2), stretch=True),
}


def coloured(size: tuple[int, int]) -> tuple[Image.Image, Instances]:
    """Two rectangles in pure colours, so that pixels tell where the objects are."""
    height, width = size
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    positions = [(0.1, 0.15, 0.45, 0.6), (0.5, 0.3, 0.95, 0.9)]
    boxes = np.array([(x1 * width, y1 * height, x2 * width, y2 * height) for x1, y1, x2, y2 in positions]).round()
    masks = np.zeros((2, height, width), dtype=bool)
    for number, (left, top, right, bottom) in enumerate(boxes.astype(int)):
        pixels[top:bottom, left:right, number] = 255
        masks[number, top:bottom, left:right] = True
    found = Instances(
        size, boxes.astype(np.float32), np.array([0, 1]), np.zeros(2, dtype=bool), masks.sum((1, 2)).astype(np.float32)
    )
    outlines = [np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], dtype=np.float32) for x1, y1, x2, y2 in boxes]
    return Image.fromarray(pixels), Instances(
        *[getattr(found, k) for k in ("size", "boxes", "labels", "crowd", "area")],
        [[outlines[0]], encode_masks(masks[1:])[0]],
    )


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("size", [(120, 200), (301, 143)])
def test_boxes_and_masks_stay_on_the_pixels(name: str, size: tuple[int, int]) -> None:
    image, found = coloured(size)
    settings = SETTINGS[name]
    augment = DenseAugmentation(settings, DensePreprocessing(128, stretch=settings.stretch))
    shapes, kept = set(), 0
    for draw in range(12):
        seed_draws(draw)
        pixels, target = augment.view(image, found, size)
        shapes.add(tuple(pixels.shape))
        assert target["masks"].shape[1:] == pixels.shape[1:]
        for label, box, mask in zip(target["labels"], target["boxes"], target["masks"], strict=True):
            there = pixels[int(label)] > 127
            assert (there != mask).float().mean() < 0.02
            around = masks_to_boxes(mask[None])[0] + torch.tensor([0, 0, 1, 1])
            assert (around - box).abs().max() <= 2
            kept += 1
        assert target["boxes"].shape == (len(target["labels"]), 4)
    assert len(shapes) > 1  # sizes are drawn
    assert kept > 6
    if name == "crop":
        assert max(side for shape in shapes for side in shape[1:]) == 100
    if name == "detr":
        assert {min(shape[1:]) for shape in shapes} <= {96, 160} | {side for shape in shapes for side in shape[1:]}


@pytest.mark.parametrize("name", SETTINGS)
def test_regions_stay_on_the_pixels(name: str) -> None:
    image, found = coloured((120, 200))
    classes = found.paint(np.array([1, 2], dtype=np.uint8), 0)
    classes[:5] = 255
    settings = SETTINGS[name]
    augment = DenseAugmentation(settings, DensePreprocessing(128, stretch=settings.stretch))
    for draw in range(8):
        seed_draws(draw)
        pixels, regions = augment.view(image, classes, (120, 200))
        assert regions.shape == pixels.shape[1:]
        assert regions.dtype == torch.uint8
        for number in (1, 2):
            assert ((pixels[number - 1] > 127) != (regions == number)).float().mean() < 0.02
        assert set(regions.unique().tolist()) <= {0, 1, 2, 255}


def test_a_draw_decides_everything() -> None:
    split = open_data("shapes?images=4").train
    augment = DenseAugmentation(
        DenseAugment(ratio=(0.5, 1.5), crop=96, distort=0.5, cut=0.5, flip=0.5), DensePreprocessing(128)
    )

    def view(*draw: int) -> tuple[torch.Tensor, dict]:
        seed_draws(*draw)
        return augment.view(*read_sample(split, 0, dense=True))

    (first, target), (again, same), (other, _) = view(0, 1), view(0, 1), view(0, 2)
    assert torch.equal(first, again)
    assert all(torch.equal(target[key], same[key]) for key in target)
    assert first.shape != other.shape or not torch.equal(first, other)


def test_colours_change_but_stay_in_their_order() -> None:
    """Red stays red: channels are never exchanged, by which a sky would become a desert."""
    red = Image.new("RGB", (40, 40), (200, 60, 30))
    augment = DenseAugmentation(DenseAugment(distort=0.5), DensePreprocessing(40))
    seen = set()
    for draw in range(30):
        seed_draws(draw)
        pixels, _ = augment.view(red, np.zeros((40, 40), dtype=np.uint8), (40, 40))
        means = pixels.float().mean((1, 2))
        assert means[0] == means.max()
        seen.add(tuple(means.tolist()))
    assert len(seen) > 20


def test_what_is_cut_off_is_left_out_and_nothing_may_be_left() -> None:
    image, found = coloured((400, 400))
    augment = DenseAugmentation(DenseAugment(crop=40), DensePreprocessing(400))
    empty = 0
    for draw in range(40):
        seed_draws(draw)
        pixels, target = augment.view(image, found, (400, 400))
        assert bool((target["boxes"][:, 2:] > target["boxes"][:, :2]).all())
        empty += not len(target["labels"])
        assert len(target["labels"]) == int((pixels > 127).flatten(1).any(1).sum())
    assert 0 < empty < 40


def test_parts_that_one_class_fills_are_drawn_again() -> None:
    classes = np.zeros((200, 400), dtype=np.uint8)
    classes[:, 300:] = 1
    image = Image.new("RGB", (400, 200))

    def filled(fraction: float) -> int:
        augment = DenseAugmentation(DenseAugment(crop=100, max_class_fraction=fraction), DensePreprocessing(200, 400))
        count = 0
        for draw in range(40):
            seed_draws(draw)
            count += len(augment.view(image, classes, (200, 400))[1].unique()) == 1
        return count

    assert filled(1.0) > 15
    assert filled(0.75) < filled(1.0) / 2


def test_objects_of_one_pixel_survive_or_vanish_without_a_crash() -> None:
    box = np.array([[30.0, 20, 31, 21]], dtype=np.float32)
    ring = [np.array([[30, 20], [31, 20], [31, 21], [30, 21]], dtype=np.float32)]
    one = Instances((64, 64), box, np.array([0]), np.array([False]), np.array([1.0], dtype=np.float32), [ring])
    for side, count in ((128, 1), (64, 1), (16, 0)):
        augment = DenseAugmentation(DenseAugment(flip=0), DensePreprocessing(side))
        seed_draws(0)
        _, target = augment.view(Image.new("RGB", (64, 64)), one, (64, 64))
        assert len(target["labels"]) == count
        assert target["masks"].shape == (count, side, side)


@pytest.mark.parametrize("size", [(3000, 4000), (17, 31), (40, 1000)])
def test_boxes_and_masks_come_back_where_they_were(size: tuple[int, int]) -> None:
    image, found = coloured(size)
    input = DensePreprocessing(128)
    shown = input.size_for(size)
    pixels = input.prepare(image, size)
    assert tuple(pixels.shape[1:]) == shown
    assert max(shown) <= 213
    padded = torch.zeros(2, 224, 224, dtype=torch.bool)
    padded[:, : shown[0], : shown[1]] = pixels[:2] > 127
    answer = {
        "boxes": torch.from_numpy(found.resized(shown).boxes),
        "labels": torch.tensor([0, 1]),
        "scores": torch.tensor([0.9, 0.8]),
        "masks": padded,
    }
    restored = input.restore_objects(answer, shown, size)
    np.testing.assert_allclose(restored["boxes"], found.boxes, rtol=1e-4, atol=1e-2)
    from faster_coco_eval.core import mask as codec

    overlap = np.diag(codec.iou(restored["rles"], found.rles(), [0, 0]))
    assert overlap.min() > (0.95 if min(shown) > 20 else 0.75)
    assert all(tuple(rle["size"]) == size for rle in restored["rles"])


@pytest.mark.parametrize("original", [(90, 150), (24, 40), (13, 17), (300, 41)])
def test_masks_are_enlarged_as_torch_does_it(original: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    masks = torch.from_numpy(random.random((3, 32, 64)) < 0.5)
    masks[1, :10] = False
    masks[2] = False
    large = torch.nn.functional.interpolate(masks[None, :, :24, :40].float(), size=original, mode="bilinear")[0]
    from nearsight.data.instances import decode_masks
    from nearsight.data.restore import restore_masks

    found = decode_masks(restore_masks(masks.numpy(), (24, 40), original), original)
    differs = found != (large > 0.5).numpy()
    assert not differs[(large - 0.5).abs().numpy() > 1e-5].any()


def test_maps_come_back_in_the_size_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    scores = torch.from_numpy(random.normal(size=(5, 32, 64))).float()
    input = DensePreprocessing(24)
    found = input.restore_map(scores, (24, 40), (90, 150))
    large = torch.nn.functional.interpolate(scores[None, :, :24, :40], size=(90, 150), mode="bilinear")[0]
    np.testing.assert_array_equal(found, large.argmax(0).numpy())
    monkeypatch.setattr("nearsight.data.transforms.AT_ONCE", 90 * 150 * 2)  # in pieces of two classes
    np.testing.assert_array_equal(input.restore_map(scores, (24, 40), (90, 150)), found)


def test_padding_is_zero_after_normalising() -> None:
    images = torch.rand(2, 3, 8, 8)
    ready = DensePreprocessing(8).normalise(images, torch.tensor([[8, 8], [5, 6]]))
    assert (ready[1, :, 5:] == 0).all()
    assert (ready[1, :, :, 6:] == 0).all()
    mean, std = (torch.tensor(x)[:, None, None] for x in (DensePreprocessing(8).mean, DensePreprocessing(8).std))
    assert torch.allclose(ready[0], (images[0] - mean) / std)


def test_sizes_keep_the_shape() -> None:
    assert fit_sides((480, 640), 800, 1333) == (800, 1067)
    assert fit_sides((100, 2000), 800, 1333) == (67, 1333)
    assert fit_sides((1, 5000), 800, 1333) == (1, 1333)
    np.testing.assert_array_equal(
        resize_map(np.array([[0, 1], [2, 3]], dtype=np.uint8), (4, 2)), [[0, 1]] * 2 + [[2, 3]] * 2
    )


@pytest.mark.parametrize(
    "settings",
    [{"sides": ()}, {"sides": (8,)}, {"cut_range": (600, 384)}, {"min_size": 800, "max_size": 700}, {"flop": 1}],
)
def test_settings_that_make_no_sense(settings: dict) -> None:
    with pytest.raises(ValueError):
        DenseAugment(**settings)


def test_crops_around_classes_show_rare_ones_as_often_as_others() -> None:
    classes = np.zeros((128, 160), dtype=np.uint8)
    classes[100, 30] = 1  # one pixel of 20,480
    classes[:10] = 255
    image = Image.fromarray(np.zeros((128, 160, 3), dtype=np.uint8))

    def fraction(probability: float) -> float:
        settings = DenseAugment(crop=16, flip=0.0, class_crop=probability)
        augment = DenseAugmentation(settings, DensePreprocessing(128, 160))
        seen = []
        for draw in range(300):
            seed_draws(draw)
            seen.append(bool((augment.view(image, classes, classes.shape)[1] == 1).any()))
        return float(np.mean(seen))

    # Of the 113 * 145 places of a crop 256 hold the pixel; drawn evenly, one of the two classes is its own.
    assert fraction(0.0) == pytest.approx(256 / (113 * 145), abs=0.02)
    assert fraction(1.0) == pytest.approx(0.5, abs=0.08)
    assert fraction(0.5) == pytest.approx(0.25, abs=0.08)


def test_crops_around_classes_stay_within_the_image_and_need_no_class() -> None:
    settings = DenseAugment(crop=32, flip=0.0, class_crop=1.0)
    augment = DenseAugmentation(settings, DensePreprocessing(40, 48))
    image = Image.fromarray(np.zeros((40, 48, 3), dtype=np.uint8))
    for value, corner in ((255, None), (3, (0, 0)), (3, (39, 47))):
        classes = np.full((40, 48), 255, dtype=np.uint8)
        if corner is not None:
            classes[corner] = value
        for draw in range(10):
            seed_draws(draw)
            pixels, target = augment.view(image, classes, (40, 48))
            assert pixels.shape == (3, 32, 32) and target.shape == (32, 32)
            assert int((target == 3).sum()) == (corner is not None)
