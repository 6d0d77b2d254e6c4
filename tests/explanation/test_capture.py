"""Weights computed again are those that the layers mixed with."""

import pytest
import torch
import torch.nn.functional as F
from explained_models import MIXERS, NANO, build, pictures
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import nearsight
from nearsight.explanation import attention, capture
from nearsight.lattice import Grid, image
from nearsight.ops.attention_matrix import GatherMatrix, KernelMatrix, ReducedMatrix, WindowMatrix
from nearsight.parts.attention import GlobalModule, WindowModule
from tests.rounding import assert_rounded

SIZES = [(32, 32), (44, 36)]


def everyone(layer) -> Tensor:
    return torch.arange(layer.grid.tokens)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", MIXERS)
def test_looking_changes_nothing(kind: str, size: tuple[int, int]) -> None:
    name, options = MIXERS[kind]
    model, images = build(name, **options), pictures(*size)
    model.train()
    for module in model.modules():  # parts may be in different modes
        module.training = isinstance(module, torch.nn.Linear)
    before = [module.training for module in model.modules()]
    seen = capture(model, images)
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():
        assert torch.equal(seen.output, model.eval()(images))


def inputs_of_mixers(model, images: Tensor) -> list[tuple[torch.nn.Module, Tensor, Grid, Tensor]]:
    """Mixer, tokens, grid and output of each block."""
    noted = []
    handles = [
        block.mixer.register_forward_hook(lambda m, i, o: noted.append((m, i[0], i[1], o)))
        for stage in model.stages
        for block in stage.blocks
        if block.mixer is not None
    ]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return noted


@pytest.mark.parametrize("kind", ["global", "global relative", "life"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_global_weights_times_values_are_the_output(kind: str, size: tuple[int, int]) -> None:
    name, options = MIXERS[kind]
    model, images = build(name, **options), pictures(*size)
    layers = [layer for layer in capture(model, images).layers if layer.recompute]
    for layer, (mixer, tokens, grid, output) in zip(layers, inputs_of_mixers(model, images), strict=True):
        with torch.no_grad():
            values = mixer.qkv(tokens, grid)[2].unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
            mixed = layer.attention_matrix.rows(everyone(layer)) @ values
            again = mixer.proj(mixed.transpose(1, 2).flatten(2))
        assert_rounded(again, output, mixer)


def plain_attention(mixer: GlobalModule, tokens: Tensor, grid: Grid) -> Tensor:
    """Softmax attention pair by pair, as the formula says: `[B, h, N, N]`."""
    queries, keys, _ = mixer.qkv(tokens, grid)
    depth = queries.shape[-1] // mixer.heads
    logits = torch.empty(len(tokens), mixer.heads, grid.tokens, grid.tokens, dtype=torch.float64)
    for head in range(mixer.heads):
        part = slice(head * depth, (head + 1) * depth)
        for query in range(grid.tokens):
            products = queries[:, query, None, part].double() * keys[..., part].double()
            logits[:, head, query] = products.sum(dim=-1) / depth**0.5
    powers = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    return powers / powers.sum(dim=-1, keepdim=True)


def test_attention_is_that_of_the_formula() -> None:
    model, images = build("deit_nano_life"), pictures(20, 28)
    mixer, tokens, grid, _ = inputs_of_mixers(model, images)[3]
    found = attention(model, images, layer=3, tokens=range(grid.tokens))
    with torch.no_grad():
        expected = plain_attention(mixer, tokens, grid).float().numpy()
    assert_rounded(found.weights, expected, model)


def test_cropped_windows_give_the_layers_output() -> None:
    """A map whose sides the windows divide: rows of the scattered matrix times the values."""
    for options in ({}, {"mixer": "cosine_window"}, {"qkv": "life"}):
        model, images = build("swin_nano", **options), pictures(32, 64)
        for layer, (mixer, tokens, grid, output) in zip(
            capture(model, images).layers, inputs_of_mixers(model, images), strict=True
        ):
            assert isinstance(layer.attention_matrix, WindowMatrix)
            indices = layer.attention_matrix.positions
            with torch.no_grad():
                pieces = tokens[:, indices.flatten()].view(-1, indices.shape[1], tokens.shape[-1])
                values = mixer.qkv(pieces, Grid(mixer.size, mixer.size))[2]  # LIFE looks around inside its window
                field = torch.zeros(len(tokens), grid.tokens, values.shape[-1])
                field[:, indices.flatten()] = values.reshape(len(tokens), -1, values.shape[-1])
                heads = field.unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
                mixed = layer.attention_matrix.rows(everyone(layer)) @ heads
                again = mixer.proj(mixed.transpose(1, 2).flatten(2))
            assert_rounded(again, output, mixer)


@pytest.mark.parametrize("shifted", [False, True])
def test_one_window_over_the_map_is_a_full_softmax(shifted: bool) -> None:
    model = build("swin_nano", window=8, img_size=16)
    images = pictures(16, 16)
    seen = capture(model, images)
    layer = seen.layers[int(shifted)]
    mixer, tokens, grid, _ = inputs_of_mixers(model, images)[int(shifted)]
    assert isinstance(mixer, WindowModule) and mixer.shifted is shifted and grid == Grid(8, 8)
    with torch.no_grad():
        queries, keys, _ = (t.unflatten(-1, (mixer.heads, -1)).transpose(1, 2) for t in mixer.qkv(tokens, grid))
        logits = queries @ keys.mT / queries.shape[-1] ** 0.5 + mixer.mask(8, 8, (0, 0), torch.float32)
    torch.testing.assert_close(layer.attention_matrix.rows(everyone(layer)), logits.softmax(dim=-1))


def test_shifted_windows_see_their_own_region_and_no_other() -> None:
    layer = capture(build("swin_nano"), pictures(32, 32)).layers[1]
    assert layer.grid == Grid(16, 16)
    rows = layer.attention_matrix.rows(everyone(layer))[0, 0].view(16, 16, 16, 16) > 0
    # Windows of 4 shifted by 2: a corner's window is the 2x2 cells at the corner, the next starts at 2.
    assert rows[0, 0].nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert {tuple(cell) for cell in rows[3, 14].nonzero().tolist()} == {(r, c) for r in range(2, 6) for c in (14, 15)}


def test_windows_that_reach_beyond_the_map_keep_less_than_everything_inside() -> None:
    layer = capture(build("swin_nano"), pictures(44, 36)).layers[0]
    assert layer.grid == Grid(22, 18)
    total = layer.attention_matrix.rows(everyone(layer)).sum(dim=-1)[0, 0].view(22, 18)
    torch.testing.assert_close(total[:20, :16], torch.ones(20, 16))
    assert (total[20:] < 1).all() and (total[:, 16:] < 1).all()
    torch.testing.assert_close(layer.attention_matrix.fractions(everyone(layer)).sum(dim=-1), torch.ones(2, 22 * 18))


def test_reduced_keys_times_values_are_the_output() -> None:
    name, options = MIXERS["spatial reduction"]
    model, images = build(name, **options), pictures(44, 36)
    for layer, (mixer, tokens, grid, output) in zip(
        capture(model, images).layers, inputs_of_mixers(model, images), strict=True
    ):
        assert isinstance(layer.attention_matrix, ReducedMatrix)
        with torch.no_grad():
            picture = F.pad(image(tokens, grid), (0, -grid.width % mixer.ratio, 0, -grid.height % mixer.ratio))
            reduced = mixer.norm(mixer.reduce(picture).flatten(2).transpose(1, 2))
            values = mixer.kv(reduced).chunk(2, dim=-1)[1].unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
            mixed = layer.attention_matrix.to_keys(everyone(layer)) @ values
            again = mixer.proj(mixed.transpose(1, 2).flatten(2))
        assert_rounded(again, output, mixer)
        torch.testing.assert_close(
            layer.attention_matrix.rows(everyone(layer)).sum(dim=-1), torch.ones(2, mixer.heads, grid.tokens)
        )


def test_gather_broadcast_and_windows_are_the_output() -> None:
    model, images = build("lightvit_nano"), pictures(32, 32)
    for layer, (mixer, tokens, grid, output) in zip(
        capture(model, images).layers, inputs_of_mixers(model, images), strict=True
    ):
        mixing = layer.attention_matrix
        assert isinstance(mixing, GatherMatrix)
        patches = torch.arange(grid.patches)
        with torch.no_grad():
            values = mixer.qkv(tokens, grid)[2][:, grid.aux :].unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
            gathered = (mixing.gathering @ values).transpose(1, 2).flatten(2)
            sent = mixer.kv_global(gathered).chunk(2, dim=-1)[1].unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
            near, far = mixing.local.rows(patches) @ values, mixing.broadcast(patches) @ sent
            again = mixer.proj(torch.cat((gathered, (near + far).transpose(1, 2).flatten(2)), dim=1))
        assert_rounded(again, output, mixer)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["depth-wise", "dynamic", "inhomogeneous", "shared kernels"])
def test_kernels_times_the_map_are_the_convolution(kind: str, size: tuple[int, int]) -> None:
    name, options = MIXERS[kind]
    model, images = build(name, **options), pictures(*size)
    for layer, (mixer, tokens, grid, _) in zip(
        capture(model, images).layers, inputs_of_mixers(model, images), strict=True
    ):
        assert isinstance(layer.attention_matrix, KernelMatrix) and layer.attention_matrix.signed
        with torch.no_grad():
            entered = F.relu(mixer.norm_in(mixer.point_in(tokens)))
            expected = mixer.spatial(entered, grid)
            bias = getattr(mixer.spatial, "bias", None)
            bias = mixer.spatial.conv.bias if hasattr(mixer.spatial, "conv") else bias
            expected = expected if bias is None else expected - bias
            groups = entered.unflatten(-1, (layer.attention_matrix.heads, -1)).transpose(1, 2)  # [B, G, N, C / G]
            again = (layer.attention_matrix.rows(everyone(layer)) @ groups).transpose(1, 2).flatten(2)
        assert_rounded(again, expected, mixer)


@pytest.mark.parametrize("kind", ["sliding", "pre-convolution", "post-convolution"])
def test_sliding_weights_times_values_are_the_output(kind: str) -> None:
    name, options = MIXERS[kind]
    model, images = build(name, **options), pictures(24, 36)
    for layer, (mixer, tokens, grid, output) in zip(
        capture(model, images).layers, inputs_of_mixers(model, images), strict=True
    ):
        with torch.no_grad():
            values = mixer.qkv(tokens, grid)[2].unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
            again = mixer.proj((layer.attention_matrix.rows(everyone(layer)) @ values).transpose(1, 2).flatten(2))
        assert_rounded(again, output, mixer)


def test_local_mlp_weights_times_values_are_the_output() -> None:
    name, options = MIXERS["local mlp"]
    model, images = build(name, **options), pictures(44, 36)
    for layer, (mixer, tokens, _, output) in zip(
        capture(model, images).layers, inputs_of_mixers(model, images), strict=True
    ):
        with torch.no_grad():  # padding is zero behind the value layer, so it adds nothing
            values = mixer.value(tokens).unflatten(-1, (mixer.groups, -1)).transpose(1, 2)
            again = mixer.proj((layer.attention_matrix.rows(everyone(layer)) @ values).transpose(1, 2).flatten(2))
        assert_rounded(again, output, mixer)


class Largest(TorchDispatchMode):
    """Notes the most numbers that any tensor holds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


def test_one_row_of_a_large_map_does_not_make_the_whole_map() -> None:
    model = nearsight.create_model("pvt_small_msa", num_classes=0).eval()
    images = torch.randn(1, 3, 224, 224)
    tokens = 56 * 56
    with torch.no_grad():
        entered, grid, _ = model.embed(images)
    block = model.stages[0].blocks[0]

    with torch.no_grad(), Largest() as most:
        rows = block.mixer.attention_matrix(block.norm1(entered), grid).rows(torch.tensor([1260]))
    assert rows.shape == (1, 1, 1, tokens) and most.numbers < tokens * 64 * 4


def test_the_fused_kernel_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    model = build("deit_nano")
    capture(model, pictures())
    assert len(calls) == 6


@pytest.mark.parametrize("name", NANO)
def test_folded_models_can_be_looked_into(name: str) -> None:
    model, images = build(name), pictures(40, 32)
    plain, folded = capture(model, images), capture(nearsight.fold(model), images)
    for one, other in zip(plain.layers, folded.layers, strict=True):
        if one.recompute is None:
            continue
        queries = torch.tensor([0, one.grid.tokens - 1])
        if one.attention_matrix.signed:  # a folded kernel has taken in its norm, per channel
            assert one.attention_matrix.rows(queries).shape == other.attention_matrix.rows(queries).shape
        else:
            assert_rounded(one.attention_matrix.rows(queries), other.attention_matrix.rows(queries), model)


def test_a_layer_without_mixer_and_a_foreign_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Layer 1\.1 has no mixer"):
        attention(build("lit_nano"), pictures(), layer="1.1")
    with pytest.raises(ValueError, match="ResNet can't be looked into"):
        import timm

        capture(timm.create_model("resnet18"), pictures())
    with pytest.raises(ValueError, match=r"There is no layer 9\.1; there are 1\.1 to 3\.2"):
        attention(build("lit_nano"), pictures(), layer="9.1")
    with pytest.raises(ValueError, match=r"outside the image, which is 32 x 32 pixels"):
        attention(build("lit_nano"), pictures(), at=(40, 3))
