"""Images in .npz files, and the digits."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from nearsight.data import open_data

DRAW = np.random.default_rng(0)
COLOUR = DRAW.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
COLOUR[0, 0, 0] = 255
LABELS = np.array([0, 1, 2, 0, 1, 2])


def saved(folder: Path, **arrays) -> Path:
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def read_all(split) -> np.ndarray:
    return np.stack([np.asarray(split.read(index)) for index in range(len(split))])


def test_bytes_come_out_as_they_are(tmp_path: Path) -> None:
    data = open_data(saved(tmp_path, x_train=COLOUR, y_train=LABELS, x_test=COLOUR[:3], y_test=LABELS[:3]))
    assert (data.kind, data.classes, list(data.splits())) == ("arrays", ("0", "1", "2"), ["train", "test"])
    assert (read_all(data.train) == COLOUR).all()
    assert (data.train.labels == LABELS).all()
    assert data.test.name(2) == "x_test[2]"
    assert data.train.content(1) == COLOUR[1].tobytes()
    assert (read_all(pickle.loads(pickle.dumps(data)).train) == COLOUR).all()


@pytest.mark.parametrize(
    "arrays",
    [
        {"X_train": COLOUR, "Y_train": LABELS},
        {"train_images": COLOUR, "train_labels": LABELS[:, None]},
        {"x_train": COLOUR.transpose(0, 3, 1, 2), "y_train": LABELS.astype(np.uint8)},
        {"x_train": COLOUR.astype(np.float32) / 255, "y_train": LABELS.astype(float)},
        {"x_train": COLOUR.astype(np.float64), "y_train": LABELS},
        {"x_train": np.concatenate([COLOUR, np.full((6, 5, 7, 1), 255, np.uint8)], axis=3), "y_train": LABELS},
    ],
    ids=["capitals", "medmnist", "channels first", "fractions", "floats", "opaque"],
)
def test_spellings_layouts_and_number_types(tmp_path: Path, arrays: dict) -> None:
    data = open_data(saved(tmp_path, **arrays))
    assert (read_all(data.train) == COLOUR).all()
    assert (data.train.labels == LABELS).all()


def test_grey_and_transparent_arrays(tmp_path: Path) -> None:
    grey = COLOUR[..., 0]
    for array in (grey, grey[..., None], grey[:, None]):
        found = read_all(open_data(saved(tmp_path, x_train=array, y_train=LABELS)).train)
        assert (found == grey[..., None]).all()
    clear = np.zeros((6, 5, 7, 4), np.uint8)
    clear[..., 0] = 200
    assert (read_all(open_data(saved(tmp_path, x_train=clear, y_train=LABELS)).train) == 255).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 8, 16], np.uint8), [0, 128, 255]),
        (np.array([0, 8, 16], np.float64), [0, 128, 255]),
        (np.array([0, 32768, 65535], np.uint16), [0, 128, 255]),
        (np.array([-1, 0, 1], np.float32), [0, 128, 255]),
        (np.array([False, False, True]), [0, 0, 255]),
        (np.array([0.0, 0.2, 0.4], np.float32), [0, 51, 102]),
        (np.array([0, 60, 130], np.int64), [0, 60, 130]),
        (np.array([0, 20, 54], np.uint8), [0, 20, 54]),  # dark, but bytes
    ],
)
def test_other_ranges_are_scaled_by_the_range_of_all_images(tmp_path: Path, values: np.ndarray, expected) -> None:
    images = values[:, None, None].repeat(8, 1).repeat(8, 2)  # three images, each of one value
    data = open_data(saved(tmp_path, x_train=images[:2], y_train=[0, 1], x_test=images[2:], y_test=[1]))
    found = [int(split.read(i).getpixel((0, 0))[0]) for split in (data.train, data.test) for i in range(len(split))]
    assert found == expected


def test_labels_may_be_texts_and_classes_may_have_names(tmp_path: Path) -> None:
    texts = np.array(["dog", "cat", "dog", "cat", "ant", "ant"])
    data = open_data(saved(tmp_path, x_train=COLOUR, y_train=texts))
    assert (data.classes, data.train.labels.tolist()) == (("ant", "cat", "dog"), [2, 1, 2, 1, 0, 0])
    data = open_data(saved(tmp_path, x_train=COLOUR, y_train=texts, classes=np.array(["dog", "cat", "ant", "emu"])))
    assert (data.classes, data.train.labels.tolist()) == (("dog", "cat", "ant", "emu"), [0, 1, 0, 1, 2, 2])
    data = open_data(saved(tmp_path, x_train=COLOUR, y_train=LABELS, class_names=np.array([b"x", b"y", b"z"])))
    assert (data.classes, data.train.labels.tolist()) == (("x", "y", "z"), LABELS.tolist())
    data = open_data(saved(tmp_path, x_train=COLOUR, y_train=LABELS * 5 - 2))
    assert (data.classes, data.train.labels.tolist()) == (("-2", "3", "8"), LABELS.tolist())


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"pictures": COLOUR},
            "A.npz has the arrays pictures; images and labels are looked for under x_train, y_train, x_val, y_val, "
            "x_test, y_test.",
        ),
        ({"x_train": COLOUR}, "A.npz has images x_train, but no labels y_train for them."),
        (
            {"x_train": COLOUR[:, :, 0, 0], "y_train": LABELS},
            "x_train in A.npz has the shape [6, 5]; images are [n, h, w], [n, h, w, channels] or [n, channels, h, w] "
            "with up to 64 channels.",
        ),
        (
            {"x_train": COLOUR, "y_train": np.eye(6)},
            "y_train in A.npz has the shape [6, 6] for 6 images; each image needs one class, as [n] or [n, 1].",
        ),
        (
            {"x_train": COLOUR, "y_train": LABELS[:5]},
            "y_train in A.npz has the shape [5] for 6 images; each image needs one class, as [n] or [n, 1].",
        ),
        (
            {"x_train": COLOUR.astype(str), "y_train": LABELS},
            "x_train in A.npz holds <U3, not pixels; numbers are needed.",
        ),
        (
            {"x_train": np.full((6, 5, 7), np.nan), "y_train": LABELS},
            "A.npz has pixels that are not finite numbers (nan or inf); replace them.",
        ),
        (
            {"x_train": COLOUR, "y_train": LABELS + 0.5},
            "A.npz has labels of the type float64; labels are whole numbers or texts.",
        ),
        (
            {"x_train": COLOUR, "y_train": LABELS, "classes": np.array(["a", "b"])},
            "A.npz has the label 2, but names 2 classes: a, b; labels are their names, or their numbers from 0.",
        ),
        (
            {"x_train": COLOUR, "y_train": LABELS, "x_test": COLOUR, "y_test": LABELS.astype(str)},
            "A.npz has numbers as labels in one split and texts in another; write them alike.",
        ),
        ({"x_train": COLOUR[:0], "y_train": LABELS[:0]}, "A.npz has no images."),
        (
            {"x_train": COLOUR[:, :0], "y_train": LABELS},
            "x_train in A.npz has the shape [6, 0, 7, 3]; images are [n, h, w], [n, h, w, channels] or "
            "[n, channels, h, w] with up to 64 channels.",
        ),
        (
            {"x_train": COLOUR, "y_train": LABELS, "x_test": COLOUR / np.float32(COLOUR.max()), "y_test": LABELS},
            f"In A.npz, x_test has values up to 1 and x_train up to {COLOUR.max()}; scale them alike.",
        ),
        (
            {"x_train": COLOUR, "y_train": LABELS, "classes": np.array(["a", "b", "a"])},
            "A.npz names the class a twice; give each class a name of its own.",
        ),
        (
            {"x_train": COLOUR, "y_train": np.array([b"a", b"b\xff"] * 3)},
            "A.npz has labels that are not in UTF-8 (invalid start byte); write them so.",
        ),
        (
            {"x_train": COLOUR, "y_train": np.array([{}] * 6, dtype=object)},
            "A.npz holds Python objects, which are not opened as they could run a program; save its arrays as numbers "
            "or fixed-length texts.",
        ),
    ],
)  # fmt: skip
def test_sentences(tmp_path: Path, arrays: dict, sentence: str) -> None:
    path = saved(tmp_path, **arrays)
    with pytest.raises(ValueError) as caught:
        open_data(path)
    assert str(caught.value).replace(str(path), "A.npz") == sentence


def test_a_split_without_images_is_none(tmp_path: Path) -> None:
    data = open_data(saved(tmp_path, x_train=COLOUR, y_train=LABELS, x_val=COLOUR[:0], y_val=LABELS[:0]))
    assert list(data.splits()) == ["train"]


def test_a_file_that_is_no_npz_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"a\.npz can't be read as an \.npz file: it is something else, or cut off\.$"):
        open_data(path)
    content = bytearray(saved(tmp_path, x_train=COLOUR, y_train=LABELS).read_bytes())
    content[300] ^= 255  # inside the pixels
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz is damaged: Bad CRC"):
        open_data(path)


def test_digits_are_those_of_scikit_learn() -> None:
    data, source = open_data("digits"), load_digits()
    assert (data.kind, data.classes) == ("digits", tuple("0123456789"))
    numbers = [int(split.name(i)[7:-1]) for split in (data.train, data.test) for i in range(len(split))]
    assert sorted(numbers) == list(range(1797))
    for split in (data.train, data.test):
        for index in range(0, len(split), 50):
            number = int(split.name(index)[7:-1])
            assert split.labels[index] == source.target[number]
            assert (np.asarray(split.read(index))[..., 0] == np.rint(source.images[number] * 255 / 16)).all()
    per_class = np.bincount(data.test.labels) / np.bincount(source.target)
    assert np.abs(per_class - 0.2).max() < 0.005
    assert [data.test.name(i) for i in range(3)] == ["digits[0]", "digits[1]", "digits[4]"]  # never to change


@pytest.mark.skipif("NEARSIGHT_DATA" not in os.environ, reason="NEARSIGHT_DATA names no folder with data sets")
def test_the_subset_of_cifar10() -> None:
    data = open_data(Path(os.environ["NEARSIGHT_DATA"]) / "cifar10_subset.npz")
    assert (len(data.train), len(data.test), data.classes[:2]) == (10_000, 2_000, ("airplane", "automobile"))
