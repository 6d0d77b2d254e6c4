"""Models and images for the tests of exported graphs."""

from dataclasses import replace

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import nearsight
from nearsight.models import MODELS, Backbone, BackboneSpec, Stage

NANO = sorted(name for name in MODELS if "nano" in name)
ONE_OF_A_KIND = ["lit_tiny", "local_mlp_tiny", "localvit_pvt", "localvit_t2t", "localvit_tnt", "swinv2_tiny_life"]
OF_EVERY_FAMILY = [
    "deit_tiny_distilled",
    "deit_tiny_life",
    "iddwnet_tiny",
    "lightvit_tiny",
    "lit_small",
    "local_mlp_tiny",
    "localvit_pvt",
    "localvit_t2t",
    "localvit_tiny",
    "localvit_tnt",
    "swin_tiny",
    "swinv2_tiny_life",
]


def shorten(spec: BackboneSpec) -> BackboneSpec:
    """The same parts in two stages at most, of one block each, or of two where they take turns."""

    def cut(stage: Stage) -> Stage:
        slots = {slot: getattr(stage, slot) for slot in ("mixer", "ffn", "qkv")}
        turns = {slot: parts[:2] for slot, parts in slots.items() if isinstance(parts, tuple)}
        return replace(stage, depth=2 if turns else 1, **turns)

    first, *rest = map(cut, spec.stages[:2] if spec.stages[0].aux else spec.stages[-2:])  # with auxiliary tokens
    return replace(spec, stages=(replace(first, merge=None), *rest))


@torch.no_grad()
def stir(model: nn.Module) -> nn.Module:
    """Random weights where a fresh model has zeros or ones, so that nothing is hidden behind them."""
    for parameter in model.parameters():
        if parameter.ndim == 1 or parameter.count_nonzero() == 0:
            size = 0.2 if parameter.ndim == 1 else 0.02  # offsets of deformable merging stay on the map
            parameter.add_(size * torch.randn_like(parameter))
    return model


def small_model(name: str, folded: bool = True) -> Backbone:
    """A model with few blocks and seven classes, as it is exported."""
    torch.manual_seed(0)
    model = stir(Backbone(shorten(MODELS[name]), num_classes=7)).eval()
    return nearsight.fold(model) if folded else model


def whole_model(name: str) -> nn.Module:
    """A model as it is, folded."""
    torch.manual_seed(0)
    return nearsight.fold(stir(timm.create_model(name, num_classes=7)).eval())


def batches(model: Backbone) -> list[Tensor]:
    """Images of three sizes, none of which the model was made for: a wide one, a high one, and the smallest."""
    stride = model.spec.strides[-1]
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2 * stride + 3, 3 * stride + 1), (1, 3 * stride - 1, stride + stride // 2), (3, stride, stride)]
    return [torch.randn(batch, 3, height, width, generator=generator) for batch, height, width in shapes]


def relative_difference(found: Tensor | NDArray[np.float32], expected: Tensor) -> float:
    """The largest difference as a fraction of the largest expected value."""
    difference = (torch.as_tensor(found) - expected).abs().max() / expected.abs().max()
    return float(difference)
