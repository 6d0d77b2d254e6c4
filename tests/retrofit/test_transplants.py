"""The papers' transplants, called: published sizes, and the same models as from the tables of specs."""

import pytest
import timm
import torch
from small_hosts import fresh, named, pictures
from torch import nn

from nearsight import localize
from nearsight.models import MODELS
from nearsight.parts import Life, LocalityFfn
from nearsight.reproduction.papers import TRANSPLANTS, Transplant
from nearsight.reproduction.published import rows_of
from nearsight.reproduction.verdicts import agrees

PRINTED = [t for t in TRANSPLANTS if t.table != "release"]
# Rows whose printed size no count of the described model gives: how near it comes, as in `reproduce.register`.
REGISTERED = {"Swinv2-T-LIFE": 0.004, "T2T-ViT-12-LIFE": 0.01}
SPECS = {
    "DeiT-T-LIFE": "deit_tiny_life",
    "DeiT-S-LIFE": "deit_small_life",
    "T2T-ViT-12-LIFE": "t2t_vit_12_life",
    "Swinv2-T-LIFE": "swinv2_tiny_life",
    "LocalViT-T": "localvit_tiny",
    "LocalViT-S": "localvit_small",
    "LocalViT-T2T": "localvit_t2t",
    "LocalViT-TNT": "localvit_tnt",
    "LocalViT-PVT": "localvit_pvt",
    "LocalViT-Swin": "localvit_swin",
}


def on_meta(transplant: Transplant) -> nn.Module:
    with torch.device("meta"):
        return transplant.build()


def millions(model: nn.Module) -> float:
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.mark.parametrize("transplant", PRINTED, ids=lambda t: t.row)
def test_published_sizes_are_met(transplant: Transplant) -> None:
    row = next(r for r in rows_of(transplant.paper) if (r.table, r.name) == (transplant.table, transplant.row))
    counted = millions(on_meta(transplant))
    if row.name in REGISTERED:
        assert counted == pytest.approx(float(row.printed["params_m"]), rel=REGISTERED[row.name])
    else:
        assert agrees(row.printed["params_m"], counted)


@pytest.mark.parametrize("transplant", [t for t in TRANSPLANTS if t.row in SPECS], ids=lambda t: t.row)
def test_it_is_the_model_of_the_family_file(transplant: Transplant) -> None:
    model, known = on_meta(transplant), MODELS[SPECS[transplant.row]]
    assert model.spec.stages == known.stages and model.spec.embed == known.embed


@pytest.mark.parametrize(
    ("host", "ours", "size"),
    [("deit_tiny_patch16_224", "deit_tiny_life", 224), ("swinv2_tiny_window8_256", "swinv2_tiny_life", 256)],
)
def test_life_in_timms_hosts_has_as_many_weights_as_in_ours(host: str, ours: str, size: int) -> None:
    with torch.device("meta"):
        model = localize(timm.create_model(host), qkv="life", preserve=False)
        assert millions(model) == millions(timm.create_model(ours, img_size=size))


def test_localvit_in_timms_deit_has_as_many_weights_as_ours() -> None:
    with torch.device("meta"):
        model = localize(timm.create_model("deit_tiny_patch16_224"), ffn="localvit", preserve=False)
        assert millions(model) == millions(timm.create_model("localvit_tiny"))


def test_pretrained_tensors_are_taken_over_where_shapes_allow() -> None:
    plain = fresh(named("ViT"))
    model = localize(plain, ffn=LocalityFfn(gamma=4.0), qkv=Life(), preserve=False)
    block, old = model.blocks[0], plain.blocks[0]
    assert torch.equal(block.mlp.part.expand.weight, old.mlp.fc1.weight)
    assert torch.equal(block.mlp.part.project.weight, old.mlp.fc2.weight)
    first = block.attn.qkv.life.scales[0].point
    queries, keys, values = old.attn.qkv.weight.chunk(3)
    assert torch.equal(first.weight, torch.cat((queries[:16], keys[:16], values[:16])))
    assert torch.equal(block.attn.proj.weight, old.attn.proj.weight)
    said = set(model.localized.kept)
    assert {"blocks.0.mlp.part.expand.weight", "blocks.0.attn.qkv.life.scales.0.point.weight"} <= said
    assert not said & set(model.localized.new)
    assert "blocks.0.mlp.part.local.weight" in model.localized.new


def test_a_merge_of_pretrained_weights_is_the_same_convolution() -> None:
    """Behind the offsets, which start at zero: the paper's merge computes the old one's sums before its norm."""
    plain = fresh(named("Swin"))
    model = localize(plain, merge="deformable", preserve=False)
    old, new = plain.layers[1].downsample, model.layers[1].downsample
    field = torch.randn(2, 6, 4, 24)
    four = torch.cat([field[:, y::2, x::2] for x in (0, 1) for y in (0, 1)], dim=-1)
    convolved = nn.functional.conv2d(field.permute(0, 3, 1, 2), new.part.conv.weight, stride=2)
    torch.testing.assert_close(convolved.permute(0, 2, 3, 1), old.reduction(four))


def test_another_gate_or_mixer_keeps_the_mixer_that_is_there() -> None:
    plain = fresh(named("Swin (ours)"))
    model = localize(plain, mixer="squeezed", preserve=False)
    assert torch.equal(model.stages[0].blocks[0].mixer.mixer.proj.weight, plain.stages[0].blocks[0].mixer.proj.weight)
    assert all(".gate." in name for name in model.localized.new)
    assert model(pictures(2, (32, 32))).shape == (2, 5)


def test_a_depthwise_mixer_makes_a_dwnet_of_swin() -> None:
    """The dwconv paper's network is Swin with another mixer; timm's Swin becomes it, up to the norm of the blocks."""
    with torch.device("meta"):
        model = localize(timm.create_model("swin_tiny_patch4_window7_224"), mixer="depthwise", preserve=False)
        dwnet = timm.create_model("dwnet_tiny", norm="layer")
    assert millions(model) == pytest.approx(millions(dwnet), rel=0.01)
