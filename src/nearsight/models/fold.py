"""A model for inference alone: the same predictions with less arithmetic and fewer passes over memory."""

import copy
from typing import TypeVar

import torch
from timm.layers import DropPath
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..arguments import checked
from ..parts.layers import fold_norm

Model = TypeVar("Model", bound=nn.Module)


@checked
def fold(model: Model) -> Model:
    """Copy a model for inference: no batch norms, no dropouts, tables computed once for each grid, nothing to train.

    The outputs are equal up to rounding. The copy can be moved to another device, compiled and exported; it can't be
    trained, and weights loaded into it later would not reach its tables. Every module that knows a shorter form of
    itself has a method `fold_in_place`. In a model of timm, layers with a batch norm behind them in a
    `Sequential` are merged, and the rest is left as it is.

    Args:
        model: Takes images `[B, C, H, W]`; it is left as it is.

    Returns:
        The copy, in evaluation mode.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("localvit_nano", num_classes=10).eval()
        >>> images = torch.randn(2, 3, 32, 32)
        >>> torch.allclose(fold(model)(images), model(images), atol=1e-5)
        True
    """
    with torch.inference_mode(False):
        folded = copy.deepcopy(model).eval().requires_grad_(False)
        for module in list(folded.modules()):
            merge_sequence(module)
            for name, child in module.named_children():
                if isinstance(child, (_DropoutNd, DropPath)):  # they only act in training
                    setattr(module, name, nn.Identity())
            if not getattr(module, "folded", False):  # a folded model is only copied
                module.folded = True  # type: ignore[assignment]
                if hasattr(module, "fold_in_place"):
                    module.fold_in_place()  # type: ignore[operator]
    return folded


def merge_sequence(module: nn.Module) -> None:
    """Merge linear layers and convolutions with the batch norms behind them in a `Sequential`."""
    if not isinstance(module, nn.Sequential):
        return
    for index in range(len(module) - 1):
        layer, norm = module[index], module[index + 1]
        plain = type(layer) in (nn.Linear, nn.Conv2d)  # a subclass may do something else with its weights
        if plain and getattr(norm, "running_mean", None) is not None:
            module[index + 1] = fold_norm(norm, behind=layer)  # type: ignore[arg-type]
