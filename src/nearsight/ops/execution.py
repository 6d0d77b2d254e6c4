"""How an operation runs: in which type, in whose memory, and what it reports to a counter.

A fresh tensor of some megabytes costs more than the arithmetic that fills it: its pages are fetched from the system and
given back in every call. So a folded model writes over numbers that nobody reads again, where no gradient and no graph
is recorded.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

WITH_AUTOCAST = ("cpu", "cuda", "xpu", "mps")  # asking torch breaks the graph that older versions compile
_LISTENERS: list[Callable[[int], None]] = []


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for the 16-bit types, the type itself otherwise."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A block in which operators take the types they are given; devices without autocast have nothing to switch off."""
    if device.type not in WITH_AUTOCAST or torch.compiler.is_exporting():  # an exported program has its types
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


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


def report_macs(multiply_adds: int) -> None:
    """Report multiply-adds that were made element by element; costs nothing while nobody listens."""
    for listener in _LISTENERS:
        listener(multiply_adds)


@contextmanager
def macs_hook(listener: Callable[[int], None]) -> Iterator[None]:
    """Give `listener` every report made inside the block."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)
