"""The counter against hand formulas of single layers and against the counts recorded from the released models."""

import pytest
import timm
import torch
from torch import Tensor, nn

import nearsight.models  # noqa: F401  (registers the models)
from nearsight.lattice import Grid
from nearsight.models.counting import count, count_macs
from nearsight.parts import DeformableMerge, DepthWise, Global, LinearQkv, Sliding, Window
from nearsight.parts.slots import Mixer, Site

# Multiply-adds of the released models, counted there with PyTorch's counter; the inhomogeneous one has the product of
# predicted weights and taps on top, which that counter did not see: 49 taps of every channel at every position.
TAPS_OF_TINY = 49 * (2 * 56**2 * 96 + 2 * 28**2 * 192 + 6 * 14**2 * 384 + 2 * 7**2 * 768)
RECORDED = {
    "dwnet_tiny": 3_726_862_848,
    "ddwnet_tiny": 3_753_819_648,
    "iddwnet_tiny": 4_304_062_464 + TAPS_OF_TINY,
    "deit_small": 4_598_882_304,
    "deit_tiny": 1_253_683_200,
    "deit_tiny_life": 1_269_037_056,
    "swinv2_tiny": 5_939_690_496,
    "lightvit_base": 4_106_798_080,
    "lightvit_tiny": 772_183_808,
    "lit_small": 4_076_614_656,
    "lit_tiny": 3_613_743_104,
    "pvt_small_msa": 8_376_348_672,
    "localvit_t2t": 1_153_637_376,
    "localvit_tiny": 1_266_475_008,
    "localvit_tnt": 1_416_513_792,
    "pvt_tiny": 1_932_911_616,
    "swin_tiny": 4_490_566_656,
}


@pytest.mark.parametrize("name", RECORDED)
def test_counts_what_was_recorded_from_the_released_model(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    assert count(model, model.img_size).macs == RECORDED[name]


@pytest.mark.parametrize("name", ["swin_nano", "lit_nano", "iddwnet_nano", "lightvit_nano", "localvit_nano"])
def test_the_meta_device_counts_as_the_processor_does(name: str) -> None:
    model = timm.create_model(name)
    assert count(model, 32) == count(model.to("meta"), 32)


def mixer_macs(part: Mixer, dim: int, grid: Grid) -> int:
    with torch.device("meta"):
        module = part.build(Site(dim, grid), LinearQkv())
        return count_macs(module, torch.empty(1, grid.tokens, dim), grid)


def test_attention_costs_four_projections_and_two_products() -> None:
    tokens, dim = 6 * 5, 24
    assert mixer_macs(Global(heads=3), dim, Grid(6, 5)) == 4 * tokens * dim**2 + 2 * tokens**2 * dim


def test_window_attention_sees_its_window_alone() -> None:
    tokens, dim = 14 * 14, 24
    assert mixer_macs(Window(heads=3, window=7), dim, Grid(14, 14)) == 4 * tokens * dim**2 + 2 * tokens * 49 * dim


def test_sliding_attention_costs_the_same_as_window_attention() -> None:
    grid = Grid(14, 14)
    assert mixer_macs(Sliding(heads=3, window=7), 24, grid) == mixer_macs(Window(heads=3, window=7), 24, grid)


def test_a_dynamic_kernel_costs_its_prediction_once_per_image() -> None:
    tokens, dim = 8 * 9, 32
    static = 2 * tokens * dim**2 + 49 * tokens * dim
    assert mixer_macs(DepthWise(), dim, Grid(8, 9)) == static
    prediction = dim * dim // 4 + dim // 4 * 49 * dim
    assert mixer_macs(DepthWise(dynamics="homogeneous"), dim, Grid(8, 9)) == static + prediction


def test_an_inhomogeneous_kernel_costs_its_prediction_at_every_position() -> None:
    tokens, dim, groups = 8 * 9, 32, 8
    prediction = tokens * (dim * dim // 4 + dim // 4 * 49 * groups)
    part = DepthWise(dynamics="inhomogeneous", channels_per_group=4)
    assert mixer_macs(part, dim, Grid(8, 9)) == 2 * tokens * dim**2 + 49 * tokens * dim + prediction


@pytest.mark.parametrize("backend", ["torchvision", "torch"])
def test_deformable_merging_costs_its_offsets_and_an_ordinary_convolution(backend: str) -> None:
    merge = DeformableMerge(backend=backend).build(Site(24, Grid(6, 8)), 16)  # type: ignore[arg-type]
    positions = 3 * 4
    assert count_macs(merge, torch.randn(1, 48, 16), Grid(6, 8)) == positions * 4 * 16 * (8 + 24)


def test_an_encoder_layer_of_pytorch_is_not_hidden_by_its_fast_path() -> None:
    layer, tokens = nn.TransformerEncoderLayer(16, 2, 64, batch_first=True), 10
    assert count_macs(layer, torch.randn(1, tokens, 16)) == tokens * (4 + 8) * 16**2 + 2 * tokens**2 * 16


def test_height_width_and_channels_are_free() -> None:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
    assert count(conv, (8, 12), in_chans=4).macs == 4 * 6 * 6 * 9 * 4
    assert count(conv, (8, 12), in_chans=4).parameters == 4 * 6 * 9


def test_counting_leaves_the_mode_of_every_module_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5))
    model[1].eval()
    before = model[1].running_mean.clone()  # type: ignore[union-attr, operator]
    count(model, 4)
    assert [module.training for module in model] == [True, False, True]
    assert torch.equal(before, model[1].running_mean)  # type: ignore[arg-type]


def test_a_failing_model_leaves_no_listener_behind() -> None:
    from nearsight.ops import execution

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        count(Broken(), 4)
    assert not execution._LISTENERS
