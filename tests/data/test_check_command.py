"""What `nearsight data check` prints, writes and returns."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from nearsight.cli.data import data_app
from nearsight.data.check import fix_list, render_report
from nearsight.data.issues import CheckReport, ImageRef, Unreadable


def noise(seed):
    values = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((100, 80), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    """50 cats and 10 dogs for training, 5 of each for the test, nothing wrong but their ratio."""
    for start, (index, count) in enumerate({"train/cat": 50, "train/dog": 10, "test/cat": 5, "test/dog": 5}.items()):
        (tmp_path / "my data" / index).mkdir(parents=True)
        for number in range(count):
            noise(1000 * start + number).save(tmp_path / "my data" / index / f"{number}.png")
    return tmp_path / "my data"


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        return CliRunner().invoke(data_app, ["check", *map(str, arguments)], catch_exceptions=False)

    return run


def test_the_verdict_comes_first_and_the_command_to_train_last(run, folder):
    result = run(folder)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "1 problem in 70 images of 2 classes: classes of very different size (5 : 1)."
    assert "train with" in " ".join(lines) and "--class-weights balanced" in " ".join(lines)
    assert "  splits: train 60, test 10" in lines
    assert "  height 80; width 100" in lines
    assert lines[-1] == f"  nearsight train '{folder}' --img-size 64 --class-weights balanced"
    assert max(map(len, lines[:-1])) <= 80


def test_sound_data_get_a_short_report(run, folder):
    for number in range(10, 50):
        noise(7000 + number).save(folder / "train" / "dog" / f"{number}.png")
    result = run(folder, "--strict")
    assert result.exit_code == 0
    titles = [line for line in result.stdout.splitlines() if line and not line.startswith(" ")]
    assert titles == ["No problems found in 110 images of 2 classes.", "Images", "To train with these images"]


def test_strict_turns_problems_into_exit_code_1(run, folder):
    assert run(folder, "--strict").exit_code == 1


def test_json_holds_the_whole_report(run, folder):
    (folder / "train" / "cat" / "bad.png").write_bytes(b"bad")
    report = json.loads(run(folder, "--json").stdout)
    assert report["images"] == {"train": 61, "test": 10}
    assert report["to_remove"] == ["train/cat/bad.png"]
    assert report["img_size"] == 64  # the shorter side is 80: 96 would be upsampled


def test_the_fix_list_names_bad_images_line_by_line(run, folder, tmp_path):
    (folder / "test" / "cat" / "bad.png").write_bytes(b"bad")
    noise(3).save(folder / "test" / "cat" / "leak.png")  # train/cat/3.png
    result = run(folder, "--fix-list", tmp_path / "fix.txt")
    assert (tmp_path / "fix.txt").read_text() == "test/cat/bad.png\ntrain/cat/3.png\n"
    assert f"Wrote {tmp_path / 'fix.txt'}; images to remove: 2." in result.stderr
    assert "train/cat/3.png = test/cat/leak.png; same bytes" in result.stdout


def test_a_folder_is_refused_as_fix_list_before_the_work(run, folder):
    with pytest.raises(ValueError, match=r"^--fix-list .* is a folder; give the name of a file to write\.$"):
        run(folder, "--fix-list", folder)


def test_long_sections_are_cut_and_say_so(capsys):
    bad = [Unreadable("train", f"{number}.jpg", "a", "the file is cut off") for number in range(1200)]
    text = show(CheckReport("here", "folder", {"train": 1200}, {"a": {"train": 0}}, unreadable=bad), capsys)
    assert "Unreadable images (1,200)" in text
    assert "  9.jpg: the file is cut off\n  ... and 1,190 more; --json lists all\n" in text


def test_names_that_are_no_text_are_printed_and_listed_as_they_are_on_disk(capsys):
    name = b"caf\xe9 [bold].jpg".decode("utf-8", "surrogateescape")
    report = CheckReport("here", "folder", {"train": 1}, {"a": {"train": 1}}, blank=[ImageRef("train", name, "a")])
    report.unreadable = [Unreadable("train", name, "a", "the file is cut off")]
    assert "  caf? [bold].jpg: the file is cut off" in show(report, capsys)
    assert fix_list(report) == b"caf\xe9 [bold].jpg\n"


def show(report, capsys):
    from rich.console import Console

    Console(width=80).print(render_report(report, {"deit_nano": 8}), highlight=False)
    return capsys.readouterr().out
