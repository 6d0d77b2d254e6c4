"""Weights of a model made for one image size, carried over to the same model made for another.

Most weights do not know the size. Those that do are resized as the parts would do it at run time: position tables,
relative-bias tables, kernels per position; and, where a window, kernel or patch itself has another size, over its side.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..lattice import resize_kernel
from ..parts.slots import PartModule, Resizing


def resize_state(state: Mapping[str, Tensor], old: nn.Module, new: nn.Module) -> dict[str, Tensor]:
    """The weights `state` of the model `old`, resized for the model `new`; both may be on the meta device.

    Weights that do not depend on the size are passed on as they are.

    Example:
        >>> from nearsight.models import Backbone, MODELS
        >>> old, new = (Backbone(MODELS["deit_nano"], img_size=size) for size in (32, 48))
        >>> new.load_state_dict(resize_state(old.state_dict(), old, new))
        <All keys matched successfully>
    """
    resized = dict(state)
    for name, before, after in size_pairs(old, new):
        for weight, change in resizing(after, before).items():
            key = f"{name}.{weight}"
            if key in resized:
                resized[key] = change(resized[key]).contiguous()
    return resized


@torch.no_grad()
def adopt_size(model: nn.Module, other: nn.Module) -> None:
    """Put the modules of `other` that depend on the size into `model`, with `model`'s weights; `other` is used up."""
    other.load_state_dict(resize_state(model.state_dict(), model, other), strict=False, assign=True)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, before, after in size_pairs(model, other):
        for weight, parameter in after.named_parameters():
            parameter.requires_grad_(trained[f"{name}.{weight}"])
        model.set_submodule(name, after.train(before.training))


def size_pairs(old: nn.Module, new: nn.Module) -> list[tuple[str, nn.Module, nn.Module]]:
    """Name and both forms of each module that depends on the size and is of the same kind in both models."""
    before = dict(old.named_modules())
    pairs = [(name, before[name], module) for name, module in new.named_modules() if name in before]
    return [pair for pair in pairs if resizing(pair[2], pair[1])]


def resizing(new: nn.Module, old: nn.Module) -> Resizing:
    """How to change each weight of `old` that depends on the size, so that it fits `new`; {} for other kinds."""
    if isinstance(new, PartModule):
        return new.resizing(old) if type(old) is type(new) else {}
    if not isinstance(new, nn.Conv2d) or not isinstance(old, nn.Conv2d) or old.kernel_size == new.kernel_size:
        return {}
    if not new.in_channels == new.out_channels == new.groups:  # only depth-wise ones have other sizes
        return {}
    side = new.kernel_size[0]

    def weight(weight: Tensor) -> Tensor:  # [C, 1, kernel, kernel]
        return resize_kernel(weight.movedim((2, 3), (0, 1)), side).movedim((0, 1), (2, 3))

    return {"weight": weight}
