"""Two processes on one batch learn what one process learns."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nearsight.runs.run import Run
from nearsight.training import run_training
from nearsight.training.session import check_batch

LAUNCHER = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "nearsight")
MIXED: dict[str, Any] = {
    "augment.mixup": 0.8,
    "augment.cutmix": 1.0,
    "augment.erase": 0.5,
    "augment.rand_augment": "rand-m9-mstd0.5-inc1",
    "model.drop_path": 0.0,
    "ema": 0.9,
    "epochs": 3,
    "batch": 16,
    "data.max_bad": 0.1,
    "data.val_fraction": 0.25,
    "loss.class_weights": [1.0, 2.0, 0.5, 1.5],
}


@pytest.fixture
def photos(tmp_path: Path) -> str:
    """A folder of 40 images in four classes, three of which are cut off."""
    for index in range(40):
        path = tmp_path / "photos" / "abcd"[index % 4] / f"{index:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20, 20), 20 + 20 * (index % 4)).save(path)
        if index in (3, 12, 30):
            path.write_bytes(path.read_bytes()[:80])
    return str(tmp_path / "photos")


def as_flags(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace(".", "__"): value for key, value in settings.items()}


def curves(folder: Path) -> list[float]:
    names = ("loss", "grad_norm", "val_loss", "val_accuracy")
    return [values[name] for values in Run(folder).records() for name in names if name in values]


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.mark.usefixtures("no_page")
def test_two_processes_learn_what_one_learns(
    photos: str,
    tiny: Callable[..., Any],
    flags: Callable[..., list[str]],
    command: Callable[..., Any],
    tmp_path: Path,
) -> None:
    mixed = MIXED | {"model.name": "deit_nano_life", "epochs": 2}  # it has depth-wise kernels
    run_training(photos, tiny(mixed | {"accumulate": 4}), tmp_path / "one", quiet=True)
    process = command(
        photos, *flags(**as_flags(mixed | {"accumulate": 2})), "--out", str(tmp_path / "two"), launcher=LAUNCHER
    )
    code, out, err = end(process)
    assert code == 0, err
    assert out.count("deit_nano_life: ") == 1  # one of them speaks
    assert "Warning" not in err
    assert [line.split("  ")[0] for line in err.splitlines() if line.startswith("epoch")] == [
        "epoch 1/2",
        "epoch 2/2",
    ]
    assert curves(tmp_path / "two") == pytest.approx(curves(tmp_path / "one"), rel=1e-5, abs=1e-5)
    outcomes = [json.loads((tmp_path / run / "outcome.json").read_text()) for run in ("one", "two")]
    assert outcomes[0]["val_score"] == pytest.approx(outcomes[1]["val_score"])
    assert len(outcomes[0]["bad_images"]) == 3  # each process has met some of them
    assert outcomes[0]["bad_images"] == outcomes[1]["bad_images"]
    assert len(list((tmp_path / "two" / "tensorboard").rglob("events.*"))) == 1  # and one of them writes


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_a_signal_to_the_launcher_leaves_a_checkpoint_that_one_process_goes_on_from(
    colours: str, tiny: Callable[..., Any], flags: Callable[..., list[str]], command: Callable[..., Any], tmp_path: Path
) -> None:
    settings = MIXED | {"epochs": 1000, "patience": 1000, "data.workers": 1}
    folder = tmp_path / "run"
    process = command(colours, *flags(**as_flags(settings)), "--out", str(folder), launcher=LAUNCHER)
    stop_at = time.monotonic() + 120
    while not (folder / "checkpoints").is_dir() or not list((folder / "checkpoints").glob("step*")):
        assert process.poll() is None and time.monotonic() < stop_at, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, _, err = end(process)
    assert code != 0
    (said,) = [line for line in err.splitlines() if "Stopped at step" in line]
    step = int(said.split("Stopped at step ")[1].split(";")[0])
    assert said.endswith(f"go on with: nearsight train --resume {folder}")
    assert list((folder / "checkpoints").glob(f"step-{step:08d}*"))
    alone = command("--resume", str(folder))
    while not Run(folder).records() or Run(folder).records()[-1]["step"] < step + 2:
        assert alone.poll() is None and time.monotonic() < stop_at + 120, alone.communicate()
        time.sleep(0.05)
    alone.send_signal(signal.SIGTERM)
    assert end(alone)[0] == 143


def test_batches_that_can_not_be_shared_are_refused(tiny: Callable[..., Any]) -> None:
    check_batch(tiny({"batch": 12, "accumulate": 3}), 24, processes=2)
    with pytest.raises(ValueError, match="batch of 12 can't be divided equally among 5 processes with 1 parts each"):
        check_batch(tiny({"batch": 12}), 24, processes=5)
    with pytest.raises(ValueError, match="leaves parts of 3; give a multiple of 8"):
        check_batch(tiny({"batch": 12, "augment.mixup": 0.5}), 24, processes=4)
