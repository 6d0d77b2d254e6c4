"""A folded model gives the same answers, at any size, and has nothing left that only training needs."""

from collections.abc import Callable

import pytest
import timm
import torch
from timm.layers import BatchNormAct2d, DropPath, StdConv2d
from torch import Tensor, nn

import nearsight
from nearsight.models import Backbone
from nearsight.parts.layers import TokenBatchNorm
from tests.rounding import assert_rounded

Make = Callable[..., Backbone]
Stir = Callable[[Backbone], Backbone]
Images = Callable[..., Tensor]


@torch.no_grad()
def with_statistics(model: nn.Module) -> nn.Module:
    """Batch norms that have seen something: means off zero, variances off one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def assert_same_outputs(folded: nn.Module, model: nn.Module, images: Tensor) -> None:
    with torch.inference_mode():
        got, expected = folded(images), model(images)
    assert_rounded(got, expected, model)


def test_outputs_stay_the_same_at_every_size(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    model = with_statistics(stir(make_short(small_name)))
    folded = model.fold()
    stride = model.spec.strides[-1]
    for height, width in (model.img_size, (2 * stride + 3, 3 * stride), model.img_size):
        for batch in (1, 3):
            assert_same_outputs(folded, model, images(model, height, width, batch=batch))


def test_no_batch_norm_and_no_dropout_is_left(small_name: str, make: Make) -> None:
    folded = make(small_name, drop_path_rate=0.1).fold()
    left = {type(module) for module in folded.modules()} & {
        *(nn.BatchNorm1d, nn.BatchNorm2d, TokenBatchNorm, nn.Dropout, DropPath)
    }
    assert not left
    assert not folded.training and not any(p.requires_grad for p in folded.parameters())


def test_the_model_itself_is_left_as_it_is(make: Make, stir: Stir, images: Images) -> None:
    model = with_statistics(stir(make("localvit_nano")))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.fold()
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_folding_twice_changes_nothing(make: Make, stir: Stir, images: Images) -> None:
    model = with_statistics(stir(make("dwnet_nano")))
    once = model.fold()
    assert_same_outputs(once.fold(), once, images(model, 32, 32))


def test_tables_follow_the_model_to_another_type(make: Make, images: Images) -> None:
    model = make("swin_nano").eval()
    folded = model.fold()
    pictures = images(model, 32, 40)
    folded(pictures)
    got = folded.double()(pictures.double())
    torch.testing.assert_close(got, model.double()(pictures.double()))


def test_gradients_still_reach_the_image(make: Make, images: Images) -> None:
    """Also behind a call in inference mode, whose tensors autograd refuses."""
    folded = make("swin_nano").fold()
    pictures = images(folded, 32, 32)
    with torch.inference_mode():
        folded(pictures)
    pictures = pictures.clone().requires_grad_()
    folded(pictures).sum().backward()
    assert pictures.grad is not None and pictures.grad.abs().sum() > 0


def test_layers_that_do_more_than_their_kind_are_left_alone() -> None:
    torch.manual_seed(0)
    layers = [BatchNormAct2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), StdConv2d(4, 4, 3), nn.BatchNorm2d(4)]
    model = with_statistics(nn.Sequential(nn.Conv2d(3, 4, 3), *layers))
    folded = nearsight.fold(model)
    assert_same_outputs(folded, model, torch.randn(2, 3, 9, 9))
    assert [type(module) is nn.Identity for module in folded] == [False, False, False, True, False, False]


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "vit_tiny_patch16_224"])
def test_a_model_of_timm_keeps_its_predictions(name: str) -> None:
    torch.manual_seed(0)
    model = with_statistics(timm.create_model(name))
    assert_same_outputs(nearsight.fold(model), model, torch.randn(1, 3, 224, 224))
