"""What fills the qkv slot: one linear layer, or LIFE's cascade of convolutions with growing kernels."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, image, sequence, with_aux
from ..ops.attention import suits
from ..ops.life import ScaleWeights, cascade, cascade_by_heads
from .branches import adopt
from .depthwise import same_conv
from .layers import Conv1x1
from .ranges import Side, Width
from .slots import GridSource, Pairs, Qkv, QkvModule, Site, identity_rows, register


@register
@dataclass(frozen=True)
class LinearQkv(Qkv):
    """One linear layer.

    Attributes:
        bias: True, False, or `qv`: biases for queries and values only, as in Swin v2.
    """

    plain: ClassVar[bool] = True

    bias: bool | Literal["qv"] = True

    @property
    def label(self) -> str:
        return "Linear"

    def build(self, site: Site, heads: int) -> QkvModule:
        return LinearQkvModule(site.dim, self.bias)


class LinearQkvModule(QkvModule):
    """`q, k, v = Linear(C, 3C)(x)`."""

    pointwise = True

    def __init__(self, dim: int, bias: bool | Literal["qv"]):
        super().__init__()
        self.width = dim
        self.proj = nn.Linear(dim, 3 * dim, bias=bias is True)
        self.q_bias = nn.Parameter(torch.zeros(dim)) if bias == "qv" else None
        self.v_bias = nn.Parameter(torch.zeros(dim)) if bias == "qv" else None

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = self.proj(tokens).chunk(3, dim=-1)
        if self.q_bias is not None and self.v_bias is not None:
            return queries + self.q_bias, keys, values + self.v_bias
        return queries, keys, values

    def linear(self) -> tuple[Tensor, Tensor | None]:
        if self.q_bias is None or self.v_bias is None:
            return self.proj.weight, self.proj.bias
        return self.proj.weight, torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))

    def strip_projections(self) -> None:
        identity_rows(self.proj.weight, self.width, last=True)


@register
@dataclass(frozen=True)
class Life(Qkv):
    """The Local InFormation Enhancer: each scale of a convolution cascade gives a part of Q, K and V (LIFE eq. 3 to 6).

    Attributes:
        kernels: Kernel of each scale, in the order of the cascade. `(3,)` is the one-scale variant of LIFE's Table 4,
            `(1,)` the plain linear layer.
        scale_width: Channels n that a scale gives to each of Q, K and V. None shares the width evenly; where it does
            not divide, the next n with which all heads are equally wide.
        aux_key: How the auxiliary tokens' keys are made: `paper` concatenates the scales, `released` repeats the first.
        qkv_norm: One layer norm applied to Q, to K and to V; an option of the release that the paper leaves off.
    """

    family: ClassVar[str] = "life"

    kernels: tuple[Side, ...] = (1, 3, 5)
    scale_width: Width | None = None
    aux_key: Literal["paper", "released"] = "paper"
    qkv_norm: bool = False

    def build(self, site: Site, heads: int) -> QkvModule:
        if self.aux_key not in ("paper", "released"):
            raise ValueError(f"aux_key={self.aux_key!r} is not known; use paper or released.")
        if not isinstance(self.kernels, tuple) or not self.kernels:
            raise ValueError(f"kernels={self.kernels!r} is no cascade; give one kernel per scale, such as (1, 3, 5).")
        return LifeModule(site.dim, self, self.width_of_scale(site.dim, heads))

    @property
    def label(self) -> str:
        return "Life " + "·".join(map(str, self.kernels))

    def behaving(self, behaviour: str) -> "Life":
        return replace(self, aux_key=behaviour)  # type: ignore[arg-type]

    def on_linear(self, linear: nn.Linear, keeper: GridSource, q_bias: Any, v_bias: Any) -> "LifeLinear":
        self.check_preserving()
        width, scales = linear.out_features // 3, len(self.kernels)
        part = self.scale_width or width // scales
        if not 0 < part * scales <= width:
            raise ValueError(
                f"{scales} scales of {part} channels do not fit into the {width} channels of the pretrained queries; "
                "give fewer kernels or a smaller scale_width."
            )
        further = nn.ModuleList(Scale(3 * part, 3 * part, kernel, bias=False) for kernel in self.kernels[1:])
        fade = nn.Parameter(torch.zeros(3, (scales - 1) * part))
        return adopt(LifeLinear, linear, keeper=keeper, scales=further, fade=fade, q_bias=q_bias, v_bias=v_bias)

    def check_preserving(self) -> None:
        """Refuse settings under which a pretrained layer could not be the first scale."""
        if not self.kernels or self.kernels[0] != 1:
            raise ValueError(
                f"kernels={self.kernels} do not begin with 1, and preserve=True keeps the pretrained layer as the "
                "scale of kernel 1; use kernels such as (1, 3, 5), or preserve=False."
            )
        if len(self.kernels) < 2:
            raise ValueError(
                "kernels=(1,) is the plain layer that the model has already; give more, such as (1, 3, 5)."
            )
        if self.qkv_norm or self.aux_key != "paper":
            raise ValueError("qkv_norm and aux_key have no form that preserves the model; use preserve=False for them.")

    def width_of_scale(self, dim: int, heads: int) -> int:
        """Channels n of one scale in tokens `dim` wide, attended by `heads` heads."""
        if self.scale_width is not None:
            return self.scale_width
        scales = len(self.kernels)
        width = -(-dim // scales)
        while width * scales % heads:
            width += 1
        return width


class LifeModule(QkvModule):
    """A cascade: scale s is a depth-wise convolution of scale s-1 and a point-wise layer to 3n channels."""

    def __init__(self, dim: int, part: Life, scale_width: int):
        super().__init__()
        self.width = scale_width * len(part.kernels)
        self.aux_key = part.aux_key
        scales: list[nn.Module] = []
        channels = dim
        for index, kernel in enumerate(part.kernels):
            scales.append(Scale(channels, 3 * scale_width, kernel, bias=index == 0))
            channels = 3 * scale_width
        self.scales: Any = nn.ModuleList(scales)  # of Scale
        self.norm = nn.LayerNorm(self.width) if part.qkv_norm else None
        self.weights: list[ScaleWeights] | None = None  # of a folded module

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = self.parts(tokens, grid).unbind(2)  # [q_1 | q_2 | ...] and so on, eq. 4
        if grid.aux and self.aux_key == "released":
            first = keys[:, : grid.aux, : self.width // len(self.scales)]
            keys = torch.cat((first.repeat(1, 1, len(self.scales)), keys[:, grid.aux :]), dim=1)
        if self.norm is None:
            return queries, keys, values
        return self.norm(queries), self.norm(keys), self.norm(values)

    def by_heads(self, tokens: Tensor, grid: Grid, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        plain = self.norm is None and (self.aux_key == "paper" or not grid.aux)
        if plain and self.weights is not None and heads == len(self.scales) and suits(tokens):
            return cascade_by_heads(tokens, grid, self.weights)
        return super().by_heads(tokens, grid, heads)

    def parts(self, tokens: Tensor, grid: Grid) -> Tensor:
        """What all scales give to Q, K and V, side by side: `[B, N, 3, width]`."""
        if self.weights is not None and not torch.compiler.is_compiling():
            return cascade(tokens, grid, self.weights)
        parts = []
        for scale in self.scales:
            tokens = scale(tokens, grid)
            parts.append(tokens.unflatten(-1, (3, -1)))  # q_s, k_s, v_s
        return torch.cat(parts, dim=-1)

    def take_over(self, weight: Tensor, bias: Tensor | None) -> Pairs:
        """The first scale is the layer's first n channels of Q, of K and of V."""
        part, point = self.width // len(self.scales), self.scales[0].point
        first = weight.unflatten(0, (3, -1))[:, :part].flatten(0, 1)
        return [(point.weight, first), (point.bias, None if bias is None else bias.view(3, -1)[:, :part].flatten())]

    def fold_in_place(self) -> None:
        if all(scale.depth is None or type(scale.depth) is nn.Conv2d for scale in self.scales):
            self.weights = [scale.weights() for scale in self.scales]


class Scale(nn.Module):
    """One scale: depth-wise over the patch tokens (auxiliary tokens skip it), point-wise over all."""

    def __init__(self, in_dim: int, out_dim: int, kernel: int, bias: bool):
        super().__init__()
        self.depth = same_conv(in_dim, kernel, bias=False) if kernel > 1 else None
        self.point = nn.Linear(in_dim, out_dim) if bias else Conv1x1(in_dim, out_dim, bias=False)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        if self.depth is not None:
            tokens = with_aux(tokens, sequence(self.depth(image(tokens, grid))), grid)
        return self.point(tokens)

    def weights(self) -> ScaleWeights:
        """What it computes with."""
        return ScaleWeights(None if self.depth is None else self.depth.weight, self.point.weight, self.point.bias)


class LifeLinear(nn.Linear):
    """Pretrained queries, keys and values as the first scale of LIFE; the further scales have a scale of zero at first.

    The cascade starts from the first n channels of Q, K and V, as in the paper, and scale s is added to the channels
    from (s-1)n of each (eq. 4), times `fade`, which starts at zero.
    """

    keeper: GridSource
    scales: Any  # of Scale
    fade: nn.Parameter
    q_bias: nn.Parameter | None
    v_bias: nn.Parameter | None

    def forward(self, input: Tensor) -> Tensor:
        first = F.linear(input, self.weight, self.whole_bias())  # [..., 3C]
        tokens, grid = self.keeper.tokens(first)
        width = self.fade.shape[-1] // len(self.scales)  # n
        part = tokens.unflatten(-1, (3, -1))[..., :width].flatten(-2)  # [B, N, 3n]
        further = []
        for scale in self.scales:
            part = scale(part, grid)
            further.append(part.unflatten(-1, (3, -1)))
        local = self.fade * torch.cat(further, dim=-1)  # [B, N, 3, (S-1)n]
        rest = self.out_features // 3 - width - local.shape[-1]
        return first + F.pad(local, (width, rest)).reshape(first.shape)

    def whole_bias(self) -> Tensor | None:
        """The bias of all three; of hosts that have none for the keys, with zeros there."""
        if self.q_bias is None or self.v_bias is None:
            return self.bias
        return torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
