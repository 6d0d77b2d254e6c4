"""`nearsight train` as people type it: flags that reach the recipe, sentences and exit codes."""

import inspect
import json
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearsight.cli.train import train as command_train
from nearsight.config.files import load_recipe, to_yaml
from nearsight.config.recipe import Recipe
from nearsight.runs.run import Run, resume_flags
from nearsight.training import Outcome, loop
from nearsight.training.train import default_folder, train, use_threads

OUTCOME = Outcome(
    "deit_nano", 10, 1, 2, 3, "classify", "accuracy", 0.5, 0.25, None, 1.0, False, {"a.png": "the file is cut off"}
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `run_training` was asked for, instead of training."""
    seen: dict[str, Any] = {}

    def note(source: str, recipe: Recipe, folder: Path, **settings: Any) -> Outcome:
        seen.update(source=source, recipe=recipe, folder=folder, **settings)
        return replace(OUTCOME, folder=folder)

    monkeypatch.setattr("nearsight.training.ladder.run_training", note)
    return seen


FLAGS = {
    "--model": ("lit_nano", "model.name", "lit_nano"),
    "--img-size": ("48", "model.img_size", 48),
    "--patch-size": ("2", "model.patch_size", 2),
    "--epochs": ("7", "epochs", 7),
    "--batch": ("6", "batch", 6),
    "--lr": ("3e-4", "optimizer.lr", 3e-4),
    "--class-weights": ("balanced", "loss.class_weights", "balanced"),
    "--limit": ("100", "data.limit", 100),
    "--workers": ("3", "data.workers", 3),
    "--seed": ("5", "seed", 5),
    "--precision": ("bf16", "precision", "bfloat16"),
    "--keep": ("4", "saving.keep", 4),
    "--set": ("augment.crop_scale=[0.5, 1.0]", "augment.crop_scale", (0.5, 1.0)),
}


def value_at(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_every_flag_reaches_the_recipe(type_in: Callable[..., Any], asked: dict[str, Any], tmp_path: Path) -> None:
    words = [word for flag, (given, _, _) in FLAGS.items() for word in (flag, given)]
    code, out, _ = type_in("train", "digits", *words, "--out", str(tmp_path), "--cpu", "--threads", "1")
    assert code == 0
    for flag, (_, key, expected) in FLAGS.items():
        assert value_at(asked["recipe"], key) == expected, flag
    assert (asked["source"], asked["folder"], asked["cpu"], asked["quiet"]) == ("digits", tmp_path, True, False)
    assert "deit_nano: accuracy 50.00% on the validation images (epoch 1), 25.00% on the test images." in out
    assert f"Unreadable images passed over: 1; {tmp_path}/outcome.json names them." in out
    assert f"nearsight predict {tmp_path} IMAGE" in out


def test_recipe_tracker_and_quiet(type_in: Callable[..., Any], asked: dict[str, Any]) -> None:
    code, out, _ = type_in("train", "digits", "--recipe", "deit", "--track", "wandb", "--track", "mlflow", "--quiet")
    assert (code, out, asked["track"], asked["quiet"]) == (0, "", ("wandb", "mlflow"), True)
    assert asked["recipe"].name == "deit"
    type_in("train", "digits", "--weights", "runs/a", "--recipe", "fine-tune", "--quiet")
    assert (asked["recipe"].name, asked["recipe"].model.weights) == ("fine-tune", "runs/a")


def test_only_the_first_of_several_processes_speaks(
    type_in: Callable[..., Any], asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert type_in("train", "digits") == (0, "", "")
    assert asked["source"] == "digits"


@pytest.mark.parametrize(
    ("data", "model", "name"),
    [
        ("photos/birds/", "deit_nano", "birds-deit_nano-seed3"),
        ("a/b.npz", None, "b-auto-seed3"),
        ("digits", "timm/resnet18", "digits-resnet18-seed3"),
    ],
)
def test_a_run_is_named_after_what_is_trained_on_what(data: str, model: str | None, name: str) -> None:
    assert default_folder(data, model, 3) == Path("runs") / name


REFUSED = {
    "Give either DATA to train on, or --resume RUN to go on with a run.": [],
    "Give either DATA to train on, or --resume RUN to go on with a run. ": ["digits", "--resume", "x"],
    "--resume goes on with a run as it was; leave the other settings out.": ["--resume", "x", "--epochs", "3"],
    "x is not the folder of a run; begin one with `nearsight train DATA --out x`.": ["--resume", "x"],
    "my run is not the folder of a run; begin one with `nearsight train DATA --out 'my run'`.": ["--resume", "my run"],
    "There is no recipe 'zzz'; use one of ": ["digits", "--recipe", "zzz"],
    "--threads 0 won't do; give a whole number of at least 1": ["digits", "--threads", "0"],
    "--threads -1 won't do; give a whole number of at least 1": ["--resume", "x", "--threads", "-1"],
    "--threads 100000 won't do; give a whole number of at least 1 and at most": ["digits", "--threads", "100000"],
    "Word 2 of the command is empty, as a shell variable that is not set; give it a value, or leave it out.": [""],
    "--model is empty, as a shell variable that is not set; give it a value": ["digits", "--model", ""],
    "--epochs 0 won't do; leave it out to have it chosen.": ["digits", "--epochs", "0"],
    "--epochs -3 won't do; leave it out to have it chosen.": ["digits", "--epochs", "-3"],
    "--batch 0 won't do; leave it out to have it chosen.": ["digits", "--batch", "0"],
    "epochs = 1000000000 won't do; it takes a whole number of at least 0 and at most 100000.": [
        *("digits", "--epochs", "1000000000")
    ],
    "data.workers = 100000 won't do; it takes a whole number of at least 0 and at most 256, or null.": [
        *("digits", "--workers", "100000")
    ],
    "optimizer.lr = 1e+308 won't do; it takes a number above 0 and at most 1e+30.": [
        *("digits", "--set", "optimizer.lr=1e308")
    ],
    "augment.rand_augment = 'rand-m99999999' won't do; m is at most 30": [
        *("digits", "--set", "augment.rand_augment=rand-m99999999")
    ],
    "seed = 99999999999999999999999 won't do; it takes a whole number of at least 0 and at most 9223372036854775807.": [
        *("digits", "--seed", "99999999999999999999999")
    ],
    "data.val_fraction = 0.9 won't do; it takes a number above 0 and at most 0.5.": [
        *("digits", "--set", "data.val_fraction=0.9")
    ],
    "model.head retinanet detects or segments, but the task is to classify; leave it out, or choose a recipe": [
        *("digits", "--head", "retinanet")
    ],
    "timm's resnet18 has no patch size to set; leave patch_size out.": [
        "digits",
        "-m",
        "resnet18",
        "--patch-size",
        "4",
    ],
    "There is no recipe 'diet'; did you mean 'deit'?": ["digits", "--recipe", "diet"],
    "'lr' is not a change of a setting; write KEY=VALUE, such as optimizer.lr=3e-4.": ["digits", "--set", "lr"],
    "optimizer.lrr": ["digits", "--set", "optimizer.lrr=1"],
    "Neither Nearsight nor timm has a model 'deit_nanno'; did you mean 'deit_nano'?": ["digits", "-m", "deit_nanno"],
    "There is no file or folder digit. Did you mean digits?": ["digit"],
    "The tracker 'wandbb' is not installed": ["digits", "--track", "wandbb"],
    "A batch of 64 is more than the 20 training images; give --batch 20.": ["digits", "--limit", "20", "--batch", "64"],
    "precision": ["digits", "--precision", "fp16"],
    "There are no weights at absent; give a converted file or the folder of a finished run.": [
        *("digits", "--weights", "absent")
    ],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_refused_is_one_sentence_and_exit_code_1(
    sentence: str, type_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = type_in("train", *REFUSED[sentence])
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("nearsight: ") and sentence.strip() in line
    assert not list(tmp_path.rglob("checkpoints"))


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Words for a training that takes a second."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(16) % 2
    np.savez(tmp_path / "d.npz", x_train=pixels, y_train=labels, x_val=pixels, y_val=labels)
    chosen = ["-m", "deit_nano", "--img-size", "16", "--patch-size", "4", "--epochs", "2", "--batch", "8"]
    return ["train", str(tmp_path / "d.npz"), *chosen, "--out", str(tmp_path / "run")]


def test_an_interrupted_run_says_how_to_go_on_and_the_same_command_does(
    small: list[str], type_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "write_summary", lambda folder: None)
    finish = loop.finish_epoch

    def interrupt(session: Any, *rest: Any) -> None:
        finish(session, *rest)
        if session.progress.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "finish_epoch", interrupt)
        code, out, err = type_in(*small)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == (
        f"nearsight: Stopped at step 3; go on with: nearsight train --resume {tmp_path / 'run'}"
    )
    code, out, err = type_in(*small)
    assert code == 0
    assert [line.split("  ")[0] for line in err.splitlines()] == ["epoch 2/2"]
    assert Run(tmp_path / "run").outcome() is not None
    assert type_in(*small)[:2] == (0, out)  # finished: the same answer, at once
    assert type_in("train", "--resume", str(tmp_path / "run"))[:2] == (0, out)


def test_a_damaged_outcome_gets_a_sentence(small: list[str], type_in: Callable[..., Any], tmp_path: Path) -> None:
    assert type_in(*small[:-2], "--epochs", "1", "--quiet", "--out", str(tmp_path / "run"))[0] == 0
    path = tmp_path / "run" / "outcome.json"
    whole = path.read_text()
    for text in (whole[:40], "", "[]", '{"model": "x"}'):
        path.write_text(text)
        code, _, err = type_in("train", "--resume", str(tmp_path / "run"))
        assert code == 1 and f"nearsight: {path} is damaged (" in err and len(err.splitlines()) == 1
    path.unlink()
    assert type_in("train", "--resume", str(tmp_path / "run"), "--quiet")[0] == 0
    assert path.read_text() == whole


def test_python_trains_with_the_options_of_the_command_line() -> None:
    command, verb = (inspect.signature(one).parameters for one in (command_train, train))
    assert list(command) == list(verb)


def test_a_refused_start_leaves_the_folder_to_the_corrected_command(
    small: list[str], type_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "write_summary", lambda folder: None)
    refused = {
        "A batch of 100 is more than the 16 training images": ["--batch", "100"],
        "loss.class_weights has 3 numbers, but there are 2 classes": ["--set", "loss.class_weights=[1, 2, 3]"],
        "timm has no model 'resnet0' to be a teacher": ["--set", "distill.teacher=resnet0"],
    }
    for sentence, words in refused.items():
        code, _, err = type_in(*small, *words)
        assert code == 1 and sentence in err, err
        assert not Run(tmp_path / "run").is_begun()
    assert type_in(*small, "--seed", str(2**63 - 1))[0] == 0
    assert Run(tmp_path / "run").is_begun()


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two class folders, which is the present one."""
    for index in range(8):
        path = tmp_path / "photos" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((16, 16), 50).save(path)
    monkeypatch.chdir(tmp_path / "photos")
    return tmp_path / "photos"


@pytest.mark.parametrize("words", [["."], ["../photos", "--out", "a/run"], [".", "--out", "../photos"]])
def test_a_run_inside_its_data_is_refused_before_anything_is_made(
    words: list[str], photos: Path, type_in: Callable[..., Any]
) -> None:
    before = sorted(photos.rglob("*"))
    code, _, err = type_in("train", *words, "-m", "deit_nano")
    folder = words[-1] if "--out" in words else "runs/data-deit_nano-seed0"
    assert (code, err) == (
        1,
        f"nearsight: {folder} lies inside the data {words[0]}; give a folder outside with --out.\n",
    )
    assert sorted(photos.rglob("*")) == before


def test_a_folder_that_holds_other_things_is_refused(
    small: list[str], photos: Path, type_in: Callable[..., Any], tmp_path: Path
) -> None:
    code, _, err = type_in(*small[:-1], str(photos))
    assert (code, err) == (
        1,
        f"nearsight: {photos} holds other things than a run (such as a); give --out a new or an empty folder.\n",
    )
    assert sorted(path.name for path in photos.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("held", [[], [".lock", ".recipe.yaml.17.part"], ["log.txt"], ["recipe.yaml", ".lock"]])
def test_a_folder_that_is_empty_or_of_an_early_end_is_used(
    held: list[str], small: list[str], type_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "write_summary", lambda folder: None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".export-onnx.1.part").mkdir()  # somebody may be writing into it
    for name in held:
        content = to_yaml(load_recipe("small-data")) if name == "recipe.yaml" else ""
        (tmp_path / "run" / name).write_text(content)
    assert type_in(*small, "--quiet")[0] == 0
    assert [path.name for path in (tmp_path / "run").glob(".*.part")] == [".export-onnx.1.part"]


@pytest.fixture
def threads() -> Iterator[None]:
    """Leaves the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_run_goes_on_with_its_threads_and_on_its_device(
    small: list[str], type_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(session: Any, *rest: Any) -> None:
        used.append((torch.get_num_threads(), session.accelerator.device.type))
        loop.leave(session, signal.SIGINT)

    used: list[tuple[int, str]] = []
    monkeypatch.setattr(loop, "train_epoch", interrupt)
    folder = tmp_path / "my run"
    err = type_in(*small[:-1], str(folder), "--cpu", "--threads", "2")[2]
    command = err.rpartition("go on with: ")[2]
    assert command == f"nearsight train --resume '{folder}' --cpu\n"
    torch.set_num_threads(1)
    assert type_in(*shlex.split(command)[1:])[2].splitlines() == err.splitlines()[-1:]
    torch.set_num_threads(1)
    type_in(*small[:-1], str(folder), "--cpu")  # the same command, without the threads
    type_in(*shlex.split(command)[1:], "--threads", "1")
    assert used == [(2, "cpu")] * 3 + [(1, "cpu")]


@pytest.mark.usefixtures("threads")
def test_threads_that_the_machine_does_not_have_are_not_used_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"threads": 64, "versions": {}} | dict.fromkeys(("command", "begun", "python", "device"), "")
    (tmp_path / "environment.json").write_text(json.dumps(record))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    use_threads(None, tmp_path)
    assert torch.get_num_threads() == 2
    assert capsys.readouterr().err == (
        "nearsight: The run was begun with 64 threads; it goes on with the 2 that this machine has, and the last bits "
        "may differ.\n"
    )
    monkeypatch.setenv("WORLD_SIZE", "2")  # several processes share the cores in their own way
    torch.set_num_threads(1)
    use_threads(None, tmp_path)
    assert torch.get_num_threads() == 1


def test_trackers_are_in_the_command_to_go_on() -> None:
    run = Run("runs/a", resume_flags(["wandb", "mlflow"], cpu=True))
    assert run.resume_command == "nearsight train --resume runs/a --cpu --track wandb --track mlflow"


def test_errors_of_the_run_are_sentences_too(
    small: list[str], type_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = type_in(*small, "--lr", "1e30", "--set", "optimizer.clip=null", "--set", "schedule.warmup_epochs=0")
    assert code == 1
    plan, line = err.splitlines()
    assert plan.startswith("Plan: deit_nano from scratch")
    assert "The loss is nan" in line and "at step 2 (epoch 1, batch 2). No checkpoint was written yet" in line
    (tmp_path / "file").write_text("")
    code, _, err = type_in(*small[:-1], str(tmp_path / "file" / "run"))
    assert (code, err) == (1, f"nearsight: {tmp_path / 'file' / 'run'}: Not a directory.\n")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nearsight.runs.checkpoint.save", full)
    code, _, err = type_in(*small[:-1], str(tmp_path / "full"), "--quiet")
    assert (code, err) == (
        1,
        f"nearsight: {tmp_path / 'full' / 'checkpoints' / 'step-00000002-epoch-0001'}: No space left on device. No "
        f"checkpoint was written yet; "
        f"go on with: nearsight train --resume {tmp_path / 'full'}\n",
    )
