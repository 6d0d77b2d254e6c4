from collections.abc import Callable

import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def stir() -> Callable[[nn.Module], nn.Module]:
    """Fills a module with random weights and statistics in float64, so that nothing it computes is zero or one."""

    def fill(module: nn.Module, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_(std=0.5)
            for name, buffer in module.named_buffers():
                if name.endswith("running_mean"):
                    buffer.normal_()
                elif name.endswith("running_var"):
                    buffer.uniform_(0.5, 2)
        return module.eval()

    return fill


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
