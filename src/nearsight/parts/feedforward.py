"""What fills the feed-forward slot: the plain MLP, LocalViT's, LightViT's, and a depth-wise convolution before any."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from ..lattice import Grid, image, sequence, with_aux, zeros_for_aux
from ..ops.chunks import PIECE, by_images, in_chunks
from ..ops.execution import gelu_over
from .branches import adopt
from .depthwise import same_conv
from .gates import (
    BiDimensionalGate,
    EfficientChannelAttention,
    OpenBiGate,
    OpenChannelAttention,
    OpenSqueezeExcite,
    SqueezeExcite,
)
from .layers import Activation, Conv1x1, TokenBatchNorm, fold_norm, make_activation, make_norm
from .ranges import Ratio, Reduction, Side
from .slots import Ffn, GridSource, Pairs, Site, TokenModule, register


@register
@dataclass(frozen=True)
class Mlp(Ffn):
    """Linear, activation, linear on every token.

    Attributes:
        ratio: Hidden width as a multiple of the token width.
        act: Activation.
    """

    plain: ClassVar[bool] = True

    ratio: Ratio = 4.0
    act: Activation = "gelu"

    @property
    def label(self) -> str:
        return f"Mlp {self.ratio:g}"

    def build(self, site: Site) -> TokenModule:
        return MlpModule(site.dim, hidden_width(site.dim, self.ratio), self.act)


def hidden_width(dim: int, ratio: float) -> int:
    """Channels of a hidden layer `ratio` times as wide as the tokens; at least one."""
    if (hidden := int(dim * ratio)) < 1:
        raise ValueError(f"A hidden layer {ratio:g} times as wide as tokens of {dim} channels has none; widen it.")
    return hidden


class MlpModule(TokenModule):
    """`fc2(act(fc1(x)))`."""

    def __init__(self, dim: int, hidden: int, act: str):
        super().__init__()
        self.token_width = hidden
        self.fc1 = nn.Linear(dim, hidden)
        self.act = make_activation(act)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return self.fc2(self.act(self.fc1(tokens)))

    def entry(self) -> nn.Linear:
        return self.fc1

    def mlp_layers(self) -> tuple[nn.Linear, nn.Linear]:
        return self.fc1, self.fc2

    def take_over_mlp(self, first: Any, second: Any) -> Pairs:
        pairs = ((self.fc1, first), (self.fc2, second))
        return [(getattr(new, name), getattr(old, name, None)) for new, old in pairs for name in ("weight", "bias")]

    def fold_in_place(self) -> None:
        self.act = overwriting(self.act)


class OverwritingGelu(nn.GELU):
    """GELU that may write over its input."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu_over(input)


def overwriting(act: nn.Module) -> nn.Module:
    """The same activation, for a fresh input that nobody else holds: it may write its result there."""
    if isinstance(act, nn.GELU):
        return OverwritingGelu()
    return type(act)(inplace=True)


@register
@dataclass(frozen=True)
class LocalityFfn(Ffn):
    """LocalViT's feed-forward: a depth-wise convolution between the two point-wise layers (LocalViT eq. 6, 8 and 9).

    It carries its own batch norms, so the block puts no norm in front and no drop path behind it. Auxiliary tokens
    pass by untouched.

    Attributes:
        gamma: Hidden width D as a multiple of the token width.
        kernel: Side of the depth-wise kernel.
        act: `hswish` or `relu6`, after the first point-wise and after the depth-wise layer.
        channel_attention: `se`, `eca`, `eca_hsigmoid` (ECA with a hard sigmoid) or None.
        se_reduction: SE squeezes D to D // se_reduction channels; None keeps 4 channels.
        depthwise: Whether the depth-wise convolution is there at all (Table 1).
        depthwise_first: Put it in front of the expansion instead, on the unexpanded width.
    """

    family: ClassVar[str] = "localvit"
    normed: ClassVar[bool] = False
    drops: ClassVar[bool] = False
    patches_only: ClassVar[bool] = True

    gamma: Ratio = 4.0
    kernel: Side = 3
    act: Activation = "hswish"
    channel_attention: Literal["se", "eca", "eca_hsigmoid"] | None = "se"
    se_reduction: Reduction | None = None
    depthwise: bool = True
    depthwise_first: bool = False

    @property
    def label(self) -> str:
        return f"Locality γ{self.gamma:g}" + (f" {self.channel_attention}" if self.channel_attention else "")

    def build(self, site: Site) -> TokenModule:
        return LocalityFfnModule(site.dim, self)

    def on_linear(self, linear: nn.Linear, keeper: GridSource) -> "LocalLinear":
        """Hidden width and activation stay the host's."""
        if self.depthwise_first:
            raise ValueError("depthwise_first=True has no form that preserves the model; use preserve=False for it.")
        hidden = linear.in_features
        local = same_conv(hidden, self.kernel, bias=False) if self.depthwise else None
        gate = self.make_gate(hidden, OpenSqueezeExcite, OpenChannelAttention)
        if local is None and gate is None:
            raise ValueError("This LocalityFfn has neither a depth-wise convolution nor a channel gate to add.")
        if local is not None:
            nn.init.zeros_(local.weight)
        return adopt(LocalLinear, linear, keeper=keeper, local=local, gate=gate)

    def make_gate(
        self,
        hidden: int,
        squeeze: type[SqueezeExcite] = SqueezeExcite,
        efficient: type[EfficientChannelAttention] = EfficientChannelAttention,
    ) -> nn.Module | None:
        """The channel gate on `hidden` channels, in either of its two forms; None for none."""
        match self.channel_attention:
            case None:
                return None
            case "se":
                return squeeze(hidden, hidden // self.se_reduction if self.se_reduction else 4)
            case "eca" | "eca_hsigmoid":
                return efficient(hidden, hard=self.channel_attention == "eca_hsigmoid")
        raise ValueError(
            f"channel_attention={self.channel_attention!r} is not known; use se, eca, eca_hsigmoid or None."
        )


class LocalityFfnModule(TokenModule):
    """Point-wise up, depth-wise, channel gate, point-wise down; each layer with its batch norm."""

    def __init__(self, dim: int, part: LocalityFfn):
        super().__init__()
        hidden = hidden_width(dim, part.gamma)
        self.depthwise_first = part.depthwise_first
        self.act = make_activation(part.act)
        self.expand = Conv1x1(dim, hidden, bias=False)
        self.norm_expand: nn.Module = TokenBatchNorm(hidden)
        local = dim if part.depthwise_first else hidden
        self.local = same_conv(local, part.kernel, bias=False) if part.depthwise else None
        self.norm_local: nn.Module | None = TokenBatchNorm(local) if part.depthwise else None
        self.gate = part.make_gate(hidden)
        self.project = Conv1x1(hidden, dim, bias=False)
        self.norm_project: nn.Module = TokenBatchNorm(dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        bare = Grid(grid.height, grid.width)
        # One copy of the narrow tokens, where a linear layer and a convolution would each copy wider ones.
        patches = tokens[:, grid.aux :].contiguous()
        if self.folded:
            numbers = grid.patches * self.expand.out_features
            patches = by_images(lambda part: self.mix(part, bare), patches, numbers, least=PIECE // 2)
        else:
            patches = self.mix(patches, bare)
        return zeros_for_aux(patches, grid)

    def mix(self, patches: Tensor, grid: Grid) -> Tensor:
        """`[B, H*W, C]` to the same."""
        if self.depthwise_first:
            patches = self._expand(self._local(patches, grid))
        else:
            patches = self._local(self._expand(patches), grid)
        if self.gate is not None:
            patches = self.gate(patches)
        return self.norm_project(self.project(patches))

    def fold_in_place(self) -> None:
        self.norm_expand = fold_norm(self.norm_expand, behind=self.expand)
        if self.local is not None and self.norm_local is not None:
            self.norm_local = fold_norm(self.norm_local, behind=self.local)
        self.norm_project = fold_norm(self.norm_project, behind=self.project)
        self.act = overwriting(self.act)

    def take_over_mlp(self, first: Any, second: Any) -> Pairs:
        return [(self.expand.weight, getattr(first, "weight", None)), (self.project.weight, second.weight)]

    def _expand(self, patches: Tensor) -> Tensor:
        return self.act(self.norm_expand(self.expand(patches)))

    def _local(self, patches: Tensor, grid: Grid) -> Tensor:
        if self.local is None or self.norm_local is None:
            return patches
        return self.act(self.norm_local(sequence(self.local(image(patches, grid)))))


class LocalLinear(nn.Linear):
    """The second layer of an MLP, whose hidden patches first see their neighbours: LocalViT on pretrained weights.

    `fc2(gate(h + depthwise(h)))` with a kernel of zeros and a gate of ones at the start. Prefix tokens pass by.
    """

    keeper: GridSource
    local: nn.Conv2d | None
    gate: nn.Module | None

    def forward(self, input: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(input)
        patches = tokens[:, grid.aux :]
        if self.local is not None:
            bare = Grid(grid.height, grid.width)
            patches = patches + sequence(self.local(image(patches.contiguous(), bare)))
        if self.gate is not None:
            patches = self.gate(patches)
        return super().forward(with_aux(tokens, patches, grid).view_as(input))


@register
@dataclass(frozen=True)
class BiGate(Ffn):
    """LightViT's feed-forward: an MLP whose output is re-weighted over channels and positions (LightViT section 3.2).

    Attributes:
        ratio: Hidden width of the MLP.
        reduction: The gate works on dim // reduction channels.
        channel_gate: Re-weight channels.
        spatial_gate: Re-weight positions.
        gate_norm: Layer norm in front of the gate: in the release, not in the paper's pseudo-code.
    """

    family: ClassVar[str] = "lightvit"

    ratio: Ratio = 4.0
    reduction: Reduction = 4
    channel_gate: bool = True
    spatial_gate: bool = True
    gate_norm: bool = True

    @property
    def label(self) -> str:
        return f"BiGate {self.ratio:g}"

    def on_linear(self, linear: nn.Linear, keeper: GridSource) -> "GatedLinear":
        if not (self.channel_gate or self.spatial_gate):
            raise ValueError("This BiGate has neither of its two gates, so there is nothing to add.")
        return adopt(GatedLinear, linear, keeper=keeper, gate=self.make_gate(linear.out_features, OpenBiGate))

    def make_gate(self, dim: int, kind: type[BiDimensionalGate] = BiDimensionalGate) -> BiDimensionalGate:
        """The gate behind tokens `dim` wide."""
        return kind(dim, self.reduction, channel=self.channel_gate, spatial=self.spatial_gate, norm=self.gate_norm)

    def build(self, site: Site) -> TokenModule:
        mlp = MlpModule(site.dim, hidden_width(site.dim, self.ratio), "gelu")
        if not (self.channel_gate or self.spatial_gate):
            return mlp
        return GatedMlpModule(mlp, self.make_gate(site.dim))


class GatedMlpModule(TokenModule):
    """An MLP with a gate behind it."""

    def __init__(self, mlp: TokenModule, gate: nn.Module):
        super().__init__()
        self.mlp = mlp
        self.gate = gate

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        if self.folded and self.mlp.token_width is not None:
            return self.gate(in_chunks(lambda part: self.mlp(part, grid), tokens, self.mlp.token_width))
        return self.gate(self.mlp(tokens, grid))

    def take_over_mlp(self, first: Any, second: Any) -> Pairs:
        return self.mlp.take_over_mlp(first, second)


class GatedLinear(nn.Linear):
    """The second layer of an MLP with LightViT's gate behind it, which starts as 1."""

    keeper: GridSource
    gate: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        mixed = super().forward(input)
        tokens, _ = self.keeper.tokens(mixed)
        return self.gate(tokens).view_as(mixed)


@register
@dataclass(frozen=True)
class DepthwiseThen(Ffn):
    """A residual depth-wise convolution, then another feed-forward part (dwconv paper, Table 6).

    Attributes:
        kernel: Side of the depth-wise kernel (not printed in the paper; 7 as in the rest of the network).
        then: The feed-forward part behind it.
    """

    family: ClassVar[str] = "dwnet"
    normed: ClassVar[bool] = False

    kernel: Side = 7
    then: Ffn = field(default_factory=Mlp)

    @property
    def label(self) -> str:
        return f"DW {self.kernel}, {self.then.label}"

    def build(self, site: Site) -> TokenModule:
        norm = make_norm(site.norm, site.dim, site.eps) if self.then.normed else nn.Identity()
        return DepthwiseThenModule(site.dim, self.kernel, norm, self.then.build(site))


class DepthwiseThenModule(TokenModule):
    """`y + ffn(norm(x + y))` with `y = depthwise(x)`: added to x, both residual steps."""

    def __init__(self, dim: int, kernel: int, norm: nn.Module, ffn: TokenModule):
        super().__init__()
        self.local = same_conv(dim, kernel)
        self.norm = norm
        self.ffn = ffn

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        local = zeros_for_aux(sequence(self.local(image(tokens, grid))), grid)
        return local + self.ffn(self.norm(tokens + local), grid)

    def take_over_mlp(self, first: Any, second: Any) -> Pairs:
        return self.ffn.take_over_mlp(first, second)


@register
@dataclass(frozen=True)
class PatchesOnly(Ffn):
    """Another feed-forward part on the patch tokens alone; auxiliary tokens pass by untouched.

    The last block of LightViT's released detection backbones has it: nothing reads the global tokens behind it, and
    its gate's mean leaves them out.

    Attributes:
        ffn: The feed-forward part.
    """

    family: ClassVar[str] = "lightvit"
    patches_only: ClassVar[bool] = True

    ffn: Ffn = field(default_factory=Mlp)

    @property
    def normed(self) -> bool:  # type: ignore[override]
        return self.ffn.normed

    @property
    def drops(self) -> bool:  # type: ignore[override]
        return self.ffn.drops

    def build(self, site: Site) -> TokenModule:
        return PatchesOnlyModule(self.ffn.build(site))


class PatchesOnlyModule(TokenModule):
    """`[0 ; ffn(patches)]`."""

    def __init__(self, ffn: TokenModule):
        super().__init__()
        self.ffn = ffn

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return zeros_for_aux(self.ffn(tokens[:, grid.aux :], Grid(grid.height, grid.width)), grid)

    def take_over_mlp(self, first: Any, second: Any) -> Pairs:
        return self.ffn.take_over_mlp(first, second)
