"""Commands that are told to write where something is already: nothing of the user's is lost."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from generator import picture, write_all, yolo

from nearsight import load

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
    "robustness.png": ("eval", "RUN", "--shifts", "--out", "out"),
    "0-grad-rollout.png": ("explain", "RUN", "images/0.png", "--out", "out"),
    "0-grad-rollout.npz": ("explain", "RUN", "images/0.png", "--out", "out"),
    "scores.json": ("explain", "RUN", "digits", "--score", "--limit", "2", "--out", "out"),
    "page.md": ("reproduce", "--markdown", "out/page.md"),
    "labels.html": ("data", "check", "digits", "--model", "RUN", "--page", "out/labels.html"),
    "fixes.txt": ("data", "check", "digits", "--fix-list", "out/fixes.txt"),
    "table.csv": ("embed", "images", "--model", "RUN", "--cache", "out", "--out", "out/table.csv"),
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


@pytest.mark.parametrize(
    "words", [("--weights", "../mine", "--recipe", "frozen"), ("--weights", "../mine"), ("--folds", "2")]
)
def test_a_run_of_another_kind_is_not_trained_over(
    attempt: Try, place: Path, here: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Also not over the one that the weights are from."""
    shutil.copytree(place / "run", tmp_path / "mine")
    before = contents(tmp_path / "mine")
    line = ("train", "digits", "--model", "deit_nano", "--epochs", "1", "--limit", "40", "--batch", "20", "-q")
    code, _, err = attempt(*line, *words, "--out", "../mine")
    assert code == 1 and "mine holds " in err and "give another folder with --out" in err
    assert contents(tmp_path / "mine") == before


TRAIN = ("train", "digits", "--model", "deit_nano", "--epochs", "1", "--limit", "32", "-q", "--out", "out")
EXPORT = ("export", "RUN", "--out", "out", "--force")
PUSH = ("push", "RUN", "--licence", "mit", "--folder", "out")
# Folders of others that hold what ours hold, too.
FOLDERS = {
    "the weights of another model": (PUSH, ("model.safetensors", "model.json")),
    "another project with a card": (PUSH, ("model.json", "README.md", "config.json")),
    "a run of another tool": (TRAIN, ("log.txt", "metrics.jsonl", "checkpoints/1", "model.safetensors")),
    "a recipe of one's own": ((*TRAIN, "--recipe", "out/recipe.yaml"), ("recipe.yaml",)),
    "a project with a model.onnx": (EXPORT, ("model.onnx", "thesis.tex")),
    "a page of one's own": (EXPORT, ("preprocess.json", "index.html", ".git/config")),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_others_are_not_taken_for_ours(attempt: Try, place: Path, here: Path, name: str) -> None:
    line, files = FOLDERS[name]
    write_all(here / "out", dict.fromkeys(files, "epochs: 1  # precious\n"))
    before = contents(here)
    code, _, err = attempt(*(str(place / "run") if word == "RUN" else word for word in line))
    assert code == 1 and "holds other" in err
    assert contents(here) == before


def test_a_run_is_not_written_over_by_another_that_is_shared(
    attempt: Try, place: Path, here: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "run", tmp_path / "mine")
    before = contents(tmp_path / "mine")
    code, _, err = attempt("push", str(place / "run"), "--licence", "mit", "--folder", "../mine")
    assert code == 1 and "holds other files" in err and contents(tmp_path / "mine") == before
    assert attempt(*(str(place / "run") if word == "RUN" else word for word in PUSH))[0] == 0
    assert attempt(*(str(place / "run") if word == "RUN" else word for word in PUSH))[0] == 0  # its own it replaces


def test_a_report_that_is_no_report_stays_where_reports_go_unasked(
    attempt: Try, place: Path, here: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "run", tmp_path / "mine")
    write_all(tmp_path / "mine", {"eval-test/metrics.json": "my notes"})
    before = contents(tmp_path / "mine")
    code, _, err = attempt("eval", "../mine")
    assert code == 1 and "metrics.json was not written by this command" in err
    assert contents(tmp_path / "mine") == before


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_predictions_are_not_written_over_the_model_that_makes_them(
    attempt: Try, place: Path, here: Path, images: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(place / "run", tmp_path / "mine")
    before = contents(tmp_path / "mine")
    code, _, err = attempt("predict", "../mine", "images", "--csv", f"../mine/{name}", "--force")
    assert code == 1 and "is read here as well and would be lost" in err
    assert contents(tmp_path / "mine") == before


@pytest.mark.parametrize(
    "line",
    [
        ("bench", "deit_nano", "--json", "out", "--plot", "./out"),
        ("data", "check", "digits", "--model", "RUN", "--page", "out", "--fix-list", "images/../out"),
    ],
)
def test_two_outputs_are_not_written_to_one_file(
    attempt: Try, place: Path, here: Path, images: Path, line: tuple[str, ...]
) -> None:
    code, _, err = attempt(*(str(place / "run") if word == "RUN" else word for word in line))
    assert code == 1 and "give each a file of its own" in err and not (here / "out").exists()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (("search", "digits", "--macs", "2M", "--out", "out"), "search.json"),
        (("compare", "digits", "--models", "deit_nano", "--out", "out"), "plan.json"),
        (("app", "deit_nano", "--corrections", "out"), "labels.csv"),
    ],
)
def test_a_folder_that_is_refused_for_its_record_is_left_as_it_was(
    attempt: Try, here: Path, line: tuple[str, ...], name: str
) -> None:
    write_all(here / "out", {name: "{}", "notes.md": "mine"})
    before = contents(here)
    code, _, err = attempt(*line)
    assert code == 1 and name in err and contents(here) == before


def test_nobody_waits_at_a_pipe_in_the_place_of_a_table(attempt: Try, here: Path) -> None:
    (here / "out").mkdir()
    os.mkfifo(here / "out" / "labels.csv")
    code, _, err = attempt("app", "deit_nano", "--corrections", "out")
    assert code == 1 and "is no table of corrected labels" in err


@pytest.mark.parametrize("command", ["embed", "data check"])
@pytest.mark.parametrize("named", ["~/labels.csv", "classes", "labels.csv?label=label"])
def test_data_are_not_written_over_however_they_are_named(
    attempt: Try, place: Path, here: Path, command: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place / "table", here, dirs_exist_ok=True)
    write_all(
        here / "classes", {f"{name}/{n}.png": picture(n) for n in range(3) for name in "ab"} | {"labels.csv": "x"}
    )
    monkeypatch.setenv("HOME", str(here))
    before = contents(here)
    embed = ("--model", str(place / "run"), "--cache", "out", "--out")
    file = "classes/labels.csv" if named == "classes" else "labels.csv"
    option = embed if command == "embed" else ("--fix-list",)
    code, _, err = attempt(*command.split(), named, *option, file, "--force")
    assert code == 1 and "is read here as well and would be lost" in err
    assert contents(here) == before


@pytest.mark.slow
@pytest.mark.linux  # other systems have no such names
def test_classes_whose_names_are_no_text_go_through_everything(attempt: Try, here: Path) -> None:
    images = {f"{name}\udcff/{n}.png": picture(n + seed) for n in range(6) for seed, name in enumerate("ab")}
    write_all(here / "data", images)
    small = ("--img-size", "16", "--set", "model.patch_size=4", "--epochs", "1", "--batch", "4", "-q", "--cpu")
    for line in (
        ("train", "data", "--model", "deit_nano", *small, "--out", "out/run"),
        ("eval", "out/run", "--out", "out/report"),
        ("explain", "out/run", "data/a\udcff/0.png", "--out", "out/explained"),
        ("predict", "out/run", "data", "--csv", "out/table.csv"),
        ("export", "out/run", "--out", "out/bundle", "--format", "pt2"),
    ):
        code, _, err = attempt(*line)
        assert code == 0, err
    told = json.loads((here / "out" / "report" / "metrics.json").read_text())
    assert {"a\udcff", "b\udcff"} <= set(json.dumps(told, ensure_ascii=False).split('"'))
    assert load(here / "out" / "bundle").classes == ("a\udcff", "b\udcff")
    assert (here / "out" / "table.csv").read_bytes().count(b"data/a\xff/") == 6


@pytest.mark.linux
def test_a_device_that_is_full_is_named(attempt: Try, place: Path, images: Path) -> None:
    code, _, err = attempt("predict", str(place / "run"), "images", "--csv", "/dev/full")
    assert code == 1 and err.splitlines()[-1] == "nearsight: /dev/full: No space left on device."


@pytest.mark.posix
def test_features_are_kept_where_something_else_lay(attempt: Try, place: Path, images: Path) -> None:
    line = ("embed", "images", "--model", str(place / "run"), "--cache", "out", "--query", "images")
    code, said, err = attempt(*line)
    assert code == 0 and [row for row in said.splitlines() if row[:1] != " "] == ["images/0.png", "images/1.png"], err
    kept = [path for path in Path("out").rglob("*") if path.is_file()]
    (note,) = (path for path in kept if path.suffix == ".json")
    note.unlink()
    os.mkfifo(note)
    assert attempt(*line)[:2] == (0, said) and note.is_file()


def test_a_list_that_is_read_is_no_place_for_another(attempt: Try, here: Path) -> None:
    yolo(here / "data")
    listed = "".join(f"images/train/{number}.png\n" for number in range(3))
    (here / "data" / "train.txt").write_text(listed)
    code, _, err = attempt("data", "check", "data", "--fix-list", "data/train.txt")
    assert code == 1 and "is read here as well and would be lost" in err
    assert (here / "data" / "train.txt").read_text() == listed


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
