"""timm's models: what is computed again is what timm computes with fused attention off."""

import pytest
import timm
import torch
from torch import Tensor, nn

import nearsight
from nearsight.explanation import capture, rollout
from nearsight.ops.attention_matrix import GlobalMatrix, ReducedMatrix, WindowMatrix
from nearsight.parts import Life
from tests.rounding import assert_rounded, rounding

VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2}
MODELS = {
    "vit": ("vit_tiny_patch16_224", {**VIT, "img_size": 64}),
    "vit, any size": ("vit_tiny_patch16_224", {**VIT, "img_size": 64, "dynamic_img_size": True}),
    "vit with registers": ("vit_tiny_patch16_224", {**VIT, "img_size": 64, "reg_tokens": 3, "qk_norm": True}),
    "distilled deit": ("deit_tiny_distilled_patch16_224", {**VIT, "img_size": 64}),
    "swin": ("swin_tiny_patch4_window7_224", {"embed_dim": 16, "depths": (2, 2), "num_heads": (1, 2), "img_size": 112}),
    "swin, odd": (
        "swin_tiny_patch4_window7_224",
        {"embed_dim": 16, "depths": (2, 2), "num_heads": (1, 2), "img_size": (72, 100)},
    ),
    "swin v2": (
        "swinv2_tiny_window8_256",
        {"embed_dim": 16, "depths": (2, 2), "num_heads": (1, 2), "img_size": 128},
    ),
    "pvt v2": ("pvt_v2_b0", {"depths": (1, 1, 1, 1)}),
    "pvt v2 linear": ("pvt_v2_b2_li", {"depths": (1, 1, 1, 1)}),
}


def build(kind: str) -> nn.Module:
    name, options = MODELS[kind]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model


def pictures(kind: str) -> Tensor:
    size = MODELS[kind][1].get("img_size", 96)
    height, width = size if isinstance(size, tuple) else (size, size)
    if kind == "vit, any size":
        height, width = 96, 48
    return torch.randn(2, 3, height, width)


def timms_own(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The attention that timm computes with fused attention off, layer by layer."""
    noted: list[Tensor] = []
    handles = []
    for module in model.modules():
        if hasattr(module, "attn_drop"):
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
            handles.append(module.attn_drop.register_forward_hook(lambda m, i, o: noted.append(o)))
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return noted


@pytest.mark.parametrize("kind", MODELS)
def test_attention_equals_timms_own(kind: str) -> None:
    model, images = build(kind), pictures(kind)
    seen = capture(model, images)
    with torch.no_grad():
        assert torch.equal(seen.output, model(images))
    expected = timms_own(model, images)
    assert len(seen.layers) == len(expected)
    for layer, own in zip(seen.layers, expected, strict=True):
        queries = torch.arange(layer.grid.tokens)
        if isinstance(layer.attention_matrix, WindowMatrix):
            positions = layer.attention_matrix.positions
            own = own.unflatten(0, (len(images), -1))  # [B, windows, h, slots, slots]
            rows = layer.attention_matrix.rows(queries)
            for window, tokens in enumerate(positions):
                inside = tokens < layer.grid.tokens
                tokens = tokens[inside]
                part = own[:, window][:, :, inside][..., inside]
                assert_rounded(rows[:, :, tokens][..., tokens], part, model)
            assert_rounded(rows.sum(), own_inside(own, positions, layer.grid.tokens), rows.numel())
        elif isinstance(layer.attention_matrix, ReducedMatrix):
            assert_rounded(layer.attention_matrix.to_keys(queries), own, model)
        else:
            assert isinstance(layer.attention_matrix, GlobalMatrix)
            assert_rounded(layer.attention_matrix.rows(queries), own, model)


def own_inside(own: Tensor, positions: Tensor, tokens: int) -> Tensor:
    """All of timm's attention between places inside the map."""
    inside = (positions < tokens).float()
    return (own * inside[None, :, None, :, None] * inside[None, :, None, None, :]).sum()


@pytest.mark.parametrize("kind", MODELS)
def test_roll_out_sums_to_one(kind: str) -> None:
    model = build(kind)
    maps = rollout(model, pictures(kind))
    total = maps.values.sum(axis=(2, 3)) + maps.raw["aux"].sum(axis=2)
    assert abs(total - 1).max() < rounding(model)


def test_a_pyramid_of_maps_can_be_looked_into() -> None:
    model = timm.create_model("swin_tiny_patch4_window7_224", features_only=True, img_size=64).eval()
    seen = capture(model, torch.randn(1, 3, 64, 64))
    assert [layer.stage for layer in seen.layers] == [1] * 2 + [2] * 2 + [3] * 6 + [4] * 2
    assert seen.layers[-1].cell == (32, 32)


def test_attention_of_another_kind_is_refused() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, attn_layer="diff", **VIT).eval()
    seen = capture(model, torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match="can't be computed again here"):
        seen.layers[0].attention_matrix  # noqa: B018


LOCAL = {
    "vit": ("vit", {"qkv": Life(kernels=(1, 3)), "preserve": False}),
    "swin": ("swin", {"qkv": Life(kernels=(1, 3)), "preserve": False}),
    "vit, mixer": ("vit", {"mixer": "gather_broadcast", "preserve": False}),
    "swin, mixer": ("swin", {"mixer": "depthwise", "preserve": False}),
    "swin, merge": ("swin", {"merge": "deformable", "preserve": False}),
}


def test_a_refusal_leaves_no_hooks() -> None:
    model = build("vit")
    model.blocks[1] = nn.Identity()
    with pytest.raises(ValueError, match="Identity has no attention layer of its own"):
        capture(model, pictures("vit"))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", LOCAL)
def test_localized_models_can_be_looked_into(kind: str) -> None:
    host, options = LOCAL[kind]
    images = pictures(host)
    model = nearsight.localize(build(host), **options)
    seen = capture(model, images)
    with torch.no_grad():
        assert torch.equal(seen.output, model.eval()(images))
    assert len(seen.layers) == len(capture(build(host), images).layers)
    assert len(seen.back_projections) == len(capture(build(host), images).back_projections)
    assert all(layer.recompute is not None for layer in seen.layers)
    maps = rollout(seen)
    assert abs(maps.values.sum(axis=(2, 3)) + maps.raw["aux"].sum(axis=2) - 1).max() < rounding(model)
