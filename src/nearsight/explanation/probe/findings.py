"""What a probe finds out about a layer, and how it says so."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Findings:
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"properties": dict(zip(COLUMNS, self.properties, strict=True))}


COLUMNS = (
    "sparse_positions_nonlocal",
    "sparse_positions_full",
    "sparse_channels",
    "share_positions",
    "share_channels",
    "dynamic",
)


def describe(found: Findings) -> list[tuple[str, str]]:
    """The findings in words: what, and the answer.

    Example:
        >>> from torch import nn
        >>> from nearsight.explanation.probe import probe
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


def positions_in_words(found: Findings) -> str:
    """To which positions an output is connected."""
    words = {
        "own": "each output sees its own position alone",
        "local": f"sparse: each output is connected to {box(found.field)} positions",
        "scattered": "sparse: each output is connected to some positions all over the map",
        "all": "dense: each output is connected to all positions",
    }[found.positions]
    return words + (", and to the auxiliary tokens" if found.aux else "")


def channels_in_words(found: Findings) -> str:
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


def groups_in_words(found: Findings) -> str:
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


def dynamic_in_words(found: Findings) -> str:
    """Whether weights depend on the input."""
    if not found.dynamic:
        return "no: the weights are parameters" + ("" if found.linear else "; norms or activations are not linear")
    shared = "one set for an image" if found.share_positions == (1, 1) else "other ones at each position"
    return f"yes: the weights follow from the input, {shared}"


def shifts_in_words(found: Findings) -> str:
    """By how much the input may be shifted."""
    if found.shifts is None:
        return "no shift was found that shifts the output alike"
    if found.shifts == (1, 1):
        return "any shift of the input shifts the output alike"
    return f"shifts by multiples of {box(found.shifts)} shift the output alike, others do not"


def reach_in_words(found: Findings) -> str:
    """What the output depends on at all."""
    _, height, width, _ = found.source
    field = "the whole map" if found.field == (height, width) else box(found.field)
    if found.reach == found.field:
        return field
    reach = "the whole map" if found.reach == (height, width) else box(found.reach)
    return f"{field}; through the predicted weights {reach}"
