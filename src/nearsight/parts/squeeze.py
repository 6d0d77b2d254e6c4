"""A mixer with squeeze-and-excitation behind it (dwconv paper, Table 15)."""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from ..lattice import Grid
from ..ops.attention_matrix import AttentionMatrix
from .attention import Window
from .gates import OpenSqueezeExcite, SqueezeExcite
from .ranges import Reduction
from .slots import Branch, GridSource, Mixer, Qkv, Site, TokenModule, register


@register
@dataclass(frozen=True)
class Squeezed(Mixer):
    """Any mixer, its output re-weighted per channel by a sigmoid, as in SENet.

    Attributes:
        mixer: The mixer in front.
        se_reduction: The gate squeezes the width by this factor (not printed in the paper; 16 fits its sizes).
    """

    family: ClassVar[str] = "dwnet"

    mixer: Mixer = field(default_factory=Window)
    se_reduction: Reduction = 16

    @property
    def fed_by_qkv(self) -> bool:  # type: ignore[override]
        return self.mixer.fed_by_qkv

    @property
    def carries_aux(self) -> bool:  # type: ignore[override]
        return self.mixer.carries_aux

    @property
    def normed(self) -> bool:  # type: ignore[override]
        return self.mixer.normed

    @property
    def label(self) -> str:
        return f"{self.mixer.label} squeezed"

    def branch(self, site: Site, qkv: Qkv, keeper: GridSource) -> "Squeezing":
        return Squeezing(OpenSqueezeExcite(site.dim, site.dim // self.se_reduction, hard=False), keeper)

    def behind(self, site: Site, keeper: GridSource) -> "Squeezing":
        return Squeezing(SqueezeExcite(site.dim, site.dim // self.se_reduction, hard=False), keeper)

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return SqueezedModule(self.mixer.build(site, qkv), site.dim, self.se_reduction)


class SqueezedModule(TokenModule):
    """`gate(mixer(x))`."""

    def __init__(self, mixer: TokenModule, dim: int, reduction: int):
        super().__init__()
        self.mixer = mixer
        self.gate = SqueezeExcite(dim, dim // reduction, hard=False)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return self.gate(self.mixer(tokens, grid))

    @property
    def kernel_kind(self) -> str | None:
        return self.mixer.kernel_kind

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        return self.mixer.attention_matrix(tokens, grid)  # the gate weighs channels, not positions

    def exit(self) -> nn.Module | None:
        return self.mixer.exit()


class Squeezing(Branch):
    """`gate(attention(x))`: squeeze-and-excitation over all patches, behind a pretrained attention."""

    def __init__(self, gate: nn.Module, keeper: GridSource):
        super().__init__()
        self.gate = gate
        self.keeper = keeper

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        tokens, _ = self.keeper.tokens(mixed)
        return self.gate(tokens).reshape(mixed.shape)
