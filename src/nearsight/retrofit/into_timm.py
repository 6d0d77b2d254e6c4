"""Local parts put into a model of timm: as parallel branches that start at nothing, or as replacements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from timm.models import swin_transformer, swin_transformer_v2
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn

from ..lattice import Grid, sequence
from ..models.names import LOCAL
from ..models.options import SLOT_TYPES, choose
from ..parts import LinearQkv
from ..parts.branches import adopt
from ..parts.merge import as_convolution
from ..parts.slots import Branch, Ffn, Merge, Mixer, Qkv, QkvModule, Site, TokenModule
from .hosts import BlockSite, DoesNotFit, GridKeeper, MergeSite, find_merges, find_sites
from .options import LocalizeOptions

Layers = dict[str, tuple[int, ...]]
Placed = Mapping[str, Sequence[int]] | None
Taken = list[nn.Parameter]  # of the parts, filled with pretrained numbers


def join_branch(attention: Any, inputs: Any, output: Tensor) -> Tensor:
    """Hook behind an attention module that has a `near`."""
    return attention.near(output, inputs[0])


class BranchedSwinBlock(SwinTransformerBlock):
    """Swin's block with something near on the whole map, not inside its windows."""

    near: Branch

    def _attn(self, x: Tensor) -> Tensor:
        return self.near(x if self.near.alone else super()._attn(x), x)


class BranchedSwinV2Block(SwinTransformerV2Block):
    """The same of Swin v2."""

    near: Branch

    def _attn(self, x: Tensor) -> Tensor:
        return self.near(x if self.near.alone else super()._attn(x), x)


class NoWindows(nn.Module):
    """Stands where a windowed block had its attention; another size changes nothing about it."""

    def set_window_size(self, window_size: Any) -> None:
        """Asked for by `set_input_size`."""


def put_branch(site: BlockSite, near: Branch) -> None:
    """Let `near` see what the attention of a host's block is given and makes."""
    if not site.family.windowed:
        site.attention.near = near
        site.attention.register_forward_hook(join_branch)
        return
    kind: type[nn.Module] = BranchedSwinBlock if site.family.name == "swin" else BranchedSwinV2Block
    block = adopt(kind, site.block, near=near)
    if near.alone:
        block.attn = NoWindows()
    site.model.set_submodule(site.name, block)
    site.block = block


class OnTokens(nn.Module):
    """A part in a host: takes what the host's module took, and finds the grid itself."""

    def __init__(self, part: TokenModule, keeper: GridKeeper):
        super().__init__()
        self.part = part
        self.keeper = keeper

    def forward(self, given: Tensor, *size: Any, **others: Any) -> Tensor:
        tokens, grid = self.keeper.tokens(given)
        return self.part(tokens, grid).reshape(given.shape)


class Replacement(Branch):
    """A mixer in the place of window attention, on the whole map."""

    alone = True

    def __init__(self, part: TokenModule, keeper: GridKeeper):
        super().__init__()
        self.part = part
        self.keeper = keeper

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(entering)
        return self.part(tokens, grid).reshape(entering.shape)


class QkvInHost(nn.Module):
    """A qkv part where a host has its qkv layer: queries, keys and values side by side."""

    def __init__(self, qkv: QkvModule, keeper: GridKeeper):
        super().__init__()
        self.life = qkv
        self.keeper = keeper

    def forward(self, given: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(given)
        return torch.cat(self.life(tokens, grid), dim=-1).reshape(*given.shape[:-1], -1)


@torch.no_grad()
def fill(pairs: list[tuple[Any, Tensor | None]]) -> Taken:
    """Copy pretrained numbers into new parameters, where there are both and their shapes agree."""
    taken = []
    for new, old in pairs:
        if new is not None and old is not None and new.shape == old.shape:
            new.copy_(old)
            taken.append(new)
    return taken


def replace_ffn(site: BlockSite, part: Ffn) -> Taken:
    """A feed-forward part in the place of an MLP, whose layers it takes over as far as it can."""
    first, second = getattr(site.feed, "fc1", None), site.output
    built = part.build(site.site)
    setattr(site.block, site.family.feed, OnTokens(built, site.keeper()))
    if not part.normed:
        setattr(site.block, site.family.norms[1], nn.Identity())
    if not part.drops and site.family.drop:
        setattr(site.block, site.family.drop, nn.Identity())
    return fill(built.take_over_mlp(first, second))


def replace_qkv(site: BlockSite, part: Qkv) -> Taken:
    """A qkv part in the place of a linear layer, which it takes over as far as it can."""
    attention, old = site.attention, site.attention.qkv
    width, built = old.out_features // 3, part.build(site.site, site.heads)
    if built.width != width:
        raise ValueError(
            f"{part.label} gives queries {built.width} wide, but the host takes {width}: "
            "give a scale_width that fits, or preserve=True."
        )
    bias, separate = old.bias, getattr(attention, "q_bias", None) is not None
    if separate:  # Swin v2 keeps it beside the layer
        bias = torch.cat((attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias))
    pairs = built.take_over(old.weight, bias)
    attention.qkv = QkvInHost(built, site.attention_keeper())
    if separate:
        attention.q_bias = attention.k_bias = attention.v_bias = None
    return fill(pairs)


def replace_mixer(site: BlockSite, part: Mixer) -> Taken:
    """A mixer in the place of attention: of all of it, or of the local attention where a host has two kinds."""
    attention, aux = site.attention, site.aux
    if site.family.replaced and not isinstance(attention, site.family.replaced):
        raise DoesNotFit(f"{type(attention).__name__} is not the host's local attention, which the mixer would replace")
    if aux and not part.carries_aux:
        raise DoesNotFit(
            f"{type(part).__name__} alone has no place for the {aux} prefix token(s) of this model; preserve=True puts "
            "it beside the attention"
        )
    if part.needs_aux and not aux:
        raise DoesNotFit("without prefix tokens nothing gathers; preserve=True brings tokens of its own")
    qkv = getattr(attention, "qkv", None)
    built = part.build(site.site, LinearQkv(bias=getattr(qkv, "bias", None) is not None))
    if site.family.windowed:
        put_branch(site, Replacement(built, site.keeper()))
    else:
        setattr(site.block, site.family.attention, OnTokens(built, site.keeper()))
    if not part.normed:
        setattr(site.block, site.family.norms[0], nn.Identity())
    return fill(built.take_over_attention(qkv, getattr(attention, "proj", None)))


# Merging


class MergeInHost:
    """Deformable merging in the layout of a host; mixed into what stands in the place of its merge."""

    part: nn.Module
    layout: str

    def forward(self, given: Tensor) -> Any:
        """`[B, H, W, C]` to half the sides, or `[B, C, H, W]` to a map or to tokens with their size."""
        tokens = given.flatten(1, 2) if self.layout == "map" else sequence(given)
        sides = given.shape[1:3] if self.layout == "map" else given.shape[2:]
        merged, grid = self.part(tokens, Grid(*sides))
        size = (grid.height, grid.width)
        return (merged, size) if self.layout == "image to tokens" else merged.unflatten(1, size)


class SwinMergeInHost(MergeInHost, swin_transformer.PatchMerging):
    """Of Swin."""


class SwinV2MergeInHost(MergeInHost, swin_transformer_v2.PatchMerging):
    """Of Swin v2, which asks for its own kind."""


class OtherMergeInHost(MergeInHost, nn.Module):
    """Of any other host."""


def replace_merge(site: MergeSite, part: Merge) -> Taken:
    """A merge in the place of the host's; a merge of 2x2 cells is taken over."""
    old = site.merge
    built = part.build(Site(site.out_dim, Grid(7, 7)), site.in_dim)
    kind: Any = {"swin": SwinMergeInHost, "swinv2": SwinV2MergeInHost}.get(site.family.name, OtherMergeInHost)
    new = kind.__new__(kind)
    nn.Module.__init__(new)
    new.part, new.layout = built, site.family.layout
    site.model.set_submodule(site.name, new)
    if hasattr(old, "reduction"):
        return fill(built.take_over(as_convolution(old.reduction.weight), None))
    if old.proj.weight.shape[2:] != (2, 2):
        return []  # PVT v2 merges 3x3 cells
    return fill(built.take_over(old.proj.weight, old.proj.bias))


def put_into_timm(model: nn.Module, choice: LocalizeOptions, placed: Placed) -> tuple[Layers, Taken]:
    """Put the chosen parts into a model of timm.

    Args:
        model: The model.
        choice: Which parts.
        placed: Layers that got each part before, of a model that is built again; None follows the choice.

    Returns:
        The layers that got each part, and the parameters that took over pretrained numbers.
    """
    blocks = find_sites(model)
    layers: Layers = {}
    taken: Taken = []
    for slot, given in choice.parts().items():
        sites: list[Any] = find_merges(blocks) if slot == "merge" else blocks
        layers[slot], more = fill_slot(type(model).__name__, slot, given, sites, choice, placed, PUT[slot])
        taken += more
    return layers, taken


def fill_slot(
    kind: str,
    slot: str,
    given: Any,
    sites: Sequence[Any],
    choice: LocalizeOptions,
    placed: Placed,
    put: Callable[[Any, Any, bool], Taken],
) -> tuple[tuple[int, ...], Taken]:
    """Put a part into the chosen layers that have a place for it; refused if none has, or one of those numbered."""
    if not sites:
        raise ValueError(f"{kind} has no place for {slot}={given!r}: it has one stage, so nothing merges in it.")
    if isinstance(given, tuple):
        raise ValueError(f"{slot} was given {len(given)} parts, but a model of timm takes one for all of its layers.")
    numbers = choice.numbers(sites[0].depth) if placed is None else placed[slot]
    done: list[int] = []
    taken: Taken = []
    missing = ""
    for site in sites:
        if site.number not in numbers:
            continue
        try:
            part = choose(slot, given, LOCAL[slot], SLOT_TYPES[slot], site)
            last = site.number == site.depth and site.reads_prefix
            if placed is None and choice.preserve and last and part.patches_only:
                raise DoesNotFit(
                    "behind the last layer the head reads the class token, and nothing would come of its patches"
                )
            taken += put(site, part, choice.preserve)
            done.append(site.number)
        except DoesNotFit as reason:
            missing = missing or f"{reason} (layer {site.number})"
    named = slot != "merge" and not isinstance(choice.layers, str)
    if not done or (missing and named):
        raise ValueError(f"{kind} has no place for {slot}={given!r}: {missing or 'none in the chosen layers'}.")
    return tuple(done), taken


def put_ffn(site: BlockSite, part: Ffn, preserve: bool) -> Taken:
    """What builds on an MLP, or takes its place."""
    layer = site.output
    if not preserve:
        return replace_ffn(site, part)
    site.feed.fc2 = part.on_linear(layer, site.keeper())
    return []


def put_qkv(site: BlockSite, part: Qkv, preserve: bool) -> Taken:
    """What builds on a layer of queries, keys and values, or takes its place."""
    attention = site.attention
    layer = getattr(attention, "qkv", None)
    if type(layer) is not nn.Linear:
        raise DoesNotFit(f"{type(attention).__name__} does not make queries, keys and values in one layer from one map")
    if not preserve:
        return replace_qkv(site, part)
    biases = take_biases(attention)
    attention.qkv = part.on_linear(layer, site.attention_keeper(), **biases)
    return []


def take_biases(attention: Any) -> dict[str, Any]:
    """Biases that an attention module adds to its qkv layer's weights itself, so that the layer can add them."""
    if getattr(attention, "q_bias", None) is None or attention.qkv_bias_separate:
        return {"q_bias": None, "v_bias": None}
    biases = {"q_bias": attention.q_bias, "v_bias": attention.v_bias}
    attention.q_bias = attention.k_bias = attention.v_bias = None
    return biases


def put_mixer(site: BlockSite, part: Mixer, preserve: bool) -> Taken:
    """A branch beside attention or behind it, or what takes its place."""
    branch = part.branch(site.site, LinearQkv(), site.keeper()) if preserve else part.behind(site.site, site.keeper())
    if branch is None:
        return replace_mixer(site, part)
    put_branch(site, branch)
    return []


def put_merge(site: MergeSite, part: Merge, preserve: bool) -> Taken:
    """What stands in front of a merge, or takes its place."""
    if not preserve:
        return replace_merge(site, part)
    site.merge.mover = part.in_front(site.in_dim)
    site.merge.register_forward_pre_hook(move_map if site.family.layout == "map" else move_image)
    return []


def move_image(merge: Any, inputs: Any) -> Any:
    """Hook in front of a merge that takes `[B, C, H, W]`."""
    return (merge.mover(inputs[0]), *inputs[1:])


def move_map(merge: Any, inputs: Any) -> Any:
    """Hook in front of a merge that takes `[B, H, W, C]`."""
    return (merge.mover(inputs[0].permute(0, 3, 1, 2)).permute(0, 2, 3, 1), *inputs[1:])


PUT: dict[str, Callable[[Any, Any, bool], Taken]] = {
    "ffn": put_ffn,
    "qkv": put_qkv,
    "mixer": put_mixer,
    "merge": put_merge,
}
