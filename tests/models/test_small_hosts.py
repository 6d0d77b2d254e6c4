"""Small forms of all hosts, and what LocalViT's and LIFE's parts add to them, as the papers' forms have it."""

import pytest
import torch

from nearsight import create_model
from nearsight.models import MODELS

HOSTS = ("deit", "t2t", "tnt", "pvt", "swin", "swinv2")
LIFE_HOSTS = ("deit", "t2t", "tnt", "swinv2")


def parameters(name: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in create_model(name, num_classes=10).parameters())


def widths(name: str) -> list[int]:
    """The width of every layer."""
    return [stage.dim for stage in MODELS[name].stages for _ in range(stage.depth)]


def test_small_hosts_are_of_one_size_and_for_32_pixels() -> None:
    for host in HOSTS:
        assert MODELS[f"{host}_nano"].img_size == 32
        assert 500_000 < parameters(f"{host}_nano") < 850_000


@pytest.mark.parametrize("host", HOSTS)
def test_localvits_part_adds_83_channels_and_4_in_each_layer(host: str) -> None:
    """gamma 4: 9 + 3 * 2 for kernel and norms and 9 for SE on 4 C channels, 4 squeezed, less the MLP's biases and norm.

    In DeiT-T that is 15,940 in each layer, by which the paper's Table 3 grows from 5.72 to 5.91 M.
    """
    local = "localvit_nano" if host == "deit" else f"localvit_{host}_nano"
    in_tokens = 2 * (15 - 4) * 64 if host == "t2t" else 0  # both token layers, gamma 1 without SE
    expected = sum(83 * width + 4 for width in widths(f"{host}_nano")) + in_tokens
    assert parameters(local) - parameters(f"{host}_nano") == expected
    assert 83 * 192 + 4 == 15_940


@pytest.mark.parametrize("host", LIFE_HOSTS)
def test_life_adds_its_kernels_and_drops_two_biases(host: str) -> None:
    """9 C + 25 C for the kernels and one bias of C, in place of the host's: 3 C in DeiT, 2 C in Swin v2, none else."""
    bias = {"deit": 3, "swinv2": 2}.get(host, 0)
    expected = sum((9 + 25 + 1 - bias) * width for width in widths(f"{host}_nano"))
    assert parameters(f"{host}_nano_life") - parameters(f"{host}_nano") == expected


def test_life_has_no_place_in_spatial_reduction() -> None:
    with pytest.raises(ValueError, match="Life has no place in stage 1: SpatialReduction makes no queries"):
        create_model("pvt_nano", qkv="life")
