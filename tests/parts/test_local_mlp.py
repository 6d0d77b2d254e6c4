import pytest
import torch
import torch.nn.functional as F

from nearsight.lattice import Grid
from nearsight.parts import LinearQkv, LocalMlp
from nearsight.parts.slots import Site


def by_hand(module, tokens, grid, size, shift):
    """Every output as the sum over the places of its window, one by one."""
    batch, _, dim = tokens.shape
    height, width = (-(-side // size) * size for side in (grid.height, grid.width))
    values = torch.zeros(batch, height, width, dim, dtype=tokens.dtype)
    values[:, : grid.height, : grid.width] = module.value(tokens).unflatten(1, (grid.height, grid.width))
    table = module.table.view(2 * size - 1, 2 * size - 1, -1)
    out = torch.zeros_like(values)
    for y in range(height):
        for x in range(width):
            row, column = (y - shift[0]) % height, (x - shift[1]) % width  # place on the shifted map
            top, left = row // size * size, column // size * size
            rows, columns = module.weight.shape[:2]  # one and one where all windows share their weights
            window = module.weight[top // size % rows, left // size % columns]
            for i in range(size):
                for j in range(size):
                    if (row + shift[0] >= height) != (top + i + shift[0] >= height):
                        continue
                    if (column + shift[1] >= width) != (left + j + shift[1] >= width):
                        continue
                    weight = window[:, (row - top) * size + column - left, i * size + j]
                    weight = weight + table[row - top - i + size - 1, column - left - j + size - 1]
                    source = values[:, (top + i + shift[0]) % height, (left + j + shift[1]) % width]
                    out[:, y, x] += weight.repeat_interleave(dim // len(weight)) * source
    return module.proj(out[:, : grid.height, : grid.width].flatten(1, 2))


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("channels", "positions"), [(True, True), (True, False), (False, True), (False, False)])
def test_local_mlp_is_a_static_weighted_sum_inside_each_window(stir, shifted, channels, positions):
    grid = Grid(4, 6)
    part = LocalMlp(heads=2, window=2, shifted=shifted, share_channels=channels, share_positions=positions)
    module = stir(part.build(Site(4, grid), LinearQkv()))
    tokens = torch.randn(2, 24, 4, dtype=torch.float64)
    shift = (1, 1) if shifted else (0, 0)
    torch.testing.assert_close(module(tokens, grid), by_hand(module, tokens, grid, 2, shift))


@pytest.mark.parametrize("shifted", [False, True])
def test_padding_of_an_odd_map_adds_nothing(stir, shifted):
    grid = Grid(3, 5)
    module = stir(LocalMlp(heads=2, window=2, shifted=shifted).build(Site(4, grid), LinearQkv()))
    tokens = torch.randn(2, 15, 4, dtype=torch.float64)
    torch.testing.assert_close(module(tokens, grid), by_hand(module, tokens, grid, 2, (1, 1) if shifted else (0, 0)))


@pytest.mark.parametrize(
    ("channels", "positions", "count"),
    [
        (False, True, 96 * 49 * 49 + 169 * 96),
        (True, False, 64 * 3 * 49 * 49 + 169 * 3),
        (True, True, 3 * 49 * 49 + 169 * 3),
    ],
)
def test_the_sharing_variants_have_the_weights_of_table_4(channels, positions, count):
    part = LocalMlp(heads=3, share_channels=channels, share_positions=positions)
    with torch.device("meta"):
        module = part.build(Site(96, Grid(56, 56)), LinearQkv())
    assert module.weight.numel() + module.table.numel() == count


def test_weights_per_window_are_interpolated_on_a_map_of_more_windows(stir):
    module = stir(LocalMlp(heads=2, window=2).build(Site(4, Grid(4, 4)), LinearQkv()))
    with torch.no_grad():
        module.table.zero_()
    weight = module.weights_for(3, 5).view(3, 5, 2, 4, 4)
    wanted = F.interpolate(module.weight[None, :, :, 1, 2, 3][None], size=(3, 5), mode="bilinear")
    torch.testing.assert_close(weight[:, :, 1, 2, 3], wanted[0, 0])
