"""Every JSON file that is written, edited field by field: opened again, it works or gets a sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generator import ABSURD, edited, edits, picture

from nearsight import train

Try = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train("digits", model="deit_nano", epochs=1, limit=40, batch=20, out=folder, quiet=True)
    (folder.parent / "image.png").write_bytes(picture(0))
    return folder


def try_all(attempt: Try, run: Path, copy: Path, name: str, words: Callable[[Path], tuple[str, ...]], most: int) -> int:
    """Edit a file of a run in up to so many ways, and use the run; how often it was tried."""
    content = json.loads((run / name).read_text())
    ways = list(edits(content))
    values: list[Any] = [*ABSURD]
    pairs = [(way, values[(7 * place + turn) % len(values)]) for turn in range(4) for place, way in enumerate(ways)]
    for way, value in pairs[:most]:
        shutil.copytree(run, copy, dirs_exist_ok=True)
        (copy / name).write_text(json.dumps(edited(content, way, value)))
        attempt(*words(copy), may_write=("out",))
        shutil.rmtree(copy)
    whole = (run / name).read_text()
    for end in (0, 1, len(whole) // 2, len(whole) - 2):
        shutil.copytree(run, copy, dirs_exist_ok=True)
        (copy / name).write_text(whole[:end])
        code, _, err = attempt(*words(copy), may_write=("out",))
        assert code == 1 and name in err, (end, err)
        shutil.rmtree(copy)
    return len(pairs[:most]) + 4


def test_an_edited_description_of_a_model_gets_a_sentence(attempt: Try, run: Path, tmp_path: Path) -> None:
    image = str(run.parent / "image.png")
    count = try_all(attempt, run, tmp_path / "copy", "model.json", lambda folder: ("predict", str(folder), image), 150)
    assert count > 100


def test_an_edited_record_of_the_data_gets_a_sentence(attempt: Try, run: Path, tmp_path: Path) -> None:
    assert (
        try_all(attempt, run, tmp_path / "copy", "data.json", lambda folder: ("eval", str(folder), "--json"), 30) > 20
    )


def test_an_edited_outcome_gets_a_sentence(attempt: Try, run: Path, tmp_path: Path) -> None:
    words = lambda folder: ("train", "--resume", str(folder), "-q")  # noqa: E731
    assert try_all(attempt, run, tmp_path / "copy", "outcome.json", words, 30) > 20


@pytest.mark.drill
def test_every_field_of_a_description_with_every_absurd_value(attempt: Try, run: Path, tmp_path: Path) -> None:
    image = str(run.parent / "image.png")
    assert try_all(attempt, run, tmp_path / "copy", "model.json", lambda f: ("predict", str(f), image), 10**6) > 300
