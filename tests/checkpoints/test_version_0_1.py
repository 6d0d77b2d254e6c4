"""Files of version 0.1 open: of ours, of timm, localized ones, converted ones, detectors and segmenters.

`version_0_1.json` holds what version 0.1 wrote for each kind, the names and shapes of its tensors, and what it answered
with the weights that `filled` makes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import nearsight

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("version_0_1.json").read_text())


def filled(shapes: dict[str, tuple[str, list[int]]]) -> dict[str, Tensor]:
    """Weights that follow from the names alone."""
    random, tensors = np.random.default_rng(0), {}
    for name, (kind, shape) in sorted(shapes.items()):
        if kind == "F32":
            values = torch.from_numpy(random.standard_normal(shape).astype(np.float32) * 0.05)
            tensors[name] = values.abs() + 0.5 if name.endswith("running_var") else values
        else:
            tensors[name] = torch.zeros(shape, dtype=torch.int64)
    return tensors


@pytest.mark.parametrize("kind", RECORDED)
def test_it_opens_and_predicts_as_then(kind: str, tmp_path: Path) -> None:
    recorded = RECORDED[kind]
    path = tmp_path / "model.safetensors"
    save_file(filled(recorded["shapes"]), path)
    path.with_suffix(".json").write_text(json.dumps(recorded["description"]))
    opened = nearsight.load(tmp_path)
    trained = recorded["description"].get("trained")
    assert opened.weights == ("trained" if trained else "converted")
    assert opened.classes == (("a", "b", "c") if trained else ("0", "1", "2"))
    if kind == "detector":
        assert (opened.task, opened.threshold) == ("detect", 0.3)
    with torch.no_grad():
        found = opened.model(torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32))
    if isinstance(found, list):
        answer = [len(found[0]["scores"]), float(found[0]["scores"].sum()), float(found[0]["boxes"].sum())]
    else:
        answer = found.flatten()[:6].tolist()
    assert answer == pytest.approx(recorded["output"], rel=1e-3, abs=1e-5)  # sums of some hundred float32


@pytest.mark.parametrize("kind", RECORDED)
def test_it_is_saved_again_in_the_format_of_today(kind: str, tmp_path: Path) -> None:
    recorded = RECORDED[kind]
    path = tmp_path / "model.safetensors"
    save_file(filled(recorded["shapes"]), path)
    path.with_suffix(".json").write_text(json.dumps(recorded["description"]))
    first = nearsight.load(path)
    again = nearsight.load(nearsight.save(first, tmp_path / "again.safetensors"))
    assert (again.task, again.classes, again.preprocessing) == (first.task, first.classes, first.preprocessing)
    assert all(torch.equal(one, again.model.state_dict()[name]) for name, one in first.model.state_dict().items())
