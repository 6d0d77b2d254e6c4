"""Weights of a model made for one image size, carried over to the same model made for another.

Most weights do not know the size. Those that do are resized as the parts would do it at run time: position tables,
relative-bias tables, kernels per position; and, where a window, kernel or patch itself has another size, over its side.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from ..ops.relative import resize_relative_table
from ..parts import ConvStem, Patchify
from ..parts.attention import GlobalModule, WindowModule
from ..parts.depthwise import DynamicKernel, InhomogeneousKernel, SharedKernel
from ..parts.embed import ConvStemModule, PatchifyModule
from ..parts.gather import GatherBroadcastModule
from ..parts.local_mlp import LocalMlpModule
from ..parts.position import PositionTable, resize_positions
from ..parts.sliding import SlidingModule
from .spec import BackboneSpec

Changes = dict[str, Callable[[Tensor], Tensor]]


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
        for weight, change in changes(after, before).items():
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
    kind = changes.dispatch
    return [pair for pair in pairs if kind(type(pair[1])) is kind(type(pair[2])) and changes(pair[2], pair[1])]


def with_patch(spec: BackboneSpec, patch: int) -> BackboneSpec:
    """The spec with another patch size, if its embedding has one that can be changed."""
    if not isinstance(spec.embed, (Patchify, ConvStem)):
        kind = type(spec.embed).__name__
        raise ValueError(
            f"{kind} has weights for patches of {spec.embed.stride} pixels only; leave patch_size as it is."
        )
    return replace(spec, embed=replace(spec.embed, patch=patch))


def resize_plane(plane: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Interpolate the first two axes of `[H, W, ...]`."""
    if tuple(plane.shape[:2]) == size:
        return plane
    flat = plane.flatten(2).permute(2, 0, 1)[None].float()
    flat = F.interpolate(flat, size=size, mode=mode, align_corners=False)
    return flat[0].permute(1, 2, 0).reshape(*size, *plane.shape[2:]).to(plane.dtype)


def resize_kernel(kernel: Tensor, size: int) -> Tensor:
    """Resize convolution kernels `[side, side, ...]`, bicubic (dwconv paper, Table 14).

    The weights are scaled by the ratio of the areas: on an image enlarged as much as the kernel, the convolution
    gives about the same values as before, and the statistics of the batch norm behind it stay true.
    """
    side = kernel.shape[0]
    return kernel if side == size else resize_plane(kernel, (size, size), "bicubic") * (side / size) ** 2


@singledispatch
def changes(new: nn.Module, old: Any) -> Changes:
    """How to change each weight of `old` that depends on the size, so that it fits `new`."""
    return {}


@changes.register
def _(new: PositionTable, old: Any) -> Changes:
    return {"table": lambda table: resize_positions(table, old.grid, new.grid, new.resize)}


@changes.register
def _(new: GlobalModule, old: Any) -> Changes:
    return {"table": lambda table: resize_relative_table(table, old.map_size, new.map_size)}


@changes.register(WindowModule)
@changes.register(GatherBroadcastModule)
def _(new: Any, old: Any) -> Changes:
    return {"table": lambda table: resize_relative_table(table, (old.size,) * 2, (new.size,) * 2)}


@changes.register
def _(new: SlidingModule, old: Any) -> Changes:
    def window(table: Tensor) -> Tensor:  # [window**2, heads]
        side = table.unflatten(0, (old.window, old.window))
        return resize_plane(side, (new.window, new.window), "bicubic").flatten(0, 1)

    return {"table": window}


@changes.register
def _(new: LocalMlpModule, old: Any) -> Changes:
    def weight(weight: Tensor) -> Tensor:  # [rows, columns, groups, size**2, size**2]
        rows, columns = new.weight.shape[:2]
        weight = resize_plane(weight, (rows, columns), "bilinear")
        if old.size == new.size:
            return weight
        pairs = weight.unflatten(4, (old.size, old.size)).unflatten(3, (old.size, old.size))
        pairs = resize_kernel(pairs.movedim((5, 6), (0, 1)), new.size).movedim((0, 1), (5, 6))  # sums over keys stay
        queries = resize_plane(pairs.movedim((3, 4), (0, 1)), (new.size, new.size), "bicubic")
        return queries.movedim((0, 1), (3, 4)).flatten(5).flatten(3, 4)

    def table(table: Tensor) -> Tensor:
        return resize_relative_table(table, (old.size,) * 2, (new.size,) * 2) * (old.size / new.size) ** 2

    return {"weight": weight, "table": table}


@changes.register
def _(new: SharedKernel, old: Any) -> Changes:
    def weight(weight: Tensor) -> Tensor:  # [1, H, W, kernel**2, groups]
        height, width = new.weight.shape[1:3]
        places = resize_plane(weight[0], (height, width), "bilinear")
        taps = places.unflatten(2, (old.kernel, old.kernel)).movedim((2, 3), (0, 1))
        return resize_kernel(taps, new.kernel).movedim((0, 1), (2, 3)).flatten(2, 3)[None]

    return {"weight": weight}


@changes.register(DynamicKernel)
@changes.register(InhomogeneousKernel)
def _(new: Any, old: Any) -> Changes:
    def predicted(rows: Tensor) -> Tensor:  # [channels or groups * kernel**2, ...]: kernels are linear in these
        kernels = rows.unflatten(0, (-1, old.kernel, old.kernel)).movedim((1, 2), (0, 1))
        return resize_kernel(kernels, new.kernel).movedim((0, 1), (1, 2)).flatten(0, 2)

    return {"predict.weight": predicted, "predict.bias": predicted}


@changes.register
def _(new: nn.Conv2d, old: Any) -> Changes:
    depthwise = new.in_channels == new.out_channels == new.groups
    if not depthwise or old.kernel_size == new.kernel_size:
        return {}

    def weight(weight: Tensor) -> Tensor:  # [C, 1, kernel, kernel]
        return resize_kernel(weight.movedim((2, 3), (0, 1)), new.kernel_size[0]).movedim((0, 1), (2, 3))

    return {"weight": weight}


@changes.register
def _(new: PatchifyModule, old: Any) -> Changes:
    return {"proj.weight": lambda weight: resample_patch_embed(weight, [new.stride, new.stride])}


@changes.register
def _(new: ConvStemModule, old: Any) -> Changes:
    return {"proj.weight": lambda weight: weight}  # only its strides change
