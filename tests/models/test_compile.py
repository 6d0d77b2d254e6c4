"""`torch.compile` takes every kind of model as one graph, and one graph for all image sizes."""

from collections.abc import Callable

import pytest
import torch
from test_export import shorten
from torch import Tensor

from nearsight.models import MODELS, Backbone

Stir = Callable[[Backbone], Backbone]
Images = Callable[..., Tensor]


class Counter:
    """A backend that runs a graph as it is, and counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., object]:
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


def build(name: str, stir: Stir) -> Backbone:
    torch.manual_seed(0)
    return stir(Backbone(shorten(MODELS[name]), num_classes=7)).eval()


@torch.no_grad()
def test_sizes_share_a_graph(small_name: str, stir: Stir, images: Images) -> None:
    """Five sizes, square and not, divisible and not, in two graphs at most: one for squares, one for all others."""
    model, counter = build(small_name, stir), Counter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    side = model.spec.strides[-1]
    for height, width in [(4, 4), (2, 3), (5, 2), (3, 7), (6, 6)]:
        batch = images(model, height * side, width * side + height % 2 * 3)
        torch.testing.assert_close(compiled(batch), model(batch), rtol=1e-4, atol=1e-4)
    assert counter.graphs <= 2
