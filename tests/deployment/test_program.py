"""A program of torch.export gives the model's answers, for any number of images of any size, once written and read."""

from pathlib import Path
from zipfile import ZipFile

import pytest
import timm
import torch
from graphs import NANO, OF_EVERY_FAMILY, ONE_OF_A_KIND, batches, small_model, whole_model
from torch import nn

from nearsight.deployment.graph import Axes, write_program
from tests.rounding import assert_rounded

ANY = Axes(batch=True, size=True)


@torch.inference_mode()
def check_answers(model: nn.Module, path: Path) -> None:
    program = torch.export.load(path)
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in operators if name.startswith("torchvision")], "needs torchvision to be read"
    run = program.module()
    for images in batches(model):
        (logits,) = run(images)
        assert_rounded(logits, model(images), model)


@pytest.mark.parametrize(
    "name",
    ["dwnet_nano", *(pytest.param(n, marks=pytest.mark.slow) for n in (*NANO, *ONE_OF_A_KIND) if n != "dwnet_nano")],
)
def test_one_file_serves_any_number_of_images_of_any_size(name: str, tmp_path: Path) -> None:
    model, path = small_model(name), tmp_path / "model.pt2"
    assert write_program(model, path, model.img_size) == ANY
    assert {inside.partition("/")[0] for inside in ZipFile(path).namelist()} == {"archive"}  # whatever process wrote it
    check_answers(model, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EVERY_FAMILY)
def test_a_whole_model_of_every_family(name: str, tmp_path: Path) -> None:
    model, path = whole_model(name), tmp_path / "model.pt2"
    assert write_program(model, path, model.img_size) == ANY
    check_answers(model, path)


def test_a_timm_model_of_one_size_keeps_it(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=5, img_size=32).eval()
    path = tmp_path / "model.pt2"
    assert write_program(model, path, (32, 32)) == Axes(batch=True, size=False)
    images = torch.randn(3, 3, 32, 32)
    (logits,) = torch.export.load(path).module()(images)
    assert_rounded(logits, model(images), model)


def test_a_model_that_looks_at_its_numbers_is_refused(tmp_path: Path) -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            means = images.mean(dim=(2, 3))
            return self.head(means) if means.sum().item() > 0 else -self.head(means)

    with pytest.raises(ValueError, match="Moody can't be exported"):
        write_program(Moody().eval(), tmp_path / "model.pt2", (8, 8))
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        write_program(small_model("dwnet_nano"), tmp_path / "file" / "model.pt2", (32, 32))
