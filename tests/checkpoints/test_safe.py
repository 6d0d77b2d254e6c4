"""Weight files from outside are read, never run; a bad one gets a sentence."""

import argparse
import os
import pickle
import sys
import types
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nearsight import parts
from nearsight.checkpoints import WeightFileError, load_official, read_tensors
from nearsight.models import Backbone, BackboneSpec, Stage


def small_state() -> dict[str, Tensor]:
    """A DeiT of width 64 and depth 2 under the official names."""
    shapes = {
        "cls_token": (1, 1, 64),
        "pos_embed": (1, 65, 64),
        "patch_embed.proj.weight": (64, 3, 4, 4),
        "patch_embed.proj.bias": (64,),
        "norm.weight": (64,),
        "norm.bias": (64,),
        "head.weight": (10, 64),
        "head.bias": (10,),
    }
    for index in range(2):
        block = f"blocks.{index}"
        for layer, (out, inp) in {
            "attn.qkv": (192, 64),
            "attn.proj": (64, 64),
            "mlp.fc1": (256, 64),
            "mlp.fc2": (64, 256),
        }.items():
            shapes |= {f"{block}.{layer}.weight": (out, inp), f"{block}.{layer}.bias": (out,)}
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}.{norm}.weight": (64,), f"{block}.{norm}.bias": (64,)}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def answer(tmp_path: Path) -> Tensor:
    torch.save(small_state(), tmp_path / "bare.pth")
    return predict(tmp_path / "bare.pth")


def predict(path: Path) -> Tensor:
    with torch.inference_mode():
        return load_official(path)(torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32))


def prefixed(prefix: str) -> OrderedDict[str, Tensor]:
    return OrderedDict((prefix + name, tensor) for name, tensor in small_state().items())


WRAPPED = {
    "model": lambda: {"model": small_state(), "epoch": 3, "args": argparse.Namespace(lr=0.1, model="deit")},
    "state_dict": lambda: {"state_dict": prefixed("module."), "meta": {"epoch": 1}},
    "module": lambda: prefixed("module."),
    "compiled": lambda: {"model": prefixed("_orig_mod.")},
    "ema": lambda: {"state_dict_ema": small_state(), "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
    "numbers": lambda: {"model": small_state(), "best": np.float64(0.5), "epoch": np.int64(3), "output": Path("runs")},
    "nested": lambda: {"model": {"module": small_state()}},
    "optimizer": lambda: {"optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "model": small_state()},
}


@pytest.mark.parametrize("wrapping", WRAPPED)
def test_wrapped_weights_are_the_same_weights(wrapping: str, answer: Tensor, tmp_path: Path):
    torch.save(WRAPPED[wrapping](), tmp_path / "wrapped.pth")
    assert torch.equal(predict(tmp_path / "wrapped.pth"), answer)


def test_raw_weights_are_preferred_to_their_average(answer: Tensor, tmp_path: Path):
    average = {name: tensor * 0 for name, tensor in small_state().items()}
    torch.save({"model_ema": average, "model": small_state()}, tmp_path / "both.pth")
    assert torch.equal(predict(tmp_path / "both.pth"), answer)


def test_safetensors_are_read_too(answer: Tensor, tmp_path: Path):
    save_file(small_state(), tmp_path / "weights.safetensors")
    assert torch.equal(predict(tmp_path / "weights.safetensors"), answer)


def test_half_precision_files_load(tmp_path: Path):
    torch.save({name: tensor.half() for name, tensor in small_state().items()}, tmp_path / "half.pth")
    assert load_official(tmp_path / "half.pth").head.weight.dtype == torch.float32


def test_old_format_files_load(answer: Tensor, tmp_path: Path):
    torch.save(small_state(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(predict(tmp_path / "old.pth"), answer)


def test_a_yacs_configuration_beside_the_weights_does_no_harm(answer: Tensor, tmp_path: Path, monkeypatch):
    class CfgNode(dict):
        pass

    module = types.ModuleType("yacs.config")
    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module.CfgNode = CfgNode
    monkeypatch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", module)
    config = CfgNode(MODEL=CfgNode(TYPE="lit"))
    config.__dict__["frozen"] = True
    torch.save({"model": small_state(), "config": config}, tmp_path / "config.pth")
    monkeypatch.delitem(sys.modules, "yacs.config")
    assert torch.equal(predict(tmp_path / "config.pth"), answer)


class RunsCode:
    """Unpickled in the ordinary way, this would create a file."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_code_is_refused_by_name_and_runs_nothing(zipped: bool, tmp_path: Path):
    trace = tmp_path / "was_run"
    content = {"model": small_state(), "extra": RunsCode(trace)}
    torch.save(content, tmp_path / "evil.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightFileError, match=r"evil\.pth asks for the class (posix|nt|os)\.system.*nothing was run"):
        load_official(tmp_path / "evil.pth")
    assert not trace.exists()


def test_a_bare_pickle_that_would_run_code_is_refused(tmp_path: Path):
    trace = tmp_path / "was_run"
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(RunsCode(trace)))
    with pytest.raises(WeightFileError, match=r"evil\.pkl"):
        load_official(tmp_path / "evil.pkl")
    assert not trace.exists()


def test_a_whole_pickled_model_is_refused_by_the_name_of_its_class(tmp_path: Path):
    spec = BackboneSpec(parts.Patchify(4), (Stage(32, 1, parts.Global(1), aux=1),), "hosts", img_size=32)
    torch.save(Backbone(spec, num_classes=2), tmp_path / "model.pt")
    with pytest.raises(WeightFileError, match=r"asks for the class nearsight\.models\.backbone\.Backbone"):
        load_official(tmp_path / "model.pt")


@pytest.mark.parametrize("kept", [0, 1, 100, 5000])
def test_a_truncated_file_is_refused_with_a_sentence(kept: int, tmp_path: Path):
    torch.save(small_state(), tmp_path / "whole.pth")
    (tmp_path / "part.pth").write_bytes((tmp_path / "whole.pth").read_bytes()[:kept])
    with pytest.raises(WeightFileError, match=r"part\.pth"):
        load_official(tmp_path / "part.pth")


def test_a_truncated_safetensors_file_is_refused(tmp_path: Path):
    save_file(small_state(), tmp_path / "whole.safetensors")
    (tmp_path / "part.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:5000])
    with pytest.raises(WeightFileError, match=r"part\.safetensors is not a whole safetensors file"):
        load_official(tmp_path / "part.safetensors")


def test_other_files_are_refused(tmp_path: Path):
    (tmp_path / "text.pth").write_text("no checkpoint")
    with pytest.raises(WeightFileError, match=r"text\.pth"):
        load_official(tmp_path / "text.pth")
    with pytest.raises(WeightFileError, match="is not a file"):
        load_official(tmp_path / "absent.pth")
    torch.save([1, 2, 3], tmp_path / "list.pth")
    with pytest.raises(WeightFileError, match="holds a list, not named tensors"):
        load_official(tmp_path / "list.pth")


def test_the_file_of_another_model_is_refused(tmp_path: Path):
    import torchvision

    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "resnet.pth")
    with pytest.raises(WeightFileError, match=r"resnet\.pth: These \d+ tensors \(conv1\.weight.* none of the releases"):
        load_official(tmp_path / "resnet.pth")


def test_a_wrong_shape_is_named(tmp_path: Path):
    state = small_state()
    state["blocks.1.mlp.fc2.weight"] = torch.zeros(64, 255)
    torch.save(state, tmp_path / "bent.pth")
    with pytest.raises(WeightFileError, match=r"ffn\.fc2\.weight has the shape \(64, 255\).* needs \(64, 256\)"):
        load_official(tmp_path / "bent.pth")


def test_missing_and_surplus_tensors_are_named(tmp_path: Path):
    state = small_state()
    del state["blocks.1.attn.proj.bias"]
    torch.save(state, tmp_path / "missing.pth")
    with pytest.raises(WeightFileError, match=r"missing.*blocks\.1\.mixer\.proj\.bias"):
        load_official(tmp_path / "missing.pth")
    torch.save(small_state() | {"blocks.1.extra.weight": torch.zeros(2)}, tmp_path / "surplus.pth")
    with pytest.raises(WeightFileError, match=r"no place in the recognised model, first of all blocks\.1\.extra"):
        load_official(tmp_path / "surplus.pth")


def test_of_a_detector_the_backbone_is_read(tmp_path: Path):
    state = prefixed("backbone.") | {"neck.fpn.weight": torch.zeros(1), "rpn_head.weight": torch.zeros(1)}
    torch.save({"meta": {}, "state_dict": state}, tmp_path / "detector.pth")
    assert read_tensors(tmp_path / "detector.pth").keys() == small_state().keys()


def test_unknown_choices_are_refused(tmp_path: Path):
    torch.save(small_state(), tmp_path / "bare.pth")
    with pytest.raises(ValueError, match="behaviour='exact' is not known; use released or paper"):
        load_official(tmp_path / "bare.pth", behaviour="exact")
    with pytest.raises(WeightFileError, match="does not divide by 5 heads"):
        load_official(tmp_path / "bare.pth", heads=5)
