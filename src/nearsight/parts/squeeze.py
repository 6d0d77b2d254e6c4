"""A mixer with squeeze-and-excitation behind it (dwconv paper, Table 15)."""

from dataclasses import dataclass, field

from torch import Tensor

from ..lattice import Grid
from .attention import Window
from .gates import SqueezeExcite
from .slots import Mixer, Qkv, Site, TokenModule


@dataclass(frozen=True)
class Squeezed(Mixer):
    """Any mixer, its output re-weighted per channel.

    Attributes:
        mixer: The mixer in front.
        se_reduction: The gate squeezes the width by this factor (not printed in the paper; 16 fits its sizes).
    """

    mixer: Mixer = field(default_factory=Window)
    se_reduction: int = 16

    @property
    def fed_by_qkv(self) -> bool:  # type: ignore[override]
        return self.mixer.fed_by_qkv

    @property
    def carries_aux(self) -> bool:  # type: ignore[override]
        return self.mixer.carries_aux

    @property
    def normed(self) -> bool:  # type: ignore[override]
        return self.mixer.normed

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        return SqueezedModule(self.mixer.build(site, qkv), site.dim, self.se_reduction)


class SqueezedModule(TokenModule):
    """`gate(mixer(x))`."""

    def __init__(self, mixer: TokenModule, dim: int, reduction: int):
        super().__init__()
        self.mixer = mixer
        self.gate = SqueezeExcite(dim, dim // reduction)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        return self.gate(self.mixer(tokens, grid))
