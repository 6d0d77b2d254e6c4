"""Tables of paths and labels."""

import pickle
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearsight.data import BadImage, open_data


@pytest.fixture
def photos(tmp_path: Path, write_png) -> Path:
    for number in range(6):
        write_png(tmp_path / f"img/{number}.png", red=number)
    return tmp_path


def table(folder: Path, text: str, name: str = "t.csv", encoding: str = "utf-8") -> str:
    (folder / name).write_bytes(text.encode(encoding))
    return str(folder / name)


def listing(split) -> list[tuple[str, int]]:
    return [(split.name(index), int(split.labels[index])) for index in range(len(split))]


BODY = "path,label\nimg/0.png,dog\nimg/1.png,cat\nimg/2.png,dog\n"


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("t.csv", BODY, "utf-8"),
        ("t.csv", BODY, "utf-8-sig"),
        ("t.csv", BODY.replace("\n", "\r\n"), "utf-8"),
        ("t.csv", BODY.replace(",", ";"), "utf-8"),
        ("t.TSV", BODY.replace(",", "\t"), "utf-8"),
        ("t.csv", BODY.replace("/", "\\"), "utf-8"),
        ("t.csv", BODY.replace("path,label", "Species , Filename").replace("img/0.png,dog", "dog,img/0.png")
         .replace("img/1.png,cat", "cat,img/1.png").replace("img/2.png,dog", '" dog","img/2.png"\n'), "utf-8"),
    ],
    ids=["plain", "byte order mark", "windows", "semicolons", "tabs", "backslashes", "other columns"],
)  # fmt: skip
def test_text_tables_in_all_their_dialects(photos: Path, name: str, text: str, encoding: str) -> None:
    data = open_data(table(photos, text, name, encoding))
    assert (data.kind, data.classes) == ("table", ("cat", "dog"))
    assert listing(data.train) == [("img/0.png", 1), ("img/1.png", 0), ("img/2.png", 1)]
    assert data.train.read(2).getpixel((0, 0)) == (2, 0, 0)


def test_splits_numbers_and_absolute_paths(photos: Path) -> None:
    text = f"file,class,split\n{photos}/img/0.png,10,Train\nimg/1.png,9,train\nimg/2.png,9,valid\nimg/3.png,10,TEST\n"
    data = open_data(table(photos, text))
    assert data.classes == ("9", "10")
    assert {name: listing(split) for name, split in data.splits().items()} == {
        "train": [(f"{photos}/img/0.png", 1), ("img/1.png", 0)],
        "val": [("img/2.png", 0)],
        "test": [("img/3.png", 1)],
    }
    assert data.train.read(0).size == (6, 4)


def test_columns_can_be_chosen(photos: Path) -> None:
    text = "where,what,label\nimg/0.png,a,1\nimg/1.png,b,1\n"
    source = table(photos, text)
    assert open_data(f"{source}?path=where&label=what").classes == ("a", "b")
    with pytest.raises(ValueError) as caught:
        open_data(source)
    assert str(caught.value) == (
        f"Which column of {source} holds the path can't be told from their names: where, what, label; "
        "say so with t.csv?path=COLUMN&label=COLUMN."
    )
    with pytest.raises(ValueError, match=r"t\.csv has no column wher; it has: where, what, label\.$"):
        open_data(f"{source}?path=wher")
    with pytest.raises(
        ValueError, match=r"has paht=where after the question mark; path, label, split, group, image, config"
    ):
        open_data(f"{source}?paht=where")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "T has no rows; it needs a line with the names of the columns, then a line per image."),
        ("path,label\n", "T has no rows; it needs a line with the names of the columns, then a line per image."),
        ("path,label\nimg/0.png,a\nimg/1.png\n", "Row 3 of T has 1 cells, but there are 2 columns."),
        (
            "path,label\nimg/0.png,a\nimg/1.png,\n",
            "1 rows of T have no label, the first is row 3; give or remove them.",
        ),
        (
            "path,label\nimg/0.png,a\nimg/1.png,b\nimg/0.png,b\n",
            "T lists 1 files more than once for train: img/0.png; keep one row of each.",
        ),
        (
            "path,label,split\nimg/0.png,a,train\nimg/1.png,b,dev\n",
            "T has the split 'dev' in row 3; splits are train, val, test.",
        ),
        (
            "path,label\nimg/0.png,a\nimg/x.png,b\nimg/y.png,b\n",
            "2 of the 3 files in T are missing, the first is img/x.png; paths are absolute or start from FOLDER.",
        ),
        ("path,label\nimg/0.png,a\n,b\n", "1 rows of T have no path, the first is row 3; give or remove them."),
        ("path,label,path\nimg/0.png,a,b\n", "T has two columns path; give each a name of its own."),
        ("path,label\nimg/0.png,a\nimg/1.png,a\n", "T has the one class a; to tell images apart takes at least two."),
    ],
)
def test_sentences(photos: Path, text: str, sentence: str) -> None:
    source = table(photos, text)
    with pytest.raises(ValueError) as caught:
        open_data(source)
    assert str(caught.value).replace(source, "T").replace(str(photos), "FOLDER") == sentence


def test_a_table_that_is_not_utf8(photos: Path) -> None:
    source = table(photos, "path,label\nimg/0.png,caf\xe9\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"is not in UTF-8 \(.* at byte 24\); save it so\.$"):
        open_data(source)


def test_a_few_missing_files_are_left_to_the_reader(photos: Path, write_png) -> None:
    for number in range(200):
        write_png(photos / f"many/{number}.png")
    rows = [f"many/{number}.png,{number % 2}" for number in range(201)]
    data = open_data(table(photos, "\n".join(["path,label", *rows])))
    assert len(data.train) == 201
    with pytest.raises(BadImage, match=r"^many/200\.png can't be read as an image: there is no such file\.$"):
        data.train.read(200)


def test_names_stand_for_the_images_below_the_table(photos: Path, write_png) -> None:
    """As in tables of competitions: ids without suffix, the images in one folder or in several."""
    write_png(photos / "part_2/x.png")
    source = table(photos, "image_id,breed\n0,pug\nx,hound\n3.png,pug\n")
    assert listing(open_data(source).train) == [("img/0.png", 1), ("part_2/x.png", 0), ("img/3.png", 1)]
    write_png(photos / "masks/x.png")
    with pytest.raises(ValueError) as caught:
        open_data(source)
    assert str(caught.value) == (
        f"x in {source} may be masks/x.png or part_2/x.png; write the path of each file from {photos}."
    )


def test_a_table_called_train_means_the_images_of_that_folder(photos: Path, write_png) -> None:
    for folder in ("train_images", "test_images"):
        write_png(photos / folder / "x.png")
    source = photos / "train.csv"
    source.write_text("image_id,label\nx.png,a\nimg/1.png,b\n")
    assert listing(open_data(source).train) == [("train_images/x.png", 0), ("img/1.png", 1)]


def test_a_column_for_each_class(photos: Path) -> None:
    """As ISIC and Roboflow write them: a 1 in the column of the class."""
    source = table(photos, "image,MEL,NV,BKL\nimg/0.png,0.0,1.0,0.0\nimg/1.png,1.0,0.0,0.0\nimg/2.png,0,0,1\n")
    data = open_data(source)
    assert data.classes == ("BKL", "MEL", "NV") and data.train.labels.tolist() == [2, 1, 0]


def test_a_file_is_the_same_however_its_path_is_written(photos: Path) -> None:
    with pytest.raises(ValueError, match=r"more than once for train: img/0\.png;"):
        open_data(table(photos, "path,label\nimg/0.png,a\n./img/0.png,b\n"))
    assert listing(open_data(table(photos, "path,label\n img/0.png,a\nimg/1.png ,b\n")).train) == [
        ("img/0.png", 0), ("img/1.png", 1)
    ]  # fmt: skip


@pytest.mark.parametrize("inside", ["", "train/"])
def test_a_folder_with_a_table_leads_to_it(photos: Path, write_png, inside: str) -> None:
    write_png(photos / f"alone/{inside}0.png")
    (photos / "alone/labels.csv").write_text("id,label\n0,a\n")
    with pytest.raises(ValueError, match=r"give .*labels\.csv\.$"):
        open_data(photos / "alone")


def test_an_only_class_leads_to_the_table_beside_it(photos: Path) -> None:
    source = table(photos, "id,label\n0,a\n1,b\n")
    with pytest.raises(ValueError) as caught:
        open_data(photos)
    assert str(caught.value) == f"{photos} has the one class img; if {source} lists images and classes, give it."
    assert open_data(source).classes == ("a", "b")


def test_parquet_with_paths(photos: Path) -> None:
    columns = {
        "image_path": [f"img/{i}.png" for i in range(4)],
        "label": [3, 1, 3, 1],
        "split": ["train"] * 3 + ["test"],
    }
    pq.write_table(pa.table(columns), photos / "t.parquet")
    data = open_data(photos / "t.parquet")
    assert data.classes == ("1", "3")
    assert listing(data.train) == [("img/0.png", 1), ("img/1.png", 0), ("img/2.png", 1)]
    assert listing(data.test) == [("img/3.png", 0)]


def test_parquet_with_images_as_hugging_face_writes_them(tmp_path: Path, png) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "emu"])})
    rows = {"image": [{"bytes": png(i, 0), "path": None} for i in range(10)], "label": [i % 2 for i in range(10)]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "t.parquet", batch_size=4)
    data = open_data(tmp_path / "t.parquet")
    assert data.classes == ("cat", "dog", "emu")
    assert [data.train.read(i).getpixel((0, 0))[0] for i in range(10)] == list(range(10))
    assert data.train.labels.tolist() == rows["label"]
    assert list(data.train.blocks()) == [4, 4, 2]
    assert data.train.content(7) == png(7, 0)
    assert data.train.name(7) == "row 7"
    packed = pickle.dumps(data.train)
    assert len(packed) < 2_000 and pickle.loads(packed).read(9).getpixel((0, 0))[0] == 9


def test_parquet_with_plain_bytes_and_splits(tmp_path: Path, png) -> None:
    columns = {
        "img": [png(i, 0) for i in range(4)] + [None],
        "class": list("ababb"),
        "split": ["train", "val", "train", "val", "train"],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=2)
    data = open_data(tmp_path / "t.parquet")
    assert [data.val.read(i).getpixel((0, 0))[0] for i in range(2)] == [1, 3]
    assert (list(data.train.blocks()), data.val.labels.tolist()) == ([1, 1, 1], [1, 1])
    with pytest.raises(BadImage, match=r"^row 4 can't be read as an image: the table holds no bytes for it\.$"):
        data.train.read(2)


def test_sentences_for_parquet(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"bad\.parquet can't be read as a Parquet file: "):
        open_data(tmp_path / "bad.parquet")
    pq.write_table(pa.table({"path": ["img/0.png", "img/1.png"], "label": ["a", None]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"^1 rows of .*t\.parquet have no label; remove them\.$"):
        open_data(tmp_path / "t.parquet")
    pq.write_table(
        pa.table({"path": pa.array([], pa.string()), "label": pa.array([], pa.string())}), tmp_path / "e.parquet"
    )
    with pytest.raises(ValueError, match=r"e\.parquet has no rows; it needs one for each image\.$"):
        open_data(tmp_path / "e.parquet")
    pq.write_table(pa.table({"image": [b"1", b"2"], "label": [["a", "b"], ["a"]]}), tmp_path / "l.parquet")
    with pytest.raises(ValueError, match=r"l\.parquet has several labels for an image, such as \['a', 'b'\]; each"):
        open_data(tmp_path / "l.parquet", task="classify")
    pq.write_table(pa.table({"image": [b"1", b"2"], "label": ["a", " "]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"^1 rows of .*b\.parquet have no label, the first is row 3;"):
        open_data(tmp_path / "b.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r'^Reading .*t\.parquet needs pyarrow: pip install "nearsight\[parquet\]"\.$'):
        open_data(tmp_path / "t.parquet")
