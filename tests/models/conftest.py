"""Which models a contract is tested on, and how they are made.

A test that takes `any_name` runs for every registered model, one that takes `whole_name`, too, but with those of many
blocks among the slow tests; `nano_name` stands for the small ones, `small_name` for these and one model for each kind
of part, at sizes that can be computed in a test.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn

from nearsight.models import MODELS, Backbone, Stage

NANO = sorted(name for name in MODELS if "nano" in name)
ONE_OF_A_KIND = [
    "deit_tiny_distilled",
    "lit_tiny",
    "local_mlp_tiny",
    "localvit_pvt",
    "localvit_t2t",
    "localvit_tnt",
    "swinv2_tiny_life",
]
DEEP = [name for name, spec in MODELS.items() if sum(stage.depth for stage in spec.stages) > 12]
NAMES = {
    "any_name": sorted(MODELS),
    "whole_name": [pytest.param(name, marks=pytest.mark.slow) if name in DEEP else name for name in sorted(MODELS)],
    "nano_name": NANO,
    "small_name": NANO + ONE_OF_A_KIND,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in NAMES.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(argument, NAMES[argument])


@pytest.fixture
def make() -> Callable[..., Backbone]:
    """A model by its name with seven classes, the same weights every time."""

    def make_model(name: str, num_classes: int = 7, **settings: object) -> Backbone:
        torch.manual_seed(0)
        return timm.create_model(name, num_classes=num_classes, **settings)

    return make_model


@pytest.fixture
def make_short() -> Callable[[str], Backbone]:
    """A model by its name with the same parts in one block a stage, in two where they take turns; seven classes."""

    def cut(stage: Stage) -> Stage:
        slots = {slot: getattr(stage, slot) for slot in ("mixer", "ffn", "qkv")}
        turns = {slot: parts[:2] for slot, parts in slots.items() if isinstance(parts, tuple)}
        return replace(stage, depth=2 if turns else 1, **turns)

    def make_model(name: str) -> Backbone:
        torch.manual_seed(0)
        spec = MODELS[name]
        return Backbone(replace(spec, stages=tuple(cut(stage) for stage in spec.stages)), num_classes=7)

    return make_model


@pytest.fixture
def stir() -> Callable[[Backbone], Backbone]:
    """Random weights where a fresh model has zeros or ones, so that nothing is hidden behind them."""

    @torch.no_grad()
    def stir_weights(model: nn.Module) -> nn.Module:
        for parameter in model.parameters():
            if parameter.ndim == 1 or parameter.count_nonzero() == 0:
                size = 0.2 if parameter.ndim == 1 else 0.02  # offsets of deformable merging stay on the map
                parameter.add_(size * torch.randn_like(parameter))
        return model

    return stir_weights


@pytest.fixture
def images() -> Callable[..., Tensor]:
    """Reproducible images for a model: of a given height and width, or of the smallest."""

    def make_images(model: Backbone, *size: int, batch: int = 2, seed: int = 0) -> Tensor:
        stride = model.spec.strides[-1]
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, model.in_chans, *(size or (stride, stride)), generator=generator)

    return make_images
