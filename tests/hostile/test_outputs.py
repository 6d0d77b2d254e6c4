"""Commands that are told to write where something is already: nothing of the user's is lost."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from generator import picture

Try = Callable[..., tuple[int, str, str]]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two images."""
    folder = tmp_path / "here" / "images"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.png").write_bytes(picture(number))
    return folder


@pytest.fixture
def here(attempt: Try, tmp_path: Path) -> Path:
    """The folder in which commands are typed."""
    return tmp_path / "here"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("out", ["images", "images/../images", "link"])
def test_images_are_not_drawn_over_themselves(
    attempt: Try, place: Path, here: Path, images: Path, out: str, force: tuple[str, ...]
) -> None:
    (here / "link").symlink_to(images)
    before = contents(images)
    code, _, err = attempt("predict", str(place / "run"), "images", "--out", out, *force)
    assert code == 1 and "is read here as well and would be lost" in err
    assert contents(images) == before


def test_drawn_images_are_written_again_but_not_over_those_of_others(
    attempt: Try, place: Path, here: Path, images: Path
) -> None:
    line = ("predict", str(place / "run"), "images", "--out", "out")
    assert attempt(*line)[0] == 0
    assert attempt(*line)[0] == 0
    (here / "out" / "1.png").write_bytes(picture(5))
    code, _, err = attempt(*line)
    assert code == 1 and "was not written by this command" in err
    assert (here / "out" / "1.png").read_bytes() == picture(5)
    assert attempt(*line, "--force")[0] == 0
    assert (here / "out" / "1.png").read_bytes() != picture(5)


LINES = {
    "metrics.json": ("eval", "RUN", "--out", "out"),
    "confusion.png": ("eval", "RUN", "--out", "out"),
    "predictions.csv": ("eval", "RUN", "--out", "out"),
    "objects.json": ("predict", "RUN", "images", "--out", "out"),
    "0-grad-rollout.png": ("explain", "RUN", "images/0.png", "--out", "out"),
    "01-depthwise.png": ("probe", "depthwise", "--draw", "out"),
    "bench.json": ("bench", "deit_nano", "--json", "out/bench.json"),
    "bench.png": ("bench", "deit_nano", "--plot", "out/bench.png"),
    "README.md": ("push", "RUN", "--licence", "mit", "--folder", "out"),
    "report.md": ("search", "digits", "--macs", "2M", "--out", "out"),
}


@pytest.mark.parametrize("name", LINES)
def test_files_of_others_are_not_written_over(attempt: Try, place: Path, here: Path, images: Path, name: str) -> None:
    (here / "out").mkdir()
    (here / "out" / name).write_text("precious")
    before = contents(here)
    code, _, err = attempt(*(str(place / "run") if word == "RUN" else word for word in LINES[name]))
    assert code == 1 and ("was not written by this command" in err or "holds other" in err)
    assert contents(here) == before


@pytest.mark.parametrize("name", ["metrics.json", "0-grad-rollout.png", "01-depthwise.png", "bench.json"])
def test_files_of_the_same_command_are(attempt: Try, place: Path, here: Path, images: Path, name: str) -> None:
    short = {"bench": ("--runtimes", "eager", "--rounds", "1", "--batch", "1")}
    line = tuple(str(place / "run") if word == "RUN" else word for word in LINES[name])
    (here / "out").mkdir()
    for _ in range(2):
        code, _, err = attempt(*line, *short.get(line[0], ()))
        assert code == 0, err
    assert (here / "out" / name).is_file()


@pytest.mark.parametrize("name", ["metrics.json", "0-grad-rollout.png", "01-depthwise.png", "bench.json", "bench.png"])
def test_a_folder_that_takes_nothing_is_refused_before_the_work(
    attempt: Try, place: Path, here: Path, images: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "out").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    code, out, err = attempt(*(str(place / "run") if word == "RUN" else word for word in LINES[name]))
    assert code == 1 and not out and err.count("\n") == 1
    assert "nothing can be written to this folder" in err and str(here) in err
    shutil.rmtree(images)
    assert contents(here) == {}
