"""Every recorded official model: its file, loaded by names and shapes alone, gives its outputs."""

from pathlib import Path

import pytest
import torch
from recorded import NAMES, Recorded

from nearsight.checkpoints import load_official

# Tensors that the official models hold but never use; ours don't have them.
UNUSED = {"localvit__localvit_t2t": 2 * 128}


def test_all_recorded_models_are_here():
    assert len(NAMES) == 40


@pytest.mark.parametrize("name", NAMES)
def test_a_released_file_gives_the_released_outputs(name: str, tmp_path: Path):
    recorded = Recorded.load(name)
    path = tmp_path / "released.pth"
    torch.save({"model": recorded.state()}, path)
    model = load_official(path, **recorded.options())
    with torch.inference_mode():
        outputs = model(recorded.images())
    outputs = outputs if isinstance(outputs, list) else [outputs]
    assert len(outputs) == len(recorded.outputs())
    for ours, theirs in zip(outputs, recorded.outputs(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=recorded.tolerance)
    trainable = sum(parameter.numel() for parameter in model.parameters())
    assert trainable == recorded.facts["num_trainable_params"] - UNUSED.get(name, 0)
