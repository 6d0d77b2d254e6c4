"""Every JSON file that is written, edited field by field: opened again, it works or gets a sentence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generator import ABSURD, edited, edits, picture, spoil
from safetensors.torch import load_file, save_file

from nearsight import export, load, train
from nearsight.runs.predictor import fingerprint

Try = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train("digits", model="deit_nano", epochs=1, limit=40, batch=20, out=folder, quiet=True)
    (folder.parent / "image.png").write_bytes(picture(0))
    return folder


def write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1))


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


WRONG = {
    "temperature": (0, -1, "x", float("nan"), [1]),
    "conformal": (5, [1], {"0.1": "x"}, {"0.1": None}),
    "threshold": ("x", -5, None, float("nan")),
    "thresholds": (5, [0.5], ["x"] * 10),
    "tta": (5, []),
    "error_rate": (0.1,),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
@pytest.mark.parametrize("file", ["model.json", "calibration.json", "preprocess.json"])
def test_settings_beside_weights_are_checked_wherever_they_stand(
    attempt: Try, run: Path, tmp_path: Path, file: str, name: str, value: Any
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    about = json.loads((copy / "model.json").read_text())
    if file == "model.json":
        about["trained"][name] = value
    elif file == "calibration.json":
        about = {"settings": {name: value}, "weights": fingerprint(load(run))}
    else:
        for left in copy.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        about = {**BUNDLE, "settings": {name: value}}
        (copy / "model.onnx").write_bytes(b"none")
    (copy / file).write_text(json.dumps(about))
    code, _, err = attempt("predict", str(copy), str(run.parent / "image.png"))
    assert code == 1 and file in err and ("edited" in err or "damaged" in err), err


BUNDLE = {
    "format": "nearsight-bundle",
    "version": 2,
    "model": "deit_nano",
    "weights": "trained",
    "kind": "onnx",
    "int8": False,
    "files": {"model.onnx": "sha256:..."},
    "input": {"size": [32, 32]},
    "task": "classify",
    "resize": {"crop": 1.0},
    "mean": [0.5] * 3,
    "std": [0.5] * 3,
    "dynamic": {"batch": True, "height": True, "width": True},
    "labels": list("0123456789"),
    "outputs": ["logits"],
    "postprocessing": {"name": "classes"},
}


def test_a_calibration_of_other_weights_is_made_anew_and_files_of_others_stay(
    attempt: Try, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    write_json(copy / "calibration.json", {"settings": {"temperature": 2.0}, "weights": "of others"})
    code, _, err = attempt("predict", str(copy), str(run.parent / "image.png"))
    assert code == 1 and "of other weights; run `nearsight calibrate` again" in err
    assert attempt("calibrate", str(copy), may_write=("../copy",))[0] == 0
    assert attempt("predict", str(copy), str(run.parent / "image.png"))[0] == 0
    (copy / "calibration.json").write_text("of my camera")
    code, _, err = attempt("calibrate", str(copy))
    assert code == 1 and "was not written by this command" in err
    assert (copy / "calibration.json").read_text() == "of my camera"


def test_weights_beside_each_other_have_calibrations_of_their_own(attempt: Try, run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for name in ("a", "b"):
        for end in ("safetensors", "json"):
            shutil.copy(run / f"model.{end}", folder / f"{name}.{end}")
    tensors = load_file(folder / "b.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, folder / "b.safetensors")
    for name in ("a", "b"):
        code, _, err = attempt(
            "calibrate", str(folder / f"{name}.safetensors"), "digits", "--split", "test", may_write=("../weights",)
        )
        assert code == 0, err
    warm = [load(folder / f"{name}.safetensors").settings["temperature"] for name in ("a", "b")]
    assert warm[0] != warm[1]


FOLDED = {
    "source": "digits",
    "folds": 2,
    "staged": False,
    "budget": None,
    "epochs": None,
    "recipe": {},
    "resolved": {},
}


@pytest.mark.parametrize(
    "change",
    [
        *({"folds": value} for value in ("x", -1, 1, None, 1e9, 2.5)),
        *({"budget": value} for value in ("x", -1, float("nan"))),
        *({key: 5} for key in ("source", "staged", "recipe", "resolved")),
        {"epochs": "x"},
    ],
    ids=str,
)
@pytest.mark.parametrize("words", [PREDICT, RESUME], ids=["predict", "resume"])
def test_an_edited_record_of_folds_is_named(
    attempt: Try, run: Path, tmp_path: Path, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    (tmp_path / "copy").mkdir()
    write_json(tmp_path / "copy" / "folds.json", FOLDED | change)
    places = {"RUN": str(tmp_path / "copy"), "IMAGE": str(run.parent / "image.png")}
    code, _, err = attempt(*(places.get(word, word) for word in words))
    assert code == 1 and "folds.json was edited" in err


def test_an_average_lacks_no_fold(attempt: Try, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy" / "fold-1")
    write_json(tmp_path / "copy" / "folds.json", FOLDED)
    code, _, err = attempt("predict", str(tmp_path / "copy"), str(run.parent / "image.png"))
    assert code == 1 and "fold-2" in err


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        *(("environment", "weights", value) for value in (5, {}, {"file": "x"})),
        *(("environment", key, 5) for key in ("versions", "command")),
        *(("data", "splits", value) for value in (5, {"train": 5}, {"train": {"count": "x"}})),
        *(("data", key, 5) for key in ("classes", "source")),
        *(("outcome", key, "x") for key in ("test_score", "val_score")),
        ("outcome", "metric", 5),
    ],
)
def test_a_card_is_not_made_of_edited_records(
    attempt: Try, run: Path, tmp_path: Path, file: str, key: str, value: Any
) -> None:
    shutil.copytree(run, tmp_path / "copy")
    record = tmp_path / "copy" / f"{file}.json"
    write_json(record, json.loads(record.read_text()) | {key: value})
    code, _, err = attempt("push", str(tmp_path / "copy"), "--licence", "mit", "--folder", "out")
    assert code == 1 and f"{file}.json was edited ({key} is not as the run wrote it)" in err


def test_a_card_says_of_weights_without_a_name_what_is_known(attempt: Try, run: Path, tmp_path: Path) -> None:
    """A run that was fine-tuned from another names its file and hash alone."""
    shutil.copytree(run, tmp_path / "copy")
    record = tmp_path / "copy" / "environment.json"
    began = {"file": "/home/anna/first/model.safetensors", "sha256": "0123456789abcdef" * 4, "bytes": 5}
    write_json(record, json.loads(record.read_text()) | {"weights": began})
    code, _, err = attempt("push", str(tmp_path / "copy"), "--licence", "mit", "--folder", "out")
    assert code == 0, err
    text = Path("out/README.md").read_text()
    assert "from the weights of another run (SHA-256 0123456789abcdef...)" in text and "anna" not in text


@pytest.mark.parametrize("spoilt", [b"", b"hello", None])
def test_a_card_is_not_made_of_damaged_predictions(
    attempt: Try, run: Path, tmp_path: Path, spoilt: bytes | None
) -> None:
    shutil.copytree(run, tmp_path / "copy")
    file = tmp_path / "copy" / "predictions.npz"
    file.write_bytes(file.read_bytes()[:200] if spoilt is None else spoilt)
    code, _, err = attempt("push", str(tmp_path / "copy"), "--licence", "mit", "--folder", "out")
    assert code == 1 and "predictions.npz is damaged" in err


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "data.json", "recipe.yaml"])
def test_nobody_waits_at_a_pipe_among_the_files_of_a_run(attempt: Try, run: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    os.mkfifo(tmp_path / "copy" / name)
    for words in (("eval", str(tmp_path / "copy")), ("train", "--resume", str(tmp_path / "copy"), "-q")):
        attempt(*words, may_write=("../copy",))  # it ends: with a sentence where the file is needed


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
