"""Tables in which an image has several labels."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from nearsight.cli.shell import app
from nearsight.data import Data, open_data
from nearsight.data.check import check_data
from nearsight.data.open import find_task, open_again
from nearsight.data.split import complete_splits, describe_splits, limit_train


@pytest.fixture
def photos(tmp_path: Path, write_png) -> Path:
    for number in range(4):
        write_png(tmp_path / f"{number}.png", 40 * number)
    return tmp_path


def write(folder: Path, text: str) -> str:
    (folder / "t.csv").write_text(text)
    return str(folder / "t.csv")


def targets(data: Data) -> list[list[int]]:
    assert data.train is not None
    return [data.train.target(index).astype(int).tolist() for index in range(len(data.train))]  # type: ignore[union-attr]


WANTED = [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]  # of cat, dog, hat


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("path,labels\n0.png,hat|cat\n1.png, dog \n2.png,\n3.png,cat|dog|hat|cat\n", ""),
        ("path,tags\n0.png,hat|cat\n1.png, dog \n2.png,\n3.png,cat|dog|hat\n", "?label=tags"),
        ("path,label_1,label_2,label_3\n0.png,hat,cat,\n1.png,,dog,\n2.png,,,\n3.png,cat,dog,hat\n", ""),
        ("path,a,b,c,age\n0.png,hat,cat,,3\n1.png,,dog,,4\n2.png,,,,5\n3.png,cat,dog,hat,6\n", "?label=a,b,c"),
        ("path,cat,dog,hat\n0.png,1,0,1\n1.png,0,1,0\n2.png,0,0,0\n3.png,1.0,1,1\n", ""),
        ("path,cat,dog,hat,age\n0.png,1,0,1,8\n1.png,0,1,0,9\n2.png,0,0,0,3\n3.png,1,1,1,1\n", "?label=cat,dog,hat"),
    ],
)
def test_every_way_to_write_several_labels(photos: Path, text: str, options: str) -> None:
    data = open_data(write(photos, text) + options)
    assert data.task == "multilabel" and data.classes == ("cat", "dog", "hat")
    assert targets(data) == WANTED
    assert data.train is not None and data.train.target(0).dtype == bool  # type: ignore[union-attr]
    assert find_task(write(photos, text) + options) == "multilabel"


def test_classes_of_columns_keep_the_order_of_the_columns(photos: Path) -> None:
    data = open_data(write(photos, "path,hat,cat\n0.png,1,1\n1.png,0,1\n"))
    assert data.classes == ("hat", "cat") and targets(data) == [[1, 1], [0, 1]]


def test_one_label_in_every_row_is_one_class_unless_several_are_asked_for(photos: Path) -> None:
    one_hot = write(photos, "path,cat,dog\n0.png,1,0\n1.png,0,1\n")
    assert open_data(one_hot).task == "classify" and open_data(one_hot).train.labels.tolist() == [0, 1]  # type: ignore[union-attr]
    assert targets(open_data(one_hot, task="multilabel")) == [[1, 0], [0, 1]]
    plain = write(photos, "path,label\n0.png,cat\n1.png,dog\n")
    assert open_data(plain).task == "classify"
    assert targets(open_data(plain, task="multilabel")) == [[1, 0], [0, 1]]


def test_a_bar_belongs_to_the_name_where_one_class_is_asked_for(photos: Path) -> None:
    source = write(photos, "path,label\n0.png,a|b\n1.png,c\n")
    assert open_data(source, task="classify").classes == ("a|b", "c")


def test_several_marks_can_not_be_one_class(photos: Path) -> None:
    source = write(photos, "path,cat,dog\n0.png,1,1\n1.png,0,1\n2.png,0,0\n")
    with pytest.raises(ValueError, match=r"2 rows of .*t\.csv have not exactly one label, the first is row 2;"):
        open_data(source, task="classify")


def test_sentences(photos: Path) -> None:
    with pytest.raises(ValueError, match=r"t\.csv has no column hat; it has: path, cat, dog\.$"):
        open_data(write(photos, "path,cat,dog\n0.png,1,1\n") + "?label=cat,hat")
    with pytest.raises(ValueError, match=r"has no labels at all; at least some images need one\.$"):
        open_data(write(photos, "path,label_1,label_2\n0.png,,\n1.png,,\n"))
    with pytest.raises(ValueError, match="has the one class cat; to tell labels apart takes at least two"):
        open_data(write(photos, "path,label\n0.png,cat|cat\n1.png,cat\n"))
    with pytest.raises(ValueError, match="has several labels for each image, which is not what the task detect learns"):
        open_data(write(photos, "path,label\n0.png,cat|dog\n"), task="detect")


def test_lists_and_marks_in_parquet(photos: Path) -> None:
    paths = [f"{number}.png" for number in range(4)]
    lists = [["hat", "cat"], ["dog"], [], ["cat", "dog", "hat"]]
    pq.write_table(pa.table({"path": paths, "labels": lists}), photos / "l.parquet")
    assert targets(open_data(photos / "l.parquet")) == WANTED
    marks = {name: [bool(row[n]) for row in WANTED] for n, name in enumerate(("cat", "dog", "hat"))}
    pq.write_table(pa.table({"path": paths, **marks}), photos / "m.parquet")
    data = open_data(photos / "m.parquet")
    assert data.classes == ("cat", "dog", "hat") and targets(data) == WANTED
    content = [(photos / path).read_bytes() for path in paths]
    pq.write_table(pa.table({"image": content, "labels": lists}), photos / "b.parquet")
    data = open_data(photos / "b.parquet")
    assert targets(data) == WANTED and data.train is not None and data.train.read(1).getpixel((0, 0)) == (40, 0, 0)


@pytest.fixture
def many(tmp_path: Path, write_png) -> str:
    """100 images with cat; every second has dog, too, and every tenth hat besides."""
    rows = []
    for number in range(100):
        write_png(tmp_path / f"{number}.png", number, 2 * number, 255 - number)
        rows.append(f"{number}.png,cat" + "|dog" * (number % 2) + "|hat" * (number % 10 == 5))
    return write(tmp_path, "path,label\n" + "\n".join(rows) + "\n")


def test_validation_images_have_every_class_in_its_frequency(many: str) -> None:
    data = complete_splits(open_data(many), val_fraction=0.2)
    assert data.train is not None and data.val is not None
    counts = sum(np.asarray(data.val.target(index)) for index in range(len(data.val)))
    assert len(data.val) == 20 and counts.tolist() == [20, 10, 2]
    assert data.val.task == "multilabel" and {data.train.name(n) for n in range(80)}.isdisjoint(
        {data.val.name(n) for n in range(20)}
    )
    again = open_again(describe_splits(data))
    assert again.val is not None and [again.val.name(n) for n in range(20)] == [data.val.name(n) for n in range(20)]


def test_a_changed_label_is_noticed(many: str, tmp_path: Path) -> None:
    record = describe_splits(complete_splits(open_data(many)))
    text = Path(many).read_text()
    Path(many).write_text(text.replace("7.png,cat|dog\n", "7.png,dog\n", 1))
    with pytest.raises(ValueError, match="with other names or labels"):
        open_again(record)


def test_fewer_training_images_keep_every_class(many: str) -> None:
    data = limit_train(open_data(many), 10, seed=1)
    assert data.train is not None and len(data.train) == 10
    counts = sum(np.asarray(data.train.target(index)) for index in range(10))
    assert counts.tolist() == [10, 5, 1]


def test_the_check_counts_each_class_of_an_image(photos: Path) -> None:
    report = check_data(open_data(write(photos, "path,label\n0.png,cat|dog\n1.png,dog\n2.png,\n3.png,hat\n")))
    assert {title: count["train"] for title, count in report.counts.items()} == {"cat": 1, "dog": 2, "hat": 1}
    assert report.notes == ["train: 1 labels an image, 1 images without a label"]


def test_copies_with_other_labels_are_disputed(tmp_path: Path, write_png) -> None:
    for name in ("a", "b"):
        write_png(tmp_path / f"{name}.png", 9)
    report = check_data(open_data(write(tmp_path, "path,label\na.png,cat|dog\nb.png,dog\n")))
    assert [[image.label for image in copies.images] for copies in report.disputed] == [["cat|dog", "dog"]]


def test_the_command_checks_them(many: str) -> None:
    outcome = CliRunner().invoke(app, ["data", "check", many])
    assert outcome.exit_code == 0, outcome.output
    assert "100 images of 3 classes" in outcome.output and "train: 1.6 labels an image" in outcome.output
    assert f"nearsight train {many} --task multilabel --img-size" in outcome.output
