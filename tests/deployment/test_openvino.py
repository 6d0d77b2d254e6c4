"""OpenVINO's files give the model's answers, for any number of images of any size."""

from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import batches, small_model

from nearsight.deployment.onnx import write_onnx, write_openvino
from tests.rounding import assert_rounded

pytest.importorskip("onnxscript")
openvino = pytest.importorskip("openvino")


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["dwnet_nano", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lit_nano", "swin_nano"))]
)
def test_the_outputs_are_the_models(name: str, tmp_path: Path) -> None:
    model, path = small_model(name), tmp_path / "model.xml"
    write_onnx(model, tmp_path / "model.onnx", model.img_size)
    write_openvino(tmp_path / "model.onnx", path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.bin", "model.onnx", "model.xml"]
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for images in batches(model):
        found = np.array(compiled(images.numpy())[0])
        assert_rounded(found, model(images), model)
    # Weights stay in 32 bits.
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert (tmp_path / "model.bin").stat().st_size >= 4 * weights


def test_a_missing_onnx_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="write_onnx"):
        write_openvino(tmp_path / "model.onnx", tmp_path / "model.xml")


def test_a_file_that_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("not a model")
    with pytest.raises(ValueError, match=r"OpenVINO can't convert .*model.onnx"):
        write_openvino(tmp_path / "model.onnx", tmp_path / "model.xml")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not end in \.xml"):
        write_openvino(tmp_path / "model.onnx", tmp_path / "model.bin")


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    (tmp_path / "model.onnx").write_text("")
    with pytest.raises(ValueError, match=r"openvino.*nearsight\[openvino\]"):
        write_openvino(tmp_path / "model.onnx", tmp_path / "model.xml")
