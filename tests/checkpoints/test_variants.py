"""Official variants without recorded outputs: recognised from names and shapes that follow from the recorded ones."""

import re
from pathlib import Path

import pytest
import torch
from recorded import Recorded
from torch import Tensor

from nearsight import parts
from nearsight.checkpoints import load_official, name_of, recognise
from nearsight.checkpoints.released.families import Choices
from nearsight.models import Backbone
from nearsight.models.backbone import FeaturePyramid


def shapes_of(name: str) -> dict[str, Tensor]:
    """Zeros in the shapes of a recorded model."""
    return {key: torch.zeros(shape) for key, shape, _, _ in Recorded.load(name).facts["keys"]}


def with_local_ffn(state: dict[str, Tensor], block: str, dim: int, hidden: int, squeezed: int) -> None:
    """Replace a block's norm and MLP by LocalViT's feed-forward."""
    for key in [key for key in state if key.startswith((f"{block}.norm2", f"{block}.mlp"))]:
        del state[key]
    conv = f"{block}.conv.conv"
    state |= {f"{conv}.0.weight": torch.zeros(hidden, dim, 1, 1), f"{conv}.3.weight": torch.zeros(hidden, 1, 3, 3)}
    state |= {f"{conv}.7.weight": torch.zeros(dim, hidden, 1, 1)}
    state |= {f"{conv}.6.fc.0.weight": torch.zeros(squeezed, hidden), f"{conv}.6.fc.0.bias": torch.zeros(squeezed)}
    state |= {f"{conv}.6.fc.2.weight": torch.zeros(hidden, squeezed), f"{conv}.6.fc.2.bias": torch.zeros(hidden)}
    for number, width in ((1, hidden), (4, hidden), (8, dim)):
        for tensor in ("weight", "bias", "running_mean", "running_var"):
            state[f"{conv}.{number}.{tensor}"] = torch.zeros(width)


def localvit_pvt() -> dict[str, Tensor]:
    state = shapes_of("localvit__pvt_tiny")
    for stage, (dim, gamma) in enumerate(((64, 8), (128, 8), (320, 4), (512, 4)), 1):
        for block in range(2):
            with_local_ffn(state, f"block{stage}.{block}", dim, dim * gamma, gamma)
    return state


def swinv2_life() -> dict[str, Tensor]:
    state = shapes_of("life__swinv2_tiny_window8_256")
    for key in [key for key in state if key.endswith("attn.qkv.weight")]:
        dim = state.pop(key).shape[1]
        qkv = key.removesuffix(".weight")
        state |= {f"{qkv}.scale1.weight": torch.zeros(dim, dim), f"{qkv}.scale1.bias": torch.zeros(dim)}
        for scale, kernel in ((2, 3), (3, 5)):
            state[f"{qkv}.scale{scale}.depthwise.weight"] = torch.zeros(dim, 1, kernel, kernel)
            state[f"{qkv}.scale{scale}.pointwise.weight"] = torch.zeros(dim, dim, 1, 1)
    return state


def repeated(name: str, pattern: str, old: int, new: int) -> dict[str, Tensor]:
    """The recorded model with `new` instead of `old` blocks in the stage that `pattern` names."""
    state = shapes_of(name)
    for key in [key for key in state if re.match(pattern.format(old - 1), key)]:
        for number in range(old, new):
            state[key.replace(pattern.format(old - 1).replace("\\", ""), pattern.format(number).replace("\\", ""))] = (
                state[key]
            )
    return state


def deit_distilled() -> dict[str, Tensor]:
    state = shapes_of("localvit__deit_tiny_patch16_224")
    state |= {"dist_token": torch.zeros(1, 1, 192), "pos_embed": torch.zeros(1, 198, 192)}
    return state | {"head_dist.weight": torch.zeros(1000, 192), "head_dist.bias": torch.zeros(1000)}


def t2t_transformer() -> dict[str, Tensor]:
    state = shapes_of("localvit__t2t_vit_7")
    for number, width in ((1, 147), (2, 576)):
        layer = f"tokens_to_token.attention{number}"
        for key in [key for key in state if key.startswith(f"{layer}.")]:
            if not key.startswith(f"{layer}.norm"):
                del state[key]
        state |= {f"{layer}.attn.qkv.weight": torch.zeros(192, width)}
        for linear in ("attn.proj", "mlp.fc1", "mlp.fc2"):
            state |= {f"{layer}.{linear}.weight": torch.zeros(64, 64), f"{layer}.{linear}.bias": torch.zeros(64)}
    return state


@pytest.mark.parametrize(
    ("make", "family", "name"),
    [
        (localvit_pvt, "localvit", "localvit_pvt"),
        (swinv2_life, "life", "swinv2_tiny_life"),
        (lambda: repeated("lit__s", r"layers\.2\.blocks\.{}", 6, 18), "lit", "lit_medium"),
        (lambda: repeated("localvit__swin_tiny", r"layers\.2\.blocks\.{}", 6, 18), "hosts", "swin_small"),
        (lambda: repeated("localvit__t2t_vit_7", r"blocks\.{}", 7, 12), "hosts", "t2t_vit_12"),
        (deit_distilled, "hosts", "deit_tiny_distilled"),
        (lambda: shapes_of("lightvit__base"), "lightvit", "lightvit_base"),
        (lambda: shapes_of("localvit__localvit_tiny_mlp4_act3_r4"), "localvit", "localvit_tiny_se4"),
        (lambda: shapes_of("lit__pvt_small_full_msa"), "hosts", "pvt_small_msa"),
        (lambda: shapes_of("dwnet__dynamic_dwnet_tiny"), "dwnet", "ddwnet_tiny"),
    ],
)
def test_the_variant_is_recognised(make, family: str, name: str):
    reading = recognise(make())
    assert (reading.spec.family, name_of(reading.spec)) == (family, name)
    with torch.device("meta"):
        own = Backbone(reading.spec, num_classes=reading.num_classes).state_dict()
    counted = [key for key in own if not key.endswith("num_batches_tracked")]
    assert set(counted) <= reading.tensors.keys()


def test_the_transformer_form_of_tokens_to_token_is_recognised(tmp_path: Path):
    torch.save(t2t_transformer(), tmp_path / "t2t_t.pth")
    model = load_official(tmp_path / "t2t_t.pth")
    assert model.spec.embed == parts.TokensToToken(attention="transformer")


def test_localvit_heads_are_the_releases_or_the_papers():
    state = shapes_of("localvit__localvit_tiny_mlp4_act3_r192")
    assert recognise(dict(state)).spec.stages[0].mixer == parts.Global(heads=4)
    assert recognise(dict(state), Choices(behaviour="paper")).spec.stages[0].mixer == parts.Global(heads=3)
    assert recognise(dict(state), Choices(heads=6)).spec.stages[0].mixer == parts.Global(heads=6)


def test_locality_in_some_layers_only_is_recognised():
    state = shapes_of("localvit__deit_tiny_patch16_224")
    for block in range(4):
        with_local_ffn(state, f"blocks.{block}", 192, 768, 4)
    ffns = recognise(state).spec.stages[0].ffn
    assert [type(ffn).__name__ for ffn in ffns] == ["LocalityFfn"] * 4 + ["Mlp"] * 8


def test_sixteen_pixel_windows_and_smaller_maps_are_read_from_the_masks():
    state = shapes_of("life__swinv2_tiny_window8_256")
    for key in [key for key in state if key.endswith("attn_mask")]:
        del state[key]
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(16, 256, 256)
    spec = recognise(state).spec
    assert spec.img_size == 256
    assert {layer.mixer.window for stage in spec.stages for layer in stage.layers()} == {16}


def grown_swinv2(width: int, window: int, first_map: int, table: int | None = None) -> dict[str, Tensor]:
    """Swin v2 with its masks for larger windows; with the offsets of windows of `table`, stored."""
    state = shapes_of("life__swinv2_tiny_window8_256")
    for key in [key for key in state if key.endswith("attn_mask")]:
        del state[key]
    state["layers.0.blocks.1.attn_mask"] = torch.zeros((first_map // window) ** 2, window**2, window**2)
    for index in range(4):
        state[f"layers.{index}.blocks.0.norm1.weight"] = torch.zeros(width << index)
        if table:
            side = min(window, first_map >> index)
            offsets = 8 * torch.arange(1.0 - side, side) / (table * side / window - 1)
            offsets = offsets.sign() * (offsets.abs() + 1).log2() / 3
            grid = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), dim=-1)[None]
            state[f"layers.{index}.blocks.0.attn.relative_coords_table"] = grid
    return state


@pytest.mark.parametrize(
    ("state", "asked", "trained"),
    [
        (grown_swinv2(96, 16, 64), None, [None] * 4),
        (grown_swinv2(128, 16, 64), None, [None] * 4),  # could be either; the file does not tell
        (grown_swinv2(128, 16, 64), 12, [12, 12, 12, 6]),
        (grown_swinv2(128, 16, 64, table=12), None, [12, 12, 12, 6]),
        (grown_swinv2(128, 16, 64, table=16), None, [None] * 4),
        (grown_swinv2(128, 24, 96), None, [12, 12, 12, 6]),
        (grown_swinv2(192, 16, 64), None, [12, 12, 12, 6]),
        (grown_swinv2(192, 12, 48), None, [None] * 4),
    ],
)
def test_windows_that_grew_in_fine_tuning_keep_the_scale_of_their_offsets(state, asked, trained):
    spec = recognise(state, Choices(trained_window=asked)).spec
    assert [next(stage.layers()).mixer.trained_window for stage in spec.stages] == trained


@pytest.mark.parametrize("name", ["localvit__swin_tiny", "dwnet__dwnet_tiny"])
@pytest.mark.parametrize("shape", [(1, 56 * 56, 96), (1, 96, 56, 56)])
def test_absolute_positions_of_swin_and_its_kin_are_read(name: str, shape: tuple[int, ...], tmp_path: Path):
    state = shapes_of(name) | {"absolute_pos_embed": torch.arange(56.0 * 56 * 96).reshape(shape)}
    torch.save(state, tmp_path / "ape.pth")
    model = load_official(tmp_path / "ape.pth")
    assert model.spec.stages[0].position == parts.Learned()
    table = state["absolute_pos_embed"]
    table = table if len(shape) == 3 else table.flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.stages[0].position.table.detach(), table)


def test_pixel_tokens_of_tnt_may_lie_closer():
    state = shapes_of("localvit__tnt_t")
    for block in range(12):
        state[f"blocks.{block}.proj.weight"] = torch.zeros(192, 12 * 64)
    state |= {"pixel_pos": torch.zeros(1, 12, 8, 8), "proj.weight": torch.zeros(192, 12 * 64)}
    spec = recognise(state).spec
    assert spec.embed == parts.PixelEmbed(patch=16, pixel_dim=12, pixel_stride=2)
    assert spec.img_size == 224


def test_a_patch_that_does_not_divide_its_image_leaves_a_border(tmp_path: Path):
    state = shapes_of("life__deit_tiny_patch4_32")
    state |= {"patch_embed.proj.weight": torch.zeros(192, 3, 14, 14), "pos_embed": torch.zeros(1, 5, 192)}
    torch.save(state, tmp_path / "patch14.pth")
    model = load_official(tmp_path / "patch14.pth")
    assert model.forward_features(torch.zeros(1, 3, 32, 32)).shape == (1, 5, 192)


@pytest.mark.parametrize("name", ["dwnet__dwnet_tiny", "lit__s"])
def test_dense_backbones_become_pyramids(name: str, tmp_path: Path):
    state = shapes_of(name)
    for key in ("norm.weight", "norm.bias", "head.weight", "head.bias"):
        del state[key]
    batch = name.startswith("dwnet")
    for index in range(1, 4):
        for tensor in ("weight", "bias", "running_mean", "running_var") if batch else ("weight", "bias"):
            state[f"norm{index}.{tensor}"] = torch.ones(96 << index)
    torch.save({"state_dict": {f"backbone.{key}": value for key, value in state.items()}}, tmp_path / "dense.pth")
    model = load_official(tmp_path / "dense.pth")
    assert isinstance(model, FeaturePyramid)
    assert model.norm_kinds == dict.fromkeys(range(1, 4), "batch" if batch else "layer")
    shapes = [tuple(level.shape) for level in model(torch.zeros(1, 3, 60, 80))]
    if batch:  # the released detectors pad their maps to windows of 7, and odd maps in front of a merge
        assert {layer.mixer.pad_to for stage in model.spec.stages for layer in stage.layers()} == {7}
        assert shapes == [(1, 96, 15, 20), (1, 192, 8, 10), (1, 384, 4, 5), (1, 768, 2, 3)]
    else:  # a deformable merge is a convolution without padding
        assert shapes == [(1, 96, 15, 20), (1, 192, 7, 10), (1, 384, 3, 5), (1, 768, 1, 2)]


def test_dense_depthwise_blocks_pad_their_maps_to_their_kernel():
    state = shapes_of("dwnet__dwnet_tiny")
    for key in ("norm.weight", "norm.bias", "head.weight", "head.bias"):
        del state[key]
    for key in [key for key in state if key.endswith("attn2conv.conv.weight")]:
        state[key] = torch.zeros(len(state[key]), 1, 5, 5)
    mixers = {layer.mixer for stage in recognise(state).spec.stages for layer in stage.layers()}
    assert {(mixer.kernel, mixer.pad_to) for mixer in mixers} == {(5, 5)}


def test_a_dense_lit_tiny_drops_the_class_token_s_position(tmp_path: Path):
    state = shapes_of("lit__ti")
    for key in ("cls_token", "norm.weight", "norm.bias", "head.weight", "head.bias"):
        del state[key]
    state["pos_embed4"][:, 0] = 7
    torch.save(state, tmp_path / "dense.pth")
    model = load_official(tmp_path / "dense.pth")
    assert isinstance(model, FeaturePyramid)
    assert model.backbone.stages[3].position.table.shape == (1, 49, 512)
    assert not model.backbone.stages[3].position.table.any()
    shapes = [tuple(level.shape[2:]) for level in model(torch.zeros(1, 3, 75, 118))]
    assert shapes == [(18, 29), (9, 14), (4, 7), (2, 3)]  # as the release: what fills no whole patch is left out
    model = load_official(tmp_path / "dense.pth", behaviour="paper")
    assert [tuple(level.shape[2:]) for level in model(torch.zeros(1, 3, 75, 118))][-1] == (3, 4)
