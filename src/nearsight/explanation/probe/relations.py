"""The dwconv paper's relation graph (Figure 3), each of its edges held against a measurement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...plots.style import COLOURS, INK, LINE, SMALL, SOFT, TITLE, figure, write
from .findings import Findings
from .matrices import connection_matrix, in_short
from .measure import probe
from .paper import OTHERS, ROWS, Row, Size, fully_connected, of_torch
from .subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST = Size(side=4, channels=4, window=3, heads=2)
WINDOWS = Size(side=4, channels=4, window=2, heads=2)  # windows must fit the map


@dataclass(frozen=True)
class Edge:
    """From one layer to another: by what (`sparse`, `dynamic`, `low rank`) and in which respect."""

    start: str
    end: str
    kind: str
    respect: str


@dataclass(frozen=True)
class Measured:
    """A layer, its properties, and the rank of its connection matrix as a share of the full one."""

    found: Findings
    rank: float


# Nodes of the figure: place (x, y), and the layer that stands for it.
NODES: dict[str, tuple[float, float]] = {
    "MLP": (0.50, 0.95),
    "LR MLP": (0.86, 0.95),
    "Conv.": (0.22, 0.72),
    "Sep. MLP": (0.64, 0.72),
    "Pyramid conv.": (0.0, 0.50),
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


def node_layers() -> dict[str, Callable[[], Subject]]:
    """What stands for each node: its spatial half, since point-wise layers follow all of them alike."""
    rows: dict[str, Row] = {row.name: row for row in (*ROWS, *OTHERS)}

    def of(name: str, size: Size = SMALLEST) -> Callable[[], Subject]:
        return lambda: rows[name].make(size)

    return {
        "MLP": lambda: of_torch(fully_connected, "MLP")(SMALLEST),
        "LR MLP": lambda: of_torch(low_rank, "LR MLP")(SMALLEST),
        "Conv.": of("Conv."),
        "Sep. MLP": of("Spatial-mixing MLP"),
        "Pyramid conv.": lambda: of_torch(pyramid, "Pyramid conv.")(SMALLEST),
        "Bottleneck": lambda: of_torch(bottleneck, "Bottleneck")(SMALLEST),
        "DW-S conv.": of("DW-Conv."),
        "ViT": of("Attention"),
        "PVT": of("Spatial reduction (PVT)", WINDOWS),
        "Dynamic DW-S conv.": of("D-DW-Conv."),
        "Dynamic local-S MLP": of("I-D-DW-Conv."),
        "Local ViT": of("Local attention", WINDOWS),
    }


def measure_nodes(seed: int = 0) -> dict[str, Measured]:
    """Probe the layers of the graph, and the rank of their connections."""
    measured = {}
    for name, make in node_layers().items():
        torch.manual_seed(seed)
        subject = make()
        matrix = connection_matrix(subject, seed)
        measured[name] = Measured(probe(subject, seed=seed), int(torch.linalg.matrix_rank(matrix)) / min(matrix.shape))
    return measured


def holds(edge: Edge, measured: dict[str, Measured]) -> bool:
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


def draw_relations(measured: dict[str, Measured]) -> "Figure":
    """The graph: more regularised layers further down; under each name what was measured."""
    picture = figure(12.5, 7.4)
    axes = picture.add_subplot()
    axes.set(xlim=(-0.13, 1.13), ylim=(0.04, 1.03))
    axes.set_axis_off()
    confirmed = sum(holds(edge, measured) for edge in EDGES)
    title = f"How layers follow from each other: {confirmed} of {len(EDGES)} relations measured as the paper draws them"
    write(picture.suptitle(title, x=0.012, ha="left"), TITLE, weight="bold")
    for edge in EDGES:
        draw_edge(axes, edge, holds(edge, measured))
    for name, place in NODES.items():
        draw_node(axes, name, place, measured[name])
    draw_legend(axes)
    return picture


def draw_node(axes: "Axes", name: str, place: tuple[float, float], measured: Measured) -> None:
    """A name in a box, its properties below."""
    first, *rest = in_short(measured.found).split(" · ")
    rank = "full rank" if measured.rank == 1 else f"rank {100 * measured.rank:.0f} %"
    lines = [f"{first}, {rest[0]}", ", ".join([*rest[1:], rank])]
    frame: dict[str, Any] = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": LINE, "linewidth": 1.0}
    write(axes.text(*place, name, ha="center", va="center", bbox=frame, zorder=3), TITLE - 1.5, INK, weight="bold")
    below: dict[str, Any] = {"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
    text = axes.text(place[0], place[1] - 0.034, "\n".join(lines), ha="center", va="top", bbox=below, zorder=2)
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
