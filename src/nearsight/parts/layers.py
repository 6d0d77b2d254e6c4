"""Layers that several parts are made of: norms, 1x1 convolutions on tokens, activations.

The norms of tokens are layer, batch, and centering-calibrated batch (dwconv paper, Table 12).
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ..ops.fold import fold_before, fold_behind, frozen, scale_and_shift


class TokenBatchNorm(nn.Module):
    """Batch normalisation of tokens `[B, N, C]` over batch and positions."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bn(tokens.flatten(0, -2)).view_as(tokens)


class CalibratedBatchNorm(nn.Module):
    """Batch normalisation of tokens whose input is first moved by a learned fraction of its own mean over positions."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.center = nn.Parameter(torch.zeros(dim))
        self.norm: nn.Module = TokenBatchNorm(dim, eps)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens + self.center * tokens.mean(dim=1, keepdim=True))

    def fold_in_place(self) -> None:
        """Leave of the inner norm what it multiplies by and adds."""
        self.norm = fold_norm(self.norm)


class ScaleShift(nn.Module):
    """What is left of a batch norm that no layer could take in: `scale * tokens + shift`, both `[C]` and fixed."""

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d):
        super().__init__()
        scale, shift = scale_and_shift(norm)
        like = norm.running_mean
        assert like is not None  # or there would be no scale
        self.scale, self.shift = frozen(scale, like=like), frozen(shift, like=like)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.addcmul(self.shift, tokens, self.scale)


Norm = Literal["layer", "batch", "calibrated_batch"]
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


def fold_norm(
    norm: nn.Module, *, behind: nn.Linear | nn.Conv2d | None = None, before: nn.Linear | None = None
) -> nn.Module:
    """What is left of a norm when the layer that it stands behind, or before, takes it in.

    Nothing is left of a batch norm, or its scale and shift where no layer is given; any other norm stays.

    Example:
        >>> fold_norm(TokenBatchNorm(8), behind=nn.Linear(4, 8))
        Identity()
    """
    if isinstance(norm, TokenBatchNorm):
        norm = norm.bn
    if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d):  # timm's subclasses do more than normalise
        return norm
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    if behind is not None:
        fold_behind(behind, norm)
    elif before is not None:
        fold_before(norm, before)
    else:
        return ScaleShift(norm)
    return nn.Identity()


Activation = Literal["gelu", "relu", "relu6", "hswish"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hswish": nn.Hardswish,
}


class Conv1x1(nn.Linear):
    """A 1x1 convolution as a linear layer on tokens; unlike a transformer's linear layer it keeps the default init."""


def make_activation(name: str) -> nn.Module:
    """An activation by its name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"act={name!r} is not known; use one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]()
