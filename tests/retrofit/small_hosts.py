"""Small hosts with random weights."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from tools.hosts import EXAMPLES, Example


@torch.no_grad()
def stirred(model: nn.Module) -> nn.Module:
    """Random numbers also where a fresh model has zeros or ones, so that nothing is hidden behind them."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@cache
def host(example: Example, size: tuple[int, int] | None = None) -> nn.Module:
    """Shared between tests: localize a copy of it, or build one with `fresh`."""
    return fresh(example, size)


def fresh(example: Example, size: tuple[int, int] | None = None) -> nn.Module:
    torch.manual_seed(0)
    return stirred(example.build(size))


def named(family: str) -> Example:
    found = next((example for example in EXAMPLES if example.family == family), None)
    if found is None:
        pytest.skip(f"this timm has no {family}")
    return found


def pictures(batch: int, size: tuple[int, int], seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(seed))
