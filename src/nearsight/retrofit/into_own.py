"""Local parts put into a model of ours that exists already."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..lattice import Grid
from ..models.backbone import Backbone
from ..models.names import PARTS, Context
from ..models.options import SLOT_TYPES, choose, spread
from ..models.spec import BackboneSpec
from ..parts import GatherBroadcast, Life, LinearQkv, LocalityFfn, Squeezed
from ..parts.feedforward import GatedMlpModule, LocalityFfnModule, MlpModule
from ..parts.merge import ConcatMergeModule, ConvMergeModule, DeformableMergeModule
from ..parts.qkv import LifeModule, LinearQkvModule
from ..parts.slots import QkvModule, Site
from ..parts.squeeze import SqueezedModule
from .cells import CellMover, move_tokens
from .hosts import GridKeeper, NoPlace, note_grid, watch
from .into_timm import (
    Branch,
    Gathering,
    ParallelBranch,
    Placed,
    fill,
    fill_slot,
    join_branch,
    merge_weight,
    open_squeezing,
)
from .layers import LifeLinear, adopt, gated_linear, life_linear, local_linear
from .options import Choice


def put_into_own(
    model: Backbone, choice: Choice, placed: Placed
) -> tuple[dict[str, tuple[int, ...]], list[nn.Parameter]]:
    """Put the chosen parts into a model of ours; returns the layers of each, and what took over pretrained numbers."""
    if not choice.preserve:
        return rebuild(model, choice, choice.numbers(sum(stage.depth for stage in model.spec.stages)))
    layers = {}
    for slot, given in choice.parts().items():
        sites = own_merges(model) if slot == "merge" else own_blocks(model)
        layers[slot] = fill_slot(type(model).__name__, slot, given, sites, choice, placed, PUT[slot])[0]
    return layers, []


class OwnPlace:
    """A block of ours, or a merge: what stands there, and what a part's name takes over from it."""

    def __init__(self, model: Backbone, stage: int, number: int, holder: Any):
        self.number = number
        self.depth = sum(stage.depth for stage in model.spec.stages)
        self.reads_prefix = model.global_pool == "token"
        self.holder = holder
        self.dim = model.spec.stages[stage].dim
        self.before = model.spec.stages[max(0, stage - 1)].dim
        context = Context(model.spec, stage)
        self.stage, self.heads, self.window, self.ratio = context.stage, context.heads, context.window, context.ratio


def own_blocks(model: Backbone) -> list[OwnPlace]:
    """The blocks of a model of ours."""
    found: list[OwnPlace] = []
    for index, stage in enumerate(model.stages):
        found += [OwnPlace(model, index, len(found) + n, block) for n, block in enumerate(stage.blocks, 1)]
    return found


def own_merges(model: Backbone) -> list[OwnPlace]:
    """The merges of a model of ours, each with the number of the layer behind it."""
    number, found = 1, []
    for index, stage in enumerate(model.stages):
        if stage.merge is not None:
            found.append(OwnPlace(model, index, number, stage.merge))
        number += len(stage.blocks)
    return found


def keeper_of(module: nn.Module) -> GridKeeper:
    """The keeper of the grid that a module of ours is given."""
    watch(module, GridKeeper("grid"), note_grid)
    return module.grid_keeper  # type: ignore[return-value]


def put_ffn(place: OwnPlace, part: Any, preserve: bool) -> list[nn.Parameter]:
    """A feed-forward part that builds on the MLP."""
    mlp = place.holder.ffn
    if not isinstance(mlp, MlpModule):
        raise NoPlace(f"{type(mlp).__name__} is no plain MLP to build on")
    make: Any = local_linear if isinstance(part, LocalityFfn) else gated_linear
    mlp.fc2 = make(mlp.fc2, part, keeper_of(mlp))
    mlp.token_width = None  # a token is no longer treated by itself
    return []


class LifeBesideQkv(QkvModule):
    """A plain qkv layer of ours whose scales fade in; it looks around, so no other module may take it apart."""

    proj: LifeLinear
    q_bias: nn.Parameter | None
    v_bias: nn.Parameter | None

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = self.proj(tokens).chunk(3, dim=-1)
        if self.q_bias is not None and self.v_bias is not None:
            return queries + self.q_bias, keys, values + self.v_bias
        return queries, keys, values


def put_qkv(place: OwnPlace, part: Life, preserve: bool) -> list[nn.Parameter]:
    """LIFE on a plain qkv layer."""
    mixer = place.holder.mixer
    mixer = getattr(mixer, "mixer", mixer)  # inside squeeze-and-excitation
    plain = getattr(mixer, "qkv", None)
    if not isinstance(plain, LinearQkvModule):
        raise NoPlace(f"{type(mixer).__name__} has no plain layer for queries, keys and values")
    proj = life_linear(plain.proj, part, keeper_of(plain), q_bias=None, v_bias=None)
    mixer.qkv = adopt(LifeBesideQkv, plain, proj=proj)
    return []


def put_mixer(place: OwnPlace, part: Any, preserve: bool) -> list[nn.Parameter]:
    """What joins the mixer that is there."""
    mixer = place.holder.mixer
    if mixer is None:
        raise NoPlace("the block has no mixer")
    keeper = keeper_of(mixer)
    near: Branch
    if isinstance(part, Squeezed):
        near = open_squeezing(place.dim, part.se_reduction, keeper)
    elif isinstance(part, GatherBroadcast):
        near = ParallelBranch(Gathering(place.dim, part.heads), place.dim, keeper, carries_aux=True)
    else:
        near = ParallelBranch(
            part.build(Site(place.dim, Grid(14, 14)), LinearQkv()), place.dim, keeper, carries_aux=False
        )
    mixer.near = near
    mixer.register_forward_hook(join_branch)
    return []


def put_merge(place: OwnPlace, part: Any, preserve: bool) -> list[nn.Parameter]:
    """Cells that move in front of the merge that is there."""
    if isinstance(place.holder, DeformableMergeModule):
        raise NoPlace("its merges are deformable already")
    place.holder.mover = CellMover(place.before)
    place.holder.register_forward_pre_hook(move_tokens)
    return []


PUT: dict[str, Callable[[Any, Any, bool], list[nn.Parameter]]] = {
    "ffn": put_ffn,
    "qkv": put_qkv,
    "mixer": put_mixer,
    "merge": put_merge,
}


# Without preserving: the same model with another spec


def rebuild(
    model: Backbone, choice: Choice, numbers: tuple[int, ...]
) -> tuple[dict[str, tuple[int, ...]], list[nn.Parameter]]:
    """Give a model the stages of another spec; what has the same name and shape stays the same parameter."""
    spec, layers = changed_spec(model.spec, choice, numbers)
    new = Backbone(spec, img_size=model.img_size, num_classes=0, drop_path_rate=model.drop_path_rate)
    before = {name: type(module) for name, module in model.stages.named_modules()}
    old = dict(model.stages.named_parameters())
    buffers = dict(model.stages.named_buffers())
    for name, module in new.stages.named_modules():
        if before.get(name) is not type(module):
            continue
        for leaf, parameter in module.named_parameters(recurse=False):
            kept = old.get(f"{name}.{leaf}")
            if kept is not None and kept.shape == parameter.shape:
                setattr(module, leaf, kept)
        for leaf, buffer in module.named_buffers(recurse=False):
            held = buffers.get(f"{name}.{leaf}")
            if held is not None and held.shape == buffer.shape:
                setattr(module, leaf, held)
    keep_squeezed(model, new)
    taken = [parameter for pair in zip(model.stages, new.stages, strict=True) for parameter in take_over(*pair)]
    checkpointing = [stage.grad_checkpointing for stage in model.stages]
    for stage, enabled in zip(new.stages, checkpointing, strict=True):
        stage.grad_checkpointing = enabled
    model.spec, model.stages = spec, new.stages
    return layers, taken


def keep_squeezed(before: Backbone, after: Backbone) -> None:
    """Put mixers that only got a gate behind them into the new model as they are."""
    for old_stage, new_stage in zip(before.stages, after.stages, strict=True):
        for old, new in zip(old_stage.blocks, new_stage.blocks, strict=True):
            if isinstance(new.mixer, SqueezedModule) and type(new.mixer.mixer) is type(old.mixer):
                new.mixer.mixer = old.mixer


def changed_spec(
    spec: BackboneSpec, choice: Choice, numbers: tuple[int, ...]
) -> tuple[BackboneSpec, dict[str, tuple[int, ...]]]:
    """The spec with the chosen parts in these layers, and the layers that got each."""
    stages, first = [], 1
    layers: dict[str, list[int]] = {slot: [] for slot in choice.parts()}
    for index, stage in enumerate(spec.stages):
        context = Context(spec, index)
        inside = [number for number in numbers if first <= number < first + stage.depth]
        for slot, given in choice.parts().items():
            wish = spread(slot, given, len(spec.stages))[index] if isinstance(given, tuple) else given
            part = choose(slot, wish, PARTS[slot], SLOT_TYPES[slot], context)
            if slot == "merge":
                if stage.merge is not None and first in numbers:
                    stage = replace(stage, merge=part)
                    layers[slot].append(first)
                continue
            there = [getattr(layer, slot) for layer in stage.layers()]
            parts = part if isinstance(part, tuple) else (part,) * stage.depth
            absent = slot in ("mixer", "qkv") and stage.mixer is None
            fits = [first + n in inside and not absent for n in range(stage.depth)]
            filled = tuple(new if fit else old for new, old, fit in zip(parts, there, fits, strict=True))
            change: dict[str, Any] = {slot: filled[0] if len(set(filled)) == 1 else filled}
            stage = replace(stage, **change)
            layers[slot] += [first + n for n, fit in enumerate(fits) if fit]
        stages.append(stage)
        first += stage.depth
    for slot, done in layers.items():
        if not done:
            single = slot == "merge" and len(spec.stages) == 1
            reason = "it has one stage, so nothing merges in it" if single else "none in the chosen layers"
            raise ValueError(f"Backbone has no place for {slot}={choice.parts()[slot]!r}: {reason}.")
    return replace(spec, stages=tuple(stages)), {slot: tuple(done) for slot, done in layers.items()}


def take_over(before: Any, after: Any) -> list[nn.Parameter]:
    """Fill parts of a stage with the numbers of the plain parts that stood there."""
    pairs: list[tuple[Any, Any]] = []
    for old, new in zip(before.blocks, after.blocks, strict=True):
        pairs += feed_pairs(old.ffn, new.ffn) + qkv_pairs(
            getattr(old.mixer, "qkv", None), getattr(new.mixer, "qkv", None)
        )
    if isinstance(after.merge, DeformableMergeModule) and not isinstance(before.merge, DeformableMergeModule):
        pairs += merge_pairs(before.merge, after.merge)
    return fill(pairs)


def feed_pairs(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """New and old weights of the point-wise layers of a feed-forward part."""
    if not isinstance(old, MlpModule) or type(old) is type(new):
        return []
    if isinstance(new, LocalityFfnModule):
        return [(new.expand.weight, old.fc1.weight), (new.project.weight, old.fc2.weight)]
    mlp = new.mlp if isinstance(new, GatedMlpModule) else getattr(new, "ffn", None)
    if not isinstance(mlp, MlpModule):
        return []
    names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    return [(mlp.get_parameter(name), old.get_parameter(name)) for name in names]


def qkv_pairs(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """New and old weights of LIFE's first scale."""
    if not isinstance(old, LinearQkvModule) or not isinstance(new, LifeModule):
        return []
    share, point = new.width // len(new.scales), new.scales[0].point
    weight = old.proj.weight.unflatten(0, (3, -1))[:, :share].flatten(0, 1)
    bias: Tensor | None = old.proj.bias
    if old.q_bias is not None and old.v_bias is not None:
        bias = torch.cat((old.q_bias, torch.zeros_like(old.q_bias), old.v_bias))
    return [(point.weight, weight), (point.bias, None if bias is None else bias.view(3, -1)[:, :share].flatten())]


def merge_pairs(old: Any, new: DeformableMergeModule) -> list[tuple[Any, Any]]:
    """New and old weights of a merge of 2x2 cells."""
    if isinstance(old, ConvMergeModule):
        return [(new.conv.weight, old.conv.weight), (new.conv.bias, old.conv.bias)]
    if isinstance(old, ConcatMergeModule):
        return [(new.conv.weight, merge_weight(old.reduce.weight))]
    return []
