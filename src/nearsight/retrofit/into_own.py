"""Local parts put into a model of ours that exists already."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from ..lattice import Grid, image, sequence, with_aux
from ..models.backbone import Backbone
from ..models.names import PARTS, Context
from ..models.options import SLOT_TYPES, choose, spread
from ..models.spec import BackboneSpec
from ..parts import LinearQkv
from ..parts.branches import adopt
from ..parts.qkv import LinearQkvModule
from ..parts.slots import Ffn, Merge, Mixer, Pairs, Qkv, QkvModule, Site
from .hosts import DoesNotFit, GridKeeper, note_grid, watch
from .into_timm import Placed, fill, fill_slot, join_branch
from .options import LocalizeOptions


def put_into_own(
    model: Backbone, choice: LocalizeOptions, placed: Placed
) -> tuple[dict[str, tuple[int, ...]], list[nn.Parameter]]:
    """Put the chosen parts into a model of ours; returns the layers of each, and what took over pretrained numbers."""
    if not choice.preserve:
        return rebuild(model, choice, choice.numbers(sum(stage.depth for stage in model.spec.stages)))
    layers = {}
    for slot, given in choice.parts().items():
        sites = own_sites(model, slot)
        layers[slot] = fill_slot(type(model).__name__, slot, given, sites, choice, placed, PUT[slot])[0]
    return layers, []


class OwnSite:
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


def own_sites(model: Backbone, slot: str) -> list[OwnSite]:
    """The blocks of a model of ours; for the slot `merge` its merges, each with the number of the layer behind it."""
    found: list[OwnSite] = []
    number = 1
    for index, stage in enumerate(model.stages):
        if slot != "merge":
            found += [OwnSite(model, index, n, block) for n, block in enumerate(stage.blocks, number)]
        elif stage.merge is not None:
            found.append(OwnSite(model, index, number, stage.merge))
        number += len(stage.blocks)
    return found


def keeper_of(module: nn.Module) -> GridKeeper:
    """The keeper of the grid that a module of ours is given."""
    watch(module, GridKeeper("grid"), note_grid)
    return module.grid_keeper  # type: ignore[return-value]


def put_ffn(site: OwnSite, part: Ffn, preserve: bool) -> list[nn.Parameter]:
    """A feed-forward part that builds on the MLP."""
    mlp = site.holder.ffn
    if mlp.mlp_layers() is None:
        raise DoesNotFit(f"{type(mlp).__name__} is no plain MLP to build on")
    mlp.fc2 = part.on_linear(mlp.fc2, keeper_of(mlp))
    mlp.token_width = None  # a token is no longer treated by itself
    return []


class LocalizedQkv(LinearQkvModule):
    """A plain qkv layer of ours that a part builds on; it looks around, so no other module may take it apart."""

    pointwise = False

    def linear(self) -> None:  # type: ignore[override]
        return None

    def strip_projections(self) -> None:
        """Its layer does more than project."""


def put_qkv(site: OwnSite, part: Qkv, preserve: bool) -> list[nn.Parameter]:
    """A qkv part that builds on a plain layer."""
    mixer = site.holder.mixer
    mixer = getattr(mixer, "mixer", mixer)  # inside squeeze-and-excitation
    plain = getattr(mixer, "qkv", None)
    if not isinstance(plain, QkvModule) or plain.linear() is None:
        raise DoesNotFit(f"{type(mixer).__name__} has no plain layer for queries, keys and values")
    proj = part.on_linear(plain.proj, keeper_of(plain), q_bias=None, v_bias=None)  # type: ignore[arg-type]
    mixer.qkv = adopt(LocalizedQkv, plain, proj=proj)
    return []


def put_mixer(site: OwnSite, part: Mixer, preserve: bool) -> list[nn.Parameter]:
    """What joins the mixer that is there."""
    mixer = site.holder.mixer
    if mixer is None:
        raise DoesNotFit("the block has no mixer")
    mixer.near = part.branch(Site(site.dim, Grid(14, 14)), LinearQkv(), keeper_of(mixer))
    mixer.register_forward_hook(join_branch)
    return []


def put_merge(site: OwnSite, part: Merge, preserve: bool) -> list[nn.Parameter]:
    """What stands in front of the merge that is there."""
    if site.holder.deformable:
        raise DoesNotFit("its merges are deformable already")
    site.holder.mover = part.in_front(site.before)
    site.holder.register_forward_pre_hook(move_tokens)
    return []


def move_tokens(merge: Any, inputs: Any) -> Any:
    """Hook in front of a merge that takes tokens `[B, N, C]` and their grid."""
    tokens, grid = inputs
    return with_aux(tokens, sequence(merge.mover(image(tokens, grid))), grid), grid


PUT: dict[str, Callable[[Any, Any, bool], list[nn.Parameter]]] = {
    "ffn": put_ffn,
    "qkv": put_qkv,
    "mixer": put_mixer,
    "merge": put_merge,
}


# Without preserving: the same model with another spec


def rebuild(
    model: Backbone, choice: LocalizeOptions, numbers: tuple[int, ...]
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
    for old_stage, new_stage in zip(model.stages, new.stages, strict=True):
        for block, rebuilt in zip(old_stage.blocks, new_stage.blocks, strict=True):
            wrapped = getattr(rebuilt.mixer, "mixer", None)
            if wrapped is not None and type(wrapped) is type(block.mixer):  # a mixer that only got something around it
                rebuilt.mixer.mixer = block.mixer
    taken = [parameter for pair in zip(model.stages, new.stages, strict=True) for parameter in take_over(*pair)]
    checkpointing = [stage.grad_checkpointing for stage in model.stages]
    for stage, enabled in zip(new.stages, checkpointing, strict=True):
        stage.grad_checkpointing = enabled
    model.spec, model.stages = spec, new.stages
    return layers, taken


def changed_spec(
    spec: BackboneSpec, choice: LocalizeOptions, numbers: tuple[int, ...]
) -> tuple[BackboneSpec, dict[str, tuple[int, ...]]]:
    """The spec with the chosen parts in these layers, and the layers that got each."""
    stages, first = [], 1
    layers: dict[str, list[int]] = {slot: [] for slot in choice.parts()}
    for index, stage in enumerate(spec.stages):
        context = Context(spec, index)
        inside = [number for number in numbers if first <= number < first + stage.depth]
        for slot, given in choice.parts().items():
            wanted = spread(slot, given, len(spec.stages))[index] if isinstance(given, tuple) else given
            part = choose(slot, wanted, PARTS[slot], SLOT_TYPES[slot], context)
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
    pairs: Pairs = []
    for old, new in zip(before.blocks, after.blocks, strict=True):
        if type(old.ffn) is not type(new.ffn) and (layers := old.ffn.mlp_layers()) is not None:
            pairs += new.ffn.take_over_mlp(*layers)
        held, made = getattr(old.mixer, "qkv", None), getattr(new.mixer, "qkv", None)
        if isinstance(held, QkvModule) and isinstance(made, QkvModule) and (layer := held.linear()) is not None:
            pairs += made.take_over(*layer)
    changed = before.merge is not None and type(before.merge) is not type(after.merge)
    if changed and (cells := before.merge.cells()) is not None:
        pairs += after.merge.take_over(*cells)
    return fill(pairs)
