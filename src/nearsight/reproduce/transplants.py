"""The papers' transplants: a part of one network in another, as calls of `localize`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import timm
from torch import nn

from ..models.hosts import t2t
from ..models.registry import create_from_spec
from ..models.spec import BackboneSpec
from ..parts import DepthWise, LocalityFfn, TokensToToken, Window
from ..retrofit import localize


@dataclass(frozen=True)
class Transplant:
    """A row of a paper that puts its part into another network.

    Attributes:
        paper: Key of the paper.
        table: Where it is printed.
        row: Name of the row.
        host: Model of ours or of timm that the part goes into.
        parts: What `localize` is given; it is called without `preserve`, for the paper's exact form.
        options: What the host is built with.
        spec: The host itself, where the paper changed its width for the part.
    """

    paper: str
    table: str
    row: str
    host: str
    parts: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    spec: BackboneSpec | None = None

    def build(self, **options: Any) -> nn.Module:
        """The host with the part in it."""
        make = partial(create_from_spec, self.host, self.spec) if self.spec else partial(timm.create_model, self.host)
        host = make(**self.options, **options)
        return localize(host, **self.parts, preserve=False, inplace=True)


def reduced(gamma: float, *reductions: int | None) -> tuple[LocalityFfn, ...]:
    """LocalViT's feed-forward part of each stage, with its reduction of the channel gate."""
    return tuple(LocalityFfn(gamma=gamma, se_reduction=reduction) for reduction in reductions)


HUNDRED = {"num_classes": 100}  # LIFE's Table 1
TOKEN_FFN = LocalityFfn(gamma=1, channel_attention=None)
TRANSPLANTS = (
    Transplant("lit", "Table 4", "PVT-S + DTM", "pvt_small", {"merge": "deformable"}),
    Transplant("lit", "Table 4", "Swin-Ti + DTM", "swin_tiny", {"merge": "deformable"}),
    Transplant("dwconv", "Table 13", "VOLO (Local SA)-d1", "volo_d1_224", {"mixer": Window(heads=6)}),
    Transplant("dwconv", "Table 13", "DW Conv.-d1", "volo_d1_224", {"mixer": DepthWise()}),
    Transplant("dwconv", "Table 13", "DW Conv.-S", "twins_svt_small", {"mixer": DepthWise()}),
    Transplant("dwconv", "Table 15", "Swin + SE", "swin_tiny", {"mixer": "squeezed"}),
    Transplant("dwconv", "Table 15", "DW Conv. + SE", "dwnet_tiny", {"mixer": "squeezed"}),
    Transplant("life", "Table 1", "DeiT-T-LIFE", "deit_tiny", {"qkv": "life"}, HUNDRED),
    Transplant("life", "Table 1", "DeiT-S-LIFE", "deit_small", {"qkv": "life"}, HUNDRED),
    Transplant("life", "Table 1", "T2T-ViT-12-LIFE", "t2t_vit_12", {"qkv": "life"}, HUNDRED, t2t(252, 4, 12, 2)),
    Transplant("life", "Table 1", "Swinv2-T-LIFE", "swinv2_tiny", {"qkv": "life"}, HUNDRED),
    Transplant("localvit", "Table 5", "LocalViT-T", "deit_tiny", {"ffn": LocalityFfn()}),
    Transplant(
        "localvit",
        "Table 5",
        "LocalViT-T2T",
        "t2t_vit_7",
        {"ffn": LocalityFfn(gamma=2)},
        {"embed": TokensToToken(ffn=TOKEN_FFN)},
    ),
    Transplant("localvit", "Table 5", "LocalViT-TNT", "tnt_tiny", {"ffn": LocalityFfn()}),
    Transplant(
        "localvit", "Table 5", "LocalViT-PVT", "pvt_tiny", {"ffn": reduced(8, 64, 128)[:2] + reduced(4, None, None)}
    ),
    Transplant("localvit", "Table 5", "LocalViT-S", "deit_small", {"ffn": LocalityFfn()}),
    Transplant("localvit", "release", "LocalViT-Swin", "swin_tiny", {"ffn": reduced(4, 24, 48, 96, 192)}),
)


def with_window_attention(volo: nn.Module) -> nn.Module:
    """VOLO with 7x7 window attention in place of its outlook attention; the heads stay."""
    return localize(volo, mixer=Window(heads=6), preserve=False, inplace=True)


def with_depthwise(model: nn.Module) -> nn.Module:
    """VOLO or Twins-SVT with 7x7 depth-wise convolution in place of the local attention."""
    return localize(model, mixer=DepthWise(), preserve=False, inplace=True)
