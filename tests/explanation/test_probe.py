"""What the probe says about layers is what is known about them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearsight.explanation.probing import ProbeResult, open_probed, probe, strip_projections, wrap
from nearsight.explanation.probing.figures import connection_matrix
from nearsight.explanation.probing.layer import draw, jacobian_rows, one_channel
from nearsight.explanation.probing.paper import OTHERS, ROWS, MultiScale, Separable, Size, TableRow, measure_rows
from nearsight.lattice import Grid
from nearsight.parts import DepthWise, LinearQkv, LocalMlp, Sliding, Window
from nearsight.parts.slots import Site


def mixer(part, side: int = 12, channels: int = 8, shape: tuple[int, int] | None = None) -> ProbeResult:
    """A mixer of ours without projections, probed."""
    torch.manual_seed(1)
    grid = Grid(*(shape or (side, side)))
    site = Site(channels, grid)
    module = part.make_spatial(site) if isinstance(part, DepthWise) else part.build(site, LinearQkv())
    return probe(strip_projections(module), (grid.tokens, channels), grid=grid)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_nine_layers_have_the_properties_of_table_7(row: TableRow, seed: int) -> None:
    (verdict,) = measure_rows([row], seed=seed)
    assert verdict.found.properties == row.printed


def test_table_1_is_the_first_part_of_table_7() -> None:
    first = ["Local MLP", "Local attention", "DW-Conv.", "D-DW-Conv.", "Conv."]
    assert [row.name for row in ROWS if row.in_table_1] == first == [row.name for row in ROWS[:5]]


def test_groups_that_the_paper_marks_with_a_flat_are_the_heads() -> None:
    for heads in (1, 2, 4):
        rows = [row for row in ROWS if row.name in ("Local MLP", "Local attention", "Attention")]
        verdicts = measure_rows(rows, Size(heads=heads))
        assert [verdict.found.channel_groups for verdict in verdicts] == [heads] * 3
    (mixing,) = measure_rows([row for row in ROWS if row.name == "Spatial-mixing MLP"])
    assert mixing.found.channel_groups == 1


def test_layers_that_the_tables_leave_out() -> None:
    found = {verdict.row.name: verdict.found for verdict in measure_rows(OTHERS)}
    inhomogeneous = found["I-D-DW-Conv."]
    assert inhomogeneous.properties == (True, False, True, False, True, True)
    assert inhomogeneous.channel_groups == 4 and inhomogeneous.shifts == (1, 1)
    assert found["Sep. MLP"].properties == (False,) * 6  # connects all, though its weights are a product
    assert found["Static and dynamic attention"].properties == found["Sliding attention"].properties
    assert found["Local MLP, windows share"].share_positions == (3, 3)
    assert found["Gather, broadcast (LightViT)"].reach == (9, 9)


@settings(max_examples=25, deadline=None)
@given(
    kernel=st.sampled_from([1, 2, 3, 5]),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4, 8]),
    stride=st.integers(1, 3),
)
def test_a_convolution_shows_its_settings(kernel: int, dilation: int, groups: int, stride: int) -> None:
    layer = nn.Conv2d(8, 8, kernel, stride, padding=kernel // 2, dilation=dilation, groups=groups)
    found = probe(layer, (8, 36, 36))
    side = dilation * (kernel - 1) + 1
    assert found.field == found.reach == (side, side)
    assert found.channels_connected == 8 // groups
    assert found.channels == {1: "all", 8: "own"}.get(groups, "some")
    assert found.share_positions == (1, 1) and not found.dynamic and found.linear
    assert found.shifts == (stride, stride)
    assert found.channel_groups == found.channels_seen


def test_rows_are_those_of_the_jacobian() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 5, 3, stride=2, padding=1))
    probed = wrap(layer, torch.zeros(1, 3, 6, 6))
    tokens = draw(probed, 3)
    whole = torch.autograd.functional.jacobian(probed.run, tokens)[0, :, :, 0]  # [M, D, N, C]
    asked = [one_channel(probed, token, channel) for token in range(9) for channel in range(5)]
    rows = jacobian_rows(probed, tokens, asked, given_weights=False)
    assert torch.allclose(rows, whole.flatten(0, 1), atol=1e-12)


def test_connections_of_attention_are_its_attention() -> None:
    """With the projections away, an output channel of a head is its attention row times that channel of the input."""
    torch.manual_seed(0)
    layer = strip_projections(nn.MultiheadAttention(8, 2, batch_first=True))
    probed = wrap(layer, torch.zeros(1, 9, 8), grid=(3, 3))
    tokens = draw(probed, 5)
    weight, bias = layer.in_proj_weight.double(), layer.in_proj_bias.double()
    queries, keys, _ = F.linear(tokens, weight, bias).view(9, 3, 2, 4).permute(1, 2, 0, 3)  # [2, 9, 4] each
    attention = (queries @ keys.mT / 2).softmax(dim=-1)
    rows = jacobian_rows(probed, tokens, [one_channel(probed, 4, c) for c in range(8)], given_weights=True)
    for channel, row in enumerate(rows):
        expected = torch.zeros(9, 8, dtype=torch.float64)
        expected[:, channel] = attention[channel // 4, 4]
        assert torch.allclose(row, expected, atol=1e-12)


def involution(tokens: Tensor, kernels: Tensor) -> Tensor:
    """A kernel per position as others write it: unfolded values times predicted weights, added up."""
    batch, channels, height, width = tokens.shape
    taps = F.unfold(tokens, 3, padding=1).view(batch, channels, 9, height, width)
    return (taps * kernels[:, None]).sum(dim=2)


class Involution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(4, 2, 1)
        self.span = nn.Conv2d(2, 9, 1)

    def forward(self, images: Tensor) -> Tensor:
        return involution(images, self.span(self.reduce(images).relu()))


def test_predicted_weights_are_found_in_foreign_code() -> None:
    found = probe(Involution(), (4, 12, 12))
    assert found.dynamic and found.field == (3, 3) and found.channels == "own"
    assert found.channel_groups == 1 and found.share_positions is None and found.shifts == (1, 1)
    assert found.reach_channels == "all"


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(6, 3), nn.Linear(3, 6)

    def forward(self, images: Tensor) -> Tensor:
        gate = self.up(self.down(images.mean(dim=(2, 3))).relu()).sigmoid()
        return images * gate[:, :, None, None]


def test_a_gate_is_a_dynamic_weight_of_one_position() -> None:
    found = probe(SqueezeExcite(), (6, 8, 8))
    assert found.positions == "own" and found.channels == "own" and found.dynamic
    assert found.share_positions == (1, 1) and found.reach == (8, 8)


def test_many_gates_that_are_near_each_other_are_not_taken_for_equal() -> None:
    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(192, 192)

        def forward(self, images: Tensor) -> Tensor:
            return images * (1e-3 * self.up(images.mean(dim=(2, 3)))).sigmoid()[:, :, None, None]

    found = probe(Gates(), (192, 6, 6))
    assert found.channel_groups == found.channels_seen == 192


def test_activations_and_norms_are_no_connections() -> None:
    layer = nn.Sequential(nn.GroupNorm(1, 4), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.GELU(), nn.Hardswish())
    found = probe(layer, (4, 12, 12))
    assert not found.dynamic and not found.linear
    assert found.field == (3, 3) and found.channels == "own" and found.share_positions == (1, 1)
    assert found.reach == (12, 12)  # through the norm's statistics
    plain = probe(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU()), (12, 6), grid=(3, 4))
    assert plain.positions == "own" and not plain.dynamic and plain.share_positions == (1, 1)


@pytest.mark.parametrize("window", [3, 4])
def test_windows_follow_shifts_by_whole_windows_and_sliding_ones_any(window: int) -> None:
    side = 4 * window
    for part in (Window(heads=2, window=window), Window(heads=2, window=window, shifted=True)):
        found = mixer(part, side)
        assert found.shifts == (window, window) and found.field == (window, window) and found.share_positions is None
    assert mixer(Window(heads=2, window=window, relative=False), shape=(side, window)).shifts == (window, 1)
    sliding = mixer(Sliding(heads=2, window=3))
    assert sliding.shifts == (1, 1) and sliding.field == (3, 3) and sliding.channel_groups == 2
    own = mixer(LocalMlp(heads=2, window=3))
    assert own.shifts is None and own.share_positions is None and not own.dynamic


def test_dynamic_kernels_look_at_the_whole_map_to_know_their_weights() -> None:
    found = mixer(DepthWise(kernel=5, dynamics="homogeneous"), 14)
    assert (found.field, found.reach) == ((5, 5), (14, 14))
    assert (found.channels, found.reach_channels) == ("own", "all")
    assert found.shifts == (1, 1) and not found.linear
    static = mixer(DepthWise(kernel=5), 14)
    assert static.field == static.reach and static.linear


def test_weights_shared_by_channels_of_a_static_kernel() -> None:
    found = mixer(DepthWise(kernel=3, share_channels=True, share_positions=False, heads=4))
    assert found.channel_groups == 4 and found.share_positions is None and found.shifts is None


def test_receptive_fields_add_up() -> None:
    layers = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)))
    assert probe(layers, (4, 16, 16)).field == (7, 7)
    assert probe(nn.Sequential(layers, nn.AvgPool2d(2)), (4, 16, 16)).field == (8, 8)
    assert probe(nn.Conv2d(4, 4, (1, 5), padding=(0, 2)), (4, 16, 16)).field == (1, 5)


def test_a_lattice_all_over_the_map_is_not_local() -> None:
    """Attention between every fourth position, as in MaxViT's grids."""

    class Grids(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            cells = images.unflatten(2, (-1, 4)).unflatten(4, (-1, 4))  # [B, C, rows, 4, columns, 4]
            return cells.mean(dim=(2, 4), keepdim=True).expand_as(cells).flatten(4, 5).flatten(2, 3)

    assert probe(Grids(), (2, 16, 16)).positions == "scattered"
    assert probe(nn.Conv2d(2, 2, 3, padding=2, dilation=2), (2, 16, 16)).positions == "local"


def test_tokens_without_a_grid_stand_in_a_line() -> None:
    found = probe(nn.Linear(6, 6), (10, 6))
    assert found.source == (6, 1, 10, 0) and found.positions == "own" and found.share_positions == (1, 1)


def test_channels_last_is_recognised() -> None:
    from timm.layers import LayerNorm, LayerNorm2d

    assert probe(nn.Sequential(LayerNorm(6), nn.Linear(6, 6)), (5, 6, 6)).positions == "own"
    assert probe(LayerNorm2d(6), (6, 5, 6)).source == (6, 5, 6, 0)
    found = probe(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), (5, 7, 6))
    assert found.source == (6, 5, 7, 0) and found.target == (3, 5, 7, 0)


def test_a_module_stays_as_it_is() -> None:
    layer = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)).train()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    probe(layer, (4, 8, 8))
    assert layer.training and all(one.requires_grad for one in layer.parameters())
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())


def test_matrix_of_a_convolution_is_a_band_in_every_block() -> None:
    """Appendix B, eq. 10 and 11, without the wrapping around."""
    layer = nn.Conv2d(2, 2, (1, 3), padding=(0, 1), bias=False)
    matrix = connection_matrix(wrap(layer, torch.zeros(1, 2, 1, 5)))
    for out in range(2):
        for into in range(2):
            block = matrix[5 * out : 5 * out + 5, 5 * into : 5 * into + 5]
            taps = layer.weight[out, into, 0].double()
            bands = sum(torch.diag(taps[tap].expand(5 - abs(tap - 1)), tap - 1) for tap in range(3))
            assert torch.allclose(block, bands)


def test_a_separable_mlp_is_the_kronecker_product_of_equation_14() -> None:
    """W = Wc' (x) Wp for neurons that stand position by position; the connection matrix has them channel by channel."""
    layer = Separable(channels=3, positions=4).double()
    matrix = connection_matrix(wrap(layer, torch.zeros(1, 3, 2, 2, dtype=torch.float64)))
    by_position = matrix.view(3, 4, 3, 4).permute(1, 0, 3, 2).reshape(12, 12)
    assert torch.allclose(by_position, torch.kron(layer.positions.T.contiguous(), layer.channels))
    maps = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    vector = maps.flatten(2)[0].T.flatten()  # mat(x) is C x N; vec stacks its columns, which are the positions
    assert torch.allclose(by_position @ vector, layer(maps).flatten(2)[0].T.flatten())


def test_four_scales_have_the_ranks_of_equation_19() -> None:
    """C1 N + C2 N/4 + C3 N/16 + C4 N/64 neurons do the work of C N."""
    layer = MultiScale(channels=4, scales=4).double()
    matrix = connection_matrix(wrap(layer, torch.zeros(1, 4, 8, 8, dtype=torch.float64)))
    assert matrix.shape == (256, 256)
    assert int(torch.linalg.matrix_rank(matrix)) == 64 + 16 + 4 + 1


def test_a_module_that_ignores_its_input_is_refused() -> None:
    class Constant(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.zeros_like(images)

    with pytest.raises(ValueError, match="No output of Constant depends on its input"):
        probe(Constant(), (3, 4, 4))


@pytest.mark.parametrize(
    ("text", "positions", "dynamic"),
    [
        ("swin_nano.stages.1.blocks.0.mixer", "local", True),
        ("swin_nano.stages.0.blocks.1", "local", True),
        ("deit_nano.stages.0.blocks.0.mixer", "all", True),
        ("lit_nano.stages.1.merge", "local", True),
        ("timm/resnet18.layer1.0.conv1", "local", False),
        ("timm/vit_tiny_patch16_224.blocks.0.attn", "all", True),
        ("timm/swin_tiny_patch4_window7_224.layers.2.blocks.1", "local", True),
        ("timm/swin_tiny_patch4_window7_224.layers.2.blocks.1.attn", "local", True),
        ("timm/pvt_v2_b0.stages.1.blocks.0.attn", "all", True),
        ("depthwise:kernel=5", "local", False),
        ("depthwise_mlp", "local", False),
        ("localvit", "local", True),  # its channel attention is a predicted gate
        ("torch:Conv2d(16,16,3,groups=16)", "local", False),
        ("torch:MultiheadAttention(8, 2)", "all", True),
        ("torch:TransformerEncoderLayer(8, 2)", "all", True),
    ],
)
def test_names_of_modules(text: str, positions: str, dynamic: bool) -> None:
    found = probe(open_probed(text))
    assert (found.positions, found.dynamic) == (positions, dynamic)
