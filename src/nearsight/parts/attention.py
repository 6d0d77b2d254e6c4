"""Attention as a mixer: global, in (shifted) windows, and with spatially reduced keys.

`Global` and `Window` have locality self-attention (LSA; Lee, Lee, Song, 2021), sharper attention for small data, as two
options: a learned temperature for each head, and a token that does not attend to itself.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import (
    Grid,
    crop,
    holds,
    lattice,
    pad_to_multiple,
    roll,
    sequence,
    times_to_cover,
    unwindow,
    window_shift,
    windows,
    with_aux,
)
from ..ops.attention import SHORT, short_attention, suits, window_attention
from ..ops.attention_matrix import (
    AttentionMatrix,
    GlobalMatrix,
    ReducedMatrix,
    WindowMatrix,
    cells_of_keys,
    softmax_rows,
    widened,
    window_tokens,
)
from ..ops.chunks import by_images
from ..ops.fold import once_per_grid
from ..ops.relative import log_spaced_offsets, pairwise_bias, resize_relative_table, shift_mask
from .ranges import Heads, Side
from .slots import Mixer, Qkv, Resizing, Site, TokenModule, identity_rows, register

SELF = -1e4  # exp of it is 0 beside any other token, and a token that is alone keeps itself; float16 holds it


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """`[B, N, h*d]` to `[B, h, N, d]`, a view."""
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(tokens: Tensor) -> Tensor:
    """`[B, h, N, d]` to `[B, N, h*d]`."""
    return tokens.transpose(1, 2).flatten(2)


def check_heads(width: int, heads: int) -> None:
    """Refuse a number of heads that does not divide the width of queries, keys and values."""
    if heads < 1 or width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}; choose heads that do.")


def bias_table(offsets: int, heads: int) -> nn.Parameter:
    """A learned bias `[offsets, heads]` per relative position."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(offsets, heads), std=0.02))


@register
@dataclass(frozen=True)
class Global(Mixer):
    """Every token attends to every token.

    Attributes:
        heads: Attention heads.
        relative: Learned bias per relative position over the whole map (LIT-S, M, B).
        temperature: A learned temperature for each head in place of `sqrt(d)`, where it starts (LSA).
        mask_self: A token does not attend to itself (LSA).
    """

    fed_by_qkv: ClassVar[bool] = True
    carries_aux: ClassVar[bool] = True

    heads: Heads = 3
    relative: bool = False
    temperature: bool = False
    mask_self: bool = False

    @property
    def label(self) -> str:
        return f"{'LSA' if self.temperature and self.mask_self else 'Global'} ×{self.heads}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return GlobalModule(site, self, qkv)


class GlobalModule(TokenModule):
    """`proj(softmax(q k / sqrt(d) + bias) v)`."""

    undecayed = ("table", "temperature")

    def __init__(self, site: Site, part: Global, qkv: Qkv):
        super().__init__()
        self.heads = part.heads
        self.qkv = qkv.build(site, part.heads)
        check_heads(self.qkv.width, part.heads)
        self.map_size = (site.grid.height, site.grid.width)
        offsets = (2 * self.map_size[0] - 1) * (2 * self.map_size[1] - 1)
        self.table = bias_table(offsets, part.heads) if part.relative else None
        self.temperature = Temperature(part.heads, self.qkv.width) if part.temperature else None
        self.mask_self = part.mask_self
        self.is_biased = part.relative or part.mask_self
        self.proj = nn.Linear(self.qkv.width, site.dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        bias = self.bias(grid) if self.is_biased else None  # looking up that there is none would cost time
        if self.folded and suits(tokens) and grid.tokens <= SHORT:
            return self.proj(short_attention(*self.asked(tokens, grid), bias, self.heads))
        if self.temperature is None:
            queries, keys, values = self.qkv.by_heads(tokens, grid, self.heads)
        else:
            queries, keys, values = (split_heads(t, self.heads) for t in self.asked(tokens, grid))
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        return self.proj(join_heads(mixed))

    def asked(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[B, N, h*d]`, with the learned temperature in the queries."""
        queries, keys, values = self.qkv(tokens, grid)
        return (queries if self.temperature is None else self.temperature(queries)), keys, values

    @once_per_grid
    def bias(self, grid: Grid) -> Tensor | None:
        """What is added to the logits on this grid, `[1, h, N, N]`: relative bias (zero for auxiliary tokens), mask."""
        bias: Tensor | None = None
        if self.table is not None:
            size = (grid.height, grid.width)
            bias = pairwise_bias(resize_relative_table(self.table, self.map_size, size), *size)[None].contiguous()
            bias = F.pad(bias, (grid.aux, 0, grid.aux, 0)) if grid.aux else bias
        return without_self(bias, grid.tokens, self.heads, self.proj.weight) if self.mask_self else bias

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        queries, keys, values = (split_heads(t, self.heads) for t in self.asked(tokens, grid))
        return GlobalMatrix(queries, keys, self.bias(grid), grid, values=values)

    def resizing(self, old: Any) -> Resizing:
        return {"table": lambda table: resize_relative_table(table, old.map_size, self.map_size)}


@register
@dataclass(frozen=True)
class Window(Mixer):
    """Tokens attend inside windows, every other block inside shifted ones (Swin, Swin v2).

    The qkv part runs inside each window, so that LIFE sees zeros at a window's border as in its release. A map that
    the window does not divide is padded with zeros at the bottom and on the right.

    Attributes:
        heads: Attention heads.
        window: Side of the window; a model made for smaller maps has windows as large as the map.
        shifted: Move the windows by half their side.
        cosine: Swin v2: cosine similarity with a learned temperature, and a bias from a small network over offsets.
        relative: Learned bias per relative position (without `cosine`).
        trained_window: Side of the windows in an earlier training; `cosine` scales offsets as there. None: as here.
        temperature: A learned temperature for each head in place of `sqrt(d)`, where it starts (LSA; without `cosine`).
        mask_self: A token does not attend to itself (LSA).
    """

    fed_by_qkv: ClassVar[bool] = True

    heads: Heads = 3
    window: Side = 7
    shifted: bool = False
    cosine: bool = False
    relative: bool = True
    trained_window: Side | None = None
    temperature: bool = False
    mask_self: bool = False

    @property
    def label(self) -> str:
        return f"{'Cosine' if self.cosine else 'Window'} {self.window}{' shifted' * self.shifted} ×{self.heads}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return WindowModule(site, self, qkv)


class WindowModule(TokenModule):
    """Attention inside windows of `size` x `size` tokens."""

    undecayed = ("table", "temperature")

    def __init__(self, site: Site, part: Window, qkv: Qkv):
        super().__init__()
        if part.cosine and part.temperature:
            raise ValueError("Cosine attention learns a temperature of its own; leave temperature out, or cosine.")
        self.heads = part.heads
        self.size = min(part.window, site.grid.height, site.grid.width)
        self.shifted = part.shifted
        self.qkv = qkv.build(Site(site.dim, Grid(self.size, self.size), site.norm, site.eps), part.heads)
        check_heads(self.qkv.width, part.heads)
        self.proj = nn.Linear(self.qkv.width, site.dim)
        self.similarity = CosineSimilarity(part.heads, part.trained_window) if part.cosine else None
        relative = part.relative and not part.cosine
        self.table = bias_table((2 * self.size - 1) ** 2, part.heads) if relative else None
        self.temperature = Temperature(part.heads, self.qkv.width) if part.temperature else None
        self.mask_self = part.mask_self

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        if self.folded:
            return by_images(lambda part: self.mix(part, grid), tokens, grid.patches * 3 * self.qkv.width)
        return self.mix(tokens, grid)

    def mix(self, tokens: Tensor, grid: Grid) -> Tensor:
        """`[B, N, C]` to the same."""
        nhwc = pad_to_multiple(lattice(tokens, grid), self.size)  # [B, H', W', C]
        height, width = nhwc.shape[1:3]
        shift = self.shift_on(grid)
        nhwc = roll(nhwc, *shift)
        mask = self.mask(height, width, shift, tokens.dtype)
        # A point-wise qkv can stand in front of the windows, which saves a copy; others look at neighbours in them.
        if self.folded and suits(nhwc) and self.similarity is None and self.qkv.pointwise:
            whole = Grid(height, width)
            queries, keys, values = (lattice(t, whole) for t in self.warmed(*self.qkv(nhwc.flatten(1, 2), whole)))
            nhwc = window_attention(queries, keys, values, mask, size=self.size, heads=self.heads)
        else:
            nhwc = unwindow(self.attend(windows(nhwc, self.size), mask), self.size, height, width)
        return self.proj(crop(roll(nhwc, height - shift[0], width - shift[1]), grid))

    def shift_on(self, grid: Grid) -> tuple[int, int]:
        """How far the windows move down and right on this grid; a side that fits in one window does not move."""
        if not self.shifted:
            return 0, 0
        return window_shift(grid.height, self.size), window_shift(grid.width, self.size)

    def attend(self, pieces: Tensor, mask: Tensor | None) -> Tensor:
        """Attention inside each window: `[B * windows, size**2, C]` to the same with the width of the values."""
        if mask is not None and not holds(mask.shape[0] == 1):
            mask = mask.repeat(pieces.shape[0] // mask.shape[0], 1, 1, 1)
        inside = self.warmed(*self.qkv(pieces, Grid(self.size, self.size)))
        queries, keys, values = (split_heads(t, self.heads) for t in inside)
        if self.similarity is None:
            return join_heads(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask))
        queries, keys = self.similarity.scale(queries, keys)
        return join_heads(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1.0))

    def warmed(self, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same `[..., h*d]`, with the learned temperature in the queries."""
        return (queries if self.temperature is None else self.temperature(queries)), keys, values

    @once_per_grid
    def mask(self, height: int, width: int, shift: tuple[int, int], dtype: torch.dtype) -> Tensor | None:
        """What is added to the logits: relative bias, and minus infinity between positions that only the shift joined.

        Returns:
            `[1, h, size**2, size**2]`, or one for each window of an image in place of the 1; None for nothing.
        """
        bias: Tensor | None = None
        if self.similarity is not None:
            bias = self.similarity.bias(self.size).to(dtype)[None]
        elif self.table is not None:
            bias = pairwise_bias(self.table, self.size, self.size)[None].contiguous()
        if self.mask_self:
            bias = without_self(bias, self.size**2, self.heads, self.proj.weight)
        if holds(shift[0] == 0) and holds(shift[1] == 0):
            return bias
        joined = shift_mask(height, width, self.size, shift, self.proj.weight.device)[:, None]  # [windows, 1, ...]
        if bias is None:
            bias = torch.zeros(1, self.heads, 1, 1, dtype=dtype, device=joined.device)
        return torch.where(joined, bias, -torch.inf)

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        size, shift = self.size, self.shift_on(grid)
        nhwc = pad_to_multiple(lattice(tokens, grid), size)
        height, width = nhwc.shape[1:3]
        pieces = windows(roll(nhwc, *shift), size)
        inside = self.warmed(*self.qkv(pieces, Grid(size, size)))
        queries, keys, values = (split_heads(t, self.heads) for t in inside)
        scale = queries.shape[-1] ** -0.5
        if self.similarity is not None:
            queries, keys = self.similarity.scale(queries, keys)
            scale = 1.0
        each = (queries, keys, values)
        queries, keys, values = (widened(t).unflatten(0, (len(tokens), -1)) for t in each)  # [B, windows, h, slots, d]
        mask = self.mask(height, width, shift, tokens.dtype)
        weights = softmax_rows(queries, keys, None if mask is None else mask[None], scale)
        positions = window_tokens(grid, size, shift, tokens.device)
        return WindowMatrix(weights, positions, grid, len(tokens), values=values)

    def resizing(self, old: Any) -> Resizing:
        return {"table": lambda table: resize_relative_table(table, (old.size,) * 2, (self.size,) * 2)}


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length one; zero stays zero, also in float16, where the usual 1e-12 is zero itself."""
    return F.normalize(vectors, dim=-1, eps=max(1e-12, torch.finfo(vectors.dtype).tiny))


class CosineSimilarity(nn.Module):
    """Swin v2's logits: cosine times a learned temperature, plus a bias that a network computes from the offset."""

    undecayed = ("logit_scale",)

    def __init__(self, heads: int, trained_window: int | None = None):
        super().__init__()
        self.trained_window = trained_window
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10)))
        self.offset_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, bias=False))

    def scale(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Unit-length queries times the temperature, and unit-length keys."""
        temperature = self.logit_scale.clamp(max=math.log(100)).exp()
        return unit(queries) * temperature, unit(keys)

    def bias(self, size: int) -> Tensor:
        """Bias `[h, size**2, size**2]`."""
        offsets = log_spaced_offsets(size, self.logit_scale.device, self.trained_window).to(self.logit_scale.dtype)
        return 16 * pairwise_bias(self.offset_mlp(offsets), size, size).sigmoid()


@register
@dataclass(frozen=True)
class SpatialReduction(Mixer):
    """Queries from all tokens, keys and values from a map reduced by `sr_ratio` (PVT).

    Attributes:
        heads: Attention heads.
        sr_ratio: Side of the patches that are reduced to one key.
        bias: Biases of queries, keys and values.
    """

    carries_aux: ClassVar[bool] = True

    heads: Heads = 1
    sr_ratio: Side = 8
    bias: bool = True

    @property
    def label(self) -> str:
        return f"SRA {self.sr_ratio} ×{self.heads}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return SpatialReductionModule(site.dim, self)


class SpatialReductionModule(TokenModule):
    """Attention to a map that a strided convolution has made smaller."""

    def __init__(self, dim: int, part: SpatialReduction):
        super().__init__()
        check_heads(dim, part.heads)
        self.heads = part.heads
        self.ratio = part.sr_ratio
        self.q = nn.Linear(dim, dim, bias=part.bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=part.bias)
        self.reduce = nn.Conv2d(dim, dim, part.sr_ratio, stride=part.sr_ratio)
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        keys, values = self.kv(with_aux(tokens, self.reduced(tokens, grid), grid)).chunk(2, dim=-1)
        queries, keys, values = (split_heads(t, self.heads) for t in (self.q(tokens), keys, values))
        return self.proj(join_heads(F.scaled_dot_product_attention(queries, keys, values)))

    def reduced(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The patches as fewer tokens, `[B, N / ratio**2, C]`."""
        nhwc = pad_to_multiple(lattice(tokens, grid), self.ratio)
        return self.norm(sequence(self.reduce(nhwc.permute(0, 3, 1, 2))))

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        keys, values = self.kv(with_aux(tokens, self.reduced(tokens, grid), grid)).chunk(2, dim=-1)
        rows, columns = (times_to_cover(side, self.ratio) for side in (grid.height, grid.width))
        covers = cells_of_keys(grid, rows, columns, self.ratio, tokens.device)
        queries, keys, values = (split_heads(t, self.heads) for t in (self.q(tokens), keys, values))
        return ReducedMatrix(queries, keys, covers, grid, values=values)

    def strip_projections(self) -> None:
        identity_rows(self.kv.weight, self.kv.in_features, last=True)


class Temperature(nn.Module):
    """Divides the logits of each head by a learned temperature in place of `sqrt(d)`, by scaling the queries.

    Args:
        heads: Attention heads.
        width: Channels of all heads together.

    Example:
        >>> temperature = Temperature(heads=2, width=32)
        >>> temperature.values.tolist()
        [4.0, 4.0]
        >>> queries = torch.randn(3, 5, 32)
        >>> bool((temperature(queries) == queries).all())
        True
    """

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.channels = width // heads
        self.values = nn.Parameter(torch.full((heads,), self.channels**0.5))

    def forward(self, queries: Tensor) -> Tensor:
        """Queries `[..., h*d]`, scaled so that `q k / sqrt(d)` becomes `q k / temperature`."""
        return queries * (self.channels**0.5 / self.values).repeat_interleave(self.channels)


def without_self(bias: Tensor | None, tokens: int, heads: int, like: Tensor) -> Tensor:
    """A bias `[1 or W, h, N, N]`, or none, that also keeps tokens from attending to themselves: `[1 or W, h, N, N]`."""
    diagonal = SELF * torch.eye(tokens, dtype=like.dtype, device=like.device)
    return diagonal.expand(1, heads, tokens, tokens) if bias is None else bias + diagonal
