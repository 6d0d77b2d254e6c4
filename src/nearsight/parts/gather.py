"""LightViT's attention: windows for what is near, a few global tokens that gather and broadcast for what is far."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, crop, holds, lattice, pad_to_multiple, unwindow, windows
from ..ops.attention import add_from_few, suits, window_attention
from ..ops.attention_matrix import AttentionMatrix, GatherMatrix, WindowMatrix, softmax_rows, widened, window_tokens
from ..ops.fold import once_per_grid
from ..ops.relative import pairwise_bias, resize_relative_table
from .attention import bias_table, check_heads, join_heads, split_heads
from .branches import ParallelBranch
from .ranges import Heads, Side
from .slots import GridSource, Mixer, Pairs, Qkv, Resizing, Site, TokenModule, register


@register
@dataclass(frozen=True)
class GatherBroadcast(Mixer):
    """Window attention plus global tokens that gather from all patches and broadcast back (LightViT eq. 1 to 4).

    The auxiliary tokens of the stage are the global tokens; with none of them it is window attention alone.

    Attributes:
        heads: Attention heads.
        window: Side of the window.
        relative: Learned bias per relative position in the windows: in the release, not in the paper.
    """

    family: ClassVar[str] = "lightvit"
    fed_by_qkv: ClassVar[bool] = True
    carries_aux: ClassVar[bool] = True
    needs_aux: ClassVar[bool] = True

    heads: Heads = 2
    window: Side = 7
    relative: bool = True

    @property
    def label(self) -> str:
        return f"GatherBroadcast {self.window} ×{self.heads}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return GatherBroadcastModule(site, self, qkv)

    def branch(self, site: Site, qkv: Qkv, keeper: GridSource) -> ParallelBranch:
        """Tokens of its own that gather and broadcast; the host's attention stays for what is near."""
        return ParallelBranch(Gathering(site.dim, self.heads), site.dim, keeper, carries_aux=True)


class GatherBroadcastModule(TokenModule):
    """`proj([gathered ; local + broadcast])`."""

    undecayed = ("table",)

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
        asking = split_heads(queries[:, : grid.aux], self.heads)
        inside = [split_heads(self.crop(t, grid, wide), self.heads) for t in (keys, values)]
        gathered = F.scaled_dot_product_attention(asking, inside[0], inside[1])  # [B, h, T, d] eq. 2
        global_keys, global_values = self.kv_global(join_heads(gathered)).chunk(2, dim=-1)
        both = self.send(local, self.crop(queries, grid, wide), global_keys, global_values)
        return self.proj(torch.cat((join_heads(gathered), both), dim=1))

    def send(self, local: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Add to the local result `[B, N, C]` what the patches read from the global tokens (eq. 3)."""
        if self.folded and suits(local) and holds(self.heads * keys.shape[1] <= 64):
            return add_from_few(local, queries, keys, values, self.heads)
        queries, keys, values = (split_heads(t, self.heads) for t in (queries, keys, values))
        return local + join_heads(F.scaled_dot_product_attention(queries, keys, values))

    def pad(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Zero tokens to the right and at the bottom until windows fit; they enter the windows, as in the release."""
        if holds(grid.height % self.size == 0) and holds(grid.width % self.size == 0):
            return tokens, grid
        nhwc = pad_to_multiple(lattice(tokens, grid), self.size)
        padded = torch.cat((tokens[:, : grid.aux], nhwc.flatten(1, 2)), dim=1)
        return padded, Grid(nhwc.shape[1], nhwc.shape[2], grid.aux)

    def crop(self, tokens: Tensor, grid: Grid, wide: Grid) -> Tensor:
        """The patch tokens of the unpadded map."""
        if holds(wide.height == grid.height) and holds(wide.width == grid.width):
            return tokens[:, grid.aux :]
        return crop(lattice(tokens, wide), grid)

    def local(self, queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, wide: Grid) -> Tensor:
        """Attention inside each window (eq. 1): `[B, N, C]`."""
        queries, keys, values = (lattice(t, wide) for t in (queries, keys, values))
        if self.folded and suits(queries):
            nhwc = window_attention(queries, keys, values, self.bias(), size=self.size, heads=self.heads)
        else:
            q, k, v = (split_heads(windows(t, self.size), self.heads) for t in (queries, keys, values))
            mixed = join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias()))
            nhwc = unwindow(mixed, self.size, wide.height, wide.width)
        return crop(nhwc, grid)

    @once_per_grid
    def bias(self) -> Tensor | None:
        """Relative bias `[1, h, size**2, size**2]`."""
        return None if self.table is None else pairwise_bias(self.table, self.size, self.size)[None].contiguous()

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        padded, wide = self.pad(tokens, grid)
        queries, keys, values = self.qkv(padded, wide)
        bare = Grid(grid.height, grid.width)
        each = (split_heads(windows(lattice(t, wide), self.size), self.heads) for t in (queries, keys, values))
        q, k, v = (widened(t).unflatten(0, (len(tokens), -1)) for t in each)
        bias = self.bias()
        weights = softmax_rows(q, k, None if bias is None else bias[None], q.shape[-1] ** -0.5)
        positions = window_tokens(bare, self.size, (0, 0), tokens.device)
        local = WindowMatrix(weights, positions, bare, len(tokens), values=v)
        if not grid.aux:
            return local
        assert self.kv_global is not None
        inside = [widened(split_heads(self.crop(t, grid, wide), self.heads)) for t in (queries, keys, values)]
        asking = widened(split_heads(queries[:, : grid.aux], self.heads))
        gathering = softmax_rows(asking, inside[1], None, asking.shape[-1] ** -0.5)  # [B, h, T, N]
        gathered = join_heads((gathering @ inside[2]).to(tokens.dtype))
        global_keys, global_values = (split_heads(t, self.heads) for t in self.kv_global(gathered).chunk(2, dim=-1))
        return GatherMatrix(
            local, gathering, inside[0], global_keys, grid, values=inside[2], global_values=global_values
        )

    def resizing(self, old: Any) -> Resizing:
        return {"table": lambda table: resize_relative_table(table, (old.size,) * 2, (self.size,) * 2)}

    def take_over_attention(self, qkv: Any, proj: Any) -> Pairs:
        new: Any = self.qkv.proj
        pairs = [(new.weight, getattr(qkv, "weight", None)), (new.bias, getattr(qkv, "bias", None))]
        return [*pairs, (self.proj.weight, proj.weight), (self.proj.bias, proj.bias)]


GATHERING = 8  # tokens that gather beside a pretrained attention, as in LightViT-T


class Gathering(TokenModule):
    """Learned tokens that gather from all patches and broadcast back (LightViT eq. 2 and 3), of each block its own."""

    undecayed = ("asking",)

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
