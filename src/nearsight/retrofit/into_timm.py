"""Local parts put into a model of timm: as parallel branches that start at nothing, or as replacements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import swin_transformer, swin_transformer_v2
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn

from ..lattice import Grid, sequence, zeros_for_aux
from ..models.names import PARTS
from ..models.options import SLOT_TYPES, choose
from ..parts import BiGate, DeformableMerge, DepthWise, GatherBroadcast, Life, LinearQkv, LocalityFfn, Squeezed
from ..parts.attention import join_heads, split_heads
from ..parts.feedforward import GatedMlpModule, LocalityFfnModule, MlpModule
from ..parts.gates import SqueezeExcite
from ..parts.slots import Site, TokenModule
from .cells import CellMover, move_map, move_picture
from .hosts import GridKeeper, MergePlace, NoPlace, Place, find_merges, find_places
from .layers import adopt, gated_linear, life_linear, local_linear
from .options import Choice
from .zero_init import OpenSqueezeExcite

GATHERING = 8  # tokens that gather in each block, as in LightViT-T


class Branch(nn.Module):
    """Takes what attention made and what it was given, in the host's layout; returns what goes on.

    Attributes:
        alone: Whether it works without what attention made, so that attention need not run.
    """

    alone = False

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        raise NotImplementedError


class ParallelBranch(Branch):
    """`attention(x) + fade * part(x)`, with a fade of zeros at the start."""

    def __init__(self, part: TokenModule, dim: int, keeper: GridKeeper, carries_aux: bool):
        super().__init__()
        self.part = part
        self.keeper = keeper
        self.carries_aux = carries_aux
        self.fade = nn.Parameter(torch.zeros(dim))

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(entering)
        if self.carries_aux:
            local = self.part(tokens, grid)
        else:
            local = zeros_for_aux(self.part(tokens[:, grid.aux :], Grid(grid.height, grid.width)), grid)
        return mixed + (self.fade * local).reshape(mixed.shape)


class Gathering(TokenModule):
    """Learned tokens that gather from all patches and broadcast back (LightViT eq. 2 and 3), of each block its own."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.asking = nn.Parameter(torch.randn(1, GATHERING, dim) * 0.02)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.kv_global = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        queries, keys, values = self.qkv(tokens).chunk(3, dim=-1)
        asking = self.asking.expand(tokens.shape[0], -1, -1)
        gathered = self.attend(asking, keys[:, grid.aux :], values[:, grid.aux :])  # [B, T, C]
        return self.proj(self.attend(queries, *self.kv_global(gathered).chunk(2, dim=-1)))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention, `[B, N, C]` each."""
        queries, keys, values = (split_heads(t, self.heads) for t in (queries, keys, values))
        return join_heads(F.scaled_dot_product_attention(queries, keys, values))


class Squeezing(Branch):
    """`gate(attention(x))`: squeeze-and-excitation over all patches, with gates of 1 at the start."""

    def __init__(self, gate: nn.Module, keeper: GridKeeper):
        super().__init__()
        self.gate = gate
        self.keeper = keeper

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        tokens, _ = self.keeper.tokens(mixed)
        return self.gate(tokens).reshape(mixed.shape)


def open_squeezing(dim: int, reduction: int, keeper: GridKeeper) -> Squeezing:
    """Squeeze-and-excitation in its preserving form."""
    return Squeezing(OpenSqueezeExcite(dim, dim // reduction), keeper)


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


def put_branch(place: Place, near: Branch) -> None:
    """Let `near` see what the attention of a host's block is given and makes."""
    if not place.family.windowed:
        place.attention.near = near
        place.attention.register_forward_hook(join_branch)
        return
    kind: type[nn.Module] = BranchedSwinBlock if place.family.name == "swin" else BranchedSwinV2Block
    block = adopt(kind, place.block, near=near)
    if near.alone:
        block.attn = NoWindows()
    place.model.set_submodule(place.name, block)
    place.block = block


Taken = list[nn.Parameter]  # of the parts, filled with pretrained numbers


class OnTokens(nn.Module):
    """A part in a host: takes what the host's module took, and finds the grid itself."""

    def __init__(self, part: TokenModule, keeper: GridKeeper):
        super().__init__()
        self.part = part
        self.keeper = keeper

    def forward(self, field: Tensor, *size: Any, **others: Any) -> Tensor:
        tokens, grid = self.keeper.tokens(field)
        return self.part(tokens, grid).reshape(field.shape)


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


def replace_ffn(place: Place, part: Any) -> Taken:
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


def replace_qkv(place: Place, part: Life) -> Taken:
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


def replace_mixer(place: Place, part: Any) -> Taken:
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
        put_branch(place, Replacement(built, place.keeper()))
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


def replace_merge(place: MergePlace, part: DeformableMerge) -> Taken:
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


Layers = dict[str, tuple[int, ...]]
Placed = Mapping[str, Sequence[int]] | None

# Names that localize() takes, of those that create_model() does.
NAMES = {
    "ffn": ("localvit", "bigate"),
    "qkv": ("life",),
    "mixer": ("depthwise", "dynamic_depthwise", "inhomogeneous_depthwise", "gather_broadcast", "squeezed"),
    "merge": ("deformable",),
}
KINDS: dict[str, tuple[type, ...]] = {
    "ffn": (LocalityFfn, BiGate),
    "qkv": (Life,),
    "mixer": (DepthWise, GatherBroadcast, Squeezed),
    "merge": (DeformableMerge,),
}


def put_into_timm(model: nn.Module, choice: Choice, placed: Placed) -> tuple[Layers, Taken]:
    """Put the chosen parts into a model of timm.

    Args:
        model: The model.
        choice: Which parts.
        placed: Layers that got each part before, of a model that is built again; None follows the choice.

    Returns:
        The layers that got each part, and the parameters that took over pretrained numbers.
    """
    places = find_places(model)
    layers: Layers = {}
    taken: Taken = []
    for slot, given in choice.parts().items():
        sites: list[Any] = find_merges(places) if slot == "merge" else places
        layers[slot], more = fill_slot(type(model).__name__, slot, given, sites, choice, placed, PUT[slot])
        taken += more
    return layers, taken


def fill_slot(
    kind: str,
    slot: str,
    given: Any,
    sites: Sequence[Any],
    choice: Choice,
    placed: Placed,
    put: Callable[[Any, Any, bool], Taken],
) -> tuple[tuple[int, ...], Taken]:
    """Put a part into the chosen layers that have a place for it; refused if none has, or one of those numbered."""
    if not sites:
        raise ValueError(f"{kind} has no place for {slot}={given!r}: it has one stage, so nothing merges in it.")
    numbers = choice.numbers(sites[0].depth) if placed is None else placed[slot]
    done: list[int] = []
    taken: Taken = []
    missing = ""
    for site in sites:
        if site.number not in numbers:
            continue
        try:
            part = choose_part(slot, given, site, choice.preserve)
            if placed is None and choice.preserve:
                check_use(site, part)
            taken += put(site, part, choice.preserve)
            done.append(site.number)
        except NoPlace as reason:
            missing = missing or f"{reason} (layer {site.number})"
    named = slot != "merge" and not isinstance(choice.layers, str)
    if not done or (missing and named):
        raise ValueError(f"{kind} has no place for {slot}={given!r}: {missing or 'none in the chosen layers'}.")
    return tuple(done), taken


def check_use(site: Any, part: Any) -> None:
    """Refuse what could never learn: a part for patches behind which the head reads prefix tokens alone."""
    if site.number == site.depth and site.reads_prefix and isinstance(part, (LocalityFfn, DepthWise)):
        raise NoPlace("behind the last layer the head reads the class token, and nothing would come of its patches")


def choose_part(slot: str, given: Any, site: Any, preserve: bool) -> Any:
    """The part that a name stands for in a block, or the part itself; a part that has no form here is refused."""
    if isinstance(given, tuple):
        raise ValueError(f"{slot} was given {len(given)} parts, but a model of timm takes one for all of its layers.")
    if slot == "mixer" and given == "squeezed":
        return Squeezed()
    named = {name: PARTS[slot][name] for name in NAMES[slot]}
    part = choose(slot, given, named, SLOT_TYPES[slot], site)
    if not isinstance(part, KINDS[slot]) and (preserve or slot != "mixer"):  # any mixer can replace attention
        kinds = ", ".join(kind.__name__ for kind in KINDS[slot])
        raise ValueError(f"{type(part).__name__} is no part that localize() can put into a model; it knows {kinds}.")
    return part


def put_ffn(place: Place, part: Any, preserve: bool) -> Taken:
    """LocalViT's or LightViT's feed-forward part."""
    layer = place.output
    if not preserve:
        return replace_ffn(place, part)
    make: Any = local_linear if isinstance(part, LocalityFfn) else gated_linear
    place.feed.fc2 = make(layer, part, place.keeper())
    return []


def put_qkv(place: Place, part: Life, preserve: bool) -> Taken:
    """LIFE."""
    attention = place.attention
    layer = getattr(attention, "qkv", None)
    if type(layer) is not nn.Linear:
        raise NoPlace(f"{type(attention).__name__} does not make queries, keys and values in one layer from one map")
    if not preserve:
        return replace_qkv(place, part)
    biases = take_biases(attention)
    attention.qkv = life_linear(layer, part, place.attention_keeper(), **biases)
    return []


def take_biases(attention: Any) -> dict[str, Any]:
    """Biases that an attention module adds to its qkv layer's weights itself, so that the layer can add them."""
    if getattr(attention, "q_bias", None) is None or attention.qkv_bias_separate:
        return {"q_bias": None, "v_bias": None}
    biases = {"q_bias": attention.q_bias, "v_bias": attention.v_bias}
    attention.q_bias = attention.k_bias = attention.v_bias = None
    return biases


def put_mixer(place: Place, part: Any, preserve: bool) -> Taken:
    """A depth-wise convolution, gathering tokens or a gate, beside or in place of attention."""
    if preserve:
        put_branch(place, beside(place, part))
        return []
    if isinstance(part, Squeezed):
        put_branch(place, Squeezing(SqueezeExcite(place.dim, place.dim // part.se_reduction), place.keeper()))
        return []
    return replace_mixer(place, part)


def beside(place: Place, part: Any) -> Branch:
    """The preserving form of a mixer."""
    if isinstance(part, Squeezed):
        return open_squeezing(place.dim, part.se_reduction, place.keeper())
    if isinstance(part, GatherBroadcast):
        return ParallelBranch(Gathering(place.dim, part.heads), place.dim, place.keeper(), carries_aux=True)
    return ParallelBranch(part.build(place.site, LinearQkv()), place.dim, place.keeper(), carries_aux=False)


def put_merge(place: MergePlace, part: DeformableMerge, preserve: bool) -> Taken:
    """LIT's deformable merging."""
    if not preserve:
        return replace_merge(place, part)
    picture = place.family.layout != "map"
    place.merge.mover = CellMover(place.in_dim)
    place.merge.register_forward_pre_hook(move_picture if picture else move_map)
    return []


PUT: dict[str, Callable[[Any, Any, bool], Taken]] = {
    "ffn": put_ffn,
    "qkv": put_qkv,
    "mixer": put_mixer,
    "merge": put_merge,
}
