"""Numbers wide enough for sums and exponents, also inside a model that runs in sixteen bits."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

WITH_AUTOCAST = ("cpu", "cuda", "xpu", "mps")  # asking torch breaks the graph that older versions compile


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for the 16-bit types, the type itself otherwise."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A block in which operators take the types they are given; devices without autocast have nothing to switch off."""
    if device.type not in WITH_AUTOCAST or torch.compiler.is_exporting():  # an exported program has its types
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
