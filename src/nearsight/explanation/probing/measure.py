"""Measure the properties of a layer from its Jacobian at random inputs, and say in words what was found."""

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...arguments import checked
from ...config.recipe import check_seed
from ...lattice import Grid
from ...result import Result
from .layer import (
    Layout,
    ProbedLayer,
    draw,
    jacobian_rows,
    mixed_channels,
    one_channel,
    random_weights,
    spread_out,
    tolerance,
    wrap,
)
from .open import open_probed


@dataclass(frozen=True)
class ProbeResult(Result):
    """The properties of a layer, measured.

    Connections are counted given the weights that the layer predicts for an input; `reach` and `reach_channels` also
    count what the prediction looks at.

    Attributes:
        name: What was probed.
        source: Channels, height, width and auxiliary tokens of the input.
        target: The same of the output.
        positions: An output is connected to its `own` position, to a `local` neighbourhood, to positions `scattered`
            over the map, or to `all`.
        field: Height and width of the box that holds all connected positions.
        aux: Whether patches are connected to auxiliary tokens.
        channels: An output channel is connected to its `own` channel, to a group (`some`), or to `all`.
        channels_connected: To how many, at most.
        share_positions: Height and width of the period after which weights repeat: (1, 1) where all positions share
            them; None where none do.
        channel_groups: Into how many groups with equal weights the channels fall.
        channels_seen: How many channels were compared for that.
        dynamic: Whether the weights depend on the input.
        linear: Whether the whole layer is linear in its input, but for a constant.
        shifts: Height and width of the smallest shift of the input that shifts the output alike, away from the borders:
            (1, 1) for any; None where no shift up to half of the map does.
        reach: Height and width of the box of all positions that change the output, in the weights' prediction too.
        reach_channels: The same for channels: `own`, `some` or `all`.
        remarks: What else is to be known.
    """

    name: str
    source: tuple[int, int, int, int]
    target: tuple[int, int, int, int]
    positions: Literal["own", "local", "scattered", "all"]
    field: tuple[int, int]
    aux: bool
    channels: Literal["own", "some", "all"]
    channels_connected: int
    share_positions: tuple[int, int] | None
    channel_groups: int
    channels_seen: int
    dynamic: bool
    linear: bool
    shifts: tuple[int, int] | None
    reach: tuple[int, int]
    reach_channels: Literal["own", "some", "all"]
    remarks: tuple[str, ...] = ()

    @property
    def properties(self) -> tuple[bool, bool, bool, bool, bool, bool]:
        """The columns of the dwconv paper's Tables 1 and 7.

        Sparse between positions: non-local ones, or all others; sparse between channels; weights shared across
        positions; across channels (all, or those of a group); dynamic.
        """
        return (
            self.positions in ("local", "scattered"),
            self.positions == "own",
            self.channels != "all",
            self.share_positions == (1, 1),
            self.channel_groups < self.channels_seen,
            self.dynamic,
        )

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has."""
        return asdict(self) | {"properties": dict(zip(COLUMNS, self.properties, strict=True))}

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{html.escape(what)}</th><td>{html.escape(words)}</td></tr>" for what, words in describe(self))
        return f"<table><caption>{html.escape(self.name)}</caption>{''.join(rows)}</table>"


COLUMNS = (
    "sparse_positions_nonlocal",
    "sparse_positions_full",
    "sparse_channels",
    "share_positions",
    "share_channels",
    "dynamic",
)


def describe(found: ProbeResult) -> list[tuple[str, str]]:
    """What was measured, in words: the property, and what it is.

    Example:
        >>> from torch import nn
        >>> from nearsight.explanation.probing import probe
        >>> found = probe(nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 9, 9))
        >>> dict(describe(found))["between channels"]
        'each output channel is connected to one input channel'
    """
    channels, height, width, aux = found.source
    lines = [
        ("input", f"{channels} channels on {height}×{width}" + (f" and {aux} auxiliary tokens" if aux else "")),
        ("between positions", positions_in_words(found)),
        ("between channels", channels_in_words(found)),
        ("shared over positions", period_in_words(found.share_positions, "each position has its own weights")),
        ("shared over channels", groups_in_words(found)),
        ("dynamic", dynamic_in_words(found)),
        ("translation", shifts_in_words(found)),
        ("receptive field", reach_in_words(found)),
    ]
    return [*lines, *(("remark", remark) for remark in found.remarks)]


def box(size: tuple[int, int]) -> str:
    """A height and width."""
    return f"{size[0]}×{size[1]}"


def positions_in_words(found: ProbeResult) -> str:
    """To which positions an output is connected."""
    words = {
        "own": "each output sees its own position alone",
        "local": f"sparse: each output is connected to {box(found.field)} positions",
        "scattered": "sparse: each output is connected to some positions all over the map",
        "all": "dense: each output is connected to all positions",
    }[found.positions]
    return words + (", and to the auxiliary tokens" if found.aux else "")


def channels_in_words(found: ProbeResult) -> str:
    """To which channels an output is connected."""
    return {
        "own": "each output channel is connected to one input channel",
        "some": f"sparse: each output channel is connected to {found.channels_connected} of {found.source[0]} channels",
        "all": "dense: each output channel is connected to all input channels",
    }[found.channels]


def period_in_words(period: tuple[int, int] | None, none: str) -> str:
    """After how many positions weights repeat."""
    if period is None:
        return f"no: {none}"
    return (
        "yes: all positions have the same weights" if period == (1, 1) else f"in part: they repeat every {box(period)}"
    )


def groups_in_words(found: ProbeResult) -> str:
    """How many channels have the same weights."""
    seen = (
        ""
        if found.channels_seen == found.target[0]
        else f" (of {found.target[0]}, {found.channels_seen} were compared)"
    )
    if found.channel_groups == found.channels_seen:
        return f"no: each channel has its own weights{seen}"
    if found.channel_groups == 1:
        return f"yes: all channels have the same weights{seen}"
    return f"in groups: {found.channels_seen} channels have {found.channel_groups} sets of weights{seen}"


def dynamic_in_words(found: ProbeResult) -> str:
    """Whether weights depend on the input."""
    if not found.dynamic:
        return "no: the weights are parameters" + ("" if found.linear else "; norms or activations are not linear")
    shared = "one set for an image" if found.share_positions == (1, 1) else "other ones at each position"
    return f"yes: the weights follow from the input, {shared}"


def shifts_in_words(found: ProbeResult) -> str:
    """By how much the input may be shifted."""
    if found.shifts is None:
        return "no shift was found that shifts the output alike"
    if found.shifts == (1, 1):
        return "any shift of the input shifts the output alike"
    return f"shifts by multiples of {box(found.shifts)} shift the output alike, others do not"


def reach_in_words(found: ProbeResult) -> str:
    """What the output depends on at all."""
    _, height, width, _ = found.source
    field = "the whole map" if found.field == (height, width) else box(found.field)
    if found.reach == found.field:
        return field
    reach = "the whole map" if found.reach == (height, width) else box(found.reach)
    return f"{field}; through the predicted weights {reach}"


CHANNELS = 12  # output channels that are looked at one by one
INPUTS = 4  # that are compared
Extent = Literal["own", "some", "all"]


@checked
def probe(
    module: nn.Module | ProbedLayer | str,
    shape: tuple[int, ...] | Tensor | None = None,
    *,
    size: tuple[int, int] | None = None,
    bare: bool = False,
    name: str = "",
    grid: Grid | tuple[int, int] | None = None,
    layout: Layout | None = None,
    seed: int = 0,
) -> ProbeResult:
    """Find out what kind of layer a module is, by its derivatives at random inputs.

    Args:
        module: Takes `[B, C, H, W]`, `[B, H, W, C]`, `[B, N, C]` or `[B, F]`; of our parts also tokens and their grid.
            Or a text that the command line takes, as `open_probed` says; or a `ProbedLayer`, for a module that is
            called in another way.
        shape: Of one input without the batch, `(C, H, W)` or `(N, C)`; or an example with it.
        size: Of a text: height and width of the map (of a model: of the image).
        bare: Of a text: without the projections of values and outputs.
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
        >>> probe("depthwise:kernel=5").field
        (5, 5)
    """
    check_seed(seed)
    if isinstance(module, str):
        module = open_probed(module, size, bare=bare, seed=seed, grid=None if grid is None else Grid(*grid))
    probed = module if isinstance(module, ProbedLayer) else as_probed(module, shape, name, grid, layout, seed)
    first, centre = draw(probed, seed), middle(probed.target)
    wired = look(probed, first, centre, CHANNELS, given_weights=True)
    reach = Reach.of(probed, first)
    if wired.scale == 0:
        raise ValueError(f"No output of {probed.name} depends on its input; there is nothing to probe.")
    changes = [varies(probed, seed, given_weights=given) for given in (True, False)]
    groups, seen, alone = channel_groups(probed, first, centre, wired.rows, wired.channels == "own")
    period = position_period(probed, first, seed)
    shifts, remark = smallest_shift(probed, first, wired.field)
    larger = None
    if probed.target.height > probed.source.height or probed.target.width > probed.source.width:
        larger = "the output has more positions than the input; shifts and weights are compared one to one"
    single = None if probed.dtype == torch.float64 else "computed in float32, which the module asks for"
    return ProbeResult(
        name=probed.name,
        source=(probed.channels, *probed.source),
        target=(probed.out_channels, *probed.target),
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


def as_probed(
    module: nn.Module,
    shape: tuple[int, ...] | Tensor | None,
    name: str,
    grid: Grid | tuple[int, int] | None,
    layout: Layout | None,
    seed: int,
) -> ProbedLayer:
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
    def of(cls, probed: ProbedLayer, tokens: Tensor) -> "Reach":
        """Measured at the middle of the map and around it."""
        centre, grid = middle(probed.target), probed.target
        near = dict.fromkeys((centre, centre - 1, max(grid.aux, centre - grid.width), grid.aux + grid.patches // 4))
        looks = [look(probed, tokens, token, 2, given_weights=False) for token in near if token >= grid.aux]
        field = max(one.field[0] for one in looks), max(one.field[1] for one in looks)
        return cls(field, max((one.channels for one in looks), key=("own", "some", "all").index))


def look(probed: ProbedLayer, tokens: Tensor, position: int, channels: int, *, given_weights: bool) -> Wiring:
    """The connections of so many channels of one output position."""
    picks = spread_out(probed.out_channels, channels)
    asked = [one_channel(probed, position, channel) for channel in picks]
    rows = jacobian_rows(probed, tokens, asked, given_weights=given_weights)
    scale = float(rows.abs().max())
    linked = rows.abs() > tolerance(probed) * scale
    patches = linked[:, probed.source.aux :]
    positions, field = spread_of(patches.any(dim=2).any(dim=0), probed.source)
    count = int(linked.any(dim=1).sum(dim=1).max())  # input channels of an output channel
    extent: Extent = "all" if count == probed.channels else "own" if count <= 1 else "some"
    return Wiring(rows, scale, positions, field, bool(linked[:, : probed.source.aux].any()), extent, count)


def spread_of(seen: Tensor, grid: Grid) -> tuple[Literal["own", "local", "scattered", "all"], tuple[int, int]]:
    """What the connected positions `[H*W]` look like, and the box around them."""
    positions = seen.view(grid.height, grid.width).nonzero()
    if len(positions) == 0:
        return "own", (0, 0)
    low, high = positions.amin(dim=0), positions.amax(dim=0)
    field = (int(high[0] - low[0]) + 1, int(high[1] - low[1]) + 1)
    if len(positions) == grid.patches and grid.patches > 1:
        return "all", field
    if len(positions) == 1:
        return "own", field
    wide = field[0] > grid.height / 2 and field[1] > grid.width / 2
    thin = len(positions) < field[0] * field[1] / 2
    return ("scattered" if field == (grid.height, grid.width) or (wide and thin) else "local"), field


def middle(grid: Grid) -> int:
    """Number of the token in the middle of the map."""
    return grid.aux + grid.height // 2 * grid.width + grid.width // 2


def varies(probed: ProbedLayer, seed: int, *, given_weights: bool) -> bool:
    """Whether the Jacobian differs between inputs.

    Several inputs and positions are compared: a prediction may be switched off by an activation at some of them.
    """
    grid = probed.target
    positions = dict.fromkeys((middle(grid), grid.aux, grid.aux + grid.patches // 3, grid.aux + 3 * grid.patches // 4))
    asked = [mixed_channels(probed, position, random_weights(probed, seed)) for position in positions]
    first = jacobian_rows(probed, draw(probed, seed), asked, given_weights=given_weights)
    for other in range(1, INPUTS):
        rows = jacobian_rows(probed, draw(probed, seed + other), asked, given_weights=given_weights)
        scale = float(torch.maximum(rows.abs().max(), first.abs().max()))
        if float((rows - first).abs().max()) > 10 * tolerance(probed) * scale:
            return True
    return False


PERIOD = 16  # positions up to which a repetition is looked for
ENOUGH = 0.25  # fraction of a row that two positions must have in common to be compared


def channel_groups(
    probed: ProbedLayer, tokens: Tensor, position: int, rows: Tensor, own: bool
) -> tuple[int, int, bool]:
    """Into how many groups of equal weights the channels fall at one position.

    Where each channel is connected to itself alone, one pass asks for all channels at once.

    Args:
        probed: What is probed.
        tokens: The input `[1, N, C]`.
        position: Number of the output token.
        rows: Its Jacobian for some channels, `[channels, N, C]`.
        own: Whether these are each connected to one channel.

    Returns:
        Number of groups, number of channels compared, and whether all channels are alone as those in `rows` are.
    """
    if own and probed.out_channels == probed.channels:
        signs = [random_weights(probed, seed, signs=True).to(probed.dtype) for seed in (11, 12)]
        asked = [mixed_channels(probed, position, one) for one in signs]
        mixed = jacobian_rows(probed, tokens, asked, given_weights=True)
        kernels = [(row * one).T for row, one in zip(mixed, signs, strict=True)]  # [C, N]; equal unless channels mix
        scale = float(rows.abs().max())
        if float((kernels[0] - kernels[1]).abs().max()) <= 10 * tolerance(probed) * scale:
            return count_groups(kernels[0], scale, probed), probed.channels, True
        return *compare_rows(rows, probed), False
    return *compare_rows(rows, probed), True


def compare_rows(rows: Tensor, probed: ProbedLayer) -> tuple[int, int]:
    """The same from whole rows `[channels, N, C]`: equal are those with equal weights to as many channels."""
    scale = float(rows.abs().max())
    kernels = []
    for row in rows:
        linked = (row.abs() > tolerance(probed) * scale).any(dim=0)
        kernel = torch.zeros_like(row)
        kernel[:, : int(linked.sum())] = row[:, linked]
        kernels.append(kernel.flatten())
    return count_groups(torch.stack(kernels), scale, probed), len(kernels)


def count_groups(kernels: Tensor, scale: float, probed: ProbedLayer) -> int:
    """How many different rows there are in `[channels, numbers]`, by a few random sums of each row."""
    generator = torch.Generator().manual_seed(7)
    sums = kernels @ torch.randn(kernels.shape[1], 4, generator=generator, dtype=torch.float64).to(kernels.dtype)
    sums = sums[sums[:, 0].argsort()]
    # Far above rounding, far below what two of hundreds of different channels come near each other by chance.
    limit = 1e4 * torch.finfo(probed.dtype).eps * scale * max(1, kernels.shape[1]) ** 0.5
    return 1 + int(((sums[1:] - sums[:-1]).abs().amax(dim=1) > limit).sum())


def position_period(probed: ProbedLayer, tokens: Tensor, seed: int) -> tuple[int, int] | None:
    """After how many rows and columns the weights repeat; None if they do not."""
    weights = random_weights(probed, seed)
    periods = []
    for axis in (0, 1):
        period = period_along(axis, probed, tokens, weights)
        if period is None:
            return None
        periods.append(period)
    return periods[0], periods[1]


def period_along(axis: int, probed: ProbedLayer, tokens: Tensor, weights: Tensor) -> int | None:
    """The smallest number of positions along an axis after which positions have the same weights."""
    length = (probed.target.height, probed.target.width)[axis]
    if length == 1:
        return 1  # nothing to compare with
    start = [probed.target.height // 2, probed.target.width // 2]
    steps = range(1, min(PERIOD, length // 2) + 1)
    for batch in (steps[:1], steps[1:]):
        same = repeating(start, axis, batch, probed, tokens, weights)
        for step in same:
            if all(repeating(other, axis, [step], probed, tokens, weights) for other in others(start, probed.target)):
                return step
    return None


def others(start: list[int], grid: Grid) -> list[list[int]]:
    """Positions beside the middle: what repeats must repeat there too, and not by chance where weights are simple."""
    near = [[start[0] + down, start[1] + right] for down, right in ((1, 1), (0, -1), (-1, 0))]
    return [position for position in near if 0 <= position[0] < grid.height and 0 <= position[1] < grid.width]


def repeating(
    start: list[int], axis: int, steps: Sequence[int], probed: ProbedLayer, tokens: Tensor, weights: Tensor
) -> list[int]:
    """Which of these steps along an axis lead from a position to one with the same weights."""
    target, stride = probed.target, probed.stride[axis]
    room = (target.height, target.width)[axis] - 1 - start[axis]
    moves = [0, *(step if step <= room else -step for step in steps)]
    positions = [moved(start, axis, move) for move in moves]
    asked = [mixed_channels(probed, number(position, target), weights) for position in positions if position[axis] >= 0]
    rows = jacobian_rows(probed, tokens, asked, given_weights=True)[:, probed.source.aux :]
    maps = rows.unflatten(1, (probed.source.height, probed.source.width))
    pairs = zip(moves[1:], maps[1:], strict=False)
    return [abs(move) for move, field in pairs if repeats(maps[0], field, axis, move * stride, tolerance(probed))]


def moved(position: list[int], axis: int, step: int) -> list[int]:
    """A position, so many steps along an axis from another."""
    return [one + step * (index == axis) for index, one in enumerate(position)]


def number(position: list[int], grid: Grid) -> int:
    """Number of the token at a position."""
    return grid.aux + position[0] * grid.width + position[1]


def repeats(base: Tensor, other: Tensor, axis: int, shift: int, limit: float) -> bool:
    """Whether the weights `other` `[H, W, C]` are those of `base`, moved along an axis, where both are on the map."""
    length = base.shape[axis]
    kept = length - abs(shift)
    if kept <= 0:
        return False
    from_base = base.narrow(axis, max(0, -shift), kept)
    from_other = other.narrow(axis, max(0, shift), kept)
    whole = float(base.square().sum())
    if whole == 0 or float(from_base.square().sum()) < ENOUGH * whole:
        return False
    scale = float(torch.maximum(base.abs().max(), other.abs().max()))
    return float((from_base - from_other).abs().max()) <= 10 * limit * scale


def smallest_shift(
    probed: ProbedLayer, tokens: Tensor, field: tuple[int, int]
) -> tuple[tuple[int, int] | None, str | None]:
    """The smallest shifts down and across, in positions of the input, that shift the output alike away from borders.

    The input is rolled around. Compared are all outputs; if they differ, those that see neither a border nor the seam,
    by the size of the receptive field.

    Args:
        probed: What is probed.
        tokens: The input `[1, N, C]`.
        field: Height and width of its receptive field.

    Returns:
        The shifts, or None if there are none; and a remark where the map is too small to tell.
    """
    with torch.no_grad():
        still = probed.run(tokens)
        found, doubts = [], False
        for axis in (0, 1):
            step, doubt = smallest_along(axis, probed, tokens, still, field)
            doubts = doubts or doubt
            found.append(step)
        down, right = found
        if down is None or right is None:
            small = "the map is too small to look away from its borders for some shifts; give a larger --size"
            return None, small if doubts else None
        if shifts_alike(probed, tokens, still, field, (2 * down, right)) is False:
            return None, None
    return (down, right), None


def smallest_along(
    axis: int, probed: ProbedLayer, tokens: Tensor, still: Tensor, field: tuple[int, int]
) -> tuple[int | None, bool]:
    """The smallest shift along an axis that the output follows, and whether for some it can't be told."""
    length = (probed.source.height, probed.source.width)[axis]
    if length == 1:
        return 1, False
    stride, doubt = probed.stride[axis], False
    for step in range(stride, length // 2 + 1, stride):
        alike = shifts_alike(probed, tokens, still, field, (step, 0) if axis == 0 else (0, step))
        if alike:
            return step, False
        doubt = doubt or alike is None
    return None, doubt


def shifts_alike(
    probed: ProbedLayer, tokens: Tensor, still: Tensor, field: tuple[int, int], shift: tuple[int, int]
) -> bool | None:
    """Whether the output of the shifted input is the shifted output, away from borders; None if all is border."""
    source, target, stride = probed.source, probed.target, probed.stride
    patches = tokens[:, source.aux :].unflatten(1, (source.height, source.width)).roll(shift, dims=(1, 2))
    moved = probed.run(torch.cat((tokens[:, : source.aux], patches.flatten(1, 2)), dim=1))
    before, after = (out[:, target.aux :].unflatten(1, (target.height, target.width)) for out in (still, moved))
    moved = before.roll((shift[0] // stride[0], shift[1] // stride[1]), dims=(1, 2))
    limit = (1e-7 if probed.dtype == torch.float64 else 1e-4) * float(before.abs().max())
    wrong = (after - moved)[0].abs().amax(dim=-1)  # [H, W]
    if float(wrong.max()) <= limit:
        return True
    if field[0] >= source.height and field[1] >= source.width:
        return False
    rows = inner(target.height, stride[0], field[0], shift[0], source.height)
    columns = inner(target.width, stride[1], field[1], shift[1], source.width)
    if rows is None or columns is None:
        return None
    return float(wrong[rows, columns].max()) <= limit


def inner(length: int, stride: int, field: int, shift: int, source: int) -> slice | None:
    """The outputs along an axis that see neither border nor seam, before and after a shift; all if each sees all."""
    if field >= source:
        return slice(0, length)
    margin = -(-(field - 1) // stride)  # in a window, an output may be at either end of what it sees
    first, last = margin + shift // stride, length - margin
    return slice(first, last) if first < last else None
