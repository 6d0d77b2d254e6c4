"""A model that has learned something, and its bundles; made once, as each takes seconds."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from nearsight.deployment.export import export
from nearsight.training import load_recipe, run_training

LEARNED = {
    "model.name": "localvit_nano",
    "model.img_size": 16,
    "model.patch_size": 4,
    "epochs": 4,
    "optimizer.lr": 0.003,
    "data.limit": 480,
    "batch": 32,
    "augment.flip": 0.0,
    "augment.rand_augment": None,
    "augment.mixup": 0.0,
    "augment.cutmix": 0.0,
    "augment.erase": 0.0,
}


@cache
def scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nearsight-bundles-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def trained_run() -> Path:
    """Digits of 16×16 pixels, told apart well enough that lost accuracy would show."""
    folder = scratch() / "run"
    outcome = run_training("digits", load_recipe("small-data", LEARNED), folder, quiet=True)
    assert outcome.val_score > 0.75
    return folder


@cache
def bundle(kind: str) -> Path:
    return export(trained_run(), scratch() / kind, format=kind).folder


@cache
def int8_bundle() -> Path:
    return export(trained_run(), scratch() / "int8", int8=True).folder
