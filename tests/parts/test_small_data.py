"""Parts for small data: pooling and tokenizer of CCT, shifted patches (SPT), locality self-attention (LSA)."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nearsight
from nearsight.explanation import capture, rollout
from nearsight.lattice import Grid
from nearsight.models import MODELS, Backbone, BackboneSpec, Stage
from nearsight.models.counting import count
from nearsight.models.pooling import SequencePool
from nearsight.models.spec import spec_from_json, to_json
from nearsight.parts import ConvTokenizer, Global, Learned, LinearQkv, Mlp, ShiftedPatches, Window
from nearsight.parts.slots import Site
from tests.rounding import assert_rounded

CCT_2_3X2 = BackboneSpec(
    ConvTokenizer(patch=4),
    (Stage(128, 2, Global(heads=2), Mlp(ratio=1.0), LinearQkv(bias=False), position=Learned()),),
    "cct",
    pool="sequence",
    img_size=32,
)


def test_cct_2_3x2_has_the_size_that_its_paper_prints():
    cost = count(Backbone(CCT_2_3X2, num_classes=10), 32)
    # The release has 283,723 parameters; the bias of its pooling, which softmax cancels, is not among ours.
    assert cost.parameters == 283_723 - 1
    assert round(cost.parameters / 1e6, 2) == 0.28
    attention = 2 * 2 * 64 * 64 * 128  # products of queries, keys and values, which the paper's 33 M leaves out
    assert round((cost.macs - attention) / 1e6) == 33


def test_sequence_pooling_weighs_tokens_by_the_softmax_of_their_score(stir):
    pool, tokens = stir(SequencePool(6)), torch.randn(3, 5, 6).double()
    scores = tokens.numpy() @ pool.score.weight.detach().numpy()[0]
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = np.einsum("bn,bnc->bc", weights, tokens.numpy())
    assert_rounded(pool(tokens), expected, pool, torch.float64)


@pytest.mark.parametrize("name", ["deit_nano", "swin_nano"])
def test_a_score_of_nothing_makes_sequence_pooling_the_mean_of_the_patches(name):
    torch.manual_seed(0)
    model = nearsight.create_model(name, pool="sequence", num_classes=3).eval()
    mean = nearsight.create_model(name, pool="mean", num_classes=3).eval()
    torch.nn.init.zeros_(model.seq_pool.score.weight)
    state = model.state_dict()
    del state["seq_pool.score.weight"]
    mean.load_state_dict(state)
    images = torch.randn(2, 3, 32, 45)
    torch.testing.assert_close(model(images), mean(images))
    torch.testing.assert_close(model.forward_head(model.forward_features(images)), model(images))


def test_a_roll_out_starts_from_what_sequence_pooling_reads():
    torch.manual_seed(0)
    model = nearsight.create_model("lit_nano", pool="sequence", num_classes=3)  # its last layers attend
    model.seq_pool.score.weight.data *= 100
    images = torch.randn(2, 3, 32, 32)
    read = model.eval().reading_weights(images)
    assert read.shape == (2, 16) and torch.allclose(read.sum(dim=1), torch.ones(2)) and read.std() > 0.01
    maps = rollout(capture(model, images), residual=1.0).values[:, 0]  # no layer mixes: what is left is the reading
    coarse = torch.from_numpy(maps).unflatten(1, (4, -1)).unflatten(3, (4, -1)).sum(dim=(2, 4)).flatten(1)
    assert_rounded(coarse, read, model)


def test_the_pooling_comes_and_goes_with_the_classifier():
    model = Backbone(CCT_2_3X2, num_classes=4)
    model.reset_classifier(3, "avg")
    assert model.seq_pool is None and model(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    model.reset_classifier(5, "sequence")
    assert model.seq_pool is not None and model(torch.randn(1, 3, 32, 32)).shape == (1, 5)


@pytest.mark.parametrize(("patch", "kernel"), [(2, 3), (4, 3), (8, 7)])
def test_the_tokenizer_is_convolutions_with_relu_and_pooling(stir, patch, kernel):
    module = stir(ConvTokenizer(patch=patch, kernel=kernel, inner=5).build(6, 3, (32, 32)))
    images = torch.randn(2, 3, 21, 34).double()
    expected = images
    for conv in module.convs:
        expected = F.max_pool2d(F.relu(F.conv2d(expected, conv.weight, padding=kernel // 2)), 3, 2, 1)
    tokens, grid, inner = module(images)
    torch.testing.assert_close(tokens, expected.flatten(2).transpose(1, 2))
    assert (grid, inner) == (Grid(-(-21 // patch), -(-34 // patch)), None)


def test_shifted_patches_hold_the_pixels_of_the_image_and_its_four_diagonal_shifts(stir):
    module = stir(ShiftedPatches(patch=4).build(7, 3, (16, 16)))
    image = torch.randn(1, 3, 12, 8).double()
    shown = []
    for down, right in ((0, 0), (2, 2), (2, -2), (-2, 2), (-2, -2)):  # half of a patch
        shifted = torch.zeros_like(image)
        for y in range(12):
            for x in range(8):
                if 0 <= y - down < 12 and 0 <= x - right < 8:
                    shifted[..., y, x] = image[..., y - down, x - right]
        shown.append(shifted)
    pixels = F.unfold(torch.cat(shown, dim=1), 4, stride=4).transpose(1, 2)  # [1, patches, 5*3*16]
    tokens, grid, _ = module(image)
    expected = module.proj(F.layer_norm(pixels, (240,), module.norm.weight, module.norm.bias))
    torch.testing.assert_close(tokens, expected)
    assert grid == Grid(3, 2)


def test_shifted_patches_refuse_patches_without_a_half():
    with pytest.raises(ValueError, match="no half to be shifted by"):
        nearsight.create_model("deit_nano", embed=ShiftedPatches(patch=1))


@pytest.mark.parametrize("aux", [0, 2])
def test_locality_attention_divides_by_its_temperature_and_leaves_the_token_itself_out(stir, aux):
    grid = Grid(3, 4, aux)
    module = stir(Global(heads=2, temperature=True, mask_self=True).build(Site(12, grid), LinearQkv()))
    module.temperature.values.data = torch.tensor([0.5, 3.0]).double()
    tokens = torch.randn(2, grid.tokens, 12).double()
    queries, keys, values = (t.unflatten(-1, (2, 6)).transpose(1, 2) for t in module.qkv(tokens, grid))
    logits = queries @ keys.mT / torch.tensor([0.5, 3.0]).view(2, 1, 1)
    logits.diagonal(dim1=2, dim2=3).fill_(-torch.inf)
    expected = module.proj((logits.softmax(-1) @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(tokens, grid), expected)
    weights = module.attention_matrix(tokens, grid).rows(torch.arange(grid.tokens))
    torch.testing.assert_close(weights, logits.softmax(-1))
    assert (weights.diagonal(dim1=2, dim2=3) == 0).all()


def test_its_temperature_starts_at_the_root_of_a_heads_channels_where_it_changes_nothing():
    plain, warm = (Global(heads=2, temperature=t).build(Site(32, Grid(3, 4)), LinearQkv()) for t in (False, True))
    assert warm.temperature.values.tolist() == [math.sqrt(16)] * 2
    assert warm.load_state_dict(plain.state_dict(), strict=False).missing_keys == ["temperature.values"]
    tokens = torch.randn(2, 12, 32)
    torch.testing.assert_close(warm(tokens, Grid(3, 4)), plain(tokens, Grid(3, 4)))


def test_in_shifted_windows_a_token_that_is_alone_attends_to_itself():
    grid = Grid(4, 4)
    module = Window(heads=2, window=2, shifted=True, mask_self=True).build(Site(12, grid), LinearQkv())
    tokens = torch.randn(1, 16, 12)
    weights = module.attention_matrix(tokens, grid).rows(torch.arange(16))
    assert torch.isfinite(module(tokens, grid)).all()
    corner, inner = 0, 5  # a corner of the map is joined with three other corners by the shift alone
    assert (weights[..., corner, corner] == 1).all() and (weights[..., inner, inner] == 0).all()


def test_cosine_windows_refuse_a_second_temperature():
    with pytest.raises(ValueError, match="temperature of its own"):
        nearsight.create_model("swin_nano", mixer=Window(heads=2, cosine=True, temperature=True))


OPTIONS = {
    "cct": {"embed": "conv_tokenizer", "pool": "sequence", "aux": 0, "patch_size": 4},
    "spt and lsa": {"embed": "shifted_patches", "mixer": "locality_attention"},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("size", [(1, 1), (33, 18), (64, 32)])
def test_models_with_them_take_any_size_and_train_all_parameters(kind, size):
    torch.manual_seed(0)
    model = nearsight.create_model("deit_nano", **OPTIONS[kind], num_classes=3, drop_path_rate=0.0)
    model(torch.randn(3, 3, *size)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    if size != (1, 1):  # a single token gives pooling and temperatures nothing to learn
        assert [name for name, p in model.named_parameters() if not p.grad.abs().sum() > 0] == []
    spec = model.spec
    assert spec_from_json(to_json(spec)) == spec


@pytest.mark.parametrize("kind", OPTIONS)
def test_models_with_them_fold_resize_save_and_export(kind, tmp_path):
    import onnxruntime

    torch.manual_seed(0)
    model = nearsight.create_model("deit_nano", **OPTIONS[kind], num_classes=3).eval()
    images = torch.randn(2, 3, 32, 32)
    assert_rounded(nearsight.fold(model)(images), model(images), model)
    nearsight.save(model, tmp_path / "model.safetensors")
    torch.testing.assert_close(nearsight.load(tmp_path / "model.safetensors").model(images), model(images))
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(model, (images,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    more = torch.randn(5, 3, 32, 32)
    (answers,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    assert_rounded(answers, model(more), model)
    model.set_input_size(48)
    assert model(torch.randn(1, 3, 48, 48)).shape == (1, 3)


def test_no_family_changes_because_of_them():
    for spec in MODELS.values():
        assert spec.pool != "sequence" and not isinstance(spec.embed, ConvTokenizer | ShiftedPatches)
