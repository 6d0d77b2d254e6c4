"""VOC's xml files, in VOC's own layout and beside the images."""

import shutil
from pathlib import Path

import pytest
from dense_files import save_mask, save_picture, square

from nearsight.data import open_data


def xml(name: str, objects: list[tuple], size: tuple[int, int] = (40, 60), database: str = "Unknown") -> str:
    """The content of a file: objects are name, box and perhaps difficult."""
    entries = "".join(
        f"<object><name>{title}</name><difficult>{int(bool(rest))}</difficult><bndbox>"
        f"<xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>"
        f"<part><name>head</name></part></object>"
        for title, box, *rest in objects
    )
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height><depth>3</depth></size>"
    origin = f"<source><database>{database}</database></source>"
    return f"<annotation><folder>x</folder><filename>{name}</filename>{origin}{sides}{entries}</annotation>"


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """VOC2007's layout: three images to train with, two to validate with."""
    folder = tmp_path / "VOC2007"
    for n in range(5):
        save_picture(folder / f"JPEGImages/{n:06d}.jpg", seed=n)
        save_mask(folder / f"SegmentationClass/{n:06d}.png", square(value=12), palette=list(range(256)) * 3)
        file = folder / f"Annotations/{n:06d}.xml"
        file.parent.mkdir(exist_ok=True)
        objects = [("dog", (1, 1, 30, 40)), ("cat", (11, 5, 20, 15), True)]
        file.write_text(xml(f"{n:06d}.jpg", objects, database="The VOC2007 Database"))
    for kind in ("Main", "Segmentation"):
        lists = folder / "ImageSets" / kind
        lists.mkdir(parents=True)
        (lists / "train.txt").write_text("000000\n000001\n000002\n")
        (lists / "val.txt").write_text("000003 1\n000004 -1\n")
        (lists / "trainval.txt").write_text("".join(f"{n:06d}\n" for n in range(5)))
    return folder


def test_vocs_own_layout(voc: Path) -> None:
    data = open_data(voc)
    assert (data.kind, data.task, data.masks, data.classes) == ("voc", "detect", False, ("cat", "dog"))
    assert (len(data.train), len(data.val), data.test) == (3, 2, None)
    target = data.train.target(0)
    # VOC counts pixels from 1, up to and with the last; what is difficult is not counted.
    assert target["boxes"].tolist() == [[0, 0, 30, 40], [10, 4, 20, 15]]
    assert (target["labels"].tolist(), target["crowd"].tolist()) == ([1, 0], [False, True])


def test_tools_that_write_vocs_layout_count_from_zero(voc: Path) -> None:
    for file in (voc / "Annotations").glob("*.xml"):
        file.write_text(file.read_text().replace("The VOC2007 Database", "Unknown"))
    for name in ("train", "val", "trainval"):
        (voc / f"ImageSets/Main/{name}.txt").unlink()
    (voc / "ImageSets/Main/default.txt").write_text("".join(f"{n:06d}\n" for n in range(5)))  # CVAT
    data = open_data(voc)
    assert {name: len(split) for name, split in data.splits().items()} == {"train": 5}
    assert data.train.target(0)["boxes"].tolist() == [[1, 1, 30, 40], [11, 5, 20, 15]]


def test_years_are_joined(voc: Path) -> None:
    shutil.copytree(voc, voc.parent / "VOC2012")
    data = open_data(voc.parent)
    assert (len(data.train), len(data.val)) == (6, 4)
    assert data.train.name(3).startswith("VOC2012/")
    assert data.train.read(5).size == (60, 40)


def test_regions_of_voc(voc: Path) -> None:
    data = open_data(voc, task="segment")
    assert (data.task, len(data.classes), data.classes[12]) == ("segment", 21, "dog")
    assert (len(data.train), len(data.val)) == (3, 2)
    assert data.val.target(0).unique().tolist() == [0, 12]


@pytest.mark.parametrize("layout", ["flat", "folders", "splits"])
def test_files_beside_images_count_pixels_from_zero(tmp_path: Path, layout: str) -> None:
    for n in range(4):
        split = ("train", "valid")[n % 2]
        image, note = {
            "flat": (f"c{n}.png", f"c{n}.xml"),
            "folders": (f"images/c{n}.png", f"annotations/c{n}.xml"),
            "splits": (f"{split}/c{n}.png", f"{split}/c{n}.xml"),
        }[layout]
        save_picture(tmp_path / image, seed=n)
        (tmp_path / note).parent.mkdir(exist_ok=True)
        (tmp_path / note).write_text(xml(f"C:\\export\\c{n}.png", [("RBC", (0, 0, 10, 12))]))
    data = open_data(tmp_path)
    assert data.kind == "voc"
    assert {name: len(split) for name, split in data.splits().items()} == (
        {"train": 2, "val": 2} if layout == "splits" else {"train": 4}
    )
    assert data.train.target(1)["boxes"].tolist() == [[0, 0, 10, 12]]
    assert data.classes == ("RBC",)  # one class is enough to detect


def test_what_can_not_be_used_is_noted(tmp_path: Path) -> None:
    save_picture(tmp_path / "0.png")
    (tmp_path / "0.xml").write_text(xml("0.png", [("", (1, 1, 2, 2)), ("a", ("x", 1, 2, 2)), ("b", (1, 2, 9, 9))]))
    (tmp_path / "1.xml").write_text(xml("1.png", []))
    split = open_data(tmp_path).train
    assert split.issues.counts == {
        "instance without a name": 1,
        "box without four numbers": 1,
        "annotation without an image": 1,
    }
    assert len(split.target(0)["labels"]) == 1


def test_files_that_are_refused(tmp_path: Path) -> None:
    save_picture(tmp_path / "0.png")
    bomb = '<!DOCTYPE a [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;">]><annotation>&lol2;</annotation>'
    for content, message in (
        (bomb, "declares the entity lol"),
        ("<annotation><object>", "is not valid XML"),
        ("", "is not valid XML"),
    ):
        (tmp_path / "0.xml").write_text(content)
        with pytest.raises(ValueError, match=message):
            open_data(tmp_path)
    (tmp_path / "0.xml").write_text(xml("lost.png", []))
    (tmp_path / "0.png").rename(tmp_path / "9.png")
    with pytest.raises(ValueError, match="None of the 1 xml files"):
        open_data(tmp_path)


def test_options_mean_nothing_to_boxes(voc: Path) -> None:
    with pytest.raises(ValueError, match="background=off means nothing to VOC annotations"):
        open_data(f"{voc}?background=off")
