"""Other ways to count, with which the figures of some papers come out."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..models import Backbone
from ..parts import SpatialReduction
from ..parts.gates import BiDimensionalGate
from ..parts.tokens_to_token import PerformerLayer
from .recipe import Recipe, measure, recipe

NORMS = ("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "native_group_norm")
SOFTMAX = ("_softmax", "_safe_softmax")
ONE_PASS = ("_adaptive_avg_pool2d", "avg_pool2d", "max_pool2d_with_indices", "mean")


class ElementwiseCounter(TorchDispatchMode):
    """Counts what counters of multiply-adds differ in: work done once for each element of a tensor.

    That is one operation for each element of a bias, activation, pooling, sum or product, and five for each element
    that a norm or a softmax returns (find the mean or maximum, subtract, square or exponentiate, sum, divide).
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if isinstance(first, Tensor) and first.is_floating_point():
            self.total += self.passes(func, args) * first.numel()
        return out

    def passes(self, func: Any, args: Any) -> int:
        """Operations for each element of what an operator returns."""
        name = func.overloadpacket.__name__
        if name.startswith(NORMS) or name in SOFTMAX:
            return 5
        if name in ("addmm", "convolution"):
            return int(name == "addmm" or args[2] is not None)
        return int(name in ONE_PASS or (torch.Tag.pointwise in func.tags and "copy" not in name and name != "clone"))


@cache
def elementwise(what: Recipe) -> int:
    """Element-wise operations of a recipe's model on one image."""
    model = what.build().eval()
    size = what.image_size
    with torch.no_grad(), ElementwiseCounter() as counter:
        model(torch.empty(1, 3, size, size, device="meta"))
    return counter.total


def build_backbone(what: Recipe) -> Backbone:
    """The model of a recipe that is one of ours."""
    model = what.build()
    assert isinstance(model, Backbone)
    return model


def unreduced_keys(what: Recipe) -> int:
    """Multiply-adds of a PVT when attention is counted between all pairs of tokens, as if keys were not reduced."""
    extra = 0
    tokens = (what.image_size // 4) ** 2
    for stage in build_backbone(what).spec.stages:
        for layer in stage.layers():
            if isinstance(layer.mixer, SpatialReduction):
                extra += 2 * tokens * (tokens - tokens // layer.mixer.sr_ratio**2) * stage.dim
        tokens //= 4
    return measure(what).cost.macs + extra


def without_class_token(what: Recipe) -> int:
    """Multiply-adds of a ViT or DeiT whose class token is left out."""
    size = what.image_size
    if what.model.startswith("deit"):
        return measure(recipe(what.model, size, img_size=size, aux=0, pool="mean")).cost.macs
    return measure(recipe(what.model, size, class_token=False, global_pool="avg")).cost.macs


def without_classifier(what: Recipe) -> int:
    """Parameters without the last layer."""
    return measure(replace(what, options=(*what.options, ("num_classes", 0)))).cost.parameters


def with_gate_norms(what: Recipe) -> int:
    """Parameters of a LightViT without gates whose gates' norms stayed behind."""
    norms = 2 * sum(stage.dim * stage.depth for stage in build_backbone(what).spec.stages)
    assert not any(isinstance(module, BiDimensionalGate) for module in what.build().modules())
    return measure(what).cost.parameters + norms


def without_performer_products(what: Recipe) -> int:
    """Multiply-adds of a T2T-ViT for a counter that does not see the products inside its performer layers."""
    model = build_backbone(what)
    hidden, tokens = 0, (what.image_size // 4) ** 2
    for layer in model.embed.modules():
        if isinstance(layer, PerformerLayer):
            features, dim = layer.features.shape
            hidden += 4 * tokens * features * dim + tokens * features
            tokens //= 4
    return measure(what).cost.macs - hidden


def without_modules(what: Recipe, *names: str) -> int:
    """Multiply-adds of a model without some of its modules."""
    model = what.build().eval()
    images = torch.empty(1, 3, what.image_size, what.image_size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    counts = counter.get_flop_counts()
    prefix = type(model).__name__
    return (counter.get_total_flops() - sum(sum(counts[f"{prefix}.{name}"].values()) for name in names)) // 2
