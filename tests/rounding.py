"""How far apart two ways to compute the same may be: what the float type and the length of the sums allow, and no more.

Kernels differ with the instructions of the CPU, the number of threads and the library, and add up in another order.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import nn

# Roundings have either sign, so that n of them add up to about sqrt(n) half units, whatever the order (Higham and Mary,
# 2019). Both ways round, and activations, norms and the softmax in between stretch what they get by a small factor.
FACTOR = 8


def rounding(sums: int | nn.Module, dtype: torch.dtype = torch.float32) -> float:
    """The difference that is rounding alone, as a fraction of the largest number.

    Args:
        sums: Additions on the way from what is given to the result; of a model: those of all its layers, one after the
            other.
        dtype: The narrowest type on the way.

    Example:
        >>> rounding(64) < 1e-5 < rounding(64, torch.bfloat16)
        True
    """
    if isinstance(sums, nn.Module):
        sums = sum(weight[0].numel() for weight in sums.parameters() if weight.ndim > 1)
    return FACTOR * torch.finfo(dtype).eps * math.sqrt(max(sums, 1))


def assert_rounded(found: Any, wanted: Any, sums: int | nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Assert that tensors or arrays of one shape are equal but for `rounding`."""
    found, wanted = (
        values.detach().double().numpy() if isinstance(values, torch.Tensor) else np.asarray(values, dtype=np.float64)
        for values in (found, wanted)
    )
    assert found.shape == wanted.shape
    allowed = rounding(sums, dtype) * np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=allowed)
