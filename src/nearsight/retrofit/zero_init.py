"""Gates that start as 1: the papers' gates go from 0 to 1, these from 0 to 2 with the same slope over their range.

`2 * sigmoid(x)` is written `1 + tanh(x / 2)`, and `2 * hardsigmoid(x)` as `1 + hardtanh(x / 3)`: at 0 both are 1 to the
last bit. Their last layers start at zero.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..parts import BiGate, LocalityFfn
from ..parts.feedforward import make_channel_gate
from ..parts.gates import BiDimensionalGate, EfficientChannelAttention, SqueezeExcite


def doubled_sigmoid(logits: Tensor) -> Tensor:
    """`2 * sigmoid`, exactly 1 at 0."""
    return 1 + torch.tanh(logits / 2)


def doubled_hardsigmoid(logits: Tensor) -> Tensor:
    """`2 * hardsigmoid`, exactly 1 at 0."""
    return 1 + F.hardtanh(logits / 3)


class OpenSqueezeExcite(SqueezeExcite):
    """Squeeze-and-excitation that starts as the identity."""

    def __init__(self, dim: int, squeezed: int):
        super().__init__(dim, squeezed)
        nn.init.ones_(self.reduce.bias)  # so that none of the few units starts behind the zero of its ReLU
        nn.init.zeros_(self.expand.weight)
        nn.init.zeros_(self.expand.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        squeezed = self.reduce(tokens.mean(dim=1, keepdim=True)).relu()
        return tokens * doubled_hardsigmoid(self.expand(squeezed))


class OpenChannelAttention(EfficientChannelAttention):
    """Efficient channel attention that starts as the identity."""

    def __init__(self, dim: int, hard: bool = False):
        super().__init__(dim, hard)
        self.curve = doubled_hardsigmoid if hard else doubled_sigmoid
        nn.init.zeros_(self.conv.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.curve(self.conv(tokens.mean(dim=1, keepdim=True)))


class OpenBiGate(BiDimensionalGate):
    """LightViT's gate, starting as the identity."""

    def __init__(self, dim: int, part: BiGate):
        super().__init__(dim, part.reduction, channel=part.channel_gate, spatial=part.spatial_gate, norm=part.gate_norm)
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


def open_channel_gate(part: LocalityFfn, hidden: int) -> nn.Module | None:
    """The channel gate of a `LocalityFfn`, starting as the identity."""
    gate = make_channel_gate(part, hidden)
    if isinstance(gate, SqueezeExcite):
        return OpenSqueezeExcite(hidden, gate.reduce.out_features)
    if isinstance(gate, EfficientChannelAttention):
        return OpenChannelAttention(hidden, hard=isinstance(gate.gate, nn.Hardsigmoid))
    return None
