"""Every JSON file that is written, edited field by field: opened again, it works or gets a sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generator import ABSURD, edited, edits, picture, spoil
from safetensors.torch import load_file, save_file

from nearsight import export, train

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
    pairs = [(way, values[(7 * index + turn) % len(values)]) for turn in range(4) for index, way in enumerate(ways)]
    for way, value in pairs[:most]:
        shutil.copytree(run, copy, dirs_exist_ok=True)
        (copy / name).write_text(json.dumps(edited(content, way, value)))
        attempt(*words(copy), may_write=("../copy",))
        shutil.rmtree(copy)
    whole = (run / name).read_text()
    for end in (0, 1, len(whole) // 2, len(whole) - 2):
        shutil.copytree(run, copy, dirs_exist_ok=True)
        (copy / name).write_text(whole[:end])
        code, _, err = attempt(*words(copy), may_write=("../copy",))
        assert code == 1 and (Path(name).parent.name or name) in err, (end, err)
        shutil.rmtree(copy)
    return len(pairs[:most]) + 4


def test_an_edited_description_of_a_model_gets_a_sentence(attempt: Try, run: Path, tmp_path: Path) -> None:
    image = str(run.parent / "image.png")
    count = try_all(attempt, run, tmp_path / "copy", "model.json", lambda folder: ("predict", str(folder), image), 110)
    assert count > 100


def test_an_edited_record_of_the_data_gets_a_sentence(attempt: Try, run: Path, tmp_path: Path) -> None:
    assert (
        try_all(attempt, run, tmp_path / "copy", "data.json", lambda folder: ("eval", str(folder), "--json"), 30) > 20
    )


def test_an_edited_outcome_gets_a_sentence(attempt: Try, run: Path, tmp_path: Path) -> None:
    words = lambda folder: ("train", "--resume", str(folder), "-q")  # noqa: E731
    assert try_all(attempt, run, tmp_path / "copy", "outcome.json", words, 30) > 20


PREDICT, EVAL, RESUME = ("predict", "RUN", "IMAGE"), ("eval", "RUN"), ("train", "--resume", "RUN", "-q", "--cpu")
DIGITS = "9" * 5000  # more than Python reads as a number


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        *(("model.json", content, PREDICT) for content in (f'{{"format": {DIGITS}}}', "\xff", "[" * 10**5)),
        *(("data.json", content, EVAL) for content in (f'{{"source": {DIGITS}}}', "\xff", "[" * 10**5)),
        *(("outcome.json", content, RESUME) for content in (f'{{"model": {DIGITS}}}', "\xff", "[" * 10**5)),
        *(
            ("environment.json", content, RESUME)
            for content in (f'{{"threads": {DIGITS}}}', '{"threads": 1}', '{"threads": "x", "weights": 5}', "[]")
        ),
        *(
            ("metrics.jsonl", content, RESUME)
            for content in (f'{{"step": {DIGITS}}}\n', "[1]\n", "\xff\n", '{"step": 1}\n', "[" * 10**5 + "\n")
        ),
    ],
    ids=str,
)
def test_a_record_with_nonsense_in_it_is_named(
    attempt: Try, run: Path, tmp_path: Path, name: str, content: str, words: tuple[str, ...]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / name).write_bytes(content.encode("latin-1"))
    if name in ("environment.json", "metrics.jsonl"):  # which a finished run does not look at again
        (copy / "outcome.json").unlink()
    places = {"RUN": str(copy), "IMAGE": str(run.parent / "image.png")}
    code, _, err = attempt(*(places.get(word, word) for word in words))
    assert code == 1 and name in err


@pytest.mark.parametrize("words", [PREDICT, EVAL, ("explain", "RUN", "IMAGE"), ("export", "RUN", "--out", "out")])
def test_weights_that_are_no_numbers_are_of_no_use(
    attempt: Try, run: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    tensors = load_file(copy / "model.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, copy / "model.safetensors")
    places = {"RUN": str(copy), "IMAGE": str(run.parent / "image.png")}
    code, _, err = attempt(*(places.get(word, word) for word in words))
    assert code == 1 and "holds numbers that are not finite" in err


@pytest.mark.parametrize("number", [DIGITS, f"0x{'f' * 5000}"])
def test_a_recipe_with_a_number_of_thousands_of_digits_is_refused(attempt: Try, tmp_path: Path, number: str) -> None:
    (tmp_path / "recipe.yaml").write_text(f"epochs: 1\nseed: {number}\n")
    code, _, err = attempt("train", "digits", "--recipe", str(tmp_path / "recipe.yaml"), "--out", "out")
    assert code == 1 and "the number in line 2 has 5,00" in err


def every_way(attempt: Try, run: Path, copy: Path, name: str, words: Callable[[Path], tuple[str, ...]]) -> int:
    """Try every field with some absurd values; how many cases that were."""
    count = try_all(attempt, run, copy, name, words, 10**6)
    print(f"{count} cases of {name}")
    return count


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations write and draw nothing: these drills are about what is read."""
    monkeypatch.setattr("nearsight.evaluation.Evaluation.save", lambda self, folder=None: Path("out"))


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_every_field_of_a_description_with_every_absurd_value(attempt: Try, run: Path, tmp_path: Path) -> None:
    image = str(run.parent / "image.png")
    words = lambda folder: ("predict", str(folder), image)  # noqa: E731
    assert every_way(attempt, run, tmp_path / "copy", "model.json", words) > 150


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("no_report")
def test_every_field_of_the_record_of_data_with_every_absurd_value(attempt: Try, run: Path, tmp_path: Path) -> None:
    assert every_way(attempt, run, tmp_path / "copy", "data.json", lambda folder: ("eval", str(folder), "--json")) > 20


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped behind its first epoch."""
    folder = tmp_path_factory.mktemp("half") / "run"
    train("digits", model="deit_nano", epochs=2, limit=40, batch=20, out=folder, quiet=True, keep=1)
    for name in ("outcome.json", "summary.md", "predictions.npz", "model.safetensors", "model.json"):
        (folder / name).unlink(missing_ok=True)
    return folder


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("record", ["environment.json", "checkpoints/*/state.json"])
def test_every_field_of_a_run_that_goes_on_with_every_absurd_value(
    attempt: Try, half: Path, tmp_path: Path, record: str
) -> None:
    name = str(sorted(half.glob(record))[-1].relative_to(half))
    words = lambda folder: ("train", "--resume", str(folder), "-q", "--cpu")  # noqa: E731
    assert every_way(attempt, half, tmp_path / "copy", name, words) > 20


@pytest.fixture(scope="module")
def bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as a bundle, beside the image."""
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    export(run, out=folder, format="onnx")
    (folder.parent / "image.png").write_bytes(picture(0))
    return folder


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_every_field_of_a_bundle_with_every_absurd_value(attempt: Try, bundle: Path, tmp_path: Path) -> None:
    image = str(bundle.parent / "image.png")
    words = lambda folder: ("predict", str(folder), image)  # noqa: E731
    assert every_way(attempt, bundle, tmp_path / "copy", "preprocess.json", words) > 20


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "recipe.yaml", "data.json", "outcome.json"])
@pytest.mark.usefixtures("no_report")
def test_spoilt_files_of_a_run(attempt: Try, run: Path, tmp_path: Path, name: str) -> None:
    image, copy = str(run.parent / "image.png"), tmp_path / "copy"
    for seed in range(150):
        shutil.copytree(run, copy)
        (copy / name).write_bytes(spoil((run / name).read_bytes(), seed))
        commands = [("predict", str(copy), image), ("eval", str(copy), "--json"), ("train", "--resume", str(copy))]
        code, _, err = attempt(*commands[seed % 3], may_write=("../copy",))
        assert code == 0 or "nearsight: " in err, (seed, err)
        shutil.rmtree(copy)
    print(f"150 cases of {name}")
