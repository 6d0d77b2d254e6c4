"""LightViT's attention: windows for what is near, a few global tokens that gather and broadcast for what is far."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, lattice, pad_to_multiple, unwindow, windows
from ..ops.relative import pairwise_bias
from .attention import bias_table, check_heads, join_heads, split_heads
from .slots import Mixer, Qkv, Site, TokenModule


@dataclass(frozen=True)
class GatherBroadcast(Mixer):
    """Window attention plus global tokens that gather from all patches and broadcast back (LightViT eq. 1 to 4).

    The auxiliary tokens of the stage are the global tokens; with none of them it is window attention alone.

    Attributes:
        heads: Attention heads.
        window: Side of the window.
        relative: Learned bias per relative position in the windows: in the release, not in the paper.
    """

    fed_by_qkv: ClassVar[bool] = True
    carries_aux: ClassVar[bool] = True

    heads: int = 2
    window: int = 7
    relative: bool = True

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return GatherBroadcastModule(site, self, qkv)


class GatherBroadcastModule(TokenModule):
    """`proj([gathered ; local + broadcast])`."""

    def __init__(self, site: Site, part: GatherBroadcast, qkv: Qkv):
        super().__init__()
        self.heads = part.heads
        self.size = part.window
        self.qkv = qkv.build(site, part.heads)
        check_heads(self.qkv.width, part.heads)
        width = self.qkv.width
        self.table = bias_table((2 * self.size - 1) ** 2, part.heads) if part.relative else None
        self.kv_global = nn.Linear(width, 2 * width) if site.grid.aux else None
        self.proj = nn.Linear(width, site.dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        padded, wide = self.pad(tokens, grid)
        queries, keys, values = self.qkv(padded, wide)
        local = self.local(queries, keys, values, grid, wide)  # [B, N, C]
        if not grid.aux:
            return self.proj(local)
        if self.kv_global is None:
            raise ValueError("This GatherBroadcast was built without global tokens but was given auxiliary tokens.")
        inside = [split_heads(self.crop(t, grid, wide), self.heads) for t in (queries, keys, values)]
        asking = split_heads(queries[:, : grid.aux], self.heads)
        gathered = F.scaled_dot_product_attention(asking, inside[1], inside[2])  # [B, h, T, d] eq. 2
        global_keys, global_values = self.kv_global(join_heads(gathered)).chunk(2, dim=-1)
        sent = F.scaled_dot_product_attention(  # eq. 3
            inside[0], split_heads(global_keys, self.heads), split_heads(global_values, self.heads)
        )
        return self.proj(torch.cat((join_heads(gathered), local + join_heads(sent)), dim=1))

    def pad(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Zero tokens to the right and at the bottom until windows fit; they enter the windows, as in the release."""
        if grid.height % self.size == 0 and grid.width % self.size == 0:
            return tokens, grid
        field = pad_to_multiple(lattice(tokens, grid), self.size)
        padded = torch.cat((tokens[:, : grid.aux], field.flatten(1, 2)), dim=1)
        return padded, Grid(field.shape[1], field.shape[2], grid.aux)

    def crop(self, tokens: Tensor, grid: Grid, wide: Grid) -> Tensor:
        """The patch tokens of the unpadded map."""
        if wide == grid:
            return tokens[:, grid.aux :]
        return lattice(tokens, wide)[:, : grid.height, : grid.width].flatten(1, 2)

    def local(self, queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, wide: Grid) -> Tensor:
        """Attention inside each window (eq. 1): `[B, N, C]`."""
        q, k, v = (split_heads(windows(lattice(t, wide), self.size), self.heads) for t in (queries, keys, values))
        bias = None if self.table is None else pairwise_bias(self.table, self.size, self.size)[None]
        mixed = join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
        field = unwindow(mixed, self.size, wide.height, wide.width)
        return field[:, : grid.height, : grid.width].flatten(1, 2)
