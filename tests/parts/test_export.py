"""Parts are exported for any batch size, and compiled without a break."""

import pytest
import torch
from torch import Tensor, nn

from nearsight.lattice import Grid
from nearsight.parts import (
    BiGate,
    ConcatMerge,
    ConvTokenizer,
    DeformableMerge,
    DenseFfn,
    DenseStem,
    DepthWise,
    DepthwiseThen,
    GatherBroadcast,
    Global,
    Life,
    LinearQkv,
    LocalityFfn,
    LocalMlp,
    Patchify,
    PixelEmbed,
    PoolMerge,
    ResidualMerge,
    ShiftedPatches,
    Sliding,
    SpatialReduction,
    Squeezed,
    TokensToToken,
    Window,
)
from nearsight.parts.slots import Ffn, Merge, Site

BARE, WITH_AUX = Grid(3, 5), Grid(3, 5, 2)


class OnGrid(nn.Module):
    """A part with its grid filled in; a merge gives its tokens alone."""

    def __init__(self, part: nn.Module, grid: Grid):
        super().__init__()
        self.part = part
        self.grid = grid

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.part(tokens, self.grid)
        return out[0] if isinstance(out, tuple) else out


TOKEN_PARTS = [
    (Global(heads=2, relative=True), WITH_AUX),
    (Global(heads=2, temperature=True, mask_self=True), WITH_AUX),
    (Window(heads=2, window=2, shifted=True), BARE),
    (Window(heads=2, window=2, shifted=True, temperature=True, mask_self=True), BARE),
    (Window(heads=2, window=2, shifted=True, relative=False), BARE),
    (Window(heads=2, window=2, cosine=True), BARE),
    (SpatialReduction(heads=2, sr_ratio=2), WITH_AUX),
    (GatherBroadcast(heads=2, window=2), WITH_AUX),
    (Sliding(heads=2, window=3, conv="post"), BARE),
    (LocalMlp(heads=2, window=2, shifted=True), BARE),
    (DepthWise(kernel=3), BARE),
    (DepthWise(kernel=3, dynamics="homogeneous"), BARE),
    (DepthWise(kernel=3, dynamics="inhomogeneous"), BARE),
    (Squeezed(mixer=Global(heads=2)), WITH_AUX),
    (LocalityFfn(), WITH_AUX),
    (BiGate(), WITH_AUX),
    (DepthwiseThen(kernel=3), WITH_AUX),
    (DenseFfn(gamma=2, project=1), WITH_AUX),
    (ConcatMerge(), WITH_AUX),
    (ResidualMerge(), WITH_AUX),
    (DeformableMerge(), WITH_AUX),
    (DeformableMerge(backend="torch"), WITH_AUX),
    (PoolMerge(), WITH_AUX),
]


def build(part, grid, qkv=None):
    if isinstance(part, Merge):
        module = part.build(Site(12, grid), 12)
    else:
        module = part.build(Site(12, grid)) if isinstance(part, Ffn) else part.build(Site(12, grid), qkv or LinearQkv())
    return OnGrid(module, grid).eval()


@torch.no_grad()
def assert_takes_any_batch(module, example, other):
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},), strict=False)
    torch.testing.assert_close(program.module()(other), module(other))


@pytest.mark.parametrize(("part", "grid"), TOKEN_PARTS)
def test_a_part_is_exported_for_any_batch_size(part, grid):
    module = build(part, grid)
    assert_takes_any_batch(module, torch.randn(2, grid.tokens, 12), torch.randn(5, grid.tokens, 12))


def test_life_is_exported_for_any_batch_size():
    module = build(Global(heads=2), WITH_AUX, Life(aux_key="released"))
    assert_takes_any_batch(module, torch.randn(2, 17, 12), torch.randn(5, 17, 12))


@pytest.mark.parametrize(
    "part",
    [
        Patchify(patch=4),
        TokensToToken(patch=4, token_dim=8),
        PixelEmbed(patch=4, pixel_stride=2),
        ConvTokenizer(patch=4, inner=8),
        DenseStem(patch=4, inner=(8,)),
        ShiftedPatches(patch=4),
    ],
)
def test_an_embedding_is_exported_for_any_batch_size(part):
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = part.build(12, 3, (8, 8))

        def forward(self, images: Tensor) -> Tensor:
            return self.embed(images)[0]

    assert_takes_any_batch(Tokens().eval(), torch.randn(2, 3, 9, 8), torch.randn(5, 3, 9, 8))


@pytest.mark.parametrize(("part", "grid"), TOKEN_PARTS)
def test_a_part_is_compiled_as_one_graph(part, grid):
    module = build(part, grid)
    tokens = torch.randn(2, grid.tokens, 12)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(tokens), module(tokens))
