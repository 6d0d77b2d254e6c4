"""Nothing is lost: a run that was stopped anywhere ends with the same bits as one that never was."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import save_trained
from nearsight.runs.run import Run
from nearsight.tasks.build import build
from nearsight.training import loop, resume_training, run_training
from nearsight.training.signals import Interrupted

EVERYTHING = {
    "ema": 0.9,
    "accumulate": 2,
    "augment.mixup": 0.8,
    "augment.cutmix": 1.0,
    "augment.erase": 0.5,
    "augment.rand_augment": "rand-m9-mstd0.5-inc1",
    "model.drop_path": 0.2,
    "model.drop": 0.1,
    "saving.keep": 3,
}


def interrupted_everywhere(begin: Callable[[], Any], go_on: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """Stop a run by a signal in each of its steps and validations; returns how often."""
    stopped: set[tuple[str, int]] = set()

    def stopping_once(name: str) -> Callable[..., Any]:
        function = getattr(loop, name)

        def wrapped(session: Any, *rest: Any) -> Any:
            point = (name, session.progress.step)
            if point not in stopped:
                stopped.add(point)
                signal.raise_signal(signal.SIGTERM)
            return function(session, *rest)

        return wrapped

    for name in ("take_step", "evaluate"):
        monkeypatch.setattr(loop, name, stopping_once(name))
    act = begin
    while True:
        try:
            act()
        except Interrupted:
            act = go_on
        else:
            return len(stopped)


@pytest.mark.parametrize(
    "changes",
    [
        EVERYTHING,
        {"model.name": "dwnet_nano", "model.patch_size": 2, "optimizer.kind": "sgd", "optimizer.lr": 0.05},
        {"model.name": "lit_nano", "model.patch_size": 2, "optimizer.kind": "lamb", "augment.repeats": 2},
        {"model.name": "near_micro", "model.patch_size": 2},
    ],
    ids=["deit", "dwnet", "lit", "near"],
)
@pytest.mark.usefixtures("no_page")
def test_a_run_stopped_at_every_step_ends_like_one_that_never_was(
    changes: dict[str, Any],
    colours: str,
    tiny: Callable[..., Any],
    state_of: Callable[[Path], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = tiny({"batch": 12} | changes)
    run_training(colours, recipe, tmp_path / "whole", quiet=True)
    folder = tmp_path / "stopped"
    count = interrupted_everywhere(
        lambda: run_training(colours, recipe, folder, quiet=True),
        lambda: resume_training(folder, quiet=True),
        monkeypatch,
    )
    assert count == 4 + 2  # steps and validations
    whole, stopped = state_of(tmp_path / "whole"), state_of(folder)
    newest = {path for path in whole["files"] if "-epoch-0002" in str(path) or "checkpoints" not in str(path)}
    assert len(newest) == 3 + ("ema" in changes)
    for path in newest:
        assert whole["files"][path] == stopped["files"][path], path
    assert whole["metrics"] == stopped["metrics"]
    assert whole["outcome"] == stopped["outcome"]


@pytest.mark.usefixtures("no_page")
def test_a_signal_during_the_test_leaves_a_run_that_only_has_to_be_finished(
    tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny({"data.limit": 16, "epochs": 1, "batch": 16})
    whole, calls = loop.evaluate, []

    def evaluate(session: Any, *rest: Any) -> Any:
        calls.append(session.progress.epoch)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return whole(session, *rest)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    with pytest.raises(Interrupted, match="Stopped at step 1; go on with: nearsight train --resume") as stop:
        run_training("digits", recipe, tmp_path, quiet=True)
    assert stop.value.number == signal.SIGINT
    assert not (tmp_path / "outcome.json").exists()
    assert resume_training(tmp_path, quiet=True).test_score is not None
    assert calls == [0, 1, 1]


@pytest.mark.usefixtures("no_page")
def test_a_kill_between_record_and_checkpoint_leaves_no_second_record(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny({"batch": 12, "epochs": 1})

    class Killed(BaseException):
        pass

    def die(session: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", take_step_with_signal(loop.take_step))
        for _ in range(2):  # leaves a checkpoint behind the last step that is not validated
            with pytest.raises(Interrupted):
                run_training(colours, recipe, tmp_path, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", die)
        with pytest.raises(Killed):
            resume_training(tmp_path, quiet=True)
    assert [values["kind"] for values in Run(tmp_path).records()][-1] == "epoch"
    resume_training(tmp_path, quiet=True)
    assert [values["kind"] for values in Run(tmp_path).records()].count("epoch") == 1


def take_step_with_signal(take_step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, with a signal that comes before the processes agree on it."""

    def wrapped(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return take_step(*arguments)

    return wrapped


# Real processes from here on.


def wait_for(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def wait_until(process: subprocess.Popen[str], is_true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def steps_recorded(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


@pytest.fixture
def photos(tmp_path: Path) -> Iterator[str]:
    """A folder of images, so that worker processes read them."""
    for index in range(32):
        path = tmp_path / "photos" / "abcd"[index % 4] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20, 20), 20 + 20 * (index % 4)).save(path)
    yield str(tmp_path / "photos")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_to_the_whole_group_leaves_a_checkpoint_and_says_how_to_go_on(
    number: signal.Signals, photos: str, flags: Callable[..., list[str]], command: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "my run"
    process = command(photos, *flags(epochs=10000, data__workers=2, data__val_fraction=0.25), "--out", str(folder))
    wait_until(process, lambda: steps_recorded(folder) > 3)
    os.killpg(process.pid, number)  # as Ctrl-C and cluster schedulers do: the processes that read images get it, too
    code, _, err = wait_for(process)
    assert code == 128 + number, err
    last = err.splitlines()[-1]
    assert last.endswith(f"go on with: nearsight train --resume '{folder}'"), err
    assert "Traceback" not in err
    step = int(last.split("Stopped at step ")[1].split(";")[0])
    assert list((folder / "checkpoints").glob(f"step-{step:08d}*"))
    if number == signal.SIGINT:
        return
    again = command("--resume", str(folder))
    wait_until(again, lambda: steps_recorded(folder) > 0 and Run(folder).records()[-1]["step"] > step + 3)
    again.send_signal(number)
    assert wait_for(again)[0] == 128 + number


@pytest.mark.slow
def test_a_second_signal_kills_at_once(
    colours: str, flags: Callable[..., list[str]], command: Callable[..., Any], tmp_path: Path
) -> None:
    code = (
        "import sys, time\nfrom nearsight.training import loop\n"
        "def slow(*a): print('slow', flush=True); time.sleep(100)\n"
        "loop.save_checkpoint = slow\n"
        "from nearsight.cli.shell import main\nmain()"
    )
    arguments = ["train", colours, *flags(epochs=10000), "--out", str(tmp_path / "run")]
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wait_until(process, lambda: steps_recorded(tmp_path / "run") > 2)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "slow\n"
        for _ in range(30):  # two that come at once may count as one
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                break
        assert process.poll() == -signal.SIGTERM


def killed_at_random(start: Callable[[], subprocess.Popen[str]], folder: Path, kills: int, longest: float) -> int:
    """Kill a run again and again after random times, then let it end; returns how many kills hit it in training."""
    chance, hits = random.Random(11), 0
    for _ in range(kills):
        process = start()
        wait_until_trains_or_ends(process, folder)
        time.sleep(chance.uniform(0, longest))
        hits += process.poll() is None
        process.kill()
        process.communicate()
    code, _, err = wait_for(start())
    assert code == 0, err
    return hits


def wait_until_trains_or_ends(process: subprocess.Popen[str], folder: Path) -> None:
    """Return when a process has taken the run's lock and got past the set-up."""
    before = time.time()
    path = folder / "metrics.jsonl"
    while process.poll() is None and not (path.is_file() and path.stat().st_mtime > before):
        time.sleep(0.01)


@pytest.mark.slow
def test_a_process_that_is_killed_ends_like_one_that_is_not(
    colours: str,
    flags: Callable[..., list[str]],
    command: Callable[..., Any],
    state_of: Callable[[Path], Any],
    tmp_path: Path,
) -> None:
    settings = flags(epochs=20, ema=0.9, augment__mixup=0.8, model__drop_path=0.1, saving__every=0.002)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert wait_for(command(colours, *settings, "--out", str(whole)))[0] == 0
    assert killed_at_random(lambda: command(colours, *settings, "--out", str(killed)), killed, 2, 1.5) > 0
    assert state_of(whole) == state_of(killed)


DRILLED = {
    "deit_nano": {
        "model__patch_size": 4,
        "ema": 0.95,
        "augment__mixup": 0.8,
        "augment__cutmix": 1.0,
        "augment__rand_augment": "rand-m9-mstd0.5-inc1",
        "augment__erase": 0.25,
        "model__drop_path": 0.1,
        "data__workers": 2,
    },
    "dwnet_nano": {"model__patch_size": 2, "data__workers": 1},
    "lit_nano": {"model__patch_size": 2, "optimizer__kind": "lamb", "accumulate": 2},
    "resnet18": {"model__patch_size": None, "optimizer__kind": "sgd", "optimizer__lr": 0.05},
}


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_kills_leave_no_trace_in_what_a_teacher_said_and_what_was_learnt_of_it(
    flags: Callable[..., list[str]], command: Callable[..., Any], state_of: Callable[[Path], Any], tmp_path: Path
) -> None:
    built = build(ModelChoice(name="resnet10t", img_size=32), classes=10)
    digits = tuple(map(str, range(10)))
    teacher = save_trained(built, "classify", digits, tmp_path / "teacher" / "model.safetensors").parent
    distill = {"teacher": str(teacher), "kind": "soft", "temperature": 2, "views": 3, "features": 0.5}
    settings = flags(
        model__img_size=16,
        epochs=6,
        batch=32,
        data__limit=256,
        saving__every=0.01,
        augment__mixup=0.5,
        distill=distill,
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, _, err = wait_for(command("digits", *settings, "--out", str(whole)))
    assert code == 0, err
    elapsed = json.loads((whole / "outcome.json").read_text())["elapsed"]
    assert killed_at_random(lambda: command("digits", *settings, "--out", str(killed)), killed, 4, elapsed / 3) >= 3
    assert state_of(whole) == state_of(killed)


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", DRILLED)
def test_ten_kills_leave_no_trace(
    model: str,
    flags: Callable[..., list[str]],
    command: Callable[..., Any],
    state_of: Callable[[Path], Any],
    tmp_path: Path,
) -> None:
    settings = flags(
        model__name=model, model__img_size=16, epochs=4, batch=32, data__limit=256, saving__every=0.01, **DRILLED[model]
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    code, _, err = wait_for(command("digits", *settings, "--out", str(whole)))
    assert code == 0, err
    elapsed = json.loads((whole / "outcome.json").read_text())["elapsed"]
    print(f"{model}: {elapsed:.0f} s of training, {time.monotonic() - began:.0f} s in all")
    hits = killed_at_random(lambda: command("digits", *settings, "--out", str(killed)), killed, 10, elapsed / 8)
    print(f"{hits} of 10 kills hit the training")
    assert hits >= 8
    assert state_of(whole) == state_of(killed)
    for file in ("model.safetensors", "model.json", "recipe.yaml", "data.json"):
        subprocess.run(["cmp", whole / file, killed / file], check=True)
    shutil.rmtree(tmp_path)
