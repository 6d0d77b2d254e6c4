"""Local MLP: window attention whose weights are parameters instead of similarities (dwconv paper, section 3.4)."""

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
    missing,
    pad_to_multiple,
    resize_kernel,
    resize_plane,
    roll,
    unwindow,
    window_shift,
    windows,
)
from ..ops.attention_matrix import AttentionMatrix, WindowMatrix, window_tokens
from ..ops.relative import pairwise_bias, resize_relative_table, shift_mask
from .attention import bias_table, check_heads, join_heads, split_heads
from .ranges import Heads, Side
from .slots import Mixer, Qkv, Resizing, Site, TokenModule, identity_rows, register


@register
@dataclass(frozen=True)
class LocalMlp(Mixer):
    """Swin's block with static weights in place of queries and keys, in windows and shifted windows.

    Attributes:
        heads: Channel groups that share weights when `share_channels` is on.
        window: Side of the window.
        shifted: Move the windows by half their side.
        share_channels: Share the weights over the channels of a head, or give every channel its own (Table 4).
        share_positions: Share the weights over windows, or give every window its own (Table 4); the latter are
            interpolated when the map has another number of windows than the model was made for.
    """

    family: ClassVar[str] = "dwnet"

    heads: Heads = 3
    window: Side = 7
    shifted: bool = False
    share_channels: bool = True
    share_positions: bool = False

    @property
    def label(self) -> str:
        return f"LocalMlp {self.window}{' shifted' * self.shifted} ×{self.heads}"

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return LocalMlpModule(site, self)


class LocalMlpModule(TokenModule):
    """`proj((weight + relative bias) v)` inside each window; no softmax."""

    undecayed = ("table",)

    def __init__(self, site: Site, part: LocalMlp):
        super().__init__()
        check_heads(site.dim, part.heads)
        self.groups = part.heads if part.share_channels else site.dim
        self.size = min(part.window, site.grid.height, site.grid.width)
        self.shifted = part.shifted
        area = self.size**2
        rows, columns = -(-site.grid.height // self.size), -(-site.grid.width // self.size)
        windows = (1, 1) if part.share_positions else (rows, columns)
        self.weight = nn.Parameter(torch.empty(*windows, self.groups, area, area))
        nn.init.trunc_normal_(self.weight, std=1 / self.size)
        self.table = bias_table((2 * self.size - 1) ** 2, self.groups)
        self.value = nn.Linear(site.dim, site.dim)
        self.proj = nn.Linear(site.dim, site.dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        nhwc = pad_to_multiple(lattice(self.value(tokens), grid), self.size)
        height, width = nhwc.shape[1:3]
        shift = self.shift_on(grid)
        nhwc = roll(nhwc, *shift)
        pieces = split_heads(windows(nhwc, self.size), self.groups)  # [B * windows, groups, size**2, C / groups]
        weights = self.masked_weights(height, width, shift)
        mixed = torch.einsum("wgij,bwgjd->bwgid", weights, pieces.unflatten(0, (nhwc.shape[0], -1)))
        nhwc = unwindow(join_heads(mixed.flatten(0, 1)), self.size, height, width)
        return self.proj(crop(roll(nhwc, height - shift[0], width - shift[1]), grid))

    def shift_on(self, grid: Grid) -> tuple[int, int]:
        """How far the windows move down and right on this grid."""
        sides = (grid.height, grid.width) if self.shifted else (1, 1)  # one token does not move
        return window_shift(sides[0], self.size), window_shift(sides[1], self.size)

    def masked_weights(self, height: int, width: int, shift: tuple[int, int]) -> Tensor:
        """Weights `[windows or 1, groups, size**2, size**2]` on a padded map, zero where the shift joined tokens."""
        weights = self.weights_for(height // self.size, width // self.size)
        if holds(shift[0] == 0) and holds(shift[1] == 0):
            return weights
        return weights * shift_mask(height, width, self.size, shift, weights.device)[:, None]

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        shift = self.shift_on(grid)
        height, width = (side + missing(side, self.size) for side in (grid.height, grid.width))
        weights = self.masked_weights(height, width, shift)
        positions = window_tokens(grid, self.size, shift, tokens.device)
        nhwc = roll(pad_to_multiple(lattice(self.value(tokens), grid), self.size), *shift)
        values = split_heads(windows(nhwc, self.size), self.groups).unflatten(0, (len(tokens), -1))
        return WindowMatrix(weights[None], positions, grid, len(tokens), signed=True, values=values)

    def resizing(self, old: Any) -> Resizing:
        def weight(weight: Tensor) -> Tensor:  # [rows, columns, groups, size**2, size**2]
            rows, columns = self.weight.shape[:2]
            weight = resize_plane(weight, (rows, columns), "bilinear")
            if old.size == self.size:
                return weight
            pairs = weight.unflatten(4, (old.size, old.size)).unflatten(3, (old.size, old.size))
            pairs = resize_kernel(pairs.movedim((5, 6), (0, 1)), self.size).movedim((0, 1), (5, 6))  # sums stay
            queries = resize_plane(pairs.movedim((3, 4), (0, 1)), (self.size, self.size), "bicubic")
            return queries.movedim((0, 1), (3, 4)).flatten(5).flatten(3, 4)

        def table(table: Tensor) -> Tensor:
            return resize_relative_table(table, (old.size,) * 2, (self.size,) * 2) * (old.size / self.size) ** 2

        return {"weight": weight, "table": table}

    def strip_projections(self) -> None:
        identity_rows(self.value.weight, self.value.out_features)

    def weights_for(self, rows: int, columns: int) -> Tensor:
        """Weights `[rows * columns or 1, groups, size**2, size**2]` on a map of so many windows."""
        weight = self.weight
        shared = weight.shape[:2] == (1, 1)
        if not shared and not (holds(weight.shape[0] == rows) and holds(weight.shape[1] == columns)):
            flat = weight.flatten(2).permute(2, 0, 1)[None]
            flat = F.interpolate(flat, size=(rows, columns), mode="bilinear", align_corners=False)
            weight = flat[0].permute(1, 2, 0).unflatten(-1, tuple(weight.shape[2:]))
        return weight.flatten(0, 1) + pairwise_bias(self.table, self.size, self.size)
