"""The dwconv paper's Tables 1 and 7, measured on real modules, for the terminal and as JSON."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ...lattice import Grid
from ...parts import DepthWise, GatherBroadcast, Global, LinearQkv, LocalMlp, Sliding, SpatialReduction, Window
from ...parts.slots import Mixer, Site
from .layer import ProbedLayer, strip_projections, wrap
from .measure import COLUMNS, ProbeResult, describe, probe
from .measure import box as size_of
from .open import stir

Marks = tuple[bool, bool, bool, bool, bool, bool]
Follow = Callable[[list["TableRow"], str], Iterable["TableRow"]]


@dataclass(frozen=True)
class Size:
    """How large the layers are made: the side of the map, channels, and the side of windows and kernels."""

    side: int = 9
    channels: int = 8
    window: int = 3
    heads: int = 2


@dataclass(frozen=True)
class TableRow:
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
    make: Callable[[Size], ProbedLayer]


@dataclass(frozen=True)
class TableVerdict:
    """A layer, what the paper prints about it and what was measured."""

    row: TableRow
    found: ProbeResult

    @property
    def differing(self) -> list[str]:
        """The columns in which measurement and table differ."""
        if self.row.printed is None:
            return []
        pairs = zip(COLUMNS, self.row.printed, self.found.properties, strict=True)
        return [column for column, printed, measured in pairs if printed != measured]

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has."""
        return {
            "layer": self.row.name,
            "module": self.row.what,
            "table_1": self.row.in_table_1,
            "printed": dict(zip(COLUMNS, self.row.printed, strict=True)) if self.row.printed else None,
            "differing": self.differing,
            "measured": self.found.to_dict(),
        }


class AcrossTokens(nn.Module):
    """A layer applied to each channel's values over all tokens `[B, N, C]`, as MLP-Mixer does."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens.transpose(1, 2)).transpose(1, 2)


def of_mixer(part: Callable[[Size], Mixer], name: str, aux: int = 0) -> Callable[[Size], ProbedLayer]:
    """Builds a mixer without its projections; of a depth-wise block what stands between them."""

    def make(size: Size) -> ProbedLayer:
        grid = Grid(size.side, size.side, aux)
        site, value = Site(size.channels, grid), part(size)
        module = value.make_spatial(site) if isinstance(value, DepthWise) else value.build(site, LinearQkv())
        stir(module)
        example = torch.randn(1, grid.tokens, size.channels)
        return wrap(strip_projections(module), example, name=name, grid=grid, layout="tokens", rest=(grid,))

    return make


def of_torch(layer: Callable[[Size], nn.Module], name: str) -> Callable[[Size], ProbedLayer]:
    """Builds a layer that takes maps."""

    def make(size: Size) -> ProbedLayer:
        module = layer(size)
        stir(module)
        return wrap(module, torch.randn(1, size.channels, size.side, size.side), name=name, layout="map")

    return make


def fully_connected(size: Size) -> nn.Module:
    """Every neuron with every neuron."""
    shape = (size.channels, size.side, size.side)
    count = size.channels * size.side**2
    return nn.Sequential(nn.Flatten(), nn.Linear(count, count), nn.Unflatten(1, shape))


def spatial_mixing(size: Size) -> ProbedLayer:
    """The token-mixing half of timm's MLP-Mixer block."""
    from timm.models.mlp_mixer import MixerBlock

    grid = Grid(size.side, size.side)
    ratio = grid.patches / size.channels  # as many hidden neurons as tokens, so that none is lost
    module = AcrossTokens(MixerBlock(size.channels, grid.patches, mlp_ratio=(ratio, 4.0)).mlp_tokens)
    stir(module)
    example = torch.randn(1, grid.tokens, size.channels)
    return wrap(module, example, name="Spatial-mixing MLP", grid=grid, layout="tokens")


class Separable(nn.Module):
    """`vec(Wp mat(x) Wc)` of maps `[B, C, H, W]`: one matrix for channels, one for positions (eq. 12 to 14)."""

    def __init__(self, channels: int, positions: int):
        super().__init__()
        self.channels = nn.Parameter(torch.randn(channels, channels) / channels**0.5)  # Wp
        self.positions = nn.Parameter(torch.randn(positions, positions) / positions**0.5)  # Wc

    def forward(self, maps: Tensor) -> Tensor:
        return (self.channels @ maps.flatten(2) @ self.positions).view_as(maps)


class MultiScale(nn.Module):
    """Convolutions side by side, each on channels of its own, at a map of the full, half, quarter ... side (eq. 19)."""

    def __init__(self, channels: int, scales: int):
        super().__init__()
        widths = [len(part) for part in torch.arange(channels).tensor_split(scales)]
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths)
        self.widths = widths

    def forward(self, maps: Tensor) -> Tensor:
        parts = []
        for scale, (conv, part) in enumerate(zip(self.convs, maps.split(self.widths, dim=1), strict=True)):
            small = nn.functional.avg_pool2d(part, 2**scale)
            parts.append(nn.functional.interpolate(conv(small), scale_factor=2**scale))
        return torch.cat(parts, dim=1)


def marks(text: str) -> Marks:
    """Six marks, x for yes."""
    first, second, third, fourth, fifth, sixth = (sign == "x" for sign in text)
    return first, second, third, fourth, fifth, sixth


def depthwise(dynamics: Literal["static", "homogeneous", "inhomogeneous"]) -> Callable[[Size], Mixer]:
    """A depth-wise convolution; of the inhomogeneous one two channels share weights."""
    return lambda size: DepthWise(kernel=size.window, dynamics=dynamics, reduction=2, channels_per_group=2)


# fmt: off
ROWS = [
    TableRow("Local MLP", "LocalMlp", marks("x.x.x."), True,
        of_mixer(lambda s: LocalMlp(heads=s.heads, window=s.window), "Local MLP")),
    TableRow("Local attention", "Window", marks("x.x.xx"), True,
        of_mixer(lambda s: Window(heads=s.heads, window=s.window), "Local attention")),
    TableRow("DW-Conv.", 'DepthWise(dynamics="static")', marks("x.xx.."), True,
        of_mixer(depthwise("static"), "DW-Conv.")),
    TableRow("D-DW-Conv.", 'DepthWise(dynamics="homogeneous")', marks("x.xx.x"), True,
        of_mixer(depthwise("homogeneous"), "D-DW-Conv.")),
    TableRow("Conv.", "torch.nn.Conv2d", marks("x..x.."), True,
        of_torch(lambda s: nn.Conv2d(s.channels, s.channels, s.window, padding=s.window // 2), "Conv.")),
    TableRow("MLP", "torch.nn.Linear on all neurons", marks("......"), False, of_torch(fully_connected, "MLP")),
    TableRow("Attention", "Global", marks("..x.xx"), False, of_mixer(lambda s: Global(heads=s.heads), "Attention")),
    TableRow("Spatial-mixing MLP", "timm's MixerBlock.mlp_tokens", marks("..x.x."), False, spatial_mixing),
    TableRow("1×1 Conv.", "torch.nn.Conv2d", marks(".x.x.."), False,
        of_torch(lambda s: nn.Conv2d(s.channels, s.channels, 1), "1×1 Conv.")),
]
OTHERS = [
    TableRow("I-D-DW-Conv.", 'DepthWise(dynamics="inhomogeneous")', None, False,
        of_mixer(depthwise("inhomogeneous"), "I-D-DW-Conv.")),
    TableRow("Sep. MLP", "Separable: both halves at once, a Kronecker product", None, False,
        of_torch(lambda s: Separable(s.channels, s.side**2), "Sep. MLP")),
    TableRow("Sliding attention", "Sliding", None, False,
        of_mixer(lambda s: Sliding(heads=s.heads, window=s.window), "Sliding attention")),
    TableRow("Static and dynamic attention", "Sliding(static=True)", None, False,
        of_mixer(lambda s: Sliding(heads=s.heads, window=s.window, static=True), "Static and dynamic attention")),
    TableRow("Shifted windows", "Window(shifted=True)", None, False,
        of_mixer(lambda s: Window(heads=s.heads, window=s.window, shifted=True), "Shifted windows")),
    TableRow("Local MLP, windows share", "LocalMlp(share_positions=True)", None, False,
        of_mixer(lambda s: LocalMlp(heads=s.heads, window=s.window, share_positions=True), "Local MLP, windows share")),
    TableRow("Spatial reduction (PVT)", "SpatialReduction", None, False,
        of_mixer(lambda s: SpatialReduction(heads=s.heads, sr_ratio=s.window), "Spatial reduction (PVT)")),
    TableRow("Gather, broadcast (LightViT)", "GatherBroadcast", None, False,
        of_mixer(lambda s: GatherBroadcast(heads=s.heads, window=s.window), "Gather, broadcast (LightViT)", aux=2)),
]
# fmt: on


def measure_rows(
    rows: list[TableRow], size: Size | None = None, seed: int = 0, follow: Follow | None = None
) -> list[TableVerdict]:
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
        verdicts.append(TableVerdict(row, probe(row.make(size or Size()), seed=seed)))
    return verdicts


TITLES = {
    "sparse_positions_nonlocal": "sparse positions:\nlocal",
    "sparse_positions_full": "\nown only",
    "sparse_channels": "sparse\nchannels",
    "share_positions": "shared over\npositions",
    "share_channels": "shared over\nchannels",
    "dynamic": "\ndynamic",
}


def probe_text(found: ProbeResult) -> RenderableType:
    """One layer, a line for each property."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for what, measured in describe(found):
        table.add_row(what, measured)
    return Group(Text(found.name, style="bold"), table, Text())


def verdicts_table(verdicts: Sequence[TableVerdict], title: str) -> RenderableType:
    """The paper's table as measured, with what it prints where that is something else."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("layer", no_wrap=True, vertical="bottom")
    for column in COLUMNS:
        table.add_column(TITLES[column], justify="center", vertical="bottom")
    table.add_column("shifts", justify="center")
    table.add_column("paper", no_wrap=True)
    for verdict in verdicts:
        cells = [mark(verdict, column) for column in COLUMNS]
        shifts = verdict.found.shifts
        shift = Text("·", style="dim") if shifts is None else Text("any" if shifts == (1, 1) else size_of(shifts))
        table.add_row(verdict.row.name, *cells, shift, agreement(verdict))
    return table


def mark(verdict: TableVerdict, column: str) -> Text:
    """One cell: what was measured."""
    found = verdict.found
    measured = dict(zip(COLUMNS, found.properties, strict=True))[column]
    text = "yes" if measured else "·"
    if column == "share_channels" and measured and found.channel_groups > 1:
        text = f"in {found.channel_groups} groups"
    if column == "share_positions" and not measured and found.share_positions:
        text = f"every {size_of(found.share_positions)}"
    wrong = column in verdict.differing
    return Text(f"{text} (!)" if wrong else text, style="bold red" if wrong else "green" if measured else "dim")


def agreement(verdict: TableVerdict) -> Text:
    """Whether the paper says the same."""
    if verdict.row.printed is None:
        return Text("not listed", style="dim")
    return Text("differs", style="bold red") if verdict.differing else Text("agrees", style="green")


def tables_text(printed: Sequence[TableVerdict], others: Sequence[TableVerdict]) -> RenderableType:
    """Tables 1 and 7 and what they leave out, with a summary in words."""
    first = [verdict for verdict in printed if verdict.row.in_table_1]
    agree = sum(not verdict.differing for verdict in printed)
    words = [f"{agree} of {len(printed)} layers come out as printed."]
    wide = [verdict.row.name for verdict in printed if verdict.found.reach_channels != verdict.found.channels]
    if wide:
        words.append(
            f"The paper counts connections given the weights. In the plain Jacobian {', '.join(wide)} also connect "
            "other channels, through the prediction of their weights."
        )
    far = [verdict.row.name for verdict in printed if verdict.found.reach != verdict.found.field]
    if far:
        words.append(f"There, {', '.join(far)} also see{'s' if len(far) == 1 else ''} positions outside the kernel.")
    return Group(
        verdicts_table(first, "Table 1, measured"),
        verdicts_table(printed, "Table 7, measured"),
        verdicts_table(others, "Layers that the tables do not list"),
        Text(" ".join(words), style="italic"),
    )
