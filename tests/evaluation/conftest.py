"""The folder of a run whose model was never trained: its answers are as good as any to be counted."""

import json
from pathlib import Path

import pytest
import torch

from nearsight.config.recipe import ModelChoice
from nearsight.data import open_data
from nearsight.data.split import complete_splits, describe_splits
from nearsight.runs.predictor import save_trained
from nearsight.tasks.build import build


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    data = complete_splits(open_data("digits"), seed=3)
    torch.manual_seed(0)
    built = build(ModelChoice(name="localvit_nano"), classes=10)
    save_trained(built, "classify", data.classes, folder / "model.safetensors")
    (folder / "data.json").write_text(json.dumps(describe_splits(data)))
    return folder
