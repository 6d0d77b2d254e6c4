"""The dwconv paper's Tables 1 and 7, measured on real modules."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...lattice import Grid
from ...parts import DepthWise, GatherBroadcast, Global, LinearQkv, LocalMlp, Sliding, SpatialReduction, Window
from ...parts.slots import Mixer, Site
from .bare import strip_projections
from .findings import COLUMNS, Findings
from .measure import probe
from .named import stir
from .subject import Subject, wrap

Marks = tuple[bool, bool, bool, bool, bool, bool]
Follow = Callable[[list["Row"], str], Iterable["Row"]]


@dataclass(frozen=True)
class Size:
    """How large the layers are made: the side of the map, channels, and the side of windows and kernels."""

    side: int = 9
    channels: int = 8
    window: int = 3
    heads: int = 2


@dataclass(frozen=True)
class Row:
    """A layer of the tables.

    Attributes:
        name: As the paper calls it; of those that it does not list, as we do.
        what: Which module stands for it.
        printed: The marks of Table 7, in the order of its columns; None for a layer that it does not list.
        in_table_1: Whether Table 1 lists it too.
        make: Builds it.
    """

    name: str
    what: str
    printed: Marks | None
    in_table_1: bool
    make: Callable[[Size], Subject]


@dataclass(frozen=True)
class Verdict:
    """A layer, what the paper prints about it and what was measured."""

    row: Row
    found: Findings

    @property
    def differing(self) -> list[str]:
        """The columns in which measurement and table differ."""
        if self.row.printed is None:
            return []
        pairs = zip(COLUMNS, self.row.printed, self.found.properties, strict=True)
        return [column for column, printed, measured in pairs if printed != measured]


class AcrossTokens(nn.Module):
    """A layer applied to each channel's values over all tokens `[B, N, C]`, as MLP-Mixer does."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens.transpose(1, 2)).transpose(1, 2)


def of_mixer(part: Callable[[Size], Mixer], name: str, aux: int = 0) -> Callable[[Size], Subject]:
    """Builds a mixer without its projections; of a depth-wise block what stands between them."""

    def make(size: Size) -> Subject:
        grid = Grid(size.side, size.side, aux)
        site, value = Site(size.channels, grid), part(size)
        module = value.make_spatial(site) if isinstance(value, DepthWise) else value.build(site, LinearQkv())
        stir(module)
        example = torch.randn(1, grid.tokens, size.channels)
        return wrap(strip_projections(module), example, name=name, grid=grid, layout="tokens", rest=(grid,))

    return make


def of_torch(layer: Callable[[Size], nn.Module], name: str) -> Callable[[Size], Subject]:
    """Builds a layer that takes maps."""

    def make(size: Size) -> Subject:
        module = layer(size)
        stir(module)
        return wrap(module, torch.randn(1, size.channels, size.side, size.side), name=name, layout="map")

    return make


def fully_connected(size: Size) -> nn.Module:
    """Every neuron with every neuron."""
    shape = (size.channels, size.side, size.side)
    count = size.channels * size.side**2
    return nn.Sequential(nn.Flatten(), nn.Linear(count, count), nn.Unflatten(1, shape))


def spatial_mixing(size: Size) -> Subject:
    """The token-mixing half of timm's MLP-Mixer block."""
    from timm.models.mlp_mixer import MixerBlock

    grid = Grid(size.side, size.side)
    ratio = grid.patches / size.channels  # as many hidden neurons as tokens, so that none is lost
    module = AcrossTokens(MixerBlock(size.channels, grid.patches, mlp_ratio=(ratio, 4.0)).mlp_tokens)
    stir(module)
    example = torch.randn(1, grid.tokens, size.channels)
    return wrap(module, example, name="Spatial-mixing MLP", grid=grid, layout="tokens")


def marks(text: str) -> Marks:
    """Six marks, x for yes."""
    first, second, third, fourth, fifth, sixth = (sign == "x" for sign in text)
    return first, second, third, fourth, fifth, sixth


def depthwise(dynamics: Literal["static", "homogeneous", "inhomogeneous"]) -> Callable[[Size], Mixer]:
    """A depth-wise convolution; of the inhomogeneous one two channels share weights."""
    return lambda size: DepthWise(kernel=size.window, dynamics=dynamics, reduction=2, channels_per_group=2)


# fmt: off
ROWS = [
    Row("Local MLP", "LocalMlp", marks("x.x.x."), True,
        of_mixer(lambda s: LocalMlp(heads=s.heads, window=s.window), "Local MLP")),
    Row("Local attention", "Window", marks("x.x.xx"), True,
        of_mixer(lambda s: Window(heads=s.heads, window=s.window), "Local attention")),
    Row("DW-Conv.", 'DepthWise(dynamics="static")', marks("x.xx.."), True, of_mixer(depthwise("static"), "DW-Conv.")),
    Row("D-DW-Conv.", 'DepthWise(dynamics="homogeneous")', marks("x.xx.x"), True,
        of_mixer(depthwise("homogeneous"), "D-DW-Conv.")),
    Row("Conv.", "torch.nn.Conv2d", marks("x..x.."), False,
        of_torch(lambda s: nn.Conv2d(s.channels, s.channels, s.window, padding=s.window // 2), "Conv.")),
    Row("MLP", "torch.nn.Linear on all neurons", marks("......"), False, of_torch(fully_connected, "MLP")),
    Row("Attention", "Global", marks("..x.xx"), False, of_mixer(lambda s: Global(heads=s.heads), "Attention")),
    Row("Spatial-mixing MLP", "timm's MixerBlock.mlp_tokens", marks("..x.x."), False, spatial_mixing),
    Row("1×1 Conv.", "torch.nn.Conv2d", marks(".x.x.."), False,
        of_torch(lambda s: nn.Conv2d(s.channels, s.channels, 1), "1×1 Conv.")),
]
OTHERS = [
    Row("I-D-DW-Conv.", 'DepthWise(dynamics="inhomogeneous")', None, False,
        of_mixer(depthwise("inhomogeneous"), "I-D-DW-Conv.")),
    Row("Sliding attention", "Sliding", None, False,
        of_mixer(lambda s: Sliding(heads=s.heads, window=s.window), "Sliding attention")),
    Row("Shifted windows", "Window(shifted=True)", None, False,
        of_mixer(lambda s: Window(heads=s.heads, window=s.window, shifted=True), "Shifted windows")),
    Row("Local MLP, windows share", "LocalMlp(share_positions=True)", None, False,
        of_mixer(lambda s: LocalMlp(heads=s.heads, window=s.window, share_positions=True), "Local MLP, windows share")),
    Row("Spatial reduction (PVT)", "SpatialReduction", None, False,
        of_mixer(lambda s: SpatialReduction(heads=s.heads, sr_ratio=s.window), "Spatial reduction (PVT)")),
    Row("Gather, broadcast (LightViT)", "GatherBroadcast", None, False,
        of_mixer(lambda s: GatherBroadcast(heads=s.heads, window=s.window), "Gather, broadcast (LightViT)", aux=2)),
]
# fmt: on


def measure_rows(
    rows: list[Row], size: Size | None = None, seed: int = 0, follow: Follow | None = None
) -> list[Verdict]:
    """Probe the layers of a table.

    Args:
        rows: `ROWS`, those of Table 7, or `OTHERS`, which it does not list.
        size: Of the layers.
        seed: Of weights and inputs.
        follow: Shows progress.

    Example:
        >>> verdict, = measure_rows(ROWS[2:3])
        >>> verdict.row.name, verdict.differing
        ('DW-Conv.', [])
    """
    verdicts = []
    for row in follow(rows, "Probing layers") if follow else rows:
        torch.manual_seed(seed)
        verdicts.append(Verdict(row, probe(row.make(size or Size()), seed=seed)))
    return verdicts
