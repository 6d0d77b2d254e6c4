"""What joins a pretrained attention: a depth-wise convolution, gathering tokens or a gate, at nothing at the start."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn

from ..lattice import Grid, zeros_for_aux
from ..parts.attention import join_heads, split_heads
from ..parts.slots import TokenModule
from .grids import GridKeeper
from .hosts import Place
from .layers import adopt
from .zero_init import OpenSqueezeExcite

GATHERING = 8  # tokens that gather in each block, as in LightViT-T


class Near(nn.Module):
    """Takes what attention made and what it was given, in the host's layout; returns what goes on.

    Attributes:
        alone: Whether it works without what attention made, so that attention need not run.
    """

    alone = False

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        raise NotImplementedError


class Beside(Near):
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


class Squeezing(Near):
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


def join_near(attention: Any, inputs: Any, output: Tensor) -> Tensor:
    """Hook behind an attention module that has a `near`."""
    return attention.near(output, inputs[0])


class NearSwinBlock(SwinTransformerBlock):
    """Swin's block with something near on the whole map, not inside its windows."""

    near: Near

    def _attn(self, x: Tensor) -> Tensor:
        return self.near(x if self.near.alone else super()._attn(x), x)


class NearSwinV2Block(SwinTransformerV2Block):
    """The same of Swin v2."""

    near: Near

    def _attn(self, x: Tensor) -> Tensor:
        return self.near(x if self.near.alone else super()._attn(x), x)


class NoWindows(nn.Module):
    """Stands where a windowed block had its attention; another size changes nothing about it."""

    def set_window_size(self, window_size: Any) -> None:
        """Asked for by `set_input_size`."""


def put_near(place: Place, near: Near) -> None:
    """Let `near` see what the attention of a host's block is given and makes."""
    if not place.family.windowed:
        place.attention.near = near
        place.attention.register_forward_hook(join_near)
        return
    kind: type[nn.Module] = NearSwinBlock if place.family.name == "swin" else NearSwinV2Block
    block = adopt(kind, place.block, near=near)
    if near.alone:
        block.attn = NoWindows()
    place.model.set_submodule(place.name, block)
    place.block = block
