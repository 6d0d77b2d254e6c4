"""Small scenes, and recipes that finish in seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearsight.train import load_recipe, run_training
from nearsight.train.recipe import Recipe
from nearsight.train.run import Outcome

SOURCE = "shapes?images=24&size=48"
SMALL = {"epochs": 2, "batch": 4, "data.workers": 0, "scene.shorter": 48}
HEADS = {"detect": {"channels": 16, "hidden": 32, "rois": 16}, "segment": {"channels": 16, "hidden": 16}}


def tiny_recipe(task: str, **changes: Any) -> Recipe:
    options = {f"model.head_options.{key}": value for key, value in HEADS[task].items()}
    return load_recipe(f"small-{task}", SMALL | options | changes)


@pytest.fixture(scope="session", params=["detect", "segment"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Outcome]:
    """A run of two epochs: its task, folder and outcome."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, run_training(SOURCE, tiny_recipe(request.param), folder, quiet=True, cpu=True)


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    """A recipe of two epochs for a task, with changes by dotted key."""
    return tiny_recipe
