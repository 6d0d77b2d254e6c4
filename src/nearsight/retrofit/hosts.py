"""How a part inside a model of timm learns the grid: it is noted where it is known, and read where it is needed.

timm's blocks pass tokens without their grid. A `GridKeeper` is a module without weights, shared by the module that
knows the grid and by the parts that ask for it, so that copies and replicas of the model have keepers of their own. The
hooks are plain functions that find the keeper in the module they are called for; nothing of timm is changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.models import cait, eva, pvt_v2, swin_transformer, swin_transformer_v2, tnt, twins, volo, xcit
from timm.models import vision_transformer as vit
from torch import Tensor, nn

from ..lattice import Grid
from ..parts.slots import Site

MARK = "_nearsight_grid"  # on the tokens that enter a block, see `restore_grid`


def grid_of_image(embed: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """Patches in an image `[B, C, H, W]`, as the embedding counts them."""
    height, width = inputs[0].shape[-2:]
    if hasattr(embed, "dynamic_feat_size"):
        return embed.dynamic_feat_size((height, width))
    return height // embed.patch_size[0], width // embed.patch_size[1]


def grid_of_window(attention: Any, inputs: Sequence[Any]) -> Sequence[int]:
    """The window that attention works in at present."""
    window = attention.ws if hasattr(attention, "ws") else attention.window_size
    return (window, window) if isinstance(window, int) else window


SOURCES: dict[str, Callable[[Any, Sequence[Any]], Sequence[int]]] = {
    "image": grid_of_image,
    "map": lambda block, inputs: inputs[0].shape[1:3],  # of [B, H, W, C]
    "size": lambda block, inputs: inputs[1],  # a pair behind the tokens
    "sides": lambda block, inputs: inputs[1:3],  # two numbers behind the tokens
    "window": grid_of_window,
    "grid": lambda module, inputs: inputs[1],  # what a module of ours is given, with its auxiliary tokens
}


class GridKeeper(nn.Module):
    """Keeps the grid of the tokens that are on their way through a model.

    Args:
        source: Where the grid is read: a key of `SOURCES`.
        aux: Prefix tokens (class, distillation, registers) in front of the patches.

    Example:
        >>> keeper = GridKeeper("map")
        >>> keeper.note(None, [torch.zeros(1, 4, 6, 8)])
        >>> keeper.tokens(torch.zeros(1, 4, 6, 8))[1]
        Grid(height=4, width=6, aux=0)
    """

    def __init__(self, source: str, aux: int = 0):
        super().__init__()
        self.source = source
        self.aux = aux
        self.grid: Grid | None = None

    def note(self, module: Any, inputs: Sequence[Any]) -> None:
        """Read the grid off what a module is given."""
        found = SOURCES[self.source](module, inputs)
        self.grid = found if isinstance(found, Grid) else Grid(found[0], found[1], self.aux)

    def tokens(self, given: Tensor) -> tuple[Tensor, Grid]:
        """Tokens, a map `[B, H, W, C]` or windows `[..., h, w, C]` as tokens `[B, N, C]`, with their grid."""
        if self.grid is None:
            raise ValueError("This part was called before the model that it belongs to; call the whole model.")
        return given.reshape(-1, self.grid.tokens, given.shape[-1]), self.grid

    def __getstate__(self) -> dict[str, Any]:
        # A copy keeps no grid: one noted while a graph was recorded would hold symbols that can't be copied.
        return self.__dict__ | {"grid": None}

    def extra_repr(self) -> str:
        """What stands in the printed model."""
        return f"source={self.source!r}, aux={self.aux}"


def note_grid(module: Any, inputs: Sequence[Any]) -> None:
    """Hook in front of the module that knows the grid."""
    module.grid_keeper.note(module, inputs)


def restore_grid(block: Any, inputs: Sequence[Any]) -> None:
    """Hook in front of a block that does not know the grid: what it had when it first saw these very tokens.

    Gradient checkpointing runs a block again in the backward pass, when images of another size may have come by since.
    """
    if torch.compiler.is_compiling():
        return
    keeper, tokens = block.grid_keeper, inputs[0]
    if hasattr(tokens, MARK):
        keeper.grid = getattr(tokens, MARK)
    else:
        setattr(tokens, MARK, keeper.grid)


def watch(module: nn.Module, keeper: GridKeeper, hook: Callable[[Any, Sequence[Any]], None]) -> None:
    """Let a hook run in front of a module, once."""
    if not hasattr(module, "grid_keeper"):
        module.grid_keeper = keeper
        module.register_forward_pre_hook(hook)


@dataclass(frozen=True)
class Family:
    """What blocks of a family have in common.

    Attributes:
        name: The family's name.
        blocks: Types of its blocks.
        source: Where a block's grid is known, a key of `SOURCES`; `image` for those that learn it from the image.
        root: Type of the model that has the embedding, where `source` is `image`.
        embed: Name of the embedding.
        prefixed: Whether prefix tokens go through its blocks.
        attention: Name of the attention in a block.
        feed: Name of the feed-forward part.
        norms: Names of the norms in front of (or behind) attention and feed-forward part.
        drop: Name of the feed-forward part's own drop path; None where attention shares it.
        windowed: Whether a block cuts its map into windows before it calls the attention.
        replaced: Types of attention that are local in the host, which another mixer takes the place of; none: all.
        merges: Types of the modules between stages.
        layout: What these take and return.
    """

    name: str
    blocks: tuple[type[nn.Module], ...]
    source: str
    root: type[nn.Module] | None = None
    embed: str = "patch_embed"
    prefixed: bool = False
    attention: str = "attn"
    feed: str = "mlp"
    norms: tuple[str, str] = ("norm1", "norm2")
    drop: str | None = "drop_path2"
    windowed: bool = False
    replaced: tuple[type[nn.Module], ...] = ()
    merges: tuple[type[nn.Module], ...] = ()
    layout: str = ""


FAMILIES = (
    Family("vit", (vit.Block, vit.ResPostBlock), "image", vit.VisionTransformer, prefixed=True),
    Family("eva", (eva.EvaBlock, eva.EvaBlockPostNorm), "image", eva.Eva, prefixed=True),
    Family("cait", (cait.LayerScaleBlock,), "image", cait.Cait, drop=None),
    Family(
        "tnt",
        (tnt.Block,),
        "image",
        tnt.TNT,
        embed="pixel_embed",
        prefixed=True,
        attention="attn_out",
        norms=("norm_out", "norm_mlp"),
        drop=None,
    ),
    Family("xcit", (xcit.XCABlock,), "sides"),
    Family(
        "swin",
        (swin_transformer.SwinTransformerBlock,),
        "map",
        windowed=True,
        merges=(swin_transformer.PatchMerging,),
        layout="map",
    ),
    Family(
        "swinv2",
        (swin_transformer_v2.SwinTransformerV2Block,),
        "map",
        windowed=True,
        merges=(swin_transformer_v2.PatchMerging,),
        layout="map",
    ),
    Family("pvt_v2", (pvt_v2.Block,), "size", merges=(pvt_v2.OverlapPatchEmbed,), layout="image to map"),
    Family(
        "twins",
        (twins.Block,),
        "size",
        replaced=(twins.LocallyGroupedAttn,),
        merges=(twins.PatchEmbed,),
        layout="image to tokens",
    ),
    Family(
        "volo",
        (volo.Outlooker, volo.Transformer),
        "map",
        replaced=(volo.OutlookAttention,),
        merges=(volo.Downsample,),
        layout="map",
    ),
)


@dataclass
class BlockSite:
    """A block of a host.

    Attributes:
        family: Its family.
        name: Its name in the model.
        number: Which layer it is, counted from 1.
        block: The block.
        model: The model.
        root: The module with the embedding, for families that learn their grid from the image.
        depth: Layers of the model.
    """

    family: Family
    name: str
    number: int
    block: Any
    model: nn.Module
    root: Any
    depth: int

    @property
    def attention(self) -> Any:
        """Its attention."""
        return getattr(self.block, self.family.attention)

    @property
    def feed(self) -> Any:
        """Its feed-forward part."""
        return getattr(self.block, self.family.feed)

    @property
    def output(self) -> nn.Linear:
        """The last layer of the feed-forward part; refused if there is none."""
        layer = getattr(self.feed, "fc2", None)
        if type(layer) is not nn.Linear:
            raise DoesNotFit(f"{type(self.feed).__name__} has no linear layer fc2 to build on")
        return layer

    @property
    def dim(self) -> int:
        """Width of its tokens."""
        return getattr(self.block, self.family.norms[0]).normalized_shape[0]

    @property
    def aux(self) -> int:
        """Prefix tokens."""
        return self.root.num_prefix_tokens if self.family.prefixed else 0

    @property
    def reads_prefix(self) -> bool:
        """Whether the head reads prefix tokens alone."""
        return self.family.prefixed and getattr(self.root, "global_pool", "") == "token"

    @property
    def site(self) -> Site:
        """Where a part is built."""
        size = getattr(getattr(self.root, self.family.embed, None), "grid_size", None) or (14, 14)
        return Site(self.dim, Grid(size[0], size[1], self.aux))

    # What a part's name takes over from the host, as `names.Context` does for models of ours.

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.attention.num_heads

    @property
    def window(self) -> int:
        """Side of its windows, or 7."""
        held = getattr(self.attention, "ws", None) or getattr(self.attention, "window_size", None) or 7
        return held if isinstance(held, int) else held[0]

    @property
    def stage(self) -> "BlockSite":
        """What names look up the width in."""
        return self

    @property
    def ratio(self) -> float:
        """Hidden width of the feed-forward part as a multiple of the tokens'."""
        return self.output.in_features / self.dim

    def keeper(self) -> GridKeeper:
        """The keeper of its grid, watched from now on."""
        if self.family.source != "image":
            watch(self.block, GridKeeper(self.family.source), note_grid)
            return self.block.grid_keeper
        embed = getattr(self.root, self.family.embed)
        watch(embed, GridKeeper("image", self.aux), note_grid)
        watch(self.block, embed.grid_keeper, restore_grid)
        return embed.grid_keeper

    def attention_keeper(self) -> GridKeeper:
        """The keeper of the grid that the attention's own layers see: a window, where there are windows."""
        attention = self.attention
        if not (self.family.windowed or hasattr(attention, "ws")):
            return self.keeper()
        watch(attention, GridKeeper("window"), note_grid)
        return attention.grid_keeper


class DoesNotFit(Exception):
    """A layer that has no place for a part, and what is missing."""


@dataclass(frozen=True)
class MergeSite:
    """A module between two stages of a host, and the number of the layer behind it."""

    family: Family
    model: nn.Module
    name: str
    merge: Any
    number: int
    depth: int
    reads_prefix = False

    @property
    def in_dim(self) -> int:
        """Channels that it takes."""
        return self.merge.dim if hasattr(self.merge, "reduction") else self.merge.proj.in_channels

    @property
    def out_dim(self) -> int:
        """Channels that it makes."""
        return self.merge.out_dim if hasattr(self.merge, "reduction") else self.merge.proj.out_channels


def find_sites(model: nn.Module) -> list[BlockSite]:
    """The blocks of a model of timm, in their order; a model of another family is refused."""
    modules = dict(model.named_modules())
    for family in FAMILIES:
        blocks = [(name, module) for name, module in modules.items() if isinstance(module, family.blocks)]
        if not blocks:
            continue
        roots = [module for module in modules.values() if family.root and isinstance(module, family.root)]
        if family.root and len(roots) != 1:
            raise ValueError(f"The model holds {len(roots)} {family.root.__name__}s around its blocks; give one alone.")
        root = roots[0] if roots else None
        check_root(root)
        depth = len(blocks)
        return [BlockSite(family, name, n, block, model, root, depth) for n, (name, block) in enumerate(blocks, 1)]
    names = ", ".join(family.name for family in FAMILIES)
    raise ValueError(
        f"{type(model).__name__} has no blocks that a local part fits into; localize() knows models of Nearsight and "
        f"timm's families {names}."
    )


def check_root(root: Any) -> None:
    """Refuse a model whose tokens do not fill a grid while it is trained."""
    drop = getattr(root, "patch_drop", None)
    if drop is not None and getattr(drop, "prob", 0.0) > 0:
        raise ValueError(
            "The model drops patches in training (patch_drop_rate), which leaves no grid to look around in; build it "
            "with patch_drop_rate=0."
        )


def find_merges(sites: list[BlockSite]) -> list[MergeSite]:
    """The modules between stages of a host, each with the number of the layer behind it."""
    model, family = sites[0].model, sites[0].family
    numbers = {site.name: site.number for site in sites}
    found: list[MergeSite] = []
    waiting: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        if isinstance(module, family.merges):
            waiting.append((name, module))
        elif name in numbers and waiting:
            behind = [numbers[name]]
            if len(waiting) > 1:  # Twins has all its merges in front of its blocks
                behind = [site.number for site in sites if site.name.endswith(".0")]
            found += [MergeSite(family, model, *pair, n, len(sites)) for pair, n in zip(waiting, behind, strict=True)]
            waiting = []
    return [site for site in found if site.number > 1]  # in front of the first layer stands the embedding
