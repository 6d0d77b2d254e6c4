"""Numbers wide enough for sums and exponents, also inside a model that runs in sixteen bits."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for the 16-bit types, the type itself otherwise."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A block in which operators take the types they are given; devices without autocast have nothing to switch off."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
