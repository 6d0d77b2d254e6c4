"""The papers' parts in the place of a host's own, with pretrained tensors taken over where shapes allow."""

from typing import Any

import torch
from timm.models import swin_transformer, swin_transformer_v2
from torch import Tensor, nn

from ..lattice import Grid, sequence
from ..parts import BiGate, DeformableMerge, GatherBroadcast, Life, LinearQkv, LocalityFfn
from ..parts.feedforward import GatedMlpModule, LocalityFfnModule, MlpModule
from ..parts.slots import Site, TokenModule
from .grids import GridKeeper
from .hosts import MergePlace, NoPlace, Place
from .parallel import Near, put_near

Taken = list[nn.Parameter]


class OnTokens(nn.Module):
    """A part in a host: takes what the host's module took, and finds the grid itself."""

    def __init__(self, part: TokenModule, keeper: GridKeeper):
        super().__init__()
        self.part = part
        self.keeper = keeper

    def forward(self, field: Tensor, *size: Any, **others: Any) -> Tensor:
        tokens, grid = self.keeper.tokens(field)
        return self.part(tokens, grid).reshape(field.shape)


class Alone(Near):
    """A mixer in the place of window attention, on the whole map."""

    alone = True

    def __init__(self, part: TokenModule, keeper: GridKeeper):
        super().__init__()
        self.part = part
        self.keeper = keeper

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(entering)
        return self.part(tokens, grid).reshape(entering.shape)


class LifeInHost(nn.Module):
    """LIFE where a host has its qkv layer: queries, keys and values side by side."""

    def __init__(self, life: nn.Module, keeper: GridKeeper):
        super().__init__()
        self.life = life
        self.keeper = keeper

    def forward(self, field: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(field)
        return torch.cat(self.life(tokens, grid), dim=-1).reshape(*field.shape[:-1], -1)


@torch.no_grad()
def fill(pairs: list[tuple[Any, Tensor | None]]) -> Taken:
    """Copy pretrained numbers into new parameters, where there are both and their shapes agree."""
    taken = []
    for new, old in pairs:
        if new is not None and old is not None and new.shape == old.shape:
            new.copy_(old)
            taken.append(new)
    return taken


def exact_feed(place: Place, part: Any) -> Taken:
    """LocalViT's or LightViT's feed-forward part; its point-wise layers take over the MLP's."""
    fc1, fc2 = getattr(place.feed, "fc1", None), place.output
    built = part.build(place.site)
    setattr(place.block, place.family.feed, OnTokens(built, place.keeper()))
    if not part.normed:
        setattr(place.block, place.family.norms[1], nn.Identity())
    if not part.drops and place.family.drop:
        setattr(place.block, place.family.drop, nn.Identity())
    first = getattr(fc1, "weight", None)
    if isinstance(built, LocalityFfnModule):
        return fill([(built.expand.weight, first), (built.project.weight, fc2.weight)])
    mlp: Any = built.mlp if isinstance(built, GatedMlpModule) else built
    assert isinstance(mlp, MlpModule) and isinstance(part, (BiGate, LocalityFfn))
    biases = [(mlp.fc1.bias, getattr(fc1, "bias", None)), (mlp.fc2.bias, fc2.bias)]
    return fill([(mlp.fc1.weight, first), (mlp.fc2.weight, fc2.weight), *biases])


def exact_qkv(place: Place, part: Life) -> Taken:
    """LIFE; its first scale takes over the first n channels of the pretrained Q, K and V."""
    attention, old = place.attention, place.attention.qkv
    width, heads = old.out_features // 3, place.heads
    life: Any = part.build(place.site, heads)
    if life.width != width:
        raise ValueError(
            f"LIFE's {len(part.kernels)} scales give queries {life.width} wide, but the host takes {width}: "
            "give a scale_width that fits, or preserve=True."
        )
    share = width // len(part.kernels)
    first = life.scales[0].point
    weight = old.weight.unflatten(0, (3, width))[:, :share].flatten(0, 1)
    bias = pretrained_bias(attention, old)
    attention.qkv = LifeInHost(life, place.attention_keeper())
    if getattr(attention, "q_bias", None) is not None:
        attention.q_bias = attention.k_bias = attention.v_bias = None
    return fill(
        [(first.weight, weight), (first.bias, None if bias is None else bias.view(3, width)[:, :share].flatten())]
    )


def pretrained_bias(attention: Any, layer: nn.Linear) -> Tensor | None:
    """The bias of queries, keys and values, wherever the host keeps it."""
    if getattr(attention, "q_bias", None) is None:
        return layer.bias
    return torch.cat((attention.q_bias, torch.zeros_like(attention.q_bias), attention.v_bias))


def exact_mixer(place: Place, part: Any) -> Taken:
    """A mixer in the place of attention: of all of it, or of the local attention where a host has two kinds."""
    attention, aux = place.attention, place.aux
    if place.family.replaced and not isinstance(attention, place.family.replaced):
        raise NoPlace(f"{type(attention).__name__} is not the host's local attention, which the mixer would replace")
    if aux and not part.carries_aux:
        raise NoPlace(
            f"{type(part).__name__} alone has no place for the {aux} prefix token(s) of this model; preserve=True puts "
            "it beside the attention"
        )
    if isinstance(part, GatherBroadcast) and not aux:
        raise NoPlace("without prefix tokens nothing gathers; preserve=True brings tokens of its own")
    built = part.build(place.site, LinearQkv(bias=has_bias(attention)))
    if place.family.windowed:
        put_near(place, Alone(built, place.keeper()))
    else:
        setattr(place.block, place.family.attention, OnTokens(built, place.keeper()))
    if not part.normed:
        setattr(place.block, place.family.norms[0], nn.Identity())
    if not isinstance(part, GatherBroadcast):
        return []
    old, new = getattr(attention, "qkv", None), built.qkv.proj
    pairs = [(new.weight, getattr(old, "weight", None)), (new.bias, getattr(old, "bias", None))]
    return fill([*pairs, (built.proj.weight, attention.proj.weight), (built.proj.bias, attention.proj.bias)])


def has_bias(attention: Any) -> bool:
    """Whether a host's queries, keys and values have a bias in their layer."""
    return getattr(getattr(attention, "qkv", None), "bias", None) is not None


# Merging


class MergeInHost:
    """Deformable merging in the layout of a host; mixed into what stands in the place of its merge."""

    part: nn.Module
    layout: str

    def forward(self, field: Tensor) -> Any:
        """`[B, H, W, C]` to half the sides, or `[B, C, H, W]` to a map or to tokens with their size."""
        tokens = field.flatten(1, 2) if self.layout == "map" else sequence(field)
        sides = field.shape[1:3] if self.layout == "map" else field.shape[2:]
        merged, grid = self.part(tokens, Grid(*sides))
        size = (grid.height, grid.width)
        return (merged, size) if self.layout == "picture to tokens" else merged.unflatten(1, size)


class SwinMergeInHost(MergeInHost, swin_transformer.PatchMerging):
    """Of Swin."""


class SwinV2MergeInHost(MergeInHost, swin_transformer_v2.PatchMerging):
    """Of Swin v2, which asks for its own kind."""


class OtherMergeInHost(MergeInHost, nn.Module):
    """Of any other host."""


def exact_merge(place: MergePlace, part: DeformableMerge) -> Taken:
    """LIT's deformable merging; its convolution takes over a merge of 2x2 cells."""
    old = place.merge
    built: Any = part.build(Site(place.out_dim, Grid(7, 7)), place.in_dim)
    kind: Any = {"swin": SwinMergeInHost, "swinv2": SwinV2MergeInHost}.get(place.family.name, OtherMergeInHost)
    new = kind.__new__(kind)
    nn.Module.__init__(new)
    new.part, new.layout = built, place.family.layout
    place.model.set_submodule(place.name, new)
    if hasattr(old, "reduction"):
        return fill([(built.conv.weight, merge_weight(old.reduction.weight))])
    if old.proj.weight.shape != built.conv.weight.shape:
        return []  # PVT v2 merges 3x3 cells
    return fill([(built.conv.weight, old.proj.weight), (built.conv.bias, old.proj.bias)])


def merge_weight(linear: Tensor) -> Tensor:
    """A layer on concatenated cells, in the order (0,0), (1,0), (0,1), (1,1), as a convolution `[D, C, 2, 2]`."""
    return linear.unflatten(1, (2, 2, -1)).permute(0, 3, 2, 1)
