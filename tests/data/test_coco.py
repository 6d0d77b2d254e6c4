"""COCO's files, in the layouts that they come in, mean what COCO's own library says."""

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_files import save_picture

from nearsight.data import BadImage, open_data
from nearsight.data.instances import decode_counts, read_rle
from nearsight.data.split import complete_splits, describe_splits, limit_train, restore_splits


def names(split) -> list[str]:
    return [split.name(index) for index in range(len(split))]


def test_cocos_own_layout(coco_folder: Path) -> None:
    data = open_data(coco_folder)
    assert (data.kind, data.task, data.masks) == ("coco", "detect", True)
    assert data.classes == ("cat", "dog")  # by their ids, 3 and 8
    assert names(data.train) == [f"train2017/train{n}.png" for n in range(4)]
    assert names(data.val) == [f"val2017/val{n}.png" for n in range(4)]
    target = data.train.target(1)
    assert target["boxes"].tolist() == [[10, 5, 30, 35]]
    assert target["boxes"].dtype == torch.float32
    assert (target["labels"].tolist(), target["crowd"].tolist(), target["area"].tolist()) == ([1], [False], [300.0])
    assert target["masks"].dtype == torch.bool
    assert torch.equal(target["masks"][0].nonzero().amin(0), torch.tensor([5, 10]))
    assert int(target["masks"].sum()) == 30 * 20


@pytest.mark.parametrize(
    ("annotations", "images", "prefix"),
    [
        ("annotations/instances_train.json", "images", ""),
        ("annotations/train.json", "images/train", ""),
        ("train/_annotations.coco.json", "train", ""),  # Roboflow
        ("result.json", "images", "images\\"),  # Label Studio
        ("result.json", "images", "../../label-studio/data/images/"),
        ("labels.json", "data", ""),  # FiftyOne
        ("annotations/instances_default.json", "images", "images/"),  # CVAT
        ("annotations.json", "", ""),
    ],
)
def test_other_layouts(coco_folder: Path, tmp_path: Path, annotations: str, images: str, prefix: str) -> None:
    content = json.loads((coco_folder / "annotations/instances_train2017.json").read_text())
    for entry in content["images"]:
        target = tmp_path / "other" / images / entry["file_name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(coco_folder / "train2017" / entry["file_name"], target)
        entry["file_name"] = prefix + entry["file_name"]
    file = tmp_path / "other" / annotations
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    for source in (tmp_path / "other", file):
        data = open_data(source)
        assert data.kind == "coco"
        assert [data.train.read(index).size for index in range(4)] == [(60, 40)] * 4
        assert data.train.target(0)["boxes"].tolist() == [[10, 5, 30, 35]]


def test_a_zip_is_read_in_place(coco_folder: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "coco")
    data = open_data(archive)
    assert len(data.train) == len(data.val) == 4
    unpacked = open_data(coco_folder)
    assert data.train.read(2).tobytes() == unpacked.train.read(2).tobytes()
    assert names(data.train) == names(unpacked.train)
    again = pickle.loads(pickle.dumps(data.train))
    assert again.read(1).tobytes() == unpacked.train.read(1).tobytes()


def test_the_masks_of_every_form_are_those_of_pycocotools(tmp_path: Path, coco_content) -> None:
    from pycocotools import mask as reference

    random = np.random.default_rng(0)
    blob = np.zeros((40, 60), dtype=np.uint8)
    blob[3:20, 4:50] = random.random((17, 46)) < 0.8
    packed = reference.encode(np.asfortranarray(blob))
    runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[2], blob.ravel(order="F"), [2]]).astype(int))))
    runs = [0, *runs.tolist()] if blob[0, 0] else runs.tolist()
    ring = (random.uniform(2, 38, (9, 2)) * [1.5, 1]).round(2)
    hole = [[5, 5, 25, 5, 25, 35, 5, 35.5], [30.25, 10, 50, 10, 44, 30.75]]
    forms = [
        (
            [ring.ravel().tolist()],
            reference.decode(reference.merge(reference.frPyObjects([ring.ravel().tolist()], 40, 60))),
        ),
        (hole, reference.decode(reference.merge(reference.frPyObjects(hole, 40, 60)))),
        ({"size": [40, 60], "counts": packed["counts"].decode()}, blob),
        ({"size": [40, 60], "counts": runs}, blob),
    ]
    content = coco_content([f"{n}.png" for n in range(len(forms))])
    for n, (form, _) in enumerate(forms):
        save_picture(tmp_path / f"{n}.png", seed=n)
        content["annotations"][n]["segmentation"] = form
    (tmp_path / "train.json").write_text(json.dumps(content))
    data = open_data(tmp_path)
    for n, (_, mask) in enumerate(forms):
        np.testing.assert_array_equal(data.train.target(n)["masks"][0].numpy(), mask.astype(bool))


def test_run_lengths_of_any_size_survive() -> None:
    from pycocotools import mask as reference

    random = np.random.default_rng(1)
    for fraction in (0.001, 0.1, 0.5, 0.97):
        mask = (random.random((211, 307)) < fraction).astype(np.uint8)
        counts = reference.encode(np.asfortranarray(mask))["counts"]
        runs = decode_counts(counts)
        assert runs.sum() == mask.size
        assert read_rle({"size": [211, 307], "counts": runs.tolist()}) == {"size": [211, 307], "counts": counts}
    assert decode_counts(b"\x00\x01") is None
    assert decode_counts(b"") is None


def test_blocks_are_encoded_as_the_whole_mask_would_be() -> None:
    from nearsight.data.instances import encode_block, encode_masks

    random = np.random.default_rng(0)
    for size, rows, columns in (
        ((20, 30), slice(3, 11), slice(4, 22)),
        ((20, 30), slice(0, 20), slice(5, 9)),
        ((7, 5), slice(0, 7), slice(0, 5)),
        ((4, 6), slice(2, 4), slice(0, 6)),
        ((4, 6), slice(0, 0), slice(0, 0)),
    ):
        for fraction in (0.0, 0.3, 0.9, 1.0):
            mask = np.zeros(size, dtype=bool)
            mask[rows, columns] = random.random(mask[rows, columns].shape) < fraction
            whole = encode_masks(mask[None])[0]
            block = encode_block(mask[rows, columns], (rows.start, columns.start), size)
            assert block["counts"] == whole["counts"]
            assert list(block["size"]) == list(whole["size"])


def test_crowds_keep_their_flag_and_mask(tmp_path: Path, coco_content) -> None:
    content = coco_content(["0.png"])
    runs = [0, 40 * 10, 40 * 50]
    content["annotations"].append(
        {"id": 1, "image_id": 100, "category_id": 3, "bbox": [0, 0, 10, 40], "area": 400, "iscrowd": 1}
        | {"segmentation": {"size": [40, 60], "counts": runs}}
    )
    save_picture(tmp_path / "0.png")
    (tmp_path / "a.json").write_text(json.dumps(content))
    target = open_data(tmp_path / "a.json").train.target(0)
    assert target["crowd"].tolist() == [False, True]
    assert target["masks"][1, :, :10].all()
    assert int(target["masks"][1].sum()) == 400


def test_boxes_without_masks(coco_folder: Path) -> None:
    file = coco_folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content["annotations"][0]["segmentation"] = []
    file.write_text(json.dumps(content))
    data = open_data(coco_folder)
    assert not data.masks
    assert "masks" not in data.train.target(1)
    assert "masks" not in data.val.target(1)  # all splits alike
    with pytest.raises(ValueError, match="not all have masks"):
        open_data(coco_folder, task="segment")


def test_regions_are_painted_from_objects_small_ones_on_top(tmp_path: Path, coco_content) -> None:
    content = coco_content(["0.png"])
    content["annotations"].append(
        {"id": 1, "image_id": 100, "category_id": 8, "bbox": [15, 10, 5, 5], "area": 25, "iscrowd": 0}
        | {"segmentation": [[15, 10, 20, 10, 20, 15, 15, 15]]}
    )
    save_picture(tmp_path / "0.png")
    (tmp_path / "a.json").write_text(json.dumps(content))
    data = open_data(tmp_path, task="segment")
    assert (data.classes, data.task, data.masks) == (("background", "cat", "dog"), "segment", False)
    regions = data.train.target(0)
    assert [int((regions == number).sum()) for number in range(3)] == [2400 - 600, 600 - 25, 25]
    without = open_data(f"{tmp_path}?background=off", task="segment")
    assert without.classes == ("cat", "dog")
    regions = without.train.target(0)
    assert [int((regions == number).sum()) for number in (0, 1, 255)] == [600 - 25, 25, 2400 - 600]


def test_boxes_are_cut_at_the_border_and_those_without_extent_left_out(tmp_path: Path, coco_content) -> None:
    content = coco_content(["0.png", "1.png"])
    box = {"image_id": 100, "category_id": 3, "iscrowd": 0}
    content["annotations"] = [
        {**box, "id": 1, "bbox": [-10, 30, 30, 30]},
        {**box, "id": 2, "bbox": [5, 5, 0, 10]},
        {**box, "id": 3, "bbox": [70, 5, 10, 10]},
        {**box, "id": 4, "bbox": [59, 39, 1, 1]},
    ]
    for n in range(2):
        save_picture(tmp_path / f"{n}.png", seed=n)
    (tmp_path / "a.json").write_text(json.dumps(content))
    data = open_data(tmp_path)
    assert data.train.target(0)["boxes"].tolist() == [[0, 30, 20, 40], [59, 39, 60, 40]]
    empty = data.train.target(1)
    assert [tuple(empty[key].shape) for key in ("boxes", "labels", "crowd", "area")] == [(0, 4), (0,), (0,), (0,)]


def test_what_can_not_be_used_is_noted_and_left_out(tmp_path: Path, coco_content) -> None:
    content = coco_content(["0.png", "1.png", "1.png"])
    good = content["annotations"][0]
    content["annotations"] += [
        {**good, "image_id": 999},
        {**good, "category_id": 77},
        {**good, "bbox": [1, 2, "wide"]},
        {**good, "bbox": [1, 2, float("nan"), 4]},
    ]
    for n in range(2):
        save_picture(tmp_path / f"{n}.png", seed=n)
    (tmp_path / "a.json").write_text(json.dumps(content))
    split = open_data(tmp_path).train
    assert split.issues.counts == {
        "image listed more than once": 1,
        "annotation without an image": 1,
        "annotation of an unknown category": 1,
        "box without four numbers": 2,
    }
    assert split.issues.examples["annotation of an unknown category"] == ["0.png: category 77"]
    assert len(split) == 2
    assert len(split.target(1)["labels"]) == 2  # those of both entries


def test_an_image_of_another_size_than_annotated_is_bad(coco_folder: Path) -> None:
    save_picture(coco_folder / "train2017/train0.png", size=(60, 40))
    data = open_data(coco_folder)
    with pytest.raises(BadImage, match="annotations are for an image of 40×60, but it has 60×40 pixels"):
        data.train.target(0)


def test_labels_tell_the_rarest_class(coco_folder: Path) -> None:
    file = coco_folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    extra = {**content["annotations"][0], "image_id": 101, "category_id": 3, "id": 50}
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] != 103] + [extra]
    file.write_text(json.dumps(content))
    # Three cats and one dog: the image with both is a dog's, the one without any counts as the first class.
    assert open_data(coco_folder).train.labels.tolist() == [0, 1, 0, 0]


def test_other_ids_for_the_same_names_in_another_split(coco_folder: Path) -> None:
    file = coco_folder / "annotations/instances_val2017.json"
    content = json.loads(file.read_text())
    content["categories"] = [{"id": 3, "name": "dog"}, {"id": 8, "name": "cat"}]
    file.write_text(json.dumps(content))
    data = open_data(coco_folder)
    assert data.classes == ("cat", "dog")
    assert (data.train.target(0)["labels"].item(), data.val.target(0)["labels"].item()) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["images"].clear(), "name no images"),
        (lambda c: c["categories"].clear(), "name no classes"),
        (lambda c: c["images"].append({"id": 5}), "has an image without id or file_name"),
        (lambda c: c["images"][0].update(file_name="gone.png"), "1 of the 4 images .* are not there: gone.png"),
        (lambda c: c.update(images={"a": 1}), "needs the lists"),
        (lambda c: c.update(annotations=[3]), "something else than objects"),
    ],
)
def test_files_that_are_not_in_order(coco_folder: Path, change, message: str) -> None:
    shutil.rmtree(coco_folder / "val2017")
    (coco_folder / "annotations/instances_val2017.json").unlink()
    file = coco_folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        open_data(coco_folder)


def test_a_file_that_is_cut_off(coco_folder: Path) -> None:
    file = coco_folder / "annotations/instances_train2017.json"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match="is not valid JSON"):
        open_data(coco_folder)


def test_two_files_for_one_split_need_a_choice(coco_folder: Path) -> None:
    file = coco_folder / "annotations/instances_train2017.json"
    shutil.copy(file, coco_folder / "annotations/instances_train2014.json")
    with pytest.raises(ValueError, match="two files of annotations for train"):
        open_data(coco_folder)
    assert len(open_data(file).train) == 4


def test_ids_may_be_texts_or_be_missing(coco_folder: Path) -> None:
    file = coco_folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content["annotations"][0] |= {"image_id": "100", "category_id": "3"}
    content["annotations"][1] |= {"image_id": [101]}
    file.write_text(json.dumps(content))
    split = open_data(coco_folder).train
    assert len(split.target(0)["labels"]) == 1
    assert split.issues.counts == {"annotation without an image": 1}


def test_the_one_folder_in_a_folder(coco_folder: Path) -> None:
    (coco_folder.parent / "around/within").mkdir(parents=True)
    coco_folder.rename(coco_folder.parent / "around/within/coco")
    data = open_data(coco_folder.parent / "around")
    assert (data.kind, len(data.train), data.source) == ("coco", 4, str(coco_folder.parent / "around"))


def test_a_record_tells_that_boxes_changed(coco_folder: Path) -> None:
    record = describe_splits(open_data(coco_folder))
    restore_splits(open_data(coco_folder), record)
    file = coco_folder / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content["annotations"][0]["bbox"][0] += 1
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="still has 4 images, but with other names or labels"):
        restore_splits(open_data(coco_folder), record)


def test_images_that_all_have_rare_classes_of_their_own_can_still_be_split(tmp_path: Path, coco_content) -> None:
    content = coco_content([f"{n}.png" for n in range(10)])
    content["categories"] = [{"id": n, "name": f"kind {n}"} for n in range(10)]
    for n in range(10):
        save_picture(tmp_path / f"{n}.png", seed=n)
        content["annotations"][n]["category_id"] = n
    (tmp_path / "a.json").write_text(json.dumps(content))
    data = complete_splits(open_data(tmp_path), val_fraction=0.2)
    assert (len(data.train), len(data.val)) == (8, 2)
    again = complete_splits(open_data(tmp_path), val_fraction=0.2)
    assert names(again.val) == names(data.val)
    assert len(limit_train(data, 3, seed=0).train) == 3


def test_more_classes_than_a_map_can_hold(tmp_path: Path, coco_content) -> None:
    save_picture(tmp_path / "0.png")
    content = coco_content(["0.png"], categories=[{"id": n, "name": str(n)} for n in range(300)])
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert len(open_data(tmp_path).classes) == 300
    with pytest.raises(ValueError, match="300 classes; at most 255"):
        open_data(tmp_path, task="segment")


def test_options_that_mean_nothing(coco_folder: Path) -> None:
    with pytest.raises(ValueError, match="ignore=3 means nothing to COCO annotations"):
        open_data(f"{coco_folder}?ignore=3")
    with pytest.raises(ValueError, match="neither on nor off"):
        open_data(f"{coco_folder}?background=blue")
    with pytest.raises(ValueError, match="There is no task 'find'"):
        open_data(coco_folder, task="find")


def test_a_hundred_thousand_images_stay_small_in_worker_processes(tmp_path: Path) -> None:
    count = 2000  # the size in bytes is per image
    images = [{"id": n, "file_name": f"{n:012d}.jpg", "height": 480, "width": 640} for n in range(count)]
    ring = np.arange(40).tolist()
    annotations = [
        {
            "id": n,
            "image_id": n // 7,
            "category_id": 1,
            "bbox": [0, 0, 9, 9],
            "area": 9,
            "iscrowd": 0,
            "segmentation": [ring],
        }
        for n in range(7 * count)
    ]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("train.json", json.dumps(content))
        for entry in images:
            archive.writestr(f"images/{entry['file_name']}", b"")
    split = open_data(tmp_path / "a.zip").train
    assert len(split) == count
    assert len(pickle.dumps(split)) / count < 7 * (40 * 4 + 60) + 120


@pytest.mark.skipif("NEARSIGHT_DATA" not in os.environ, reason="NEARSIGHT_DATA names no folder with data sets")
def test_real_sets_open_as_they_are() -> None:
    root = Path(os.environ["NEARSIGHT_DATA"])
    data = open_data(root / "coco_mini.zip")
    assert (len(data.train), len(data.val), len(data.classes), data.masks) == (133, 134, 80, True)
    assert (len(data.train.kinds), int(data.train.crowd.sum())) == (1368, 14)
    assert int((np.diff(data.val.starts) == 0).sum()) == 2  # images without an instance
    for index in range(0, 133, 19):
        target = data.train.target(index)
        for box, mask in zip(target["boxes"][~target["crowd"]], target["masks"][~target["crowd"]], strict=True):
            rows, columns = torch.nonzero(mask, as_tuple=True)
            around = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (around - box).abs().max() <= 2
    cells = open_data(root / "bccd_trainval.zip")
    assert (cells.classes, cells.masks, cells.task) == (("RBC", "WBC", "Platelets"), False, "detect")
    assert [np.bincount(split.kinds).tolist() for split in (cells.train, cells.val)] == [
        [2381, 214, 209],
        [967, 87, 83],
    ]
