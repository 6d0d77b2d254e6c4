import math

import pytest
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block

from nearsight.lattice import Grid
from nearsight.ops.relative import resize_relative_table
from nearsight.parts import Global, Life, LinearQkv, SpatialReduction, Window
from nearsight.parts.attention import unit
from nearsight.parts.slots import Site
from tests.rounding import assert_rounded


def attend(queries, keys, values, heads, bias=None):
    """softmax(q k / sqrt(d) + bias) v, written out."""
    batch, _, width = queries.shape
    queries, keys, values = (t.view(batch, t.shape[1], heads, -1).permute(0, 2, 1, 3) for t in (queries, keys, values))
    logits = queries @ keys.mT / math.sqrt(width // heads)
    mixed = (logits if bias is None else logits + bias).softmax(-1) @ values
    return mixed.permute(0, 2, 1, 3).reshape(batch, -1, width)


def timm_window(block, tokens, grid):
    """timm's attention on the map padded to whole windows, as in Swin's detectors; timm itself shifts, then pads."""
    field = tokens.unflatten(1, (grid.height, grid.width))
    field = F.pad(field, (0, 0, 0, -grid.width % 4, 0, -grid.height % 4))
    return block._attn(field)[:, : grid.height, : grid.width].flatten(1, 2)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("size", [(8, 12), (7, 10), (4, 9), (3, 3)])
def test_window_attention_is_swins(stir, shifted, size):
    grid = Grid(*size)
    ours = stir(Window(heads=2, window=4, shifted=shifted).build(Site(8, Grid(8, 8)), LinearQkv()))
    theirs = SwinTransformerBlock(
        8, size, num_heads=2, window_size=4, shift_size=2 if shifted else 0, always_partition=True, dynamic_mask=True
    )
    theirs = theirs.double().eval()
    names = {"qkv.proj.weight": "qkv.weight", "qkv.proj.bias": "qkv.bias", "table": "relative_position_bias_table"}
    weights = {names.get(name, name): weight for name, weight in ours.state_dict().items()}
    missing, unexpected = theirs.attn.load_state_dict(weights, strict=False)
    assert not unexpected and all("index" in name for name in missing)
    if shifted and min(size) <= 4:  # a side that fits in one window is not shifted
        theirs.shift_size = tuple(2 if side > 4 else 0 for side in size)
    tokens = torch.randn(2, grid.patches, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(tokens, grid), timm_window(theirs, tokens, grid))


@pytest.mark.parametrize("trained", [None, 3])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("size", [(8, 12), (7, 10)])
def test_cosine_window_attention_is_swin_v2s(stir, shifted, size, trained):
    grid = Grid(*size)
    part = Window(heads=2, window=4, shifted=shifted, cosine=True, trained_window=trained)
    ours = stir(part.build(Site(8, Grid(8, 8)), LinearQkv(bias="qv")))
    theirs = SwinTransformerV2Block(
        8,
        size,
        num_heads=2,
        window_size=4,
        shift_size=2 if shifted else 0,
        always_partition=True,
        dynamic_mask=True,
        pretrained_window_size=trained or 0,
    )
    theirs = theirs.double().eval()
    names = {
        "qkv.proj.weight": "qkv.weight",
        "qkv.q_bias": "q_bias",
        "qkv.v_bias": "v_bias",
        "similarity.logit_scale": "logit_scale",
        "similarity.offset_mlp.0.weight": "cpb_mlp.0.weight",
        "similarity.offset_mlp.0.bias": "cpb_mlp.0.bias",
        "similarity.offset_mlp.2.weight": "cpb_mlp.2.weight",
    }
    weights = {names.get(name, name): weight for name, weight in ours.state_dict().items()}
    assert not theirs.attn.load_state_dict(weights, strict=False).unexpected_keys
    tokens = torch.randn(2, grid.patches, 8, dtype=torch.float64)
    # timm keeps the offsets of the bias network in float32.
    assert_rounded(ours(tokens, grid), timm_window(theirs, tokens, grid), ours)


def test_the_temperature_of_cosine_attention_is_capped_at_a_hundred(stir):
    module = stir(Window(heads=2, window=4, cosine=True).build(Site(8, Grid(4, 4)), LinearQkv()))
    tokens = torch.randn(1, 16, 8, dtype=torch.float64)
    with torch.no_grad():
        module.similarity.logit_scale.fill_(math.log(100))
        capped = module(tokens, Grid(4, 4))
        module.similarity.logit_scale.fill_(9)
    torch.testing.assert_close(module(tokens, Grid(4, 4)), capped)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_zero_vector_stays_zero_in_every_type(dtype):
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype)
    torch.testing.assert_close(unit(vectors), torch.tensor([[0.0, 0.0], [0.6, 0.8]], dtype=dtype))


@pytest.mark.parametrize("relative", [False, True])
def test_shifted_windows_without_bias_equal_those_with_a_zero_bias(stir, relative):
    grid = Grid(8, 6)
    plain = stir(Window(heads=2, window=4, shifted=True, relative=False).build(Site(8, grid), LinearQkv()))
    biased = stir(Window(heads=2, window=4, shifted=True).build(Site(8, grid), LinearQkv()))
    biased.load_state_dict({**plain.state_dict(), "table": torch.zeros_like(biased.table)})
    tokens = torch.randn(3, grid.patches, 8, dtype=torch.float64)
    torch.testing.assert_close(plain(tokens, grid), biased(tokens, grid))
    if relative:
        torch.nn.init.normal_(biased.table)
        assert not torch.allclose(plain(tokens, grid), biased(tokens, grid))


def test_permuting_tokens_inside_windows_permutes_attention_without_bias(stir):
    grid, size = Grid(8, 4), 4
    module = stir(Window(heads=2, window=size, relative=False).build(Site(8, grid), LinearQkv()))
    order = torch.randperm(size**2)
    position = torch.arange(grid.patches).view(2, size**2)  # windows as high and as wide as 4, one above the other
    mixed = position[:, order].flatten()
    tokens = torch.randn(2, grid.patches, 8, dtype=torch.float64)
    torch.testing.assert_close(module(tokens[:, mixed], grid), module(tokens, grid)[:, mixed])


def test_windows_do_not_see_each_other(stir):
    grid = Grid(8, 8)
    module = stir(Window(heads=2, window=4).build(Site(8, grid), LinearQkv()))
    tokens = torch.randn(1, 64, 8, dtype=torch.float64)
    changed = tokens.clone()
    changed[:, 0] += 1
    differs = (module(changed, grid) != module(tokens, grid)).any(-1).view(8, 8)
    assert differs[:4, :4].all() and differs.sum() == 16


def test_a_model_for_small_maps_has_windows_as_large_as_the_map():
    assert Window(heads=2, window=7).build(Site(8, Grid(3, 5)), LinearQkv()).size == 3


def test_life_in_windows_sees_zeros_at_their_borders(stir):
    grid = Grid(4, 8)
    module = stir(Window(heads=2, window=4).build(Site(12, grid), Life()))
    tokens = torch.randn(1, 32, 12, dtype=torch.float64)
    left, right = (t.flatten(1, 2) for t in tokens.view(1, 4, 8, 12).split(4, dim=2))
    apart = [module(half, Grid(4, 4)).view(1, 4, 4, 12) for half in (left, right)]
    torch.testing.assert_close(module(tokens, grid).view(1, 4, 8, 12), torch.cat(apart, dim=2))


@pytest.mark.parametrize("aux", [0, 2])
@pytest.mark.parametrize("size", [(3, 4), (2, 5)])
def test_global_attention_adds_the_bias_of_each_offset_between_patches_alone(stir, aux, size):
    made_for, grid = Grid(3, 4, aux), Grid(*size, aux)
    module = stir(Global(heads=2, relative=True).build(Site(8, made_for), LinearQkv()))
    table = resize_relative_table(module.table, (3, 4), size).double().view(2 * size[0] - 1, 2 * size[1] - 1, 2)
    bias = torch.zeros(2, grid.tokens, grid.tokens, dtype=torch.float64)
    for query in range(grid.patches):
        for key in range(grid.patches):
            down, right = query // size[1] - key // size[1], query % size[1] - key % size[1]
            bias[:, aux + query, aux + key] = table[down + size[0] - 1, right + size[1] - 1]
    tokens = torch.randn(2, grid.tokens, 8, dtype=torch.float64)
    queries, keys, values = F.linear(tokens, module.qkv.proj.weight, module.qkv.proj.bias).split(8, dim=-1)
    wanted = module.proj(attend(queries, keys, values, 2, bias))
    torch.testing.assert_close(module(tokens, grid), wanted)


def test_global_attention_is_torchs_multi_head_attention(stir):
    grid = Grid(2, 3, 1)
    module = stir(Global(heads=2).build(Site(8, grid), LinearQkv()))
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    state = module.state_dict()
    theirs.load_state_dict(
        {
            "in_proj_weight": state["qkv.proj.weight"],
            "in_proj_bias": state["qkv.proj.bias"],
            "out_proj.weight": state["proj.weight"],
            "out_proj.bias": state["proj.bias"],
        }
    )
    tokens = torch.randn(2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(module(tokens, grid), theirs(tokens, tokens, tokens, need_weights=False)[0])


@pytest.mark.parametrize("aux", [0, 1])
@pytest.mark.parametrize("size", [(4, 6), (3, 5)])
def test_spatial_reduction_attends_to_one_key_per_patch_of_tokens(stir, aux, size):
    grid = Grid(*size, aux)
    module = stir(SpatialReduction(heads=2, sr_ratio=2).build(Site(8, grid), LinearQkv()))
    tokens = torch.randn(2, grid.tokens, 8, dtype=torch.float64)
    picture = tokens[:, aux:].transpose(1, 2).reshape(2, 8, *size)
    picture = F.pad(picture, (0, size[1] % 2, 0, size[0] % 2))
    reduced = F.conv2d(picture, module.reduce.weight, module.reduce.bias, stride=2).flatten(2).transpose(1, 2)
    reduced = F.layer_norm(reduced, (8,), module.norm.weight, module.norm.bias)
    seen = torch.cat((tokens[:, :aux], reduced), 1)
    wanted = module.proj(attend(module.q(tokens), *module.kv(seen).split(8, dim=-1), 2))
    torch.testing.assert_close(module(tokens, grid), wanted)


@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize("part", [Global, Window, SpatialReduction])
def test_heads_that_do_not_divide_the_width_are_refused(part, heads):
    with pytest.raises(ValueError, match=f"{heads} heads do not divide a width of 8"):
        part(heads=heads).build(Site(8, Grid(4, 4)), LinearQkv())


@pytest.mark.parametrize("side", [1, 3])
def test_heads_that_each_look_at_one_shift_are_a_convolution(side):
    """LIT's equations 4 to 6: N_h heads are a convolution of sqrt(N_h) x sqrt(N_h); one head is a linear layer."""
    grid, heads, width = Grid(6, 7), side**2, 4
    dim = heads * width
    module = Global(heads=heads, relative=True).build(Site(dim, grid), LinearQkv(bias=False)).double()
    shifts = [(row - side // 2, column - side // 2) for row in range(side) for column in range(side)]  # f(h) of eq. 6
    with torch.no_grad():
        module.qkv.proj.weight[: 2 * dim] = 0  # no queries and keys: the relative positions decide alone
        module.proj.bias.zero_()
        table = torch.zeros(2 * 6 - 1, 2 * 7 - 1, heads, dtype=torch.float64)
        for head, (down, right) in enumerate(shifts):
            table[6 - 1 - down, 7 - 1 - right, head] = 1000.0  # the table holds query minus key
        module.table.copy_(table.flatten(0, 1))
    values = module.qkv.proj.weight[2 * dim :].view(heads, width, dim)
    outputs = module.proj.weight.view(dim, heads, width)
    kernel = torch.zeros(dim, dim, side, side, dtype=torch.float64)
    for head, (down, right) in enumerate(shifts):  # W^(h) of eq. 6 is W_g(k) of eq. 4
        kernel[:, :, down + side // 2, right + side // 2] = outputs[:, head] @ values[head]
    tokens = torch.randn(2, grid.patches, dim, dtype=torch.float64)
    mixed = module(tokens, grid).transpose(1, 2).unflatten(2, (6, 7))
    convolved = F.conv2d(tokens.transpose(1, 2).unflatten(2, (6, 7)), kernel, padding=side // 2)
    inside = (..., slice(side // 2, 6 - side // 2), slice(side // 2, 7 - side // 2))  # where all shifts are on the map
    torch.testing.assert_close(mixed[inside], convolved[inside])
    if side == 1:
        linear = tokens @ (outputs[:, 0] @ values[0]).T  # eq. 5
        torch.testing.assert_close(module(tokens, grid), linear)
