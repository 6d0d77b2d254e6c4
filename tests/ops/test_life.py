"""The cascade on channels-last views is a sum over windows, forward and backward."""

import pytest
import torch

from nearsight.lattice import Grid
from nearsight.ops.life import ScaleWeights, cascade, cascade_by_heads

DIM = 12


def random_scales(kernels, n):
    """Weights in float64 that want gradients; the first scale has a bias, as in LIFE."""
    scales, channels = [], DIM
    for index, kernel in enumerate(kernels):
        depth = torch.randn(channels, 1, kernel, kernel) if kernel > 1 else None
        weights = (depth, torch.randn(3 * n, channels), None if index else torch.randn(3 * n))
        scales.append(ScaleWeights(*(None if w is None else w.double().requires_grad_() for w in weights)))
        channels = 3 * n
    return scales


def written_out(tokens, grid, scales):
    """The same sums with every window unfolded: `[B, N, 3, width]`."""
    aux, patches = tokens[:, : grid.aux], tokens[:, grid.aux :]
    fractions = []
    for depth, point, bias in scales:
        if depth is not None:
            side = depth.shape[-1]
            picture = patches.transpose(1, 2).unflatten(2, (grid.height, grid.width))
            taps = torch.nn.functional.unfold(picture, side, padding=side // 2)  # [B, C * side**2, HW]
            patches = torch.einsum("bctn,ct->bnc", taps.unflatten(1, (-1, side * side)), depth.flatten(1))
        added = 0 if bias is None else bias
        aux, patches = aux @ point.T + added, patches @ point.T + added
        fractions.append(torch.cat((aux, patches), dim=1).unflatten(-1, (3, -1)))
    return torch.cat(fractions, dim=-1)


@pytest.mark.parametrize(("kernels", "n"), [((1, 3, 5), 4), ((1, 3, 5), 5), ((3,), 4), ((5, 1, 3), 2), ((1, 7), 6)])
@pytest.mark.parametrize("grid", [Grid(4, 5, 1), Grid(1, 3), Grid(6, 2, 3)])
@pytest.mark.parametrize("strided", [False, True])
def test_the_cascade_is_a_sum_over_windows_forward_and_backward(kernels, n, grid, strided):
    torch.manual_seed(0)
    scales = random_scales(kernels, n)
    tokens = torch.randn(3, grid.tokens, 2 * DIM if strided else DIM, dtype=torch.float64)[..., :DIM].requires_grad_()
    got, expected = cascade(tokens, grid, scales), written_out(tokens, grid, scales)
    torch.testing.assert_close(got, expected)
    towards = torch.randn_like(got)
    inputs = (tokens, *(w for scale in scales for w in scale if w is not None))
    slopes = (torch.autograd.grad(out, inputs, towards) for out in (got, expected))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(("kernels", "n"), [((1, 3, 5), 4), ((3,), 5), ((5, 1, 3), 2)])
@pytest.mark.parametrize("grid", [Grid(4, 5, 1), Grid(1, 3), Grid(6, 2, 3)])
@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_heads_as_wide_as_a_scale_are_views_of_what_the_cascade_gathers(kernels, n, grid, batch):
    torch.manual_seed(0)
    scales = random_scales(kernels, n)
    tokens = torch.randn(batch, grid.tokens, DIM, dtype=torch.float64)
    heads = torch.stack(cascade_by_heads(tokens, grid, scales), dim=2)  # [B, S, 3, N, n]
    gathered = written_out(tokens, grid, scales).unflatten(-1, (len(kernels), n))  # [B, N, 3, S, n]
    torch.testing.assert_close(heads.permute(0, 3, 2, 1, 4), gathered)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_lose_no_more_than_their_digits(dtype):
    torch.manual_seed(0)
    scales, grid = random_scales((1, 3, 5), 4), Grid(3, 2, 1)
    tokens = torch.randn(2, grid.tokens, DIM, dtype=torch.float64)
    cast = [ScaleWeights(*(None if w is None else w.detach().to(dtype) for w in scale)) for scale in scales]
    got, expected = cascade(tokens.to(dtype), grid, cast), written_out(tokens, grid, scales)
    assert got.dtype == dtype
    assert (got.double() - expected).abs().max() <= 8 * torch.finfo(dtype).eps * expected.abs().max()
