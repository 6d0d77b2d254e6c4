"""A model's ONNX file gives the model's answers, for any number of images of any size, in standard operators."""

from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from graphs import NANO, OF_EVERY_FAMILY, ONE_OF_A_KIND, batches, relative_difference, small_model, whole_model
from torch import nn

import nearsight
from nearsight.deployment.graph import Axes
from nearsight.deployment.onnx import plainly, to_onnx, write_onnx
from nearsight.runs.runtime import run_onnx
from tests.rounding import assert_rounded

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

ANY = Axes(batch=True, size=True)
CLOSE = 1e-4
A_SECOND = ["deit_nano_life", "dwnet_nano", "localvit_nano"]
MORE = [name for name in (*NANO, *ONE_OF_A_KIND) if name not in A_SECOND]


def answers(path: Path, images: torch.Tensor) -> torch.Tensor:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


@torch.inference_mode()
def check_answers(model: nn.Module, path: Path) -> None:
    for images in batches(model):
        assert relative_difference(answers(path, images), model(images)) < CLOSE, tuple(images.shape)


def sides(value: "onnx.ValueInfoProto") -> list[str | int]:
    return [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", [*A_SECOND, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_one_file_serves_any_number_of_images_of_any_size(name: str, tmp_path: Path) -> None:
    model, path = small_model(name), tmp_path / "model.onnx"
    assert write_onnx(model, path, model.img_size) == ANY
    check_answers(model, path)
    graph = onnx.load(path).graph
    assert sides(graph.input[0]) == ["batch", 3, "height", "width"]
    assert sides(graph.output[0]) == ["batch", 7]
    assert {node.domain for node in graph.node} <= {"", "ai.onnx"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EVERY_FAMILY)
def test_a_whole_model_of_every_family(name: str, tmp_path: Path) -> None:
    model, path = whole_model(name), tmp_path / "model.onnx"
    assert write_onnx(model, path, model.img_size) == ANY
    check_answers(model, path)


@pytest.mark.slow
def test_the_size_at_the_recording_does_not_matter(tmp_path: Path) -> None:
    """A map that windows divide, and one that they don't, record the same graph."""
    model = small_model("swin_nano")
    for number, size in enumerate([(32, 32), (35, 50)]):
        path = tmp_path / f"{number}.onnx"
        assert write_onnx(model, path, size) == ANY
        check_answers(model, path)


def test_a_model_that_was_not_folded(tmp_path: Path) -> None:
    model, path = small_model("localvit_nano", folded=False), tmp_path / "model.onnx"
    assert write_onnx(model, path, (32, 32)) == ANY
    check_answers(model, path)


def test_a_timm_model_of_one_size_keeps_it(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=5, img_size=64).eval()
    path = tmp_path / "model.onnx"
    assert write_onnx(model, path, (64, 64)) == Axes(batch=True, size=False)
    assert sides(onnx.load(path).graph.input[0]) == ["batch", 3, 64, 64]
    images = torch.randn(3, 3, 64, 64)
    assert relative_difference(answers(path, images), model(images).detach()) < CLOSE


class Windows(nn.Module):
    """Attention over `[B, windows, heads, N, D]`, as in timm's Twins, and a norm and a sum in place."""

    def __init__(self, mask: torch.Tensor | None, scale: float | None):
        super().__init__()
        self.mask, self.scale = mask, scale
        self.embed = nn.Conv2d(3, 24, 4, 4)
        self.norm = nn.BatchNorm2d(24)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        field = self.embed(images)
        field += field.new_tensor(0.5)
        queries, keys, values = self.norm(field).flatten(2).unflatten(1, (3, 2, 4)).unflatten(-1, (4, 4)).unbind(1)
        shared = [part.permute(0, 3, 1, 4, 2) for part in (queries, keys, values)]  # [B, 4, 2, 4, 4]
        return F.scaled_dot_product_attention(*shared, attn_mask=self.mask, scale=self.scale).flatten(1)


@pytest.mark.parametrize(
    ("mask", "scale"), [(None, None), (torch.randn(2, 4, 4), 0.3), (torch.ones(4, 4).tril().bool(), None)]
)
def test_attention_over_windows_beside_heads(mask: torch.Tensor | None, scale: float | None, tmp_path: Path) -> None:
    model, path = Windows(mask, scale).eval(), tmp_path / "model.onnx"
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    assert write_onnx(model, path, (16, 16)) == Axes(batch=True, size=False)
    images = torch.randn(3, 3, 16, 16)
    assert relative_difference(answers(path, images), model(images).detach()) < CLOSE


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_onnx(small_model("dwnet_nano"), tmp_path / "none" / "model.onnx", (32, 32))


def test_a_model_in_training_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training mode; call model\.eval"):
        write_onnx(small_model("dwnet_nano").train(), tmp_path / "model.onnx", (32, 32))
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"onnxscript.*nearsight\[deploy\]"):
        write_onnx(small_model("dwnet_nano"), tmp_path / "model.onnx", (32, 32))


def test_transposed_convolutions_are_known_as_they_were_recorded(tmp_path: Path) -> None:
    """Masks and the finer maps of a plain transformer come of them; breaking them up would take minutes."""
    small = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False)
    model = torch.nn.Sequential(torch.nn.ConvTranspose2d(3, 4, 2, stride=2), torch.nn.ReLU(inplace=True), small).eval()
    images = torch.randn(2, 3, 8, 9)
    program = torch.export.export(model, (images,))
    plainly(program)
    program.run_decompositions = lambda table=None: program  # type: ignore[method-assign, assignment]
    to_onnx(program, ("maps",)).save(tmp_path / "model.onnx")
    found = run_onnx(tmp_path / "model.onnx")(images.numpy())["maps"]
    assert_rounded(found, model(images), model)


def test_a_file_tells_nothing_of_the_machine_that_wrote_it(tmp_path: Path) -> None:
    model = small_model("localvit_nano")
    write_onnx(model, tmp_path / "model.onnx", model.img_size)
    written = (tmp_path / "model.onnx").read_bytes()
    assert str(Path(nearsight.__file__).parent).encode() not in written and b"site-packages" not in written
