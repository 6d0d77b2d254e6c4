"""Gates that re-weight channels (and positions) of tokens: SE, ECA, and LightViT's bi-dimensional gate.

Folded, a gate writes over its tokens: nobody else may hold them. The `Open` gates start as 1, for pretrained models:
the papers' gates go from 0 to 1, these from 0 to 2 with the same slope over their range. `2 * sigmoid(x)` is written
`1 + tanh(x / 2)`, and `2 * hardsigmoid(x)` as `1 + hardtanh(x / 3)`: at 0 both are 1 to the last bit. Their last layers
start at zero.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.channel_gate import gate_by_mean
from ..ops.execution import gelu_over, times


class SqueezeExcite(nn.Module):
    """Channel gate from the mean over positions through `squeezed` channels.

    Its curve is a hard sigmoid in LocalViT, and the sigmoid of the original (dwconv Table 15) otherwise.
    """

    folded = False

    def __init__(self, dim: int, squeezed: int, hard: bool = True):
        super().__init__()
        squeezed = max(1, squeezed)
        self.hard = hard
        self.reduce = nn.Linear(dim, squeezed)
        self.expand = nn.Linear(squeezed, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.folded:
            return times(tokens, self.weigh(tokens.mean(dim=1, keepdim=True)), overwrite=True)
        return gate_by_mean(tokens, self.weigh, self)

    def weigh(self, mean: Tensor) -> Tensor:
        """From `[B, 1, C]` to the same."""
        gate = self.expand(self.reduce(mean).relu())
        return F.hardsigmoid(gate) if self.hard else gate.sigmoid()


class EfficientChannelAttention(nn.Module):
    """Channel gate from a 1-D convolution over the channel means; the kernel grows with the logarithm of the width."""

    folded = False

    def __init__(self, dim: int, hard: bool = False):
        super().__init__()
        size = int(abs((math.log2(dim) + 1) / 2))
        size += 1 - size % 2
        self.conv = nn.Conv1d(1, 1, size, padding=size // 2, bias=False)
        self.gate = nn.Hardsigmoid() if hard else nn.Sigmoid()

    def forward(self, tokens: Tensor) -> Tensor:
        if self.folded:
            return times(tokens, self.weigh(tokens.mean(dim=1, keepdim=True)), overwrite=True)
        return gate_by_mean(tokens, self.weigh, self)

    def weigh(self, mean: Tensor) -> Tensor:
        """From `[B, 1, C]` to the same."""
        return self.gate(self.conv(mean))


class BiDimensionalGate(nn.Module):
    """LightViT's gate: channels from the mean of all tokens, positions from each token beside that mean (section 3.2).

    The gate is read from the normalised tokens and multiplies the un-normalised ones; folded, in place.
    """

    folded = False

    def __init__(self, dim: int, reduction: int, *, channel: bool, spatial: bool, norm: bool):
        super().__init__()
        if (inner := dim // reduction) < 1:
            raise ValueError(f"reduction={reduction} leaves none of {dim} channels; give at most {dim}.")
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.act = nn.GELU()
        self.global_reduce = nn.Linear(dim, inner)
        self.channel_select = nn.Linear(inner, dim) if channel else None
        self.local_reduce = nn.Linear(dim, inner) if spatial else None
        self.spatial_select = nn.Linear(2 * inner, 1) if spatial else None

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm(tokens)
        summary = self.act(self.global_reduce(normed.mean(dim=1, keepdim=True)))  # [B, 1, C/r]
        gates = []
        if self.channel_select is not None:
            gates.append(self.channel_select(summary).sigmoid())  # [B, 1, C]
        if self.local_reduce is not None:
            gates.append(self.select(self.local_reduce(normed), summary).sigmoid())  # [B, N, 1]
        for gate in gates:
            tokens = times(tokens, gate, overwrite=self.folded)
        return tokens

    def select(self, local: Tensor, summary: Tensor) -> Tensor:
        """`spatial_select([gelu(local) ; summary])`; folded, without writing the same summary beside every token.

        Args:
            local: `[B, N, C/r]`.
            summary: `[B, 1, C/r]`.

        Returns:
            `[B, N, 1]`.
        """
        assert self.spatial_select is not None
        if not self.folded:
            return self.spatial_select(torch.cat((self.act(local), summary.expand(-1, local.shape[1], -1)), dim=-1))
        of_local, of_summary = self.spatial_select.weight.chunk(2, dim=1)
        return F.linear(gelu_over(local), of_local) + F.linear(summary, of_summary, self.spatial_select.bias)


def doubled_sigmoid(logits: Tensor) -> Tensor:
    """`2 * sigmoid`, exactly 1 at 0."""
    return 1 + torch.tanh(logits / 2)


def doubled_hardsigmoid(logits: Tensor) -> Tensor:
    """`2 * hardsigmoid`, exactly 1 at 0."""
    return 1 + F.hardtanh(logits / 3)


class OpenSqueezeExcite(SqueezeExcite):
    """Squeeze-and-excitation that starts as the identity."""

    def __init__(self, dim: int, squeezed: int, hard: bool = True):
        super().__init__(dim, squeezed, hard)
        self.curve = doubled_hardsigmoid if hard else doubled_sigmoid
        nn.init.ones_(self.reduce.bias)  # so that none of the few units starts behind the zero of its ReLU
        nn.init.zeros_(self.expand.weight)
        nn.init.zeros_(self.expand.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        return gate_by_mean(tokens, self.weigh, self)

    def weigh(self, mean: Tensor) -> Tensor:
        return self.curve(self.expand(self.reduce(mean).relu()))


class OpenChannelAttention(EfficientChannelAttention):
    """Efficient channel attention that starts as the identity."""

    def __init__(self, dim: int, hard: bool = False):
        super().__init__(dim, hard)
        self.curve = doubled_hardsigmoid if hard else doubled_sigmoid
        nn.init.zeros_(self.conv.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return gate_by_mean(tokens, self.weigh, self)

    def weigh(self, mean: Tensor) -> Tensor:
        return self.curve(self.conv(mean))


class OpenBiGate(BiDimensionalGate):
    """LightViT's gate, starting as the identity."""

    def __init__(self, dim: int, reduction: int, *, channel: bool, spatial: bool, norm: bool):
        super().__init__(dim, reduction, channel=channel, spatial=spatial, norm=norm)
        for layer in (self.channel_select, self.spatial_select):
            if layer is not None:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm(tokens)
        summary = self.act(self.global_reduce(normed.mean(dim=1, keepdim=True)))  # [B, 1, C/r]
        gated = tokens
        if self.channel_select is not None:
            gated = gated * doubled_sigmoid(self.channel_select(summary))  # [B, 1, C]
        if self.local_reduce is not None:
            gated = gated * doubled_sigmoid(self.select(self.local_reduce(normed), summary))  # [B, N, 1]
        return gated
