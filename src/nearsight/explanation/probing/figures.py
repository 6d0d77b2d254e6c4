"""Figures of connections: matrices (dwconv paper, Figure 1), one layer's field, and the relation graph (Figure 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...plots.style import COLOURS, INK, LINE, SEQUENTIAL, SMALL, SOFT, TITLE, figure, write
from .layer import ProbedLayer, draw, jacobian_rows, one_channel, spread_out
from .measure import ProbeResult, middle, probe
from .paper import OTHERS, ROWS, MultiScale, Size, TableRow, TableVerdict, fully_connected, of_torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST = 2048  # neurons of a layer whose whole matrix is made
SHOWN = 64  # channels in a figure of channels


def connection_matrix(probed: ProbedLayer, seed: int = 0) -> Tensor:
    """All connections of a layer, given its weights for a random input.

    Returns:
        `[D * M, C * N]`, neurons in the paper's order: channel by channel, in each the positions row by row.

    Example:
        >>> from torch import nn
        >>> from nearsight.explanation.probing import wrap
        >>> layer = wrap(nn.Conv2d(2, 2, 1, groups=2, bias=False), torch.zeros(1, 2, 1, 3))
        >>> matrix = connection_matrix(layer)
        >>> matrix.shape, int((matrix != 0).sum())  # block-diagonal, and diagonal in each block
        (torch.Size([6, 6]), 6)
    """
    outputs, inputs = probed.target.tokens * probed.out_channels, probed.source.tokens * probed.channels
    if max(outputs, inputs) > MOST:
        raise ValueError(
            f"{probed.name} has {max(outputs, inputs):,} neurons; a whole matrix is made of {MOST:,} at most."
        )
    pairs = [(token, channel) for channel in range(probed.out_channels) for token in range(probed.target.tokens)]
    asked = [one_channel(probed, token, channel) for token, channel in pairs]
    rows = jacobian_rows(probed, draw(probed, seed), asked, given_weights=True)
    return rows.transpose(1, 2).flatten(1)


def draw_matrices(probed_layers: Sequence[ProbedLayer], verdicts: Sequence[TableVerdict]) -> "Figure":
    """The connection matrices of small layers, side by side."""
    across = 3
    rows = -(-len(probed_layers) // across)
    fig = figure(3.5 * across, 0.9 + 3.75 * rows)
    title = "Connections of a layer: each row is an output neuron, each column an input neuron"
    write(fig.suptitle(title, x=0.012, ha="left"), TITLE, weight="bold")
    panels = fig.subplots(rows, across, squeeze=False).flat
    for axes, probed, verdict in zip(panels, probed_layers, verdicts, strict=False):
        draw_matrix(axes, connection_matrix(probed).numpy(), probed)
        write(axes.set_title(verdict.row.name, loc="left", pad=18), TITLE - 1, weight="bold")
        write(axes.text(0, 1.02, in_short(verdict.found), transform=axes.transAxes, va="bottom"), SMALL - 1, SOFT)
    for axes in fig.axes[len(probed_layers) :]:
        axes.set_axis_off()
    note = (
        "Neurons stand channel by channel; thin lines part the channels. Red and blue are positive and negative "
        "weights, white is no connection."
    )
    write(fig.text(0.012, 0.002, note, va="bottom"), SMALL, SOFT)
    fig.get_layout_engine().set(rect=(0, 0.025, 1, 0.97))  # type: ignore[union-attr, call-arg]
    return fig


def draw_matrix(axes: "Axes", matrix: NDArray[np.floating], probed: ProbedLayer) -> None:
    """One matrix with lines between channels."""
    strongest = float(abs(matrix).max()) or 1.0
    axes.imshow(matrix, cmap="RdBu_r", vmin=-strongest, vmax=strongest, interpolation="nearest")
    for channel in range(1, probed.out_channels):
        axes.axhline(channel * probed.target.tokens - 0.5, color=LINE, linewidth=0.5)
    for channel in range(1, probed.channels):
        axes.axvline(channel * probed.source.tokens - 0.5, color=LINE, linewidth=0.5)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.8)


def in_short(found: ProbeResult) -> str:
    """The properties in few words."""
    sparse = {"own": "own position", "local": "local", "scattered": "scattered", "all": "all positions"}[
        found.positions
    ]
    channels = {"own": "own channel", "some": "some channels", "all": "all channels"}[found.channels]
    shared = [
        *(["positions"] if found.share_positions == (1, 1) else []),
        *(["channels"] if found.channel_groups < found.channels_seen else []),
    ]
    words = [sparse, channels, f"shared over {' and '.join(shared)}" if shared else "nothing shared"]
    return " · ".join([*words, "dynamic"] if found.dynamic else words)


def draw_layer(probed: ProbedLayer, found: ProbeResult, seed: int = 0) -> "Figure":
    """One layer: where the output in the middle looks, given the weights and with their prediction, and channels."""
    fig = figure(11.5, 4.6)
    write(fig.suptitle(found.name, x=0.012, ha="left"), TITLE, weight="bold")
    left, middle_axes, right = fig.subplots(1, 3)
    tokens, centre = draw(probed, seed), middle(probed.target)
    picks = spread_out(probed.out_channels, SHOWN)
    few = spread_out(probed.out_channels, 6)
    wired = jacobian_rows(probed, tokens, [one_channel(probed, centre, c) for c in picks], given_weights=True)
    reach = jacobian_rows(probed, tokens, [one_channel(probed, centre, c) for c in few], given_weights=False)
    for axes, rows, title in ((left, wired, "connections"), (middle_axes, reach, "with the weights' prediction")):
        draw_field(axes, rows.abs().sum(dim=2).mean(dim=0)[probed.source.aux :], probed, title)
    links = wired.abs().sum(dim=1)[:, spread_out(probed.channels, SHOWN)]
    right.imshow((links / (links.max() or 1)).numpy(), cmap=SEQUENTIAL, aspect="auto", interpolation="nearest")
    write(right.set_title("channels", loc="left", pad=8), TITLE - 1, weight="bold")
    write(right.set_xlabel("input channel"), SMALL, SOFT)
    write(right.set_ylabel("output channel"), SMALL, SOFT)
    right.set(xticks=[], yticks=[])
    write(fig.text(0.012, 0.01, in_short(found), va="bottom"), SMALL, SOFT)
    fig.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # type: ignore[union-attr, call-arg]
    return fig


def draw_field(axes: "Axes", weights: Tensor, probed: ProbedLayer, title: str) -> None:
    """How strongly each position is connected with the output in the middle, which is framed."""
    grid, target = probed.source, probed.target
    shown = weights.view(grid.height, grid.width)
    shown = (shown / (shown.max() or 1)).sqrt()  # the root shows weak connections too
    seen = torch.where(shown > 0, shown, torch.nan).numpy()
    axes.imshow(seen, cmap=SEQUENTIAL, vmin=0, vmax=1, interpolation="nearest")
    row, column = target.height // 2 * probed.stride[0], target.width // 2 * probed.stride[1]
    from matplotlib.patches import Rectangle

    frame = Rectangle(
        (column - 0.5, row - 0.5), probed.stride[1], probed.stride[0], fill=False, edgecolor=COLOURS[1], linewidth=1.6
    )
    axes.add_patch(frame)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=INK, linewidth=0.6)
    write(axes.set_title(title, loc="left", pad=8), TITLE - 1, weight="bold")


SMALLEST = Size(side=4, channels=4, window=3, heads=2)
WINDOWS = Size(side=4, channels=4, window=2, heads=2)  # windows must fit the map
SCALES = Size(side=8, channels=4, window=3, heads=2)  # halved three times


@dataclass(frozen=True)
class Edge:
    """From one layer to another: by what (`sparse`, `dynamic`, `low rank`) and in which respect."""

    start: str
    end: str
    kind: str
    respect: str


@dataclass(frozen=True)
class MeasuredLayer:
    """A layer, its properties, and the rank of its connection matrix as a fraction of the full one."""

    found: ProbeResult
    rank: float


# Nodes of the figure: position (x, y), and the layer that stands for it.
NODES: dict[str, tuple[float, float]] = {
    "MLP": (0.50, 0.95),
    "LR MLP": (0.86, 0.95),
    "Conv.": (0.22, 0.72),
    "Sep. MLP": (0.64, 0.72),
    "Pyramid conv.": (-0.03, 0.50),
    "MS conv.": (0.15, 0.50),
    "Bottleneck": (0.0, 0.72),
    "DW-S conv.": (0.36, 0.46),
    "ViT": (0.78, 0.46),
    "PVT": (1.0, 0.46),
    "Dynamic DW-S conv.": (0.14, 0.16),
    "Dynamic local-S MLP": (0.52, 0.16),
    "Local ViT": (0.86, 0.16),
}
EDGES = [
    Edge("MLP", "Conv.", "sparse", "locality"),
    Edge("MLP", "Sep. MLP", "sparse", "dimension"),
    Edge("MLP", "LR MLP", "low rank", "dimension"),
    Edge("Conv.", "Pyramid conv.", "low rank", "spatial"),
    Edge("Conv.", "MS conv.", "low rank", "spatial"),
    Edge("Conv.", "Bottleneck", "low rank", "channel"),
    Edge("Conv.", "DW-S conv.", "sparse", "dimension"),
    Edge("Sep. MLP", "DW-S conv.", "sparse", "locality"),
    Edge("Sep. MLP", "ViT", "dynamic", "spatial"),
    Edge("ViT", "Local ViT", "sparse", "locality"),
    Edge("ViT", "PVT", "low rank", "spatial"),
    Edge("DW-S conv.", "Dynamic DW-S conv.", "dynamic", "vector attention"),
    Edge("DW-S conv.", "Dynamic local-S MLP", "dynamic", "inhomogeneous vector attention"),
    Edge("Local ViT", "Dynamic local-S MLP", "dynamic", "inhomogeneous vector attention"),
]
LOOKS: dict[str, tuple[str, Any]] = {
    "sparse": (COLOURS[0], "-"),
    "dynamic": (COLOURS[1], "-"),
    "low rank": (COLOURS[7], (0, (4, 3))),
}


def low_rank(size: Size) -> nn.Module:
    """A fully connected layer through a quarter of the neurons."""
    shape = (size.channels, size.side, size.side)
    count = size.channels * size.side**2
    layers = (nn.Linear(count, count // 4), nn.Linear(count // 4, count))
    return nn.Sequential(nn.Flatten(), *layers, nn.Unflatten(1, shape))


def bottleneck(size: Size) -> nn.Module:
    """A convolution between two that narrow and widen."""
    narrow = size.channels // 2
    return nn.Sequential(
        nn.Conv2d(size.channels, narrow, 1),
        nn.Conv2d(narrow, narrow, 3, padding=1),
        nn.Conv2d(narrow, size.channels, 1),
    )


def pyramid(size: Size) -> nn.Module:
    """A convolution on a map of half the side."""
    return nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(size.channels, size.channels, 3, padding=1), nn.Upsample(scale_factor=2)
    )


def node_layers() -> dict[str, Callable[[], ProbedLayer]]:
    """What stands for each node: its spatial half, since point-wise layers follow all of them alike."""
    rows: dict[str, TableRow] = {row.name: row for row in (*ROWS, *OTHERS)}

    def of(name: str, size: Size = SMALLEST) -> Callable[[], ProbedLayer]:
        return lambda: rows[name].make(size)

    return {
        "MLP": lambda: of_torch(fully_connected, "MLP")(SMALLEST),
        "LR MLP": lambda: of_torch(low_rank, "LR MLP")(SMALLEST),
        "Conv.": of("Conv."),
        "Sep. MLP": of("Spatial-mixing MLP"),
        "Pyramid conv.": lambda: of_torch(pyramid, "Pyramid conv.")(SMALLEST),
        "MS conv.": lambda: of_torch(lambda size: MultiScale(size.channels, scales=4), "MS conv.")(SCALES),
        "Bottleneck": lambda: of_torch(bottleneck, "Bottleneck")(SMALLEST),
        "DW-S conv.": of("DW-Conv."),
        "ViT": of("Attention"),
        "PVT": of("Spatial reduction (PVT)", WINDOWS),
        "Dynamic DW-S conv.": of("D-DW-Conv."),
        "Dynamic local-S MLP": of("I-D-DW-Conv."),
        "Local ViT": of("Local attention", WINDOWS),
    }


def measure_nodes(seed: int = 0) -> dict[str, MeasuredLayer]:
    """Probe the layers of the graph, and the rank of their connections."""
    measured = {}
    for name, make in node_layers().items():
        torch.manual_seed(seed)
        probed = make()
        matrix = connection_matrix(probed, seed)
        measured[name] = MeasuredLayer(
            probe(probed, seed=seed), int(torch.linalg.matrix_rank(matrix)) / min(matrix.shape)
        )
    return measured


def holds(edge: Edge, measured: dict[str, MeasuredLayer]) -> bool:
    """Whether the measurement shows what an edge says.

    Locality: from all positions to some. Dimension: from all channels to each its own. Dynamic: to weights that depend
    on the input. Low rank: to a connection matrix of lower rank.
    """
    start, end = measured[edge.start], measured[edge.end]
    if edge.kind == "low rank":
        return end.rank < start.rank
    if edge.kind == "dynamic":
        return end.found.dynamic
    if edge.respect == "locality":
        return start.found.positions == "all" and end.found.positions == "local"
    return start.found.channels == "all" and end.found.channels == "own"


def draw_relations(measured: dict[str, MeasuredLayer]) -> "Figure":
    """The graph: more regularised layers further down; under each name what was measured."""
    fig = figure(12.5, 7.4)
    axes = fig.add_subplot()
    axes.set(xlim=(-0.13, 1.13), ylim=(0.04, 1.03))
    axes.set_axis_off()
    confirmed = sum(holds(edge, measured) for edge in EDGES)
    title = f"How layers follow from each other: {confirmed} of {len(EDGES)} relations measured as the paper draws them"
    write(fig.suptitle(title, x=0.012, ha="left"), TITLE, weight="bold")
    for edge in EDGES:
        draw_edge(axes, edge, holds(edge, measured))
    for name, position in NODES.items():
        draw_node(axes, name, position, measured[name])
    draw_legend(axes)
    return fig


def draw_node(axes: "Axes", name: str, position: tuple[float, float], measured: MeasuredLayer) -> None:
    """A name in a box, its properties below."""
    first, *rest = in_short(measured.found).split(" · ")
    rank = "full rank" if measured.rank == 1 else f"rank {100 * measured.rank:.0f} %"
    lines = [f"{first}, {rest[0]}", ", ".join([*rest[1:], rank])]
    frame: dict[str, Any] = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": LINE, "linewidth": 1.0}
    write(axes.text(*position, name, ha="center", va="center", bbox=frame, zorder=3), TITLE - 1.5, INK, weight="bold")
    below: dict[str, Any] = {"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
    text = axes.text(position[0], position[1] - 0.034, "\n".join(lines), ha="center", va="top", bbox=below, zorder=2)
    write(text, SMALL - 1.5, SOFT, linespacing=1.25)


def draw_edge(axes: "Axes", edge: Edge, confirmed: bool) -> None:
    """An arrow with what it stands for; red where the measurement shows something else."""
    start, end = NODES[edge.start], NODES[edge.end]
    level = start[1] == end[1]
    colour, line = LOOKS[edge.kind]
    colour = colour if confirmed else "#c0182b"
    leave = (start[0], start[1] - (0 if level else 0.085))
    arrive = (end[0], end[1] + (0 if level else 0.028))
    style: dict[str, Any] = {"arrowstyle": "-|>", "color": colour, "linestyle": line, "linewidth": 1.4}
    style |= {"shrinkA": side_of(edge.start) if level else 2, "shrinkB": side_of(edge.end) if level else 2}
    axes.annotate("", arrive, leave, arrowprops=style, zorder=1)
    words = edge.respect.replace("inhomogeneous ", "inhomogeneous\n")
    above = 0.02 + 0.02 * words.count("\n") if level else 0
    x, y = (leave[0] + arrive[0]) / 2, (leave[1] + arrive[1]) / 2 + above
    frame: dict[str, Any] = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    label = axes.text(x, y, words if confirmed else f"{words} (not measured)", ha="center", va="center", bbox=frame)
    write(label, SMALL - 1, colour)


def side_of(name: str) -> float:
    """Points from the middle of a node's box to beside it."""
    return 14 + 3.7 * len(name)


def draw_legend(axes: "Axes") -> None:
    """What the colours mean."""
    from matplotlib.lines import Line2D

    words = {"sparse": "fewer connections", "dynamic": "weights from the input", "low rank": "lower rank"}
    handles = [Line2D([], [], color=LOOKS[kind][0], linestyle=LOOKS[kind][1], linewidth=1.6) for kind in words]
    legend = axes.legend(handles, list(words.values()), loc="upper left", frameon=False, bbox_to_anchor=(0.0, 1.0))
    for text in legend.get_texts():
        write(text, SMALL, SOFT)
