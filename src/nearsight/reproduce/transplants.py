"""Depth-wise convolution and window attention inside timm's VOLO and Twins (dwconv paper, Table 13)."""

from typing import Any

from timm.models.twins import LocallyGroupedAttn
from timm.models.volo import OutlookAttention
from torch import Tensor, nn

from ..lattice import Grid
from ..parts import DepthWise, LinearQkv, Window
from ..parts.slots import Mixer, Site


class OnLattice(nn.Module):
    """A mixer where VOLO has its outlook attention: takes and returns `[B, H, W, C]`."""

    def __init__(self, mixer: nn.Module):
        super().__init__()
        self.mixer = mixer

    def forward(self, field: Tensor) -> Tensor:
        height, width = field.shape[1:3]
        return self.mixer(field.flatten(1, 2), Grid(height, width)).unflatten(1, (height, width))


class OnTokens(nn.Module):
    """A mixer where Twins has its local attention: takes `[B, N, C]` and the map's size."""

    def __init__(self, mixer: nn.Module):
        super().__init__()
        self.mixer = mixer

    def forward(self, tokens: Tensor, size: Any) -> Tensor:
        return self.mixer(tokens, Grid(*size))


def replace_attention(model: nn.Module, kind: type[nn.Module], wrapper: type[nn.Module], part: Mixer) -> nn.Module:
    """Put `part` where the model has attention modules of one kind."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                site = Site(child.proj.in_features, Grid(28, 28))  # type: ignore[union-attr, arg-type]
                setattr(module, name, wrapper(part.build(site, LinearQkv())))
    return model


def with_window_attention(volo: nn.Module) -> nn.Module:
    """VOLO with 7x7 window attention in place of its outlook attention; the heads stay."""
    return replace_attention(volo, OutlookAttention, OnLattice, Window(heads=6))


def with_depthwise(model: nn.Module) -> nn.Module:
    """VOLO or Twins-SVT with 7x7 depth-wise convolution in place of the local attention."""
    replace_attention(model, OutlookAttention, OnLattice, DepthWise())
    return replace_attention(model, LocallyGroupedAttn, OnTokens, DepthWise())
