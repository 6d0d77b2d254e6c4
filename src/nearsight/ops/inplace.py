"""Writing over numbers that nobody reads again.

A fresh tensor of some megabytes costs more than the arithmetic that fills it: its pages are fetched from the system and
given back in every call. A folded model works in the tensors that it has, where no gradient and no graph is recorded.
"""

import torch
from torch import Tensor


def may_overwrite(tokens: Tensor) -> bool:
    """Whether the numbers of a fresh tensor can be replaced: nothing is recorded that would ask for them later.

    Example:
        >>> may_overwrite(torch.zeros(3)), may_overwrite(torch.zeros(3, requires_grad=True))
        (True, False)
    """
    return not torch.compiler.is_compiling() and not (torch.is_grad_enabled() and tokens.requires_grad)


def gelu_over(tokens: Tensor) -> Tensor:
    """GELU of a tensor that nobody else holds, written over it where that is allowed.

    Example:
        >>> tokens = torch.randn(4)
        >>> expected = torch.nn.functional.gelu(tokens)
        >>> torch.equal(gelu_over(tokens), expected) and torch.equal(tokens, expected)
        True
    """
    return torch.ops.aten.gelu_(tokens) if may_overwrite(tokens) else torch.nn.functional.gelu(tokens)


def times(tokens: Tensor, gate: Tensor, overwrite: bool) -> Tensor:
    """Tokens times a gate; written over them if that is wanted and allowed.

    Example:
        >>> tokens = torch.ones(2, 3)
        >>> times(tokens, torch.full((2, 1), 0.5), overwrite=True) is tokens
        True
    """
    return tokens.mul_(gate) if overwrite and may_overwrite(tokens) else tokens * gate
