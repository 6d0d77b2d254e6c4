"""`torch.compile` takes every kind of model as one graph, and one graph for all image sizes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nearsight.models import Backbone
from tests.rounding import assert_rounded

Make = Callable[..., Backbone]
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


@pytest.mark.parametrize("name", ["deit_nano_life", "localvit_nano"])
def test_sizes_share_a_graph(name: str, make_short: Make, stir: Stir, images: Images) -> None:
    check_sizes(stir(make_short(name)).eval(), images)


@pytest.mark.slow
def test_every_kind_of_part_shares_a_graph(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    check_sizes(stir(make_short(small_name)).eval(), images, most=4 if small_name in SHIFTED else 2)


# Shifted windows that divide a map need no padding, which is a graph of its own for either form of the map.
SHIFTED = ("local_mlp_tiny", "swinv2_tiny_life")


@torch.no_grad()
def check_sizes(model: Backbone, images: Images, most: int = 2) -> None:
    """Five sizes, square and not, divisible and not, in two graphs at most: one for squares, one for all others.

    Sizes at which LightViT's maps are one window wide get a graph of their own, so there are none of them.
    """
    counter = Counter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    side = model.spec.strides[-1]
    for height, width in [(8, 8), (5, 7), (9, 5), (6, 10), (7, 7)]:
        batch = images(model, height * side, width * side + height % 2 * 3)
        assert_rounded(compiled(batch), model(batch), model)
    assert counter.graphs <= most
