"""`torch.export` takes every kind of model, and what it exports gives the model's answers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nearsight.models import MODELS, Backbone, BackboneSpec, Stage

Make = Callable[..., Backbone]
Stir = Callable[[Backbone], Backbone]
Images = Callable[..., Tensor]


def shorten(spec: BackboneSpec) -> BackboneSpec:
    """The same parts in two blocks a stage at most."""

    def cut(stage: Stage) -> Stage:
        slots = {slot: getattr(stage, slot) for slot in ("mixer", "ffn", "qkv")}
        first = {slot: parts[:2] for slot, parts in slots.items() if isinstance(parts, tuple)}
        return replace(stage, depth=min(stage.depth, 2), **first)

    return replace(spec, stages=tuple(cut(stage) for stage in spec.stages))


@torch.no_grad()
def check_export(model: Backbone, example: Tensor, other: Tensor) -> None:
    """Export with one batch of images, compare on another."""
    program = torch.export.export(model, (example,), strict=False)
    torch.testing.assert_close(program.module()(other), model(other), rtol=1e-4, atol=1e-4)


def test_every_kind_of_part_exports(small_name: str, stir: Stir, images: Images) -> None:
    """At a size that the model was not made for, so that positions are interpolated in the program."""
    torch.manual_seed(0)
    model = stir(Backbone(shorten(MODELS[small_name]), num_classes=7)).eval()
    stride = model.spec.strides[-1]
    size = 2 * stride + 3, 3 * stride
    check_export(model, images(model, *size, batch=1), images(model, *size, batch=1, seed=1))


@pytest.mark.parametrize("name", ["localvit_tiny", "lightvit_tiny", "lit_small", "dwnet_tiny", "deit_tiny_life"])
def test_a_model_of_each_family_exports_at_its_size(name: str, make: Make, stir: Stir, images: Images) -> None:
    model = stir(make(name)).eval()
    check_export(model, images(model, *model.img_size, batch=1), images(model, *model.img_size, batch=1, seed=1))
