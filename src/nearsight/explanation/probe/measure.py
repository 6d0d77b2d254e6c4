"""Measure the properties of a layer from its Jacobian at random inputs."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...lattice import Grid
from .findings import Findings
from .rows import draw, jacobian_rows, mixed_channels, one_channel, random_weights, spread_out, tolerance
from .sharing import channel_groups, position_period
from .shifts import smallest_shift
from .subject import Layout, Subject, wrap

CHANNELS = 12  # output channels that are looked at one by one
INPUTS = 4  # that are compared
Extent = Literal["own", "some", "all"]


def probe(
    module: nn.Module | Subject,
    shape: tuple[int, ...] | Tensor | None = None,
    *,
    name: str = "",
    grid: Grid | tuple[int, int] | None = None,
    layout: Layout | None = None,
    seed: int = 0,
) -> Findings:
    """Find out what kind of layer a module is, by its derivatives at random inputs.

    Args:
        module: Takes `[B, C, H, W]`, `[B, H, W, C]`, `[B, N, C]` or `[B, F]`; of our parts also tokens and their grid.
            Or a `Subject`, for a module that is called in another way.
        shape: Of one input without the batch, `(C, H, W)` or `(N, C)`; or an example with it.
        name: What to call it.
        grid: Of tokens: height, width and auxiliary tokens. Without it they stand in a line.
        layout: `map`, `last`, `tokens` or `flat`; found out by default.
        seed: Of the random inputs.

    Returns:
        What was found.

    Example:
        >>> found = probe(nn.Conv2d(8, 8, 3, padding=1, groups=8), (8, 12, 12))
        >>> found.positions, found.field, found.channels, found.share_positions, found.dynamic
        ('local', (3, 3), 'own', (1, 1), False)
    """
    subject = module if isinstance(module, Subject) else as_subject(module, shape, name, grid, layout, seed)
    first, centre = draw(subject, seed), middle(subject.target)
    wired = look(subject, first, centre, CHANNELS, given_weights=True)
    reach = Reach.of(subject, first)
    if wired.scale == 0:
        raise ValueError(f"No output of {subject.name} depends on its input; there is nothing to probe.")
    changes = [varies(subject, seed, given_weights=given) for given in (True, False)]
    groups, seen, alone = channel_groups(subject, first, centre, wired.rows, wired.channels == "own")
    period = position_period(subject, first, seed)
    shifts, remark = smallest_shift(subject, first, wired.field)
    larger = None
    if subject.target.height > subject.source.height or subject.target.width > subject.source.width:
        larger = "the output has more positions than the input; shifts and weights are compared one to one"
    single = None if subject.dtype == torch.float64 else "computed in float32, which the module asks for"
    return Findings(
        name=subject.name,
        source=(subject.channels, *subject.source),
        target=(subject.out_channels, *subject.target),
        positions=wired.positions,
        field=wired.field,
        aux=wired.aux,
        channels=wired.channels if alone else "some",
        channels_connected=wired.channels_connected,
        share_positions=period,
        channel_groups=groups,
        channels_seen=seen,
        dynamic=changes[0],
        linear=not changes[1],
        shifts=shifts,
        reach=(max(reach.field[0], wired.field[0]), max(reach.field[1], wired.field[1])),
        reach_channels=max(reach.channels, wired.channels, key=("own", "some", "all").index),
        remarks=tuple(filter(None, (remark, single, larger))),
    )


def as_subject(
    module: nn.Module,
    shape: tuple[int, ...] | Tensor | None,
    name: str,
    grid: Grid | tuple[int, int] | None,
    layout: Layout | None,
    seed: int,
) -> Subject:
    """A module with an input of this shape; our parts are told the grid."""
    from ...parts.slots import MergeModule, QkvModule, TokenModule

    if shape is None:
        raise ValueError("Give the shape of an input, such as (16, 14, 14) for 16 channels on a map of 14×14.")
    given = (
        shape if isinstance(shape, Tensor) else torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))
    )
    if not isinstance(module, (TokenModule, MergeModule, QkvModule)):
        return wrap(module, given, name=name, grid=grid, layout=layout)
    if given.ndim == 4:
        grid = Grid(given.shape[2], given.shape[3])
        given = given.flatten(2).transpose(1, 2)
    if grid is None:
        raise ValueError(f"{type(module).__name__} takes tokens and their grid; give grid=(height, width).")
    return wrap(module, given, name=name, grid=grid, layout="tokens", rest=(Grid(*grid),))


@dataclass(frozen=True)
class Wiring:
    """What one output position is connected to: rows of the Jacobian `[channels, N, C]`, and what they say."""

    rows: Tensor
    scale: float
    positions: Literal["own", "local", "scattered", "all"]
    field: tuple[int, int]
    aux: bool
    channels: Extent
    channels_connected: int


@dataclass(frozen=True)
class Reach:
    """What outputs depend on at all: the box of positions, and how many channels.

    Several outputs are looked at: where an activation is off, an output does not show what it may depend on.
    """

    field: tuple[int, int]
    channels: Extent

    @classmethod
    def of(cls, subject: Subject, tokens: Tensor) -> "Reach":
        """Measured at the middle of the map and around it."""
        centre, grid = middle(subject.target), subject.target
        places = dict.fromkeys((centre, centre - 1, max(grid.aux, centre - grid.width), grid.aux + grid.patches // 4))
        looks = [look(subject, tokens, place, 2, given_weights=False) for place in places if place >= grid.aux]
        field = max(one.field[0] for one in looks), max(one.field[1] for one in looks)
        return cls(field, max((one.channels for one in looks), key=("own", "some", "all").index))


def look(subject: Subject, tokens: Tensor, place: int, channels: int, *, given_weights: bool) -> Wiring:
    """The connections of so many channels of one output position."""
    picks = spread_out(subject.out_channels, channels)
    asked = [one_channel(subject, place, channel) for channel in picks]
    rows = jacobian_rows(subject, tokens, asked, given_weights=given_weights)
    scale = float(rows.abs().max())
    linked = rows.abs() > tolerance(subject) * scale
    patches = linked[:, subject.source.aux :]
    positions, field = spread_of(patches.any(dim=2).any(dim=0), subject.source)
    count = int(linked.any(dim=1).sum(dim=1).max())  # input channels of an output channel
    extent: Extent = "all" if count == subject.channels else "own" if count <= 1 else "some"
    return Wiring(rows, scale, positions, field, bool(linked[:, : subject.source.aux].any()), extent, count)


def spread_of(seen: Tensor, grid: Grid) -> tuple[Literal["own", "local", "scattered", "all"], tuple[int, int]]:
    """What the connected positions `[H*W]` look like, and the box around them."""
    places = seen.view(grid.height, grid.width).nonzero()
    if len(places) == 0:
        return "own", (0, 0)
    low, high = places.amin(dim=0), places.amax(dim=0)
    field = (int(high[0] - low[0]) + 1, int(high[1] - low[1]) + 1)
    if len(places) == grid.patches and grid.patches > 1:
        return "all", field
    if len(places) == 1:
        return "own", field
    wide = field[0] > grid.height / 2 and field[1] > grid.width / 2
    thin = len(places) < field[0] * field[1] / 2
    return ("scattered" if field == (grid.height, grid.width) or (wide and thin) else "local"), field


def middle(grid: Grid) -> int:
    """Number of the token in the middle of the map."""
    return grid.aux + grid.height // 2 * grid.width + grid.width // 2


def varies(subject: Subject, seed: int, *, given_weights: bool) -> bool:
    """Whether the Jacobian differs between inputs.

    Several inputs and positions are compared: a prediction may be switched off by an activation at some of them.
    """
    grid = subject.target
    places = dict.fromkeys((middle(grid), grid.aux, grid.aux + grid.patches // 3, grid.aux + 3 * grid.patches // 4))
    asked = [mixed_channels(subject, place, random_weights(subject, seed)) for place in places]
    first = jacobian_rows(subject, draw(subject, seed), asked, given_weights=given_weights)
    for other in range(1, INPUTS):
        rows = jacobian_rows(subject, draw(subject, seed + other), asked, given_weights=given_weights)
        scale = float(torch.maximum(rows.abs().max(), first.abs().max()))
        if float((rows - first).abs().max()) > 10 * tolerance(subject) * scale:
            return True
    return False
