"""Locality self-attention (LSA; Lee, Lee, Song, 2021): sharper attention for small data.

Two changes of softmax attention, which `Global` and `Window` have as options: a learned temperature for each head, and
a token that does not attend to itself.
"""

import torch
from torch import Tensor, nn

SELF = -1e4  # exp of it is 0 beside any other token, and a token that is alone keeps itself; float16 holds it


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
