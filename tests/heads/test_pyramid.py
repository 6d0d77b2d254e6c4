"""Every backbone as a pyramid: strides, norms, and use from outside."""

import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from nearsight.checkpoints import load_official
from nearsight.checkpoints.backbone import load_backbone
from nearsight.heads import (
    DenseModel,
    DenseSpec,
    MaskRcnn,
    SemanticFpn,
    TimmBackbone,
    from_json,
    make_pyramid,
    to_json,
)
from nearsight.heads.fpn import Fpn
from nearsight.heads.pyramid import Levels, released_norms
from nearsight.models import MODELS

sys.path.append(str(Path(__file__).parents[1] / "checkpoints"))
from recorded import Recorded

STAGED = ["lit_nano", "dwnet_nano", "ddwnet_nano", "iddwnet_nano", "swin_nano", "lightvit_nano"]
ONE_STRIDE = ["deit_nano", "deit_nano_life", "localvit_nano"]
LARGE = {
    "lit_tiny": (4, 8, 16, 32),
    "lightvit_tiny": (8, 16, 32),
    "localvit_pvt": (4, 8, 16, 32),
    "swinv2_tiny_life": (4, 8, 16, 32),
    "t2t_vit_7": (4, 8, 16, 32),
    "localvit_tnt": (4, 8, 16, 32),
    "deit_tiny_distilled": (4, 8, 16, 32),
}


@pytest.mark.parametrize("name", [*STAGED, *ONE_STRIDE])
def test_the_maps_of_a_small_backbone_have_its_strides(name: str) -> None:
    pyramid = make_pyramid(MODELS[name], strides=(2, 4, 8, 16, 32)).eval()
    maps = pyramid(torch.randn(2, 3, 64, 96))
    assert pyramid.strides == ((2, 4, 8) if name in STAGED else (2, 4, 8, 16, 32))
    for level, channels, stride in zip(maps, pyramid.channels, pyramid.strides, strict=True):
        assert level.shape == (2, channels, 64 // stride, 96 // stride)


@pytest.mark.parametrize("name", LARGE)
def test_the_maps_of_a_large_backbone_have_strides_4_to_32(name: str) -> None:
    with torch.device("meta"):
        pyramid = make_pyramid(MODELS[name]).eval()
        maps = pyramid(torch.empty(1, 3, 64, 96))
    assert pyramid.strides == LARGE[name]
    assert [tuple(level.shape[2:]) for level in maps] == [(64 // s, 96 // s) for s in LARGE[name]]


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("resnet18", (4, 8, 16, 32)),
        ("convnext_atto", (4, 8, 16, 32)),
        ("swin_tiny_patch4_window7_224", (4, 8, 16, 32)),
        ("vit_tiny_patch16_224", (4, 8, 16, 32)),
        ("vit_small_patch14_dinov2", (3.5, 7, 14, 28)),
        ("lit_nano", (4, 8)),
    ],
)
def test_backbones_of_timm_take_any_size_that_their_strides_divide(name: str, strides: tuple[float, ...]) -> None:
    with torch.device("meta"):
        pyramid = make_pyramid(TimmBackbone(name)).eval()
        side = pyramid.multiple
        maps = pyramid(torch.empty(1, 3, 2 * side, 3 * side))
    assert pyramid.strides == strides
    expected = [(round(2 * side / stride), round(3 * side / stride)) for stride in strides]
    assert [tuple(level.shape[2:]) for level in maps] == expected
    assert tuple(level.shape[1] for level in maps) == pyramid.channels


def test_unknown_backbones_of_timm_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="timm has no model 'resnet1'"):
        make_pyramid(TimmBackbone("resnet1"))
    with pytest.raises(ValueError, match="does not take these options"):
        make_pyramid(TimmBackbone("resnet18", (("windows", 3),)))


def test_norms_are_those_of_the_releases() -> None:
    assert released_norms(MODELS["lit_small"], "detect") == {1: "layer", 2: "layer", 3: "layer"}
    assert released_norms(MODELS["lit_small"], "segment") == dict.fromkeys(range(4), "layer")
    assert released_norms(MODELS["lit_tiny"], "detect") == released_norms(MODELS["pvt_small"], "segment") == {}
    assert released_norms(MODELS["dwnet_tiny"], "detect") == dict.fromkeys(range(4), "batch")
    assert released_norms(MODELS["lightvit_tiny"], "detect") == dict.fromkeys(range(3), "layer")


@pytest.mark.parametrize("name", ["deit_nano", "deit_tiny_distilled"])
def test_a_spread_backbone_shows_its_normed_patches_without_auxiliary_tokens(name: str) -> None:
    pyramid = make_pyramid(MODELS[name]).eval()
    own = MODELS[name].embed.stride
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        tokens = pyramid.backbone.forward_features(images)[:, MODELS[name].aux :]
        same = pyramid(images)[pyramid.strides.index(own)]
    torch.testing.assert_close(same.flatten(2).transpose(1, 2), tokens)


def test_only_the_stages_asked_for_are_built() -> None:
    whole, part = (make_pyramid(MODELS["dwnet_nano"], strides=strides) for strides in ((2, 4, 8), (2, 4)))
    assert (whole.strides, part.strides) == ((2, 4, 8), (2, 4))
    assert sum(p.numel() for p in part.parameters()) < sum(p.numel() for p in whole.parameters()) / 3
    assert make_pyramid(MODELS["dwnet_nano"], strides=None).strides == (8,)
    assert make_pyramid(MODELS["dwnet_nano"], strides=(32,)).strides == (32,)  # pooled


@pytest.mark.parametrize("name", ["lightvit__tiny_det_224x288", "lightvit__tiny_det_tokens8_200x264"])
def test_a_released_detector_s_backbone_gives_the_released_maps(name: str, tmp_path: Path) -> None:
    recorded = Recorded.load(name)
    torch.save({"state_dict": recorded.state()}, tmp_path / "released.pth")
    spec = load_official(tmp_path / "released.pth", **recorded.options()).spec
    model = DenseModel(DenseSpec(spec, MaskRcnn(channels=8, hidden=8)), num_classes=2).eval()
    sentence = load_backbone(model, tmp_path / "released.pth")
    assert "left out there: nothing" in sentence and sentence.endswith("new here: the head.")
    with torch.inference_mode():
        maps = model.pyramid(recorded.images())
    for ours, theirs in zip(maps, recorded.outputs(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=recorded.tolerance)


def test_lightvit_s_neck_has_the_strides_4_to_64() -> None:
    """Three levels go in; a transposed convolution makes the finest, taking every second place the coarsest."""
    with torch.device("meta"):
        model = DenseModel(DenseSpec(MODELS["lightvit_tiny"], MaskRcnn()), num_classes=80)
        levels = model.head.fpn(model.pyramid(torch.empty(1, 3, 128, 192)))
    fpn = model.head.fpn
    assert model.pyramid.strides == (8, 16, 32) and fpn.strides == (4, 8, 16, 32, 64)
    assert [tuple(level.shape[2:]) for level in levels] == [(32, 48), (16, 24), (8, 12), (4, 6), (2, 3)]
    assert (len(fpn.laterals), len(fpn.doublings), len(fpn.outputs)) == (3, 1, 4)
    assert fpn.doublings[0].kernel_size == fpn.doublings[0].stride == (2, 2)


def test_the_network_between_is_torchvision_s() -> None:
    from torchvision.ops import FeaturePyramidNetwork

    ours, theirs = Fpn(Levels((8, 16, 24), (4, 8, 16)), 12, finest=4), FeaturePyramidNetwork([8, 16, 24], 12)
    for index in range(3):
        theirs.inner_blocks[index][0].load_state_dict(ours.laterals[index].state_dict())
        theirs.layer_blocks[index][0].load_state_dict(ours.outputs[index].state_dict())
    maps = [torch.randn(1, 8, 16, 12), torch.randn(1, 16, 8, 6), torch.randn(1, 24, 4, 3)]
    expected = theirs({str(index): level for index, level in enumerate(maps)})
    for level, other in zip(ours(maps), expected.values(), strict=True):
        torch.testing.assert_close(level, other)


@pytest.mark.parametrize("name", STAGED)
def test_timm_s_features_only_gives_the_same_maps(name: str) -> None:
    peer = timm.create_model(name, features_only=True).eval()
    pyramid = make_pyramid(MODELS[name], strides=(2, 4, 8)).eval()
    pyramid.backbone.load_state_dict(peer.model.state_dict())
    pyramid.norms = nn.ModuleDict()
    images = torch.randn(1, 3, 40, 56)
    with torch.no_grad():
        for ours, theirs in zip(pyramid(images), peer(images), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", STAGED)
def test_segmentation_models_pytorch_takes_the_small_pyramids(name: str) -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    decoder = {"encoder_depth": 3, "decoder_channels": (16, 8, 8), "encoder_weights": None}
    model = smp.Unet(f"tu-{name}", classes=5, **decoder)
    logits = model(torch.randn(2, 3, 64, 64))
    assert logits.shape == (2, 5, 64, 64)
    logits.mean().backward()
    assert all(p.grad is not None for p in model.encoder.parameters())


@pytest.mark.parametrize("name", ["lit_small", "dwnet_tiny", "pvt_tiny"])
def test_segmentation_models_pytorch_takes_the_large_pyramids(name: str) -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    model = smp.UPerNet(f"tu-{name}", classes=5, encoder_weights=None).eval()
    assert model.encoder.out_channels[2:] == [stage.dim for stage in MODELS[name].stages]
    with torch.no_grad():
        assert model(torch.randn(1, 3, 64, 96)).shape == (1, 5, 64, 96)


def test_segmentation_models_pytorch_has_no_place_for_lightvit_s_strides() -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    with pytest.raises(ValueError, match="downsampling pattern"):
        smp.Unet("tu-lightvit_tiny", encoder_weights=None)


def test_early_blocks_make_the_fine_maps_and_late_ones_the_coarse() -> None:
    spec = MODELS["deit_nano"]
    pyramid = make_pyramid(spec, strides=(4, 8, 16, 32), layers=4).eval()
    images, blocks = torch.randn(1, 3, 64, 64), pyramid.blocks
    assert blocks[-1] == spec.stages[0].depth - 1 and blocks == sorted(set(blocks)) and len(blocks) == 4
    before = pyramid(images)
    with torch.no_grad():  # only what comes behind the third of the four blocks changes
        for block in pyramid.backbone.stages[0].blocks[blocks[2] + 1 :]:
            for parameter in block.parameters():
                parameter.add_(0.5)
    after = pyramid(images)
    assert [torch.equal(old, new) for old, new in zip(before, after, strict=True)] == [True, True, True, False]
    sum(level.sum() for level in pyramid.train()(images)).backward()
    assert all(parameter.grad is not None for parameter in pyramid.parameters())


@pytest.mark.parametrize("backbone", [MODELS["deit_nano"], TimmBackbone("test_vit"), TimmBackbone("resnet18")])
def test_a_stem_for_detail_joins_the_finest_map_alone(backbone: Any) -> None:
    model = DenseModel(DenseSpec(backbone, SemanticFpn(channels=16, hidden=16), layers=2, detail=8), num_classes=3)
    images = torch.randn(2, 3, 64, 96)
    maps, plain = model.eval().maps(images), model.pyramid(images)
    assert maps[0].shape[1] == plain[0].shape[1] + 8
    assert torch.equal(maps[0][:, :-8], plain[0])
    assert all(torch.equal(one, other) for one, other in zip(maps[1:], plain[1:], strict=True))
    losses = model.train()(images, None, [torch.randint(0, 3, (64, 96)) for _ in range(2)])
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert from_json(to_json(model.spec)) == model.spec
