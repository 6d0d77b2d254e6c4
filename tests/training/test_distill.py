"""Distillation: a teacher that is a former run, a student with or without DeiT's token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from nearsight import create_model
from nearsight.checkpoints.format import save_model
from nearsight.config.recipe import Distillation, ModelChoice
from nearsight.data.transforms import Preprocessing
from nearsight.models import MODELS
from nearsight.models.backbone import Backbone
from nearsight.models.hosts import distilled
from nearsight.runs.predictor import load, save_trained
from nearsight.tasks.build import build
from nearsight.training import run_training
from nearsight.training.teacher import Teacher

CPU = torch.device("cpu")
FOUR = ("0", "1", "2", "3")


@pytest.fixture
def teacher_run(tmp_path: Path) -> Path:
    """A small ConvNet that was trained on images of 24 pixels."""
    built = build(ModelChoice(name="resnet10t", img_size=24), classes=4)
    return save_trained(built, "classify", FOUR, tmp_path / "teacher" / "model.safetensors").parent


@pytest.fixture
def with_token(tmp_path: Path) -> Path:
    """A nano DeiT with a distillation token, as a file."""
    torch.manual_seed(0)
    model = Backbone(distilled(MODELS["deit_nano"]), img_size=(16, 16), in_chans=3, num_classes=4)
    return save_model(model, tmp_path / "student.safetensors")


def test_a_teacher_sees_images_as_it_was_trained_on(teacher_run: Path) -> None:
    teacher = Teacher(Distillation(teacher="resnet10t", weights=str(teacher_run)), FOUR, Preprocessing((16, 16)), CPU)
    assert teacher.input.size == (24, 24)
    images = torch.rand(5, 3, 24, 24)
    expected = load(teacher_run).model(teacher.input.normalise(images)).argmax(dim=1)
    assert torch.equal(teacher.labels(images), expected)
    assert teacher.labels(torch.rand(2, 3, 16, 16)).shape == (2,)
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())


def test_a_plain_file_is_a_teacher(tmp_path: Path) -> None:
    model = timm.create_model("resnet10t", num_classes=4)
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    settings = Distillation(teacher="timm/resnet10t", weights=str(tmp_path / "plain.safetensors"))
    teacher = Teacher(settings, FOUR, Preprocessing((32, 32)), CPU)
    images = torch.rand(3, 3, 32, 32)
    assert torch.equal(teacher.labels(images), model.eval()(teacher.input.normalise(images)).argmax(dim=1))


def test_a_converted_file_is_a_teacher(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = create_model("deit_nano", img_size=24, patch_size=4, num_classes=4).eval()
    path = save_model(model, tmp_path / "converted.safetensors")
    teacher = Teacher(Distillation(teacher="deit_nano", weights=str(path)), FOUR, Preprocessing((16, 16)), CPU)
    assert teacher.input.size == (24, 24)
    images = torch.rand(3, 3, 24, 24)
    assert torch.equal(teacher.labels(images), model(teacher.input.normalise(images)).argmax(dim=1))


def test_a_teacher_that_does_not_fit_is_refused(teacher_run: Path, tmp_path: Path) -> None:
    run = str(teacher_run)
    cases = {
        "The teacher resnet10t answers with 4 classes, but the data have 5; train it on": ("resnet10t", run, "01234"),
        r"knows other classes than the data \(its number 2 is 2, that of the data 3\)": ("resnet10t", run, "0132"),
        "holds a resnet10t, not the teacher resnet18": ("resnet18", run, FOUR),
        "timm has no model 'resnet0' to be a teacher": ("resnet0", None, FOUR),
        "There are no weights at": ("resnet18", str(tmp_path / "absent"), FOUR),
    }
    for sentence, (name, weights, classes) in cases.items():
        with pytest.raises(ValueError, match=sentence):
            Teacher(Distillation(teacher=name, weights=weights), classes, Preprocessing((16, 16)), CPU)


def test_a_teacher_with_other_patches_than_the_registered_model_keeps_its_name(tmp_path: Path) -> None:
    built = build(ModelChoice(name="deit_nano", img_size=16, patch_size=2), classes=4)
    run = str(save_trained(built, "classify", FOUR, tmp_path / "model.safetensors"))
    teacher = Teacher(Distillation(teacher="deit_nano", weights=run), FOUR, Preprocessing((16, 16)), CPU)
    assert teacher.input == built.preprocessing
    with pytest.raises(ValueError, match="holds a deit_nano, not the teacher lit_nano"):
        Teacher(Distillation(teacher="lit_nano", weights=run), FOUR, Preprocessing((16, 16)), CPU)


@pytest.mark.usefixtures("no_page")
def test_the_token_learns_from_the_teacher_and_the_other_head_from_the_labels(
    teacher_run: Path, with_token: Path, colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    start = load_file(with_token)
    for share, still, moving in ((1.0, "head.weight", "head_dist.weight"), (0.0, "head_dist.weight", "head.weight")):
        changes = {
            "model.name": None,
            "model.weights": str(with_token),
            "model.img_size": None,
            "model.patch_size": None,
            "distill": {"teacher": "resnet10t", "weights": str(teacher_run), "share": share},
            "optimizer.weight_decay": 0.0,
            "epochs": 1,
        }
        folder = tmp_path / f"share {share}"
        run_training(colours, tiny(changes), folder, quiet=True)
        trained = load_file(folder / "model.safetensors")
        assert torch.equal(trained[still], start[still])
        assert not torch.equal(trained[moving], start[moving])
        assert load(folder).model(torch.zeros(1, 3, 16, 16)).shape == (1, 4)  # both heads, as a mean


@pytest.mark.usefixtures("no_page")
def test_a_student_without_a_token_is_taught_too(
    teacher_run: Path, colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    teach = {"distill": {"teacher": "resnet10t", "weights": str(teacher_run)}, "epochs": 1, "ema": 0.9}
    assert run_training(colours, tiny(teach), tmp_path / "run", quiet=True).steps == 3
