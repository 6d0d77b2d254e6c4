"""Pictures of connections: whole matrices as in the dwconv paper's Figure 1, and where one output looks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...plots.style import COLOURS, INK, LINE, SEQUENTIAL, SMALL, SOFT, TITLE, figure, write
from .findings import Findings
from .measure import middle
from .paper import Verdict
from .rows import draw, jacobian_rows, one_channel, spread_out
from .subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 2048  # neurons of a layer whose whole matrix is made
SHOWN = 64  # channels in a picture of channels


def connection_matrix(subject: Subject, seed: int = 0) -> Tensor:
    """All connections of a layer, given its weights for a random input.

    Returns:
        `[D * M, C * N]`, neurons in the paper's order: channel by channel, in each the positions row by row.

    Example:
        >>> from torch import nn
        >>> from nearsight.explanation.probe import wrap
        >>> layer = wrap(nn.Conv2d(2, 2, 1, groups=2, bias=False), torch.zeros(1, 2, 1, 3))
        >>> matrix = connection_matrix(layer)
        >>> matrix.shape, int((matrix != 0).sum())  # block-diagonal, and diagonal in each block
        (torch.Size([6, 6]), 6)
    """
    outputs, inputs = subject.target.tokens * subject.out_channels, subject.source.tokens * subject.channels
    if max(outputs, inputs) > MOST:
        raise ValueError(
            f"{subject.name} has {max(outputs, inputs):,} neurons; a whole matrix is made of {MOST:,} at most."
        )
    places = [(token, channel) for channel in range(subject.out_channels) for token in range(subject.target.tokens)]
    asked = [one_channel(subject, token, channel) for token, channel in places]
    rows = jacobian_rows(subject, draw(subject, seed), asked, given_weights=True)
    return rows.transpose(1, 2).flatten(1)


def draw_matrices(subjects: Sequence[Subject], verdicts: Sequence[Verdict]) -> "Figure":
    """The connection matrices of small layers, side by side."""
    across = 3
    rows = -(-len(subjects) // across)
    picture = figure(3.5 * across, 0.9 + 3.75 * rows)
    title = "Connections of a layer: each row is an output neuron, each column an input neuron"
    write(picture.suptitle(title, x=0.012, ha="left"), TITLE, weight="bold")
    panels = picture.subplots(rows, across, squeeze=False).flat
    for axes, subject, verdict in zip(panels, subjects, verdicts, strict=False):
        draw_matrix(axes, connection_matrix(subject).numpy(), subject)
        write(axes.set_title(verdict.row.name, loc="left", pad=18), TITLE - 1, weight="bold")
        write(axes.text(0, 1.02, in_short(verdict.found), transform=axes.transAxes, va="bottom"), SMALL - 1, SOFT)
    for axes in picture.axes[len(subjects) :]:
        axes.set_axis_off()
    note = (
        "Neurons stand channel by channel; thin lines part the channels. Red and blue are positive and negative "
        "weights, white is no connection."
    )
    write(picture.text(0.012, 0.002, note, va="bottom"), SMALL, SOFT)
    picture.get_layout_engine().set(rect=(0, 0.025, 1, 0.97))  # type: ignore[union-attr, call-arg]
    return picture


def draw_matrix(axes: "Axes", matrix: NDArray[np.floating], subject: Subject) -> None:
    """One matrix with lines between channels."""
    strongest = float(abs(matrix).max()) or 1.0
    axes.imshow(matrix, cmap="RdBu_r", vmin=-strongest, vmax=strongest, interpolation="nearest")
    for channel in range(1, subject.out_channels):
        axes.axhline(channel * subject.target.tokens - 0.5, color=LINE, linewidth=0.5)
    for channel in range(1, subject.channels):
        axes.axvline(channel * subject.source.tokens - 0.5, color=LINE, linewidth=0.5)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=LINE, linewidth=0.8)


def in_short(found: Findings) -> str:
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


def draw_layer(subject: Subject, found: Findings, seed: int = 0) -> "Figure":
    """One layer: where the output in the middle looks, given the weights and with their prediction, and channels."""
    picture = figure(11.5, 4.6)
    write(picture.suptitle(found.name, x=0.012, ha="left"), TITLE, weight="bold")
    left, middle_axes, right = picture.subplots(1, 3)
    tokens, centre = draw(subject, seed), middle(subject.target)
    picks = spread_out(subject.out_channels, SHOWN)
    few = spread_out(subject.out_channels, 6)
    wired = jacobian_rows(subject, tokens, [one_channel(subject, centre, c) for c in picks], given_weights=True)
    reach = jacobian_rows(subject, tokens, [one_channel(subject, centre, c) for c in few], given_weights=False)
    for axes, rows, title in ((left, wired, "connections"), (middle_axes, reach, "with the weights' prediction")):
        draw_field(axes, rows.abs().sum(dim=2).mean(dim=0)[subject.source.aux :], subject, title)
    links = wired.abs().sum(dim=1)[:, spread_out(subject.channels, SHOWN)]
    right.imshow((links / (links.max() or 1)).numpy(), cmap=SEQUENTIAL, aspect="auto", interpolation="nearest")
    write(right.set_title("channels", loc="left", pad=8), TITLE - 1, weight="bold")
    write(right.set_xlabel("input channel"), SMALL, SOFT)
    write(right.set_ylabel("output channel"), SMALL, SOFT)
    right.set(xticks=[], yticks=[])
    write(picture.text(0.012, 0.01, in_short(found), va="bottom"), SMALL, SOFT)
    picture.get_layout_engine().set(rect=(0, 0.05, 1, 0.95))  # type: ignore[union-attr, call-arg]
    return picture


def draw_field(axes: "Axes", weights: Tensor, subject: Subject, title: str) -> None:
    """How strongly each position is connected with the output in the middle, which is framed."""
    grid, target = subject.source, subject.target
    shown = weights.view(grid.height, grid.width)
    shown = (shown / (shown.max() or 1)).sqrt()  # the root shows weak connections too
    seen = torch.where(shown > 0, shown, torch.nan).numpy()
    axes.imshow(seen, cmap=SEQUENTIAL, vmin=0, vmax=1, interpolation="nearest")
    row, column = target.height // 2 * subject.stride[0], target.width // 2 * subject.stride[1]
    from matplotlib.patches import Rectangle

    frame = Rectangle(
        (column - 0.5, row - 0.5), subject.stride[1], subject.stride[0], fill=False, edgecolor=COLOURS[1], linewidth=1.6
    )
    axes.add_patch(frame)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=INK, linewidth=0.6)
    write(axes.set_title(title, loc="left", pad=8), TITLE - 1, weight="bold")
