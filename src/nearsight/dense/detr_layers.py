"""The layers of DETR: an encoder over a map, a decoder over queries, and positions of places."""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid
from ..parts import Life
from ..parts.slots import Site

if TYPE_CHECKING:
    from .detr import Detr


class EncoderLayer(nn.Module):
    """Attention over the map and a feed-forward part, each with its norm behind it.

    `feed` makes queries, keys and values from the tokens before the attention projects them: nothing (EncDec), a
    linear layer (EncDec-Linear), or LIFE (EncDec-LIFE). LIFE has three scales of equal width; where three does not
    divide the width, zeros fill what is left.
    """

    def __init__(self, head: "Detr"):
        super().__init__()
        self.form = head.encoder
        self.feed: nn.Module | None = None
        if self.form == "linear":
            self.feed = nn.Linear(head.dim, 3 * head.dim, bias=False)
        elif self.form == "life":
            self.feed = Life(scale_width=head.dim // 3).build(Site(head.dim, Grid(1, 1)), head.heads)
        self.attention = attention(head)
        self.norm1, self.norm2 = nn.LayerNorm(head.dim), nn.LayerNorm(head.dim)
        self.drop = nn.Dropout(head.dropout)
        self.ffn = feed_forward(head)

    def forward(self, tokens: Tensor, grid: Grid, positions: Tensor, valid: Tensor) -> Tensor:
        queries, keys, values = self.fed(tokens, grid, valid)
        mixed = self.attention(
            queries + positions, keys + positions, values, key_padding_mask=~valid, need_weights=False
        )[0]
        tokens = self.norm1(tokens + self.drop(mixed))
        return self.norm2(tokens + self.drop(self.ffn(tokens)))

    def fed(self, tokens: Tensor, grid: Grid, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attention projects to queries, keys and values, each `[B, N, dim]`."""
        if self.feed is None:
            return tokens, tokens, tokens
        if self.form == "linear":
            queries, keys, values = self.feed(tokens).chunk(3, dim=-1)
            return queries, keys, values
        shares = self.feed(tokens * valid[..., None], grid)  # convolutions must not see the padding
        queries, keys, values = (F.pad(share, (0, tokens.shape[-1] - share.shape[-1])) for share in shares)
        return queries, keys, values


class DecoderLayer(nn.Module):
    """Attention among the queries, attention to the map, and a feed-forward part, each with its norm behind it."""

    def __init__(self, head: "Detr"):
        super().__init__()
        self.among, self.across = attention(head), attention(head)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(head.dim) for _ in range(3))
        self.drop = nn.Dropout(head.dropout)
        self.ffn = feed_forward(head)

    def forward(self, found: Tensor, places: Tensor, tokens: Tensor, positions: Tensor, valid: Tensor) -> Tensor:
        where = found + places
        found = self.norm1(found + self.drop(self.among(where, where, found, need_weights=False)[0]))
        seen = self.across(found + places, tokens + positions, tokens, key_padding_mask=~valid, need_weights=False)[0]
        found = self.norm2(found + self.drop(seen))
        return self.norm3(found + self.drop(self.ffn(found)))


def attention(head: "Detr") -> nn.MultiheadAttention:
    """Attention as DETR has it."""
    return nn.MultiheadAttention(head.dim, head.heads, head.dropout, batch_first=True)


def feed_forward(head: "Detr") -> nn.Module:
    """Two linear layers."""
    inner = (nn.ReLU(), nn.Dropout(head.dropout))
    return nn.Sequential(nn.Linear(head.dim, head.hidden), *inner, nn.Linear(head.hidden, head.dim))


def sine_positions(valid: Tensor, dim: int) -> Tensor:
    """Sines and cosines of row and column, counted over the places of the image alone and scaled to a full turn.

    Args:
        valid: Which places belong to the image: `[B, h, w]`.
        dim: Width, half for the row and half for the column.

    Returns:
        `[B, h * w, dim]`.

    Example:
        >>> sine_positions(torch.ones(1, 2, 3, dtype=torch.bool), 8).shape
        torch.Size([1, 6, 8])
    """
    half = dim // 2
    channel = torch.arange(half, device=valid.device)
    rate = 10000 ** (2 * (channel // 2) / half)
    halves = []
    for axis in (1, 2):
        place = valid.cumsum(axis, dtype=torch.float32)
        turn = 2 * math.pi * place / place.amax(axis, keepdim=True).clamp(min=1)
        angle = turn[..., None] / rate  # [B, h, w, half]
        halves.append(torch.where(channel % 2 == 0, angle.sin(), angle.cos()))
    return torch.cat(halves, dim=-1).flatten(1, 2)
