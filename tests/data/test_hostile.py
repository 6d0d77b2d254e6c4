"""Data that are broken or meant to harm: each gets a sentence, soon, and within little memory."""

import io
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_files import save_mask, save_picture
from PIL import Image
from typer.testing import CliRunner

from nearsight import predict
from nearsight.cli.shell import app
from nearsight.config.files import load_recipe
from nearsight.data import BadImage, open_data
from nearsight.data.check import check_data
from nearsight.data.file_system import ZipArchive, find_images
from nearsight.data.image import decode
from nearsight.data.labels import natural_key
from nearsight.data.sources.coco import category_names

PYTHONS_OWN = ("list indices", "NoneType", "object has no attribute", "Traceback", "not subscriptable", "unhashable")


def refused(source: object, task: str | None = None) -> str:
    with pytest.raises(ValueError) as caught:
        open_data(str(source), task)
    sentence = str(caught.value)
    assert not any(words in sentence for words in PYTHONS_OWN)
    return sentence


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(24):
        save_picture(tmp_path / f"photos/{'ab'[number % 2]}/{number}.png", (8, 8), seed=number)
    return tmp_path / "photos"


@pytest.mark.posix
def test_a_pipe_among_the_images_is_named_and_never_opened(photos: Path) -> None:
    os.mkfifo(photos / "a/pipe.png")
    data = open_data(photos)
    report = check_data(data, workers=0)
    assert [(image.name, image.reason) for image in report.unreadable] == [
        ("a/pipe.png", "it is a pipe, a socket or a device, not a file")
    ]
    assert "a/pipe.png" in report.to_remove
    with pytest.raises(BadImage, match="it is a pipe"):
        decode("x", find_images([str(photos / "a/pipe.png")])[0])


@pytest.mark.posix
def test_a_pipe_in_the_place_of_annotations(photos: Path, tmp_path: Path) -> None:
    os.mkfifo(photos / "annotations.json")
    assert open_data(photos).kind == "folder"
    os.mkfifo(tmp_path / "t.csv")
    assert "is a pipe, a socket or a device" in refused(tmp_path / "t.csv")
    os.mkfifo(tmp_path / "0.tar")
    assert "There is no shard" in refused(tmp_path / "{0..0}.tar")


@pytest.mark.posix
def test_a_link_to_itself_is_one_unreadable_image(tmp_path: Path, type_in: Callable[..., tuple[int, str, str]]) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (16, 16), (80 * number, 9, 9)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "a" / "loop.png").symlink_to("loop.png")
    code, out, _ = type_in("data", "check", str(tmp_path))
    assert code == 0 and "1 unreadable image" in out and "a/loop.png" in out
    (tmp_path / "a" / "gone.png").symlink_to("nowhere.png")
    found = find_images([str(tmp_path)])
    assert {str(tmp_path / "a" / name) for name in ("loop.png", "gone.png")} < set(found)
    said = {Path(one.image).name: one.problem for one in predict("deit_nano", found)}
    assert said.pop("gone.png") and said.pop("loop.png") and set(said.values()) == {None}


@pytest.mark.posix
def test_folders_that_link_to_each_other_are_gone_through_once(tmp_path: Path) -> None:
    for name in ("images", "masks"):
        save_mask(tmp_path / name / "1.png", np.arange(16).reshape(4, 4) % 3)
        (tmp_path / name / "again").symlink_to(tmp_path)
    assert len(open_data(tmp_path).train or ()) == 1


def claim(path: Path, inside: str, size: int) -> None:
    """An archive with a file of 16 MB of zeros, which take a thousandth, that is said to have another size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(inside, bytes(2**24))
    content = bytearray(path.read_bytes())
    index = content.rindex(b"PK\x01\x02") + 24
    content[index : index + 4] = size.to_bytes(4, "little")
    path.write_bytes(content)


def test_archives_that_inflate_are_refused_by_their_headers(tmp_path: Path) -> None:
    claim(tmp_path / "a.zip", "annotations/instances_train.json", 3 * 2**30)
    assert "claims to unpack to 3.0 GiB, more than 100 times its size" in refused(tmp_path / "a.zip")
    (tmp_path / "a.zip").rename(tmp_path / "a.npz")
    assert "claims to unpack to 3.0 GiB, more than 100 times its size" in refused(tmp_path / "a.npz")


def test_an_image_that_inflates_is_a_bad_one(tmp_path: Path) -> None:
    claim(tmp_path / "a.zip", "images/1.png", 2**29 + 1)
    with pytest.raises(BadImage, match="it claims 536,870,913 bytes; images have at most 536,870,912"):
        ZipArchive(tmp_path / "a.zip").read("1.png")


def test_a_header_that_claims_less_than_there_is(tmp_path: Path) -> None:
    claim(tmp_path / "a.zip", "1.bin", 100)
    with pytest.raises(BadImage, match="the archive can't be read there"):
        ZipArchive(tmp_path / "a.zip").read("1.bin")


@pytest.mark.parametrize("shape", [(10**9, 10**4, 10**4, 3), (5, 4, 4)])
def test_an_array_that_claims_more_than_its_file_holds(tmp_path: Path, shape: tuple[int, ...]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train.npy", stream.getvalue() + bytes(64))
    assert f"is damaged: x_train.npy claims the shape {list(shape)}" in refused(tmp_path / "a.npz")


def test_ranges_without_end(tmp_path: Path) -> None:
    for pattern in ("train-{000..999999999}.tar", "{0..99999}-{0..99999}.tar", f"a-{{0..{'9' * 90}}}.tar"):
        assert "stands for more than 100,000 shards; give a smaller range." in refused(tmp_path / pattern)


def test_more_shapes_than_can_be_drawn(tmp_path: Path) -> None:
    assert "4 to 1,000,000 images" in refused("shapes?images=100000000")
    assert "is not a whole number, or too large" in refused(f"shapes?images={'9' * 30}")
    outcome = CliRunner().invoke(app, ["data", "make", "shapes", str(tmp_path / "out"), "--images", str(10**20)])
    assert outcome.exit_code == 2 and not (tmp_path / "out").exists()


def test_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    monkeypatch.chdir(photos)
    assert refused("?label=a").startswith("No data were named; data may be ")
    for nothing in ("", " "):
        assert refused(nothing) == "open_data() was given an empty source; name a file or folder."
    assert refused("a\0b").endswith("no file has a zero byte in its name.")


@pytest.fixture
def coco(tmp_path: Path, coco_content) -> Callable[..., Path]:
    """Writes a COCO data set of two images with a changed first entry of one of its lists."""

    def write(key: str, **changes: Any) -> Path:
        for number in range(2):
            save_picture(tmp_path / f"coco/{number}.png", seed=number)
        content = coco_content(["0.png", "1.png"])
        content[key][0].update(changes)
        (tmp_path / "coco/train.json").write_text(json.dumps(content))
        return tmp_path / "coco"

    return write


def found(folder: Path) -> dict[str, int]:
    report = check_data(open_data(folder), workers=0)
    return {issue.what: issue.count for issue in report.issues}


@pytest.mark.parametrize("width", [1e12, 10**400, 1e300, 2**40])
def test_an_image_that_is_noted_as_endless(coco, width: float) -> None:
    folder = coco("images", width=width)
    assert found(folder) == {"image of another size than annotated, height × width": 1} or width == 10**400


@pytest.mark.parametrize(
    "mask",
    [
        {"size": [10**6, 10**6], "counts": [10**12]},
        {"size": [10**6, 10**6], "counts": "PPPP1"},
        {"size": [40, 60], "counts": [True] * 2400},
        {"size": [40, 60], "counts": "\ud800"},
        {"size": [40, 60], "counts": "o" * 60},
        {"size": [40.0, 60.0], "counts": [2400]},
        [[1e18, 0, 1e18, 1e18, 0, 1e18]],
        [[-1e7, 0, 5, 5, 0, 5]],
        [[float("nan")] * 6],
        [[10**400] * 6],
        [{"a": 1}, 3],
        ["x" * 9],
    ],
)
def test_masks_that_no_image_has(coco, mask: Any) -> None:
    assert found(coco("annotations", segmentation=mask)) == {"mask that can't be read": 1}


@pytest.mark.parametrize(
    "box", [[1e18, 0, 5, 5], [0, 0, 1e308, 5], [10**400, 0, 5, 5], [[1], 0, 5, 5], ["1", 0, 5, 5], 7]
)
def test_boxes_that_no_image_has(coco, box: Any) -> None:
    assert found(coco("annotations", bbox=box)) == {"box without four numbers": 1}


def test_a_crowd_that_is_neither_yes_nor_no(coco) -> None:
    folder = coco("annotations", iscrowd="yes")
    assert found(folder) == {"annotation whose iscrowd is neither 0 nor 1": 1}
    assert open_data(folder).train.target(0)["crowd"].tolist() == [False]  # type: ignore[union-attr,call-overload,index]
    for written, meant in (("0", False), ("1", True), (None, False), (True, True)):
        folder = coco("annotations", iscrowd=written)
        assert open_data(folder).train.target(0)["crowd"].tolist() == [meant]  # type: ignore[union-attr,call-overload,index]


BROKEN = {
    "empty": (b"", "is empty."),
    "cut off": (
        b'{"images": [{"id": 1',
        "not valid JSON: something is wrong in line 1, column 21, as if it was cut off.",
    ),
    "no JSON": (b"<html>", "is not valid JSON: something is wrong in line 1, column 1."),
    "a list": (b"[1, 2]", "is not a COCO file: it holds no object with the lists images, annotations, categories."),
    "a list lacks": (b'{"images": [], "annotations": []}', "categories is missing."),
    "no list": (b'{"images": 3, "annotations": [], "categories": []}', "images is no list."),
    "numbers": (
        b'{"images": [3], "annotations": [], "categories": []}',
        "something else than objects with fields in its",
    ),
    "other bytes": (b'{"images": "\xff\xfe"}', "is not in UTF-8, from byte 12 on; save it so."),
    "nested": (b"[" * 100_000, "is not valid JSON: it is nested too deep."),
    "long number": (b'{"images": ' + b"9" * 5000 + b"}", "is not valid JSON: a number has thousands of digits."),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("where", ["annotations/instances_train.json", "_annotations.coco.json"])
def test_broken_annotations_are_named(tmp_path: Path, kind: str, where: str) -> None:
    save_picture(tmp_path / "images/1.png")
    (tmp_path / where).parent.mkdir(exist_ok=True)
    content, words = BROKEN[kind]
    (tmp_path / where).write_bytes(content)
    for task in (None, "detect", "segment"):
        sentence = refused(tmp_path, task)
        assert where in sentence and words in sentence


def test_other_json_beside_one_class_is_not_blamed(tmp_path: Path) -> None:
    save_picture(tmp_path / "images/1.png")
    (tmp_path / "package.json").write_text('{"name": "x"}')
    assert "has the one class images" in refused(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: images\nnc: 2\n", "data.yaml names no classes; add them, such as names: [cat, dog]."),
        ("names: [a, b]\n", "data.yaml does not say where the images are; add train: and val:."),
        ("train: images\nnames: [[a, b], [c]]\n", "hold lists or nothing; each class has one name, as a text."),
        ("train: images\nnames: {0: {a: b}}\n", "hold lists or nothing; each class has one name, as a text."),
        ("train: images\nnames: {a: {0: b}}\n", "are neither a list nor numbers with names."),
        ("train: images\nnames: 7\n", "are neither a list nor numbers with names."),
        ("train: [[[images]]]\nnames: [a]\n", "has no images where its data.yaml says"),
        ("train: images\nnames: [a\n", "data.yaml is not valid YAML: something is wrong in line 3."),
        ("[" * 5000, "data.yaml is not valid YAML"),
    ],
)
def test_yolo_without_sound_names(tmp_path: Path, text: str, words: str) -> None:
    save_picture(tmp_path / "images/1.png")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/1.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "data.yaml").write_text(text)
    assert words in refused(tmp_path)


def test_lines_of_yolo_that_no_image_has(tmp_path: Path) -> None:
    save_picture(tmp_path / "images/1.png")
    (tmp_path / "labels").mkdir()
    lines = [
        "inf 0.5 0.5 0.2 0.2",
        "1e400 0 0 1 1",
        "0 1e18 0 1 1",
        "0 0 0 1e18 0 1 1e18",
        "0 nan 0 1 1",
        "0 0.5 0.5 1 1",
    ]
    (tmp_path / "labels/1.txt").write_text("\n".join(lines))
    (tmp_path / "data.yaml").write_text("train: images\nnames: [a, b]\n")
    assert found(tmp_path) == {"line that can't be read": 5}


@pytest.mark.parametrize("encoding", ["banana", "utf-32", "hex", "punycode", "\u00e9"])
def test_xml_in_an_encoding_that_there_is_not(tmp_path: Path, encoding: str) -> None:
    save_picture(tmp_path / "1.png")
    (tmp_path / "1.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?><annotation/>', encoding="utf-8")
    assert "1.xml is not valid XML: " in refused(tmp_path)


def test_an_endless_image_in_xml(tmp_path: Path) -> None:
    size = "<size><width>1e400</width><height>1e12</height></size>"
    box = "<object><name>a</name><bndbox><xmin>1e18</xmin><ymin>0</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>"
    good = box.replace("1e18", "1")
    for number in range(2):
        save_picture(tmp_path / f"{number}.png", seed=number)
        (tmp_path / f"{number}.xml").write_text(f"<annotation>{size}{box}{good}</annotation>")
    assert found(tmp_path) == {
        "box without four numbers": 2, "image of another size than annotated, height × width": 2
    }  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_image_without_a_finite_value_is_a_bad_one(tmp_path: Path, value: float) -> None:
    Image.fromarray(np.full((4, 4), value, dtype=np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(BadImage, match=r"a\.tif can't be read as an image: none of its pixels is a finite number"):
        decode("a.tif", tmp_path / "a.tif")


def test_an_infinite_pixel_is_as_bright_as_the_brightest_other(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 128, 255, np.inf, np.nan]], dtype=np.float32)).save(tmp_path / "a.tif")
    assert np.asarray(decode("a.tif", tmp_path / "a.tif"))[0, :, 0].tolist() == [0, 128, 255, 255, 0]


def save_deep(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint16)).save(path)


def test_masks_of_sixteen_bits_that_are_no_classes(tmp_path: Path) -> None:
    values = np.arange(256 * 256).reshape(256, 256)
    save_picture(tmp_path / "images/1.png", (256, 256))
    save_deep(tmp_path / "masks/1.png", values)
    assert "has 65535 classes; at most 255 can be told apart in a map." in refused(tmp_path)
    (tmp_path / "classes.txt").write_text("ground\ncat\n")
    sentence = refused(tmp_path)
    assert (
        sentence.startswith("100.0 % of the pixels of the masks in ")
        and "say in classes.txt what they mean" in sentence
    )
    save_deep(tmp_path / "masks/1.png", np.where(values % 256 < 200, values % 2, 300))
    assert open_data(tmp_path).classes == ("ground", "cat")  # 22 % without a meaning: `data check` says so
    assert found(tmp_path) == {"value without a meaning in masks": 1}


def write_tar(path: Path, png: bytes) -> int:
    """A shard of two images; returns where the second label begins."""
    with tarfile.open(path, "w") as archive:
        for number in range(2):
            for name, content in ((f"{number}.png", png), (f"{number}.cls", b"%d" % number)):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    with tarfile.open(path) as archive:
        return archive.getmember("1.cls").offset


def test_a_shard_that_is_cut_off(tmp_path: Path, png) -> None:
    start = write_tar(tmp_path / "0.tar", png(1, 2))
    content = (tmp_path / "0.tar").read_bytes()
    for cut in (start, start + 100, start + 512, start - 512):
        (tmp_path / "0.tar").write_bytes(content[:cut])
        assert f"{tmp_path}/0.tar is cut off" in refused(tmp_path / "0.tar")


@pytest.mark.parametrize(
    "record",
    [[], {}, {"source": 3}, {"source": "digits", "classes": {}, "splits": {}}, {"source": "digits"}, None],
)
def test_an_edited_record_of_data(record: Any) -> None:
    from nearsight.data.open import open_again

    with pytest.raises(ValueError, match="The record of the data lacks source, classes or splits"):
        open_again(record)


def test_one_image_can_not_be_trained_with_and_the_check_says_so(tmp_path: Path, coco_content) -> None:
    save_picture(tmp_path / "0.png")
    (tmp_path / "train.json").write_text(json.dumps(coco_content(["0.png"])))
    outcome = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert outcome.exit_code == 0 and "nearsight train" not in outcome.output
    assert "These data can't be trained with yet" in outcome.output and "none can be made" in outcome.output


def test_names_of_any_bytes_are_printed_everywhere(tmp_path: Path) -> None:
    for number, name in enumerate((b"caf\xe9.png", "größe.png".encode(), b"new\nline.png")):
        for title in (b"\xff\xfe", "日本".encode()):
            folder = os.path.join(os.fsencode(tmp_path), b"data", title)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "wb") as file:
                Image.new("RGB", (8, 8), (number, 9, 9)).save(file, "PNG")
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    outcome = subprocess.run(
        [sys.executable, "-m", "nearsight", "data", "check", "data", "--workers", "0", "--fix-list", "fix.txt"],
        cwd=tmp_path, env=environment, capture_output=True, timeout=120,
    )  # fmt: skip
    assert outcome.returncode == 0 and b"Traceback" not in outcome.stderr, outcome.stderr.decode(errors="replace")
    assert b"Blank images" in outcome.stdout and (tmp_path / "fix.txt").is_file()


def test_the_list_of_fixes_takes_the_place_of_nothing_else(photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\n" + "".join(f"photos/{'ab'[n % 2]}/{n}.png,{n % 2}\n" for n in range(24)))
    before = table.read_text()
    (tmp_path / "notes.txt").write_text("mine\n")
    for target, words in ((table, "is read here as well"), (tmp_path / "notes.txt", "was not written by this command")):
        outcome = CliRunner().invoke(app, ["data", "check", str(table), "--fix-list", str(target)])
        assert outcome.exit_code == 1 and words in str(outcome.exception)
    assert table.read_text() == before and (tmp_path / "notes.txt").read_text() == "mine\n"
    (photos / "a/0.png").write_bytes(b"no image")
    for _ in range(2):  # a list that this wrote is written anew
        outcome = CliRunner().invoke(app, ["data", "check", str(table), "--fix-list", str(tmp_path / "fix.txt")])
        assert outcome.exit_code == 0 and (tmp_path / "fix.txt").read_text() == "photos/a/0.png\n"


def test_many_columns_and_categories_take_no_square_of_time(photos: Path, tmp_path: Path, coco_content) -> None:
    """Each was looked up in a list of all before it: 100,000 took minutes."""
    began = time.process_time()
    titles = ",".join(f"c{number}" for number in range(50_000))
    (tmp_path / "wide.csv").write_text(f"path,{titles}\nx.png{',1' * 50_000}\n")
    with pytest.raises(ValueError):
        open_data(str(tmp_path / "wide.csv"))
    content = coco_content(["0.png"])
    content["categories"] = [{"id": n, "name": f"c{n}"} for n in range(100_000)]
    names = category_names("coco", {"train": content})["train"]
    assert len(names) == 100_000 and names[7] == "c7"
    assert time.process_time() - began < 20


def test_a_label_of_thousands_of_digits_is_a_name() -> None:
    assert sorted(["9" * 5000, "10", "2", "1" + "0" * 5000], key=natural_key)[:2] == ["2", "10"]


def test_coco_in_another_encoding_that_json_has(coco) -> None:
    source = coco("images")
    file = source / "train.json"
    before = len(open_data(str(source), "detect").train)
    file.write_bytes(file.read_text().encode("utf-16"))
    assert len(open_data(str(source), "detect").train) == before


def test_references_in_a_recipe_are_refused(tmp_path: Path) -> None:
    """Ten lines of them stand for three billion values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(9)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="line 2 repeats \\*a, which is not read here"):
        load_recipe(str(tmp_path / "bomb.yaml"))
