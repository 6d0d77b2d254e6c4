"""A small training that takes a second: 16×16 pixels, four colours to tell apart, a model for patches of 4."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearsight.tasks.classification_metrics import Ranked
from nearsight.tasks.classification_report import ClassificationMeter
from nearsight.training import Recipe, load_recipe

TINY = {
    "model.name": "deit_nano",
    "model.img_size": 16,
    "model.patch_size": 4,
    "epochs": 2,
    "batch": 8,
    "augment.rand_augment": None,
    "augment.mixup": 0.0,
    "augment.cutmix": 0.0,
    "augment.erase": 0.0,
    "precision": "float32",  # else a trial would be seen by tests that count steps
}


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Source of 24 training and 8 validation images."""
    generator = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("data") / "colours.npz"
    shades = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [200, 200, 60]])
    arrays = {}
    for split, count in (("train", 24), ("val", 8)):
        labels = np.arange(count) % 4
        noise = generator.integers(-50, 50, (count, 16, 16, 3))
        arrays |= {f"x_{split}": (shades[labels][:, None, None] + noise).astype(np.uint8), f"y_{split}": labels}
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture
def tiny() -> Callable[..., Recipe]:
    """Makes the recipe of a small training, with changes by dotted key."""

    def make(changes: dict[str, Any] | None = None) -> Recipe:
        return load_recipe("small-data", TINY | (changes or {}))

    return make


def scored(accuracy: float) -> ClassificationMeter:
    """A meter of a hundred images, so many of which are classified correctly."""
    meter = ClassificationMeter(2)
    right = round(100 * accuracy)
    meter.records = {index: Ranked(0, int(index >= right), 0.5, 0.5, 0) for index in range(100)}
    return meter


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the page with its picture, which takes longer to draw than the training."""
    for module in ("loop", "summary"):
        monkeypatch.setattr(f"nearsight.training.{module}.write_summary", lambda folder: None)


@pytest.fixture
def state_of() -> Callable[[Path], dict[str, Any]]:
    """What a finished run has come to: the bytes of its tensors, and its figures without times."""

    def read(run: Path) -> dict[str, Any]:
        files = {path.relative_to(run): path.read_bytes() for path in sorted(run.rglob("*.safetensors"))}
        timeless = [without_times(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
        outcome = without_times(json.loads((run / "outcome.json").read_text()))
        return {"files": files, "metrics": timeless, "outcome": outcome}

    return read


def without_times(values: dict[str, Any]) -> dict[str, Any]:
    times = ("seconds", "eval_seconds", "images_per_second", "elapsed")
    return {key: value for key, value in values.items() if key not in times}


@pytest.fixture
def command() -> Callable[..., subprocess.Popen[str]]:
    """Starts `nearsight train` as a process of its own, in a session of its own."""

    def start(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        first = [sys.executable, "-m", *(launcher or ("nearsight",)), "train"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        return subprocess.Popen(
            [*first, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )

    return start


@pytest.fixture
def flags() -> Callable[..., list[str]]:
    """The small training as arguments of the command line, with changes."""

    def make(**changes: Any) -> list[str]:
        settings = TINY | {key.replace("__", "."): value for key, value in changes.items()}
        return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]

    return make
