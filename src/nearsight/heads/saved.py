"""Detectors and segmenters in our format: safetensors, and beside them a JSON file with their spec."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ..atomic import write_whole
from ..checkpoints.format import FORMAT, read_description, read_safetensors
from ..checkpoints.released.convert import load_strictly
from .model import DenseModel
from .spec import from_json, to_json


def save_dense(model: DenseModel, path: Path, *, name: str, trained: Mapping[str, Any] | None = None) -> Path:
    """Write a detector or segmenter so that `load_dense` builds it again; both files appear complete or not at all."""
    description = {
        "format": FORMAT,
        "version": 1,
        "name": name,
        "dense": to_json(model.spec),
        "num_classes": model.num_classes,
        "masks": model.masks,
        "trained": dict(trained or {}),
    }
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    write_whole(path.with_suffix(".json"), json.dumps(description, indent=1).encode())
    write_whole(path, save(tensors, {"format": "pt"}))
    return path


def load_dense(path: Path) -> DenseModel:
    """Build a detector or segmenter from `path` (safetensors) and the JSON file beside it."""
    description = read_description(path)
    model = DenseModel(from_json(description["dense"]), description["num_classes"], description["masks"])
    load_strictly(model, read_safetensors(path))
    return model.eval()
