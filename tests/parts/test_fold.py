"""Folding leaves every part's answers as they were, wherever its batch norms stand."""

import pytest
import torch
from torch import nn

import nearsight
from nearsight.lattice import Grid
from nearsight.parts import (
    BiGate,
    DepthWise,
    DepthwiseThen,
    Global,
    LinearQkv,
    LocalityFfn,
    LocalMlp,
    Mlp,
    Sliding,
    Squeezed,
    Window,
)
from nearsight.parts.slots import Ffn, Site

GRID = Grid(5, 6)
PARTS = [
    *(DepthWise(kernel=3, dynamics=kind) for kind in ("static", "homogeneous", "inhomogeneous")),
    DepthWise(kernel=3, dynamics="inhomogeneous", norm="calibrated_batch"),
    DepthWise(kernel=3, norm="layer"),
    DepthWise(kernel=4, pad_to=4),
    DepthWise(kernel=3, share_channels=True, heads=2),
    DepthWise(kernel=3, share_positions=False),
    LocalMlp(heads=2, window=2, shifted=True),
    Sliding(heads=2, window=3, conv="pre"),
    Sliding(heads=2, window=3, conv="pre", conv_shared=False),
    Global(heads=2, temperature=True, mask_self=True),
    Window(heads=2, window=2, shifted=True, temperature=True, mask_self=True),
    Sliding(heads=2, window=3, conv="normal", static=True),
    Squeezed(mixer=Window(heads=2, window=2, shifted=True)),
    Squeezed(mixer=DepthWise(kernel=3)),
    *(LocalityFfn(channel_attention=gate) for gate in (None, "se", "eca")),
    LocalityFfn(depthwise_first=True),
    LocalityFfn(depthwise=False),
    DepthwiseThen(kernel=3, then=Mlp()),
    DepthwiseThen(kernel=3, then=BiGate()),
]


@torch.no_grad()
def trained(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.3, 2)
    for parameter in module.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    return module.double().eval()


@pytest.mark.parametrize("norm", ["layer", "batch", "calibrated_batch"])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_folded_part_gives_the_same_tokens(part, norm):
    torch.manual_seed(0)
    site = Site(12, GRID, norm)
    module = trained(part.build(site) if isinstance(part, Ffn) else part.build(site, LinearQkv()))
    folded = nearsight.fold(module)
    for grid in (GRID, Grid(3, 4)):
        tokens = torch.randn(2, grid.tokens, 12, dtype=torch.float64)
        torch.testing.assert_close(folded(tokens, grid), module(tokens, grid))
