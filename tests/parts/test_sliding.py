import pytest
import torch
import torch.nn.functional as F

from nearsight.lattice import Grid
from nearsight.parts import LinearQkv, Sliding
from nearsight.parts.sliding import PostConvolution
from nearsight.parts.slots import Site


def masked_global(module, tokens, grid, heads, window, queries_from=None):
    """Global attention with all pairs farther apart than the window's half masked out."""
    half, dim = window // 2, tokens.shape[-1]
    bias = torch.full((heads, grid.patches, grid.patches), -torch.inf, dtype=torch.float64)
    for query in range(grid.patches):
        for key in range(grid.patches):
            down, right = key // grid.width - query // grid.width, key % grid.width - query % grid.width
            if max(abs(down), abs(right)) <= half:
                tap = (down + half) * window + right + half
                bias[:, query, key] = 0 if module.table is None else module.table[tap].detach()
    values = module.qkv.proj(tokens)[..., 2 * dim :]
    queries, keys = module.qkv.proj(tokens if queries_from is None else queries_from)[..., : 2 * dim].split(dim, dim=-1)
    split = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (queries, keys, values)]
    mixed = (split[0] @ split[1].mT / (dim // heads) ** 0.5 + bias).softmax(-1) @ split[2]
    return module.proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("size", "window"), [((5, 6), 3), ((4, 3), 5), ((1, 2), 7)])
def test_sliding_attention_is_masked_global_attention(stir, relative, size, window):
    grid = Grid(*size)
    module = stir(Sliding(heads=2, window=window, relative=relative).build(Site(8, grid), LinearQkv()))
    tokens = torch.randn(2, grid.patches, 8, dtype=torch.float64)
    torch.testing.assert_close(module(tokens, grid), masked_global(module, tokens, grid, 2, window))


@pytest.mark.parametrize("shared", [False, True])
def test_pre_convolution_changes_queries_and_keys_but_not_values(stir, shared):
    grid = Grid(4, 5)
    module = stir(Sliding(heads=2, window=3, conv="pre", conv_shared=shared).build(Site(8, grid), LinearQkv()))
    assert module.pre.weight.numel() == (9 if shared else 8 * 9)
    tokens = torch.randn(2, grid.patches, 8, dtype=torch.float64)
    picture = tokens.transpose(1, 2).unflatten(2, (4, 5))
    near = F.conv2d(picture, module.pre.weight.repeat(8 if shared else 1, 1, 1, 1), padding=1, groups=8)
    norm = module.pre.norm.bn
    near = F.batch_norm(near, norm.running_mean, norm.running_var, norm.weight, norm.bias).relu()
    wanted = masked_global(module, tokens, grid, 2, 3, near.flatten(2).transpose(1, 2))
    torch.testing.assert_close(module(tokens, grid), wanted)


def test_along_a_row_weights_are_those_of_equation_27(stir):
    """w = rows of C' applied to the row, times Pk' Pq C3 [x_(i-1), x_i, x_(i+1)], written out in 1-D."""
    grid, dim, half = Grid(1, 9), 4, 1
    part = Sliding(heads=1, window=3, relative=False, conv="normal")
    module = stir(part.build(Site(dim, grid), LinearQkv(bias=False)))
    module.pre.norm = torch.nn.Identity()  # the paper omits norm and ReLU; positive numbers pass the latter
    with torch.no_grad():
        module.pre.conv.weight.abs_()
    tokens = torch.rand(1, 9, dim, dtype=torch.float64)
    c3 = module.pre.conv.weight[:, :, 1].permute(0, 2, 1).flatten(1)  # [C, 3 C]: the kernel beside its three positions
    x = [torch.zeros(dim, dtype=torch.float64), *tokens[0], torch.zeros(dim, dtype=torch.float64)]
    near = [c3 @ torch.cat(x[i : i + 3]) for i in range(9)]
    p_q, p_k, _ = module.qkv.proj.weight.split(dim)
    fields = [t.unflatten(1, (1, 9)).unflatten(-1, (1, -1)) for t in module.qkv(module.pre(tokens, grid), grid)[:2]]
    weights = module.weights(*fields, tokens, grid)[0, 0, :, 3:6, 0]  # the window's middle row
    for i in range(1, 8):
        wanted = torch.stack([near[i + k] @ p_k.T @ p_q @ near[i] for k in range(-half, half + 1)]) / dim**0.5
        torch.testing.assert_close(weights[i], wanted.softmax(0))


def test_a_normal_convolution_connects_all_channels_where_that_of_equation_26_connects_each_with_itself(stir):
    grid = Grid(3, 3)
    for conv, connected in (("pre", False), ("normal", True)):
        pre = stir(Sliding(heads=1, window=3, conv=conv).build(Site(4, grid), LinearQkv())).pre
        tokens = torch.rand(1, 9, 4, dtype=torch.float64)
        moved = tokens.clone()
        moved[..., 0] += 1
        changed = (pre(moved, grid) != pre(tokens, grid))[..., 1:].any()
        assert bool(changed) is connected


def test_static_rows_beside_dot_products_are_equation_24(stir):
    grid = Grid(4, 5)
    part = Sliding(heads=1, window=3, relative=False, static=True)
    module = stir(part.build(Site(6, grid), LinearQkv(bias=False)))
    tokens = torch.randn(1, 20, 6, dtype=torch.float64)
    at = tokens[0].view(4, 5, 6)
    p_q, p_k, p_v = module.qkv.proj.weight.split(6)
    theta = module.static.weight  # [9, C], a row for each place of the window
    out = module(tokens, grid)[0].view(4, 5, 6)
    for row, column in ((1, 1), (2, 3)):  # where the window is whole
        window = at[row - 1 : row + 2, column - 1 : column + 2].reshape(9, 6)
        theta_d = window @ p_k.T @ p_q / 6**0.5
        weights = ((theta_d + theta) @ at[row, column]).softmax(0)
        torch.testing.assert_close(out[row, column], module.proj(weights @ window @ p_v.T))


def test_without_keys_static_rows_alone_are_the_softmax_of_equation_20(stir):
    grid = Grid(3, 3)
    module = stir(Sliding(heads=2, window=3, relative=False, static=True).build(Site(8, grid), LinearQkv(bias=False)))
    with torch.no_grad():
        module.qkv.proj.weight[:16] = 0
    tokens = torch.randn(1, 9, 8, dtype=torch.float64)
    none = torch.zeros(1, 3, 3, 2, 4, dtype=torch.float64)
    weights = module.weights(none, none, tokens, grid)[0, 1, 1]  # [9, heads]
    torch.testing.assert_close(weights, (module.static.weight @ tokens[0, 4]).view(9, 2).softmax(0))


@pytest.mark.parametrize("shared", [False, True])
def test_post_convolution_starts_as_plain_sliding_attention(shared):
    grid = Grid(5, 4)
    plain = Sliding(heads=2, window=3).build(Site(8, grid), LinearQkv())
    post = Sliding(heads=2, window=3, conv="post", conv_shared=shared).build(Site(8, grid), LinearQkv())
    missing, unexpected = post.load_state_dict(plain.state_dict(), strict=False)
    assert missing == ["post.weight"] and not unexpected
    tokens = torch.randn(2, grid.patches, 8)
    torch.testing.assert_close(post(tokens, grid), plain(tokens, grid))


def test_post_convolution_along_a_row_is_the_circulant_matrix_of_equation_25():
    a1, a2, a3 = 2.0, 3.0, 5.0
    circulant = torch.tensor(
        [
            [a2, a3, 0, 0, a1],
            [a1, a2, a3, 0, 0],
            [0, a1, a2, a3, 0],
            [0, 0, a1, a2, a3],
            [a3, 0, 0, a1, a2],
        ]
    )
    post = PostConvolution(heads=1, window=5, shared=True)
    with torch.no_grad():
        post.weight.zero_()
        post.weight[0, 0, 1] = torch.tensor([a1, a2, a3])
    logits = torch.randn(2, 3, 4, 25, 1)
    rows = logits.view(2, 3, 4, 5, 5)
    torch.testing.assert_close(post(logits).view_as(rows), rows @ circulant.T)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("window", [3, 5])
def test_post_convolution_wraps_around_in_both_directions(shared, window):
    heads = 2
    post = PostConvolution(heads, window, shared)
    torch.nn.init.normal_(post.weight)
    logits = torch.randn(2, 3, 2, window**2, heads)
    side = logits.view(2, 3, 2, window, window, heads)
    wanted = torch.zeros_like(side)
    for head in range(heads):
        kernel = post.weight[0 if shared else head, 0]
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                moved = side[..., head].roll((-down, -right), dims=(3, 4))
                wanted[..., head] += kernel[down + 1, right + 1] * moved
    torch.testing.assert_close(post(logits).view_as(wanted), wanted)


def test_an_even_window_and_an_unknown_convolution_are_refused():
    site = Site(8, Grid(4, 4))
    with pytest.raises(ValueError, match="window=4 is even"):
        Sliding(heads=2, window=4).build(site, LinearQkv())
    with pytest.raises(ValueError, match="conv='after' is not known; use pre, normal, post or None"):
        Sliding(heads=2, conv="after").build(site, LinearQkv())  # type: ignore[arg-type]
