"""Every defect that is planted is found, and nothing else."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from nearsight.data import open_data
from nearsight.data.check import check_data
from nearsight.data.issues import Imbalance, Spread


def picture(seed, height=120, width=120):
    """A colourful picture that resembles no other."""
    values = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def fill(folder, count, seed):
    """Write pictures 0.jpg, 1.jpg ... that resemble no others if seeds are far apart."""
    folder.mkdir(parents=True)
    for number in range(count):
        picture(seed + number).save(folder / f"{number}.jpg", quality=90)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """12 training and 4 validation images of two classes, with nothing wrong."""
    folder = tmp_path_factory.mktemp("sound")
    for start, title in enumerate(["cat", "dog"]):
        fill(folder / "train" / title, 12, 1000 * start)
        fill(folder / "val" / title, 4, 1000 * start + 500)
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """One folder with each of the defects."""
    folder = tmp_path_factory.mktemp("broken")
    train, val = folder / "train", folder / "val"
    for start, (title, count) in enumerate({"cat": 40, "dog": 20, "owl": 4}.items()):
        fill(train / title, count, 1000 * start)
    for start, title in enumerate(["cat", "dog"]):
        fill(val / title, 10, 1000 * start + 500)
    (train / "yak").mkdir()

    whole = (train / "cat" / "0.jpg").read_bytes()
    (train / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (train / "dog" / "text.jpg").write_text("no image")
    (val / "cat" / "nothing.png").write_bytes(b"")
    Image.new("RGB", (120, 120), (3, 90, 200)).save(train / "dog" / "blank.png")

    shutil.copy(train / "cat" / "1.jpg", val / "cat" / "copy_of_1.jpg")
    picture(1002).resize((90, 90)).save(val / "dog" / "like_2.jpg", quality=60)
    shutil.copy(train / "cat" / "3.jpg", train / "dog" / "cat_3.jpg")
    picture(4).resize((150, 150)).save(train / "cat" / "like_4.png")

    for number, mode in enumerate(["L", "RGBA", "CMYK", "P"]):
        suffix = "jpg" if mode == "CMYK" else "png"
        picture(5000 + number).convert(mode).save(train / "cat" / f"mode_{mode}.{suffix}")
    deep = np.asarray(picture(5010).convert("L"), dtype=np.uint16) * 257
    Image.fromarray(deep).save(train / "cat" / "mode_deep.png")
    lying = Image.Exif()
    lying[0x0112] = 6
    picture(5020, 100, 140).save(train / "cat" / "rotated.jpg", exif=lying)

    picture(6000, 20, 20).save(train / "cat" / "small.png")
    picture(6001, 700, 700).save(train / "cat" / "large.jpg")
    picture(6002, 80, 400).save(train / "cat" / "long.jpg")
    return folder


@pytest.fixture(scope="module")
def report(broken):
    return check_data(open_data(broken))


def name_sets(copies):
    return [{image.name for image in found.images} for found in copies]


def test_sound_images_have_no_problems(sound):
    report = check_data(open_data(sound))
    assert report.problems == []
    assert report.images == {"train": 24, "val": 8}
    assert report.counts == {"cat": {"train": 12, "val": 4}, "dog": {"train": 12, "val": 4}}
    assert report.modes == {"RGB": 32}
    assert report.heights == report.widths == Spread(120, 120, 120)
    assert report.odd_sizes == report.to_remove == []
    assert report.img_size == 96


def test_unreadable_images_are_named_with_the_reason(report):
    assert {image.name: image.reason for image in report.unreadable} == {
        "train/cat/cut.jpg": "the file is cut off",
        "train/dog/text.jpg": "it holds no image, or one in an unknown format",
        "val/cat/nothing.png": "the file is empty",
    }
    assert [(image.split, image.label) for image in report.unreadable] == [
        ("train", "cat"),
        ("train", "dog"),
        ("val", "cat"),
    ]


def test_a_blank_image_is_found(report):
    assert [image.name for image in report.blank] == ["train/dog/blank.png"]


def test_classes_are_counted_without_unreadable_images(report):
    cats = 40 + 1 + 4 + 1 + 1 + 3  # plain, like_4, modes, deep, rotated, sizes
    assert report.counts == {
        "cat": {"train": cats, "val": 11},
        "dog": {"train": 22, "val": 11},
        "owl": {"train": 4, "val": 0},
        "yak": {"train": 0, "val": 0},
    }
    assert report.empty_classes == ["yak"]
    assert report.missing_classes == {"val": ["owl"]}
    assert report.tiny_classes == {"owl": 4}
    assert report.imbalance == Imbalance("cat", cats, "owl", 4)
    assert report.imbalance.ratio == 12.5


def test_copies_in_several_splits_are_leaks(report):
    assert name_sets(report.leaks) == [
        {"train/cat/1.jpg", "val/cat/copy_of_1.jpg"},
        {"train/dog/2.jpg", "val/dog/like_2.jpg"},
    ]
    assert [copies.exact for copies in report.leaks] == [True, False]


def test_copies_with_different_labels_are_disputed(report):
    assert name_sets(report.disputed) == [{"train/cat/3.jpg", "train/dog/cat_3.jpg"}]
    assert {image.label for image in report.disputed[0].images} == {"cat", "dog"}


def test_copies_in_one_split_are_repeated(report):
    assert name_sets(report.repeated) == [{"train/cat/4.jpg", "train/cat/like_4.png"}]
    assert len(report.copies) == 4


def test_unreadable_images_and_training_copies_of_validation_images_are_to_be_removed(report):
    assert report.to_remove == [
        "train/cat/cut.jpg",
        "train/dog/text.jpg",
        "val/cat/nothing.png",
        "train/cat/1.jpg",
        "train/dog/2.jpg",
    ]


def test_modes_are_those_of_the_files_before_they_are_converted(report):
    rgb = sum(map(sum, (counts.values() for counts in report.counts.values()))) - 5
    assert report.modes == {"RGB": rgb, "L": 1, "RGBA": 1, "CMYK": 1, "P": 1, "I;16": 1}
    assert report.rotated == 1


def test_sizes_are_those_of_the_upright_images(report):
    assert report.heights == Spread(20, 120, 700)
    assert report.widths == Spread(20, 120, 700)
    assert report.aspects == Spread(100 / 140, 1, 5)  # the narrowest is 100×140 before it is turned upright
    assert [(image.name, image.height, image.width, image.why) for image in report.odd_sizes] == [
        ("train/cat/large.jpg", 700, 700, "large"),
        ("train/cat/long.jpg", 80, 400, "long"),
        ("train/cat/small.png", 20, 20, "small"),
    ]


def test_the_problems_are_counted_in_words(report):
    assert report.problems == [
        "3 unreadable images",
        "1 blank image",
        "1 empty class",
        "1 class missing in a split",
        "1 class with fewer than 10 training images",
        "2 images in several splits",
        "1 image with different labels",
        "1 image repeated in a split",
        "classes of very different size (12.5 : 1)",
    ]


def test_the_report_survives_json(report):
    again = json.loads(json.dumps(report.to_dict()))
    assert again["problems"] == report.problems
    assert again["imbalance"]["ratio"] == 12.5
    assert [entry["leaks"] for entry in again["copies"]] == [True, True, False, False]
    assert again["unreadable"][0] == {
        "split": "train",
        "name": "train/cat/cut.jpg",
        "label": "cat",
        "reason": "the file is cut off",
    }
    assert again["to_remove"] == report.to_remove


def test_an_image_in_all_splits_is_kept_in_the_test_split_only(tmp_path):
    for split in ("train", "val", "test"):
        for title in ("cat", "dog"):
            (tmp_path / split / title).mkdir(parents=True)
            seed = {"train": 0, "val": 100, "test": 200}[split] + (title == "dog") * 1000
            for number in range(10):
                picture(seed + number).save(tmp_path / split / title / f"{number}.png")
        picture(77).save(tmp_path / split / "cat" / "same.png")
    report = check_data(open_data(tmp_path))
    assert report.problems == ["1 image in several splits"]
    assert report.to_remove == ["train/cat/same.png", "val/cat/same.png"]


def test_copies_are_to_be_removed_before_a_split_is_made_of_them(tmp_path):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(3):
            picture(number + 10 * (label == "b")).save(tmp_path / label / f"{number}.png")
    (tmp_path / "a" / "again.png").write_bytes((tmp_path / "a" / "1.png").read_bytes())
    report = check_data(open_data(tmp_path), workers=0)
    assert report.to_remove == ["a/again.png"] and "1 image repeated in images to be split" in report.problems


def test_a_file_that_a_table_lists_for_two_splits_stays(tmp_path):
    rows = ["path,label,split"]
    for number in range(4):
        picture(number).save(tmp_path / f"{number}.png")
        rows += [f"{number}.png,{'ab'[number % 2]},train"]
    (tmp_path / "t.csv").write_text("\n".join([*rows, "0.png,a,test"]))
    report = check_data(open_data(tmp_path / "t.csv"), workers=0)
    assert len(report.leaks) == 1 and report.to_remove == []


def test_folders_that_may_be_no_classes_are_pointed_out(tmp_path):
    for part in ("color/apple", "color/pear", "grey/apple", "grey/pear"):
        (tmp_path / part).mkdir(parents=True)
        picture(len(part)).save(tmp_path / part / "1.png")
    report = check_data(open_data(tmp_path), workers=0)
    assert "2 classes with the same folders inside" in report.problems
    found = next(found for found in report.issues if "folders" in found.what)
    assert found.examples == ("apple", "pear")


def test_images_that_are_passed_over_are_a_problem(tmp_path):
    for part in ("train/a", "train/b", "test"):
        (tmp_path / part).mkdir(parents=True)
        picture(len(part) + ord(part[-1])).save(tmp_path / part / "1.png")
    assert "1 image passed over" in check_data(open_data(tmp_path), workers=0).problems


def test_two_blank_images_of_different_colour_are_no_copies(tmp_path):
    for title in ("cat", "dog"):
        fill(tmp_path / title, 10, 1000 * (title == "dog"))
        Image.new("RGB", (120, 120), (9, 9, 9 + len(title) * (title == "dog"))).save(tmp_path / title / "blank.png")
    assert check_data(open_data(tmp_path)).problems == ["2 blank images"]


def test_data_without_a_readable_image_get_a_report(tmp_path):
    for title in ("cat", "dog"):
        (tmp_path / title).mkdir()
        (tmp_path / title / "a.jpg").write_bytes(b"x")
    report = check_data(open_data(tmp_path))
    assert report.problems == ["2 unreadable images", "2 empty classes", "too few images to train with"]
    assert report.heights is report.img_size is report.imbalance is None


def test_arrays_that_begin_like_an_image_file_are_taken_as_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    header = b"P6 9 7 255\n"  # a portable pixmap of 9×7
    pixels.reshape(40, -1)[0, : len(header)] = np.frombuffer(header, np.uint8)
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=np.arange(40) % 2)
    report = check_data(open_data(tmp_path / "a.npz"))
    assert (report.problems, report.modes, report.heights) == ([], {}, Spread(16, 16, 16))
