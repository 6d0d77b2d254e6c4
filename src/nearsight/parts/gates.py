"""Gates that re-weight channels (and positions) of tokens: SE, ECA, and LightViT's bi-dimensional gate."""

import math

import torch
from torch import Tensor, nn


class SqueezeExcite(nn.Module):
    """Channel gate from the mean over positions through `squeezed` channels (LocalViT, dwconv Table 15)."""

    def __init__(self, dim: int, squeezed: int):
        super().__init__()
        squeezed = max(1, squeezed)
        self.reduce = nn.Linear(dim, squeezed)
        self.expand = nn.Linear(squeezed, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        gate = self.expand(self.reduce(tokens.mean(dim=1, keepdim=True)).relu())
        return tokens * nn.functional.hardsigmoid(gate)


class EfficientChannelAttention(nn.Module):
    """Channel gate from a 1-D convolution over the channel means; the kernel grows with the logarithm of the width."""

    def __init__(self, dim: int, hard: bool = False):
        super().__init__()
        size = int(abs((math.log2(dim) + 1) / 2))
        size += 1 - size % 2
        self.conv = nn.Conv1d(1, 1, size, padding=size // 2, bias=False)
        self.gate = nn.Hardsigmoid() if hard else nn.Sigmoid()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.gate(self.conv(tokens.mean(dim=1, keepdim=True)))


class BiDimensionalGate(nn.Module):
    """LightViT's gate: channels from the mean of all tokens, positions from each token beside that mean (section 3.2).

    The gate is read from the normalised tokens and multiplies the un-normalised ones.
    """

    def __init__(self, dim: int, reduction: int, *, channel: bool, spatial: bool, norm: bool):
        super().__init__()
        inner = dim // reduction
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.act = nn.GELU()
        self.global_reduce = nn.Linear(dim, inner)
        self.channel_select = nn.Linear(inner, dim) if channel else None
        self.local_reduce = nn.Linear(dim, inner) if spatial else None
        self.spatial_select = nn.Linear(2 * inner, 1) if spatial else None

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm(tokens)
        summary = self.act(self.global_reduce(normed.mean(dim=1, keepdim=True)))  # [B, 1, C/r]
        gate: Tensor | float = 1.0
        if self.channel_select is not None:
            gate = self.channel_select(summary).sigmoid()  # [B, 1, C]
        if self.local_reduce is not None and self.spatial_select is not None:
            local = self.act(self.local_reduce(normed))  # [B, N, C/r]
            both = torch.cat((local, summary.expand(-1, local.shape[1], -1)), dim=-1)
            gate = gate * self.spatial_select(both).sigmoid()  # [B, N, 1]
        return tokens * gate
