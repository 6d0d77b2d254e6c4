import pytest
import torch
import torch.nn.functional as F

from nearsight import fold
from nearsight.lattice import Grid
from nearsight.parts import Global, Life, LinearQkv
from nearsight.parts.slots import Site


def cascade(module, tokens, grid):
    """The maps F_1, F_2, ... of LIFE's equation 3 with `F.conv2d`, auxiliary tokens in front: `[B, aux + N, 3n]`."""
    aux = tokens[:, : grid.aux]
    patches = tokens[:, grid.aux :].transpose(1, 2).unflatten(2, (grid.height, grid.width))
    scales = []
    for scale in module.scales:
        if scale.depth is not None:
            kernel = scale.depth.weight
            patches = F.conv2d(patches, kernel, padding=kernel.shape[-1] // 2, groups=len(kernel))
        weight, bias = scale.point.weight, scale.point.bias
        patches, aux = F.conv2d(patches, weight[:, :, None, None], bias), F.linear(aux, weight, bias)
        scales.append(torch.cat((aux, patches.flatten(2).transpose(1, 2)), dim=1))
    return scales


@pytest.mark.parametrize("aux", [0, 1, 3])
@pytest.mark.parametrize(
    ("dim", "part"),
    [
        (12, Life()),
        (12, Life(scale_width=5)),
        (8, Life(kernels=(1, 3))),
        (12, Life(kernels=(3,))),
        (6, Life((5, 1, 3))),
    ],
)
def test_each_scale_gives_its_part_of_queries_keys_and_values(stir, aux, dim, part):
    grid = Grid(4, 5, aux)
    module = stir(part.build(Site(dim, grid), heads=1))
    tokens = torch.randn(2, grid.tokens, dim, dtype=torch.float64)
    scales = cascade(module, tokens, grid)
    n = scales[0].shape[-1] // 3
    for index, made in enumerate(module(tokens, grid)):  # Q = [q1|q2|q3], K, V, eq. 4
        wanted = torch.cat([scale[..., index * n : (index + 1) * n] for scale in scales], dim=-1)
        torch.testing.assert_close(made, wanted)
        assert made.shape[-1] == module.width


def test_a_single_kernel_of_one_is_the_linear_layer(stir):
    grid = Grid(3, 3, 1)
    life, linear = Life(kernels=(1,)).build(Site(8, grid), 2), stir(LinearQkv().build(Site(8, grid), 2))
    life.double().scales[0].point.load_state_dict(linear.proj.state_dict())
    assert len(life.state_dict()) == 2
    tokens = torch.randn(2, 10, 8, dtype=torch.float64)
    torch.testing.assert_close(life(tokens, grid), linear(tokens, grid))


@pytest.mark.parametrize("aux", [1, 2])
def test_the_released_key_of_auxiliary_tokens_repeats_the_first_scale(stir, aux):
    grid = Grid(3, 4, aux)
    paper = stir(Life().build(Site(12, grid), 1))
    released = Life(aux_key="released").build(Site(12, grid), 1).double()
    released.load_state_dict(paper.state_dict())
    tokens = torch.randn(2, grid.tokens, 12, dtype=torch.float64)
    (q1, k1, v1), (q2, k2, v2) = paper(tokens, grid), released(tokens, grid)
    assert torch.equal(q1, q2) and torch.equal(v1, v2) and torch.equal(k1[:, aux:], k2[:, aux:])
    torch.testing.assert_close(k2[:, :aux], k1[:, :aux, :4].repeat(1, 1, 3))
    assert not torch.allclose(k1[:, :aux], k2[:, :aux])


def test_without_auxiliary_tokens_both_forms_of_the_key_are_the_same(stir):
    grid = Grid(3, 4)
    paper, released = (stir(Life(aux_key=key).build(Site(12, grid), 1)) for key in ("paper", "released"))
    tokens = torch.randn(2, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(paper(tokens, grid), released(tokens, grid))


def test_the_optional_norm_is_one_layer_norm_for_queries_keys_and_values(stir):
    grid = Grid(3, 4, 1)
    plain, normed = Life().build(Site(12, grid), 1), stir(Life(qkv_norm=True).build(Site(12, grid), 1))
    plain.double().load_state_dict({n: w for n, w in normed.state_dict().items() if not n.startswith("norm.")})
    tokens = torch.randn(2, 13, 12, dtype=torch.float64)
    for before, after in zip(plain(tokens, grid), normed(tokens, grid), strict=True):
        torch.testing.assert_close(after, F.layer_norm(before, (12,), normed.norm.weight, normed.norm.bias))


@pytest.mark.parametrize(("dim", "heads"), [(192, 3), (384, 6)])
def test_life_adds_32_parameters_per_channel(dim, heads):
    site = Site(dim, Grid(4, 4))
    life, linear = Life().build(site, heads), LinearQkv().build(site, heads)
    count = [sum(p.numel() for p in module.parameters()) for module in (life, linear)]
    assert count[0] - count[1] == 32 * dim


@pytest.mark.parametrize(("dim", "heads"), [(256, 4), (100, 5), (10, 1), (64, 3)])
def test_a_width_that_three_scales_do_not_divide_takes_the_next_that_fits_the_heads(dim, heads):
    part = Life()
    width = part.width_of_scale(dim, heads)
    assert 3 * width >= dim and 3 * width % heads == 0
    assert all(3 * n % heads for n in range(-(-dim // 3), width))
    module = Global(heads=heads).build(Site(dim, Grid(2, 2, 1)), part)
    assert module(torch.randn(1, 5, dim), Grid(2, 2, 1)).shape == (1, 5, dim)


def test_swin_v2_has_biases_on_queries_and_values_alone(stir):
    module = stir(LinearQkv(bias="qv").build(Site(4, Grid(2, 2)), 1))
    zero = torch.zeros(1, 4, 4, dtype=torch.float64)
    queries, keys, values = module(zero, Grid(2, 2))
    assert torch.equal(queries, module.q_bias.expand_as(queries)) and torch.equal(
        values, module.v_bias.expand_as(values)
    )
    assert keys.count_nonzero() == 0


def test_what_is_no_cascade_is_refused():
    site = Site(12, Grid(2, 2))
    with pytest.raises(ValueError, match=r"kernels=\(\) is no cascade; give one kernel per scale"):
        Life(kernels=()).build(site, 1)
    with pytest.raises(ValueError, match="aux_key='paer' is not known; use paper or released"):
        Life(aux_key="paer").build(site, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("aux", [0, 2])
@pytest.mark.parametrize("part", [Life(), Life(aux_key="released"), Life(qkv_norm=True), Life(kernels=(1, 2, 4))])
def test_folding_keeps_queries_keys_and_values(stir, part, aux):
    grid = Grid(4, 5, aux)
    module = stir(part.build(Site(12, grid), heads=1))
    tokens = torch.randn(2, grid.tokens, 12, dtype=torch.float64)
    before = tokens.clone()
    torch.testing.assert_close(fold(module)(tokens, grid), module(tokens, grid))
    assert torch.equal(tokens, before)


def test_a_folded_cascade_follows_its_weights_to_another_type():
    grid = Grid(3, 4, 1)
    module = Life().build(Site(12, grid), heads=1)
    tokens = torch.randn(2, grid.tokens, 12, dtype=torch.float64)
    torch.testing.assert_close(fold(fold(module)).double()(tokens, grid), module.double()(tokens, grid))
