"""Images and masks: layouts, values and colours."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from dense_files import save_mask, save_picture, square
from PIL import Image

from nearsight.data import BadImage, open_data


def fill(folder: Path, image: str, mask: str, values=None, count: int = 3, **settings) -> Path:
    """Write some images and masks under names with a place for the number."""
    for n in range(count):
        save_picture(folder / image.format(n), seed=n + abs(hash(image)) % 1000)
        save_mask(folder / mask.format(n), square(value=2) if values is None else values, **settings)
    return folder


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("images/{}.jpg", "masks/{}.png"),
        ("imgs/{}.jpg", "labels/{}.png"),
        ("images/{}.png", "masks/{}_mask.png"),
        ("img_dir/train/{}.jpg", "ann_dir/train/{}.png"),
        ("train/images/{}.jpg", "train/masks/{}.png"),
        ("train/{}.png", "train_labels/{}_L.png"),
        ("train/{}.png", "trainannot/{}.png"),
        ("train/{}.jpg", "train_masks/{}_mask.png"),
        ("{}.jpg", "{}_mask.png"),
        ("train_images/{}.jpg", "train_masks/{}.png"),
        ("PNGImages/Fudan{}.png", "PedMasks/Fudan{}_mask.png"),
        ("images/{}.jpg", "annotations/trimaps/{}.png"),
        ("images/a/{}.jpg", "masks/a/{}.png"),
        ("701_StillsRaw_full/{}.png", "LabeledApproved_full/{}_L.png"),
    ],
)
def test_layouts(tmp_path: Path, image: str, mask: str) -> None:
    data = open_data(fill(tmp_path, image, mask))
    assert (data.kind, data.task, data.classes) == ("masks", "segment", ("0", "2"))
    assert [data.train.name(index) for index in range(3)] == [image.format(n) for n in range(3)]
    np.testing.assert_array_equal(data.train.target(1).numpy(), square(value=1))


def test_splits_in_folders(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        fill(tmp_path, f"images/{split}/{{}}.jpg", f"masks/{split}/{{}}.png")
    data = open_data(tmp_path)
    assert {name: len(split) for name, split in data.splits().items()} == {"train": 3, "val": 3, "test": 3}
    archive = shutil.make_archive(str(tmp_path.parent / "packed"), "zip", tmp_path)
    packed = open_data(archive)
    assert packed.val.target(2).tolist() == data.val.target(2).tolist()


def test_class_folders_are_not_taken_for_masks(tmp_path: Path) -> None:
    for n in range(3):
        save_picture(tmp_path / f"mask/{n}.jpg", seed=n)
        save_picture(tmp_path / f"no_mask/{n + 5}.jpg", seed=n + 5)
    data = open_data(tmp_path)
    assert (data.task, data.classes) == ("classify", ("mask", "no_mask"))
    with pytest.raises(ValueError, match="has a label for each image"):
        open_data(tmp_path, task="segment")


@pytest.mark.parametrize("form", ["values", "palette", "bits", "grey as colours", "jpeg"])
def test_black_and_white(tmp_path: Path, form: str) -> None:
    settings = {
        "values": {"values": square(value=255)},
        "palette": {"values": square(value=1), "palette": [0, 0, 0, 255, 0, 0]},
        "bits": {"values": square(value=255), "mode": "1"},
        "grey as colours": {"values": square(value=255), "mode": "RGB"},
        "jpeg": {"values": square((160, 240), value=255)},
    }[form]
    mask = "masks/{}.jpg" if form == "jpeg" else "masks/{}.png"
    data = open_data(fill(tmp_path, "images/{}.png", mask, **settings))
    assert data.classes == ("background", "foreground")
    if form != "jpeg":
        np.testing.assert_array_equal(data.train.target(0).numpy(), square(value=1))


def test_grey_that_jpeg_has_tinted_is_still_grey(tmp_path: Path) -> None:
    values = np.repeat(square((160, 240), value=255)[..., None], 3, axis=2)
    for n in range(2):
        save_picture(tmp_path / f"images/{n}.png", size=(160, 240), seed=n)
        tinted = np.clip(values.astype(int) + np.random.default_rng(n).integers(-3, 4, values.shape), 0, 255)
        save_mask(tmp_path / f"masks/{n}.jpg", tinted)
    data = open_data(tmp_path)
    assert data.classes == ("background", "foreground")
    assert (data.train.target(0).numpy() != values[..., 0] // 255).mean() < 0.002


def test_jpeg_masks_count_as_the_nearer_of_black_and_white(tmp_path: Path) -> None:
    values = square((160, 240), value=255)
    for n in range(2):
        save_picture(tmp_path / f"images/{n}.png", size=(160, 240), seed=n)
        save_mask(tmp_path / f"masks/{n}.jpg", values)
    assert len(np.unique(np.asarray(Image.open(tmp_path / "masks/0.jpg")))) > 8
    target = open_data(tmp_path).train.target(0).numpy()
    assert (target != values // 255).mean() < 0.002


TABLES = {
    "classes.txt": "sky\nroad\ncar\n",
    "classes.json": '{"classes": ["sky", "road", "car"]}',
    "label_colors.txt": "128 128 128\tsky\n128 64 128 road\n64 0 128  car\n",
    "class_dict.csv": "name,r,g,b\nsky,128,128,128\nroad,128,64,128\ncar,64,0,128\n",
    "labelmap.txt": "# label:color_rgb:parts:actions\nsky:128,128,128::\nroad:128,64,128::\ncar:64,0,128::\n",
}


@pytest.mark.parametrize("table", TABLES)
def test_tables_name_values(tmp_path: Path, table: str) -> None:
    fill(tmp_path, "images/{}.png", "masks/{}.png")
    (tmp_path / table).write_text(TABLES[table])
    data = open_data(tmp_path)
    assert data.classes == ("sky", "road", "car")
    np.testing.assert_array_equal(data.train.target(0).numpy(), square(value=2))


@pytest.mark.parametrize("table", ["label_colors.txt", "class_dict.csv", "labelmap.txt"])
@pytest.mark.parametrize("palette", [False, True])
def test_tables_name_colours(tmp_path: Path, table: str, palette: bool) -> None:
    colours = np.array([[64, 0, 128], [128, 128, 128], [9, 9, 9]])  # car, sky, unknown
    values = square(value=1)
    values[0, 0] = 2 * (not palette)
    if palette:
        fill(tmp_path, "images/{}.png", "masks/{}.png", values=values, palette=colours[:2].ravel().tolist())
    else:
        fill(tmp_path, "images/{}.png", "masks/{}.png", values=colours[values])
    (tmp_path / table).write_text(TABLES[table])
    data = open_data(tmp_path)
    assert data.classes == ("sky", "road", "car")
    expected = np.array([2, 0, 255])[values]
    np.testing.assert_array_equal(data.train.target(0).numpy(), expected)


def test_colours_without_a_table_are_refused(tmp_path: Path) -> None:
    colours = np.array([[64, 0, 128], [128, 128, 0]])
    fill(tmp_path, "images/{}.png", "masks/{}.png", values=colours[square()])
    with pytest.raises(ValueError, match=r"no table says what they mean; add a file label_colors\.txt"):
        open_data(tmp_path)
    (tmp_path / "classes.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"but classes\.txt names none"):
        open_data(tmp_path)


def test_what_is_not_counted(tmp_path: Path) -> None:
    values = square(value=2)
    values[0] = 255
    values[1] = 1
    fill(tmp_path, "images/{}.png", "masks/{}.png", values=values)
    (tmp_path / "classes.txt").write_text("ground\nroad\ncar\n")

    def look(options: str) -> tuple[tuple[str, ...], list[int]]:
        data = open_data(f"{tmp_path}{options}")
        return data.classes, data.train.target(0).unique().tolist()

    assert look("") == (("ground", "road", "car"), [0, 1, 2, 255])
    assert look("?ignore=1") == (("ground", "car"), [0, 1, 255])
    assert look("?ignore=road") == (("ground", "car"), [0, 1, 255])
    assert look("?background=off") == (("road", "car"), [0, 1, 255])
    with pytest.raises(ValueError, match="ignore=tree is neither a class"):
        look("?ignore=tree")
    (tmp_path / "classes.txt").write_text("ground\nVoid\ncar\n")
    assert look("") == (("ground", "car"), [0, 1, 255])
    assert look("?ignore=") == (("ground", "Void", "car"), [0, 1, 2, 255])


def test_names_that_begin_with_the_value_one(tmp_path: Path) -> None:
    fill(tmp_path, "images/{}.png", "masks/{}.png")  # values 0 and 2
    (tmp_path / "classes.txt").write_text("road\ncar\n")
    data = open_data(f"{tmp_path}?background=off")
    assert data.classes == ("road", "car")
    np.testing.assert_array_equal(data.train.target(0).numpy(), square(value=1, ground=255))


def test_ade20k(tmp_path: Path) -> None:
    folder = tmp_path / "ADEChallengeData2016"
    for split in ("training", "validation"):
        fill(folder, f"images/{split}/ADE_{{}}.jpg", f"annotations/{split}/ADE_{{}}.png", values=square(value=3))
    (folder / "objectInfo150.txt").write_text(
        "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t.1\t9\t9\t1\twall\n2\t.1\t9\t9\t1\tbuilding, edifice\n"
        "3\t.1\t9\t9\t1\tsky\n"
    )
    data = open_data(folder)
    assert data.classes == ("wall", "building", "sky")
    assert (len(data.train), len(data.val)) == (3, 3)
    np.testing.assert_array_equal(data.val.target(0).numpy(), square(value=2, ground=255))


@pytest.mark.parametrize("form", ["labelTrainIds", "labelIds"])
def test_cityscapes(tmp_path: Path, form: str) -> None:
    for split, city in (("train", "aachen"), ("val", "ulm")):
        image = f"leftImg8bit/{split}/{city}/{city}_{{}}_leftImg8bit.png"
        label = f"gtFine/{split}/{city}/{city}_{{}}_gtFine_"
        car = 26 if form == "labelIds" else 13
        values = square(value=car, ground=7 if form == "labelIds" else 0)
        values[0] = 4 if form == "labelIds" else 255  # static, or not evaluated
        fill(tmp_path, image, f"{label}{form}.png", values=values)
        fill(tmp_path, image, f"{label}color.png", values=np.zeros((40, 60, 3)))
        fill(tmp_path, image, f"{label}instanceIds.png", values=square(value=99))
    data = open_data(tmp_path)
    assert (len(data.classes), data.classes[0], data.classes[13]) == (19, "road", "car")
    assert (len(data.train), len(data.val)) == (3, 3)
    expected = square(value=13)
    expected[0] = 255
    np.testing.assert_array_equal(data.val.target(2).numpy(), expected)


def test_masks_that_do_not_fit_are_bad(tmp_path: Path) -> None:
    fill(tmp_path, "images/{}.png", "masks/{}.png")
    save_mask(tmp_path / "masks/0.png", square((40, 50), value=2))
    (tmp_path / "masks/1.png").write_bytes(b"nothing")
    save_mask(tmp_path / "masks/2.png", np.random.default_rng(0).integers(0, 256, (40, 60, 3)))
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    shutil.copy(tmp_path / "images/0.png", tmp_path / "images/x.png")
    save_mask(tmp_path / "masks/y.png", square())
    with pytest.raises(ValueError, match="names none"):  # one of three masks has colours
        open_data(tmp_path)
    (tmp_path / "masks/2.png").unlink()
    (tmp_path / "images/2.png").unlink()
    split = open_data(tmp_path).train
    with pytest.raises(BadImage, match="its mask has 40×50 pixels, but the image has 40×60"):
        split.target(0)
    with pytest.raises(BadImage, match=r"its mask masks/1.png can't be used: it holds no image"):
        split.target(1)
    assert split.issues.counts == {"image without a mask": 1, "mask without an image": 1}


def test_masks_of_classes_have_no_instances(tmp_path: Path) -> None:
    fill(tmp_path, "images/{}.png", "masks/{}.png")
    with pytest.raises(ValueError, match=r"instances can't be told apart, .*; give other data or the task segment"):
        open_data(tmp_path, task="detect")


def test_one_class_can_not_be_told_apart(tmp_path: Path) -> None:
    fill(tmp_path, "images/{}.png", "masks/{}.png", values=np.full((40, 60), 7))
    with pytest.raises(ValueError, match="has the one class 7; to tell pixels apart"):
        open_data(tmp_path)


@pytest.mark.parametrize(("void", "told"), [(9, True), (7, False)])
def test_that_much_is_not_counted_is_told(tmp_path: Path, void: int, told: bool) -> None:
    values = square(size=(40, 60), value=2)
    values[:void] = 255  # 22.5 % or 17.5 % of the rows
    remarks = open_data(fill(tmp_path, "images/{}.png", "masks/{}.png", values=values)).remarks
    assert len(remarks) == told
    assert not told or ("22.5 % of the pixels of the masks in" in remarks[0] and "those of 255;" in remarks[0])


def test_sixteen_bits(tmp_path: Path) -> None:
    for n in range(2):
        save_picture(tmp_path / f"images/{n}.png", seed=n)
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(square(value=3).astype(np.uint16) * 1000).save(tmp_path / f"masks/{n}.png")
    data = open_data(tmp_path)
    assert data.classes == ("0", "3000")
    np.testing.assert_array_equal(data.train.target(0).numpy(), square(value=1))


@pytest.mark.skipif("NEARSIGHT_DATA" not in os.environ, reason="NEARSIGHT_DATA names no folder with data sets")
def test_camvid_opens_as_it_is() -> None:
    data = open_data(Path(os.environ["NEARSIGHT_DATA"]) / "camvid_trainval.zip")
    assert (len(data.train), len(data.val), len(data.classes)) == (367, 101, 11)
    assert (data.classes[0], data.classes[10]) == ("sky", "bicyclist")  # the void class 11 is not counted
    counts = np.zeros(256, dtype=int)
    for index in range(0, 367, 10):
        counts += np.bincount(data.train.target(index).numpy().ravel(), minlength=256)
    assert set(np.flatnonzero(counts).tolist()) == {*range(11), 255}
    assert counts[3] / counts.sum() == pytest.approx(0.317, abs=0.03)  # the road's share, from the set's own statistics
