"""What of a backbone a classifier looks at: the class token, the mean of the patches, both side by side, or all tokens
as much as they matter (`SequencePool`; Compact Transformers, Hassani et al., 2021).

Models of timm and ours have one way built in. `set_pooling` gives a model with a class token another one, as a head
that pools for itself; nothing else of the model changes, and all that works with it goes on working.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

POOLINGS = ("token", "mean", "both")


class PooledHead(nn.Linear):
    """A linear classifier of tokens `[B, prefix + N, C]`, which it pools first.

    Args:
        dim: Width of a token.
        num_classes: Outputs.
        pooling: `token`, `mean` (of the patch tokens) or `both`, the token in front.
        prefix: Tokens in front of those of patches; the first of them is the class token.

    Example:
        >>> PooledHead(8, 3, "both", 1)(torch.randn(2, 17, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(self, dim: int, num_classes: int, pooling: str, prefix: int):
        super().__init__(dim * (2 if pooling == "both" else 1), num_classes)
        self.pooling, self.prefix = pooling, prefix

    def forward(self, tokens: Tensor) -> Tensor:
        token, mean = pool_both_ways(tokens, self.prefix).unbind(1)
        return F.linear(
            {"token": token, "mean": mean}.get(self.pooling, torch.cat((token, mean), dim=-1)), self.weight, self.bias
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pooling={self.pooling}"


def pool_both_ways(tokens: Tensor, prefix: int) -> Tensor:
    """The class token and the mean of the patch tokens `[B, 2, C]` of tokens `[B, prefix + N, C]`."""
    return torch.stack((tokens[:, 0], tokens[:, prefix:].mean(dim=1)), dim=1)


def has_poolings(model: nn.Module) -> bool:
    """Whether a classifier has a class token whose place another pooling can take.

    Models that norm what is pooled, and not the tokens, or have a second head for a teacher, keep their own.
    """
    token: Any = getattr(model, "global_pool", None) == "token" or isinstance(getattr(model, "head", None), PooledHead)
    norm = getattr(model, "fc_norm", None)
    return (
        bool(token)
        and int(getattr(model, "num_prefix_tokens", 0)) > 0
        and isinstance(norm, nn.Identity | None)
        and getattr(model, "attn_pool", None) is None
        and getattr(model, "head_dist", None) is None
        and type(getattr(model, "head", None)) in (nn.Linear, PooledHead)
    )


def pooling_of(model: nn.Module) -> str | None:
    """The pooling that `set_pooling` gave a model; None for its own."""
    head = getattr(model, "head", None)
    return head.pooling if isinstance(head, PooledHead) else None


def set_pooling(model: nn.Module, pooling: str | None) -> nn.Module:
    """Give a model with a class token a fresh head with another pooling; None or `token` leaves the model its own.

    Args:
        model: A classifier of ours or of timm; it is changed.
        pooling: `token`, `mean` or `both`.

    Raises:
        ValueError: There is no such pooling, or the model has no class token to pool beside.

    Example:
        >>> import timm
        >>> model = set_pooling(timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3), "both")
        >>> model(torch.randn(2, 3, 32, 32)).shape, model.head.in_features
        (torch.Size([2, 3]), 384)
    """
    if pooling in (None, "token"):
        return model
    if pooling not in POOLINGS:
        raise ValueError(f"There is no pooling {pooling!r}; there are {', '.join(POOLINGS)}.")
    if not has_poolings(model):
        raise ValueError(f"This {type(model).__name__} pools in its own way alone; leave {pooling!r} out.")
    found: Any = model
    like = found.head.weight
    found.global_pool = ""  # the head gets all tokens
    found.head = PooledHead(found.num_features, found.num_classes, pooling, found.num_prefix_tokens).to(like)
    return model


class SequencePool(nn.Module):
    """`softmax(score(x))^T x` over the tokens.

    The score has no bias, unlike the release's: softmax cancels it, so that it would never learn.

    Args:
        dim: Width of a token.

    Example:
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
