"""Batches of scenes: padded, deterministic, and without those that can't be read."""

import json
from pathlib import Path

import pytest
import torch
from dense_files import save_mask, save_picture, square

from nearsight.config.recipe import DenseAugment
from nearsight.data import open_data
from nearsight.data.loader import Batch, Batches, TrainImages, eval_loader, train_loader
from nearsight.data.samples import Subset
from nearsight.data.transforms import DenseAugmentation, DensePreprocessing


def train_batches(split, *, start: int = 0, workers: int = 0, mine: range = range(1), parts: int = 1) -> list[Batch]:
    batches = Batches(split, batch=4, epochs=2, repeats=1, seed=3, start=start, parts=parts, mine=mine)
    augment = DenseAugmentation(DenseAugment(ratio=(0.6, 1.2), crop=80, distort=0.5), DensePreprocessing(96))
    return list(train_loader(TrainImages(split, augment, seed=3), batches, workers))


def equal(first: Batch, second: Batch) -> bool:
    same = torch.equal(first.images, second.images) and torch.equal(first.indices, second.indices)
    for one, two in zip(first.targets, second.targets, strict=True):
        if isinstance(one, torch.Tensor):
            same &= torch.equal(one, two)
        else:
            same &= all(torch.equal(one[key], two[key]) for key in one)
    return same


@pytest.fixture(scope="module")
def objects():
    return open_data("shapes?images=12&size=96").train


def test_batches_are_padded_and_targets_with_them(objects) -> None:
    for batch in train_batches(objects):
        height, width = batch.images.shape[2:]
        assert height % 32 == width % 32 == 0
        for image, (tall, wide), target in zip(batch.images, batch.sizes.tolist(), batch.targets, strict=True):
            assert not image[:, tall:].any()
            assert not image[:, :, wide:].any()
            assert target["masks"].shape[1:] == (height, width)
            assert not target["masks"][:, tall:].any()
            assert (target["boxes"] <= torch.tensor([wide, tall, wide, tall])).all()
    regions = open_data("shapes?images=12&size=96", task="segment").train
    batch = train_batches(regions)[0]
    stacked = torch.stack(batch.targets)
    assert stacked.shape == (4, *batch.images.shape[2:])
    for classes, (tall, wide) in zip(stacked, batch.sizes.tolist(), strict=True):
        assert (classes[tall:] == 255).all()
        assert (classes[:, wide:] == 255).all()
        assert (classes[:tall, :wide] < 7).all()


def test_a_resumed_run_sees_what_it_would_have_seen(objects) -> None:
    whole, rest = train_batches(objects), train_batches(objects, start=4)
    assert len(whole) == 6
    assert all(equal(one, two) for one, two in zip(whole[4:], rest, strict=True))
    assert not torch.equal(whole[0].images, whole[3].images)  # another epoch, another view


def test_workers_and_processes_change_nothing(objects) -> None:
    whole = train_batches(objects)
    assert all(equal(one, two) for one, two in zip(whole, train_batches(objects, workers=1), strict=True))
    halves = [train_batches(objects, parts=2, mine=range(part, part + 1)) for part in range(2)]
    for batch, first, second in zip(whole, *halves, strict=True):
        together = first.indices.tolist() + second.indices.tolist()
        assert sorted(together) == sorted(batch.indices.tolist())
        by_index = dict(zip(batch.indices.tolist(), batch.targets, strict=True))
        for index, target in zip(first.indices.tolist(), first.targets, strict=True):
            assert torch.equal(target["boxes"], by_index[index]["boxes"])


def test_evaluation_gives_ground_truth_in_pixels_of_the_original(objects) -> None:
    part = Subset(objects, [5, 2, 7, 1])
    (batch,) = eval_loader(part, DensePreprocessing(64), batch=8, workers=0)
    assert batch.indices.tolist() == [0, 1, 2, 3]
    for n, index in enumerate([5, 2, 7, 1]):
        assert batch.originals[n].tolist() == list(objects.size(index))
        truth, target = batch.targets[n], objects.target(index)
        assert truth["boxes"].tolist() == target["boxes"].tolist()
        assert len(truth["rles"]) == len(target["masks"])
        assert tuple(batch.sizes[n].tolist()) == DensePreprocessing(64).size_for(objects.size(index))


def test_scenes_that_can_not_be_used_are_passed_over_and_named(tmp_path: Path, coco_content) -> None:
    content = coco_content([f"{n}.png" for n in range(8)])
    for n in range(8):
        save_picture(tmp_path / f"{n}.png", size=(40, 60) if n != 2 else (30, 30), seed=n)
    (tmp_path / "5.png").write_bytes(b"no image")
    (tmp_path / "a.json").write_text(json.dumps(content))
    split = open_data(tmp_path).train
    bad: dict[str, str] = {}
    for batch in train_batches(split):
        assert len(batch.images) == 4
        assert not {2, 5} & set(batch.indices.tolist())
        bad |= batch.bad
    assert bad == {
        "5.png": "it holds no image, or one in an unknown format",
        "2.png": "its annotations are for an image of 40×60, but it has 30×30 pixels",
    }
    batches = list(eval_loader(split, DensePreprocessing(64), batch=4, workers=0))
    assert [batch.indices.tolist() for batch in batches] == [[0, 1, 3], [4, 6, 7]]
    assert set(batches[0].bad) == {"2.png"}


def test_a_batch_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    for n in range(3):
        save_picture(tmp_path / f"images/{n}.png", seed=n)
        save_mask(tmp_path / f"masks/{n}.png", square((20, 20)))
    split = open_data(tmp_path).train
    (batch,) = eval_loader(split, DensePreprocessing(64), batch=4, workers=0)
    assert batch.images.shape == (0, 3, 0, 0)
    assert len(batch.bad) == 3
    with pytest.raises(ValueError, match="None of the 3 training images can be read"):
        TrainImages(split, DenseAugmentation(DenseAugment(), DensePreprocessing(64)), 0)[
            next(iter(Batches(split, batch=1, epochs=1, repeats=1, seed=0, start=0, parts=1, mine=range(1))))[0]
        ]


def test_large_photographs_are_decoded_smaller_with_their_objects_in_place(tmp_path: Path, coco_content) -> None:
    content = coco_content(["big.jpg"])
    content["images"][0] |= {"height": 3000, "width": 4000}
    content["annotations"][0] |= {
        "bbox": [1000, 600, 2000, 1500],
        "segmentation": [[1000, 600, 3000, 600, 3000, 2100, 1000, 2100]],
    }
    from PIL import Image

    picture = Image.new("RGB", (4000, 3000))
    picture.paste((255, 255, 255), (1000, 600, 3000, 2100))
    picture.save(tmp_path / "big.jpg", quality=85)
    (tmp_path / "a.json").write_text(json.dumps(content))
    split = open_data(tmp_path).train
    batches = Batches(split, batch=1, epochs=1, repeats=1, seed=0, start=0, parts=1, mine=range(1))
    augment = DenseAugmentation(DenseAugment(flip=0), DensePreprocessing(150))
    (batch,) = train_loader(TrainImages(split, augment, 0), batches, 0)
    assert batch.sizes.tolist() == [[150, 200]]
    assert batch.targets[0]["boxes"].tolist() == [[50, 30, 150, 105]]
    white = batch.images[0, 0, :150, :200] > 127
    assert (white != batch.targets[0]["masks"][0, :150, :200]).float().mean() < 0.01


def test_labelled_images_have_no_scenes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_picture(tmp_path / name / "1.png")
    with pytest.raises(ValueError, match="has a label, but neither instances nor a mask"):
        list(eval_loader(open_data(tmp_path).train, DensePreprocessing(64), batch=4, workers=0))
