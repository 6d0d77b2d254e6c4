"""Normalisations of tokens: layer, batch, and centering-calibrated batch (dwconv paper, Table 12)."""

import torch
from torch import Tensor, nn


class TokenBatchNorm(nn.Module):
    """Batch normalisation of tokens `[B, N, C]` over batch and positions."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bn(tokens.flatten(0, -2)).view_as(tokens)


class CalibratedBatchNorm(nn.Module):
    """Batch normalisation of tokens whose input is first moved by a learned share of its own mean over positions."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.center = nn.Parameter(torch.zeros(dim))
        self.norm = TokenBatchNorm(dim, eps)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens + self.center * tokens.mean(dim=1, keepdim=True))


NORMS = {"layer": nn.LayerNorm, "batch": TokenBatchNorm, "calibrated_batch": CalibratedBatchNorm}


def make_norm(kind: str, dim: int, eps: float = 1e-5) -> nn.Module:
    """A normalisation of tokens `[B, N, C]` by its name.

    Example:
        >>> make_norm("layer", 8)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """
    if kind not in NORMS:
        raise ValueError(f"norm={kind!r} is not known; use one of {', '.join(NORMS)}.")
    return NORMS[kind](dim, eps=eps)
