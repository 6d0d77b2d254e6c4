"""Sequence pooling (Compact Transformers, Hassani et al., 2021): the head reads tokens as much as they matter."""

from torch import Tensor, nn


class SequencePool(nn.Module):
    """`softmax(score(x))^T x` over the tokens.

    The score has no bias, unlike the release's: softmax cancels it, so that it would never learn.

    Args:
        dim: Width of a token.

    Example:
        >>> import torch
        >>> SequencePool(8)(torch.randn(2, 17, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, dim: int):
        super().__init__()
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return (self.weights(tokens).transpose(1, 2) @ tokens).squeeze(1)  # [B, C]

    def weights(self, tokens: Tensor) -> Tensor:
        """How much of each token `[B, N, C]` is read: `[B, N, 1]`, which sum to one."""
        return self.score(tokens).softmax(dim=1)
