"""`torch.export` takes every kind of model, and what it exports gives the model's answers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nearsight.models import Backbone
from tests.rounding import assert_rounded

Make = Callable[..., Backbone]
Stir = Callable[[Backbone], Backbone]
Images = Callable[..., Tensor]


@torch.no_grad()
def check_export(model: Backbone, example: Tensor, other: Tensor) -> None:
    """Export with one batch of images, compare on another."""
    program = torch.export.export(model, (example,), strict=False)
    assert_rounded(program.module()(other), model(other), model)


def test_every_kind_of_part_exports(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    """At a size that the model was not made for, so that positions are interpolated in the program."""
    model = stir(make_short(small_name)).eval()
    stride = model.spec.strides[-1]
    size = 2 * stride + 3, 3 * stride
    check_export(model, images(model, *size, batch=1), images(model, *size, batch=1, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["localvit_tiny", "lightvit_tiny", "lit_small", "dwnet_tiny", "deit_tiny_life"])
def test_a_model_of_each_family_exports_at_its_size(name: str, make: Make, stir: Stir, images: Images) -> None:
    model = stir(make(name)).eval()
    check_export(model, images(model, *model.img_size, batch=1), images(model, *model.img_size, batch=1, seed=1))
