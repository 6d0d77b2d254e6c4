"""Files of every format, spoilt: they are refused in a sentence, or what is left of them is read."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from generator import FORMATS, coco, picture, spoilt_files, yolo

Try = Callable[..., tuple[int, str, str]]
SEEDS = 18  # of each format in `make test`; `make drills` tries many more


@pytest.mark.parametrize("format", FORMATS)
def test_the_files_are_in_order_before_they_are_spoilt(attempt: Try, tmp_path: Path, format: str) -> None:
    code, out, err = attempt("data", "check", str(FORMATS[format](tmp_path / "data")), "--json")
    assert code == 0 and '"images"' in out, err


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("format", FORMATS)
def test_a_spoilt_file_gets_a_sentence(attempt: Try, tmp_path: Path, format: str, seed: int) -> None:
    source = FORMATS[format](tmp_path / "data")
    spoilt_files(tmp_path / "data", seed)
    code, out, err = attempt("data", "check", str(source), "--json", "--workers", "0")
    assert "nearsight: " in err if code == 1 else '"images"' in out, (code, out, err)


def test_half_a_character_is_no_class(attempt: Try, tmp_path: Path) -> None:
    file = coco(tmp_path / "data") / "annotations" / "instances_train.json"
    file.write_text(file.read_text().replace('"cat"', '"\\ud800"'))
    code, _, err = attempt("data", "check", str(tmp_path / "data"))
    assert code == 1 and r"the class '\ud800' with half of a character" in err


def test_a_zero_byte_in_a_path_is_named(attempt: Try, tmp_path: Path) -> None:
    (yolo(tmp_path / "data") / "data.yaml").write_text('path: "a\\0b"\ntrain: images/train\nnames: [cat, dog]\n')
    code, _, err = attempt("data", "check", str(tmp_path / "data"))
    assert code == 1 and "no file has a zero byte in its name" in err


def test_folders_inside_each_other_have_an_end(attempt: Try, tmp_path: Path) -> None:
    deep = "/".join(["d"] * 1500)
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for name in ("a/0.png", "b/0.png", f"a/{deep}/1.png"):
            archive.writestr(name, picture(0))
    below = tmp_path / "folder"
    for _ in range(300):
        below = below / "d"
    below.mkdir(parents=True)
    for source in ("data.zip", "folder"):
        code, _, err = attempt("data", "check", str(tmp_path / source))
        assert code == 1 and "more than 200 folders inside each other" in err


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format", FORMATS)
def test_many_spoilt_files_get_a_sentence(attempt: Try, tmp_path: Path, format: str) -> None:
    for seed in range(SEEDS, SEEDS + 300):
        source = FORMATS[format](tmp_path / "data")
        spoilt_files(tmp_path / "data", seed)
        code, out, err = attempt("data", "check", str(source), "--json", "--workers", "0")
        assert "nearsight: " in err if code == 1 else '"images"' in out, (seed, code, out, err)
        shutil.rmtree(tmp_path / "data")
    print(f"300 cases of {format}")
