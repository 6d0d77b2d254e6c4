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
    with pytest.raises(ValueError, match="conv='after' is not known; use pre, post or None"):
        Sliding(heads=2, conv="after").build(site, LinearQkv())  # type: ignore[arg-type]
