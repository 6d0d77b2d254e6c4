"""Attention in a window that slides with the query, with the convolutional forms of the dwconv paper's appendix C."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, image, lattice, resize_plane, sequence
from ..ops.attention_matrix import AttentionMatrix, KernelMatrix, widened
from ..ops.fold import fold_behind, frozen, scale_and_shift
from ..ops.sliding import gather_offsets, inside_window, offset_products
from .attention import bias_table, check_heads
from .layers import TokenBatchNorm
from .ranges import Heads, OddSide
from .slots import Mixer, Qkv, Resizing, Site, TokenModule, register


@register
@dataclass(frozen=True)
class Sliding(Mixer):
    """Each token attends to the window around it (dwconv Table 5; positions outside the map are left out).

    Attributes:
        heads: Attention heads.
        window: Side of the window, odd.
        relative: Learned bias per position in the window (eq. 23).
        static: Beside the dot products, logits that a static layer predicts from the query's token alone, one row of
            it for each place of the window (eq. 24).
        conv: None; `pre` convolves the tokens, channel by channel, before queries and keys are made (eq. 26); `normal`
            does so with a normal convolution, in which all channels take part (eq. 27); `post` convolves the logits
            over the window, wrapped around (eq. 25).
        conv_shared: With `pre`: one kernel for all channels, or one per channel, which the paper finds as good; with
            `post`: one kernel for all heads or one per head.
    """

    family: ClassVar[str] = "dwnet"
    fed_by_qkv: ClassVar[bool] = True

    heads: Heads = 3
    window: OddSide = 7
    relative: bool = True
    static: bool = False
    conv: Literal["pre", "normal", "post"] | None = None
    conv_shared: bool = True

    @property
    def label(self) -> str:
        kinds = "".join(f" {kind}" for kind in (self.conv, "static" if self.static else None) if kind)
        return f"Sliding {self.window}{kinds} ×{self.heads}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        if self.window % 2 == 0:
            raise ValueError(f"window={self.window} is even; a window that slides with its query has an odd side.")
        if self.conv not in (None, "pre", "normal", "post"):
            raise ValueError(f"conv={self.conv!r} is not known; use pre, normal, post or None.")
        return SlidingModule(site, self, qkv)


class SlidingModule(TokenModule):
    """Softmax over the window's logits, then the window's values, both offset by offset."""

    undecayed = ("table",)

    def __init__(self, site: Site, part: Sliding, qkv: Qkv):
        super().__init__()
        self.heads = part.heads
        self.window = part.window
        self.qkv = qkv.build(site, part.heads)
        check_heads(self.qkv.width, part.heads)
        self.pre: PreConvolution | NormalConvolution | None = None
        if part.conv in ("pre", "normal"):
            self.pre = PreConvolution(site.dim, part.conv_shared) if part.conv == "pre" else NormalConvolution(site.dim)
        self.post = PostConvolution(part.heads, part.window, part.conv_shared) if part.conv == "post" else None
        self.table = bias_table(part.window**2, part.heads) if part.relative else None
        self.static = nn.Linear(site.dim, part.window**2 * part.heads, bias=False) if part.static else None
        self.proj = nn.Linear(self.qkv.width, site.dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        queries, keys, values = self.qkv(tokens, grid)
        if self.pre is not None:
            queries, keys, _ = self.qkv(self.pre(tokens, grid), grid)
        fields = [lattice(t, grid).unflatten(-1, (self.heads, -1)) for t in (queries, keys, values)]
        weights = self.weights(fields[0], fields[1], tokens, grid)
        return self.proj(gather_offsets(fields[2], weights, self.window).flatten(3).flatten(1, 2))

    def weights(self, queries: Tensor, keys: Tensor, tokens: Tensor, grid: Grid) -> Tensor:
        """Attention `[B, H, W, window**2, h]` of each query to its window, both `[B, H, W, h, d]`, for the tokens."""
        logits = offset_products(queries, keys, self.window) / math.sqrt(queries.shape[-1])
        if self.post is not None:
            logits = self.post(logits)
        if self.table is not None:
            logits = logits + self.table
        if self.static is not None:
            logits = logits + lattice(self.static(tokens), grid).unflatten(-1, (-1, self.heads))
        inside = inside_window(grid.height, grid.width, self.window, queries.device)[..., None]
        return logits.masked_fill(~inside, -torch.inf).softmax(dim=3)

    @property
    def kernel_kind(self) -> str:
        return "attention"

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        queries, keys, values = self.qkv(tokens, grid)
        if self.pre is not None:
            queries, keys, _ = self.qkv(self.pre(tokens, grid), grid)
        fields = [widened(lattice(t, grid).unflatten(-1, (self.heads, -1))) for t in (queries, keys)]
        weights = self.weights(fields[0], fields[1], tokens, grid)

        def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
            return weights[:, rows, columns].permute(0, 3, 1, 2)

        images, heads = len(tokens), self.heads
        return KernelMatrix(weights_at, self.window, grid, images=images, heads=heads, signed=False, values=values)

    def resizing(self, old: Any) -> Resizing:
        def window(table: Tensor) -> Tensor:  # [window**2, heads]
            side = table.unflatten(0, (old.window, old.window))
            return resize_plane(side, (self.window, self.window), "bicubic").flatten(0, 1)

        def rows(weight: Tensor) -> Tensor:  # [window**2 * heads, C]
            return window(weight.view(old.window**2, -1)).view(-1, weight.shape[1])

        return {"table": window, "static.weight": rows}


class PreConvolution(nn.Module):
    """3x3 convolution, batch norm and ReLU of the tokens from which queries and keys are made."""

    def __init__(self, dim: int, shared: bool):
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(1 if shared else dim, 1, 3, 3), std=0.2))
        self.bias: nn.Parameter | None = None
        self.norm: Any = TokenBatchNorm(dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        weight = self.weight.expand(self.dim, 1, 3, 3)
        near = F.conv2d(image(tokens, grid), weight, self.bias, padding=1, groups=self.dim)
        return self.norm(sequence(near)).relu()

    @torch.no_grad()
    def fold_in_place(self) -> None:
        """Let the kernels, one for each channel from now on, take in the norm."""
        scale, shift = scale_and_shift(self.norm.bn)
        self.weight = frozen(self.weight.double() * scale.view(-1, 1, 1, 1), like=self.weight)
        self.bias = frozen(shift, like=self.weight)
        self.norm = nn.Identity()


class NormalConvolution(nn.Module):
    """As `PreConvolution`, with a kernel that connects every channel with every channel."""

    def __init__(self, dim: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.norm: Any = TokenBatchNorm(dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return self.norm(sequence(self.conv(image(tokens, grid)))).relu()

    def fold_in_place(self) -> None:
        """Let the kernel take in the norm."""
        fold_behind(self.conv, self.norm.bn)
        self.norm = nn.Identity()


class PostConvolution(nn.Module):
    """3x3 convolution of the logits over the offsets of the window, wrapped around; it starts as the identity."""

    def __init__(self, heads: int, window: int, shared: bool):
        super().__init__()
        self.heads = heads
        self.window = window
        start = torch.zeros(1 if shared else heads, 1, 3, 3)
        start[:, :, 1, 1] = 1
        self.weight = nn.Parameter(start)

    def forward(self, logits: Tensor) -> Tensor:
        batch, height, width = logits.shape[:3]
        side = logits.view(-1, self.window, self.window, self.heads).permute(0, 3, 1, 2)
        weight = self.weight.expand(self.heads, 1, 3, 3)
        side = F.conv2d(F.pad(side, (1, 1, 1, 1), mode="circular"), weight, groups=self.heads)
        return side.permute(0, 2, 3, 1).reshape(batch, height, width, -1, self.heads)
