"""What is probed: any module, seen as a function from tokens on a grid to tokens on a grid."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...lattice import Grid

Layout = Literal["map", "last", "tokens", "flat"]
LAYOUTS = {"map": "[B, C, H, W]", "last": "[B, H, W, C]", "tokens": "[B, N, C]", "flat": "[B, F]"}


@dataclass(frozen=True)
class Subject:
    """A module as the probe sees it.

    Attributes:
        name: What to call it.
        run: Tokens `[B, source.tokens, channels]` to tokens `[B, target.tokens, out_channels]`.
        source: Grid of what goes in.
        channels: Of what goes in.
        target: Grid of what comes out.
        out_channels: Of what comes out.
        spread: Standard deviation of the inputs to draw.
        dtype: In which it computes.
    """

    name: str
    run: Callable[[Tensor], Tensor]
    source: Grid
    channels: int
    target: Grid
    out_channels: int
    spread: float = 1.0
    dtype: torch.dtype = torch.float64

    @property
    def stride(self) -> tuple[int, int]:
        """Places of the input per place of the output, down and across."""
        rows, columns = self.source.height / self.target.height, self.source.width / self.target.width
        return max(1, round(rows)), max(1, round(columns))


def wrap(
    module: nn.Module,
    example: Tensor,
    *,
    name: str = "",
    grid: Grid | tuple[int, int] | None = None,
    layout: Layout | None = None,
    rest: Sequence[Any] = (),
    options: dict[str, Any] | None = None,
) -> Subject:
    """See a module as a function on tokens.

    Args:
        module: Takes one tensor that depends on the image; a copy of it is used, in evaluation mode and in float64.
        example: An input: `[1, C, H, W]`, `[1, H, W, C]`, `[1, N, C]` or `[1, F]`. More rows than one belong together
            (windows of one image); the middle one is probed.
        name: What to call it; the class by default.
        grid: Of tokens: their height, width and auxiliary tokens; without it they stand in a line.
        layout: `map`, `last` (channels last), `tokens` or `flat`; found out by default.
        rest: What else the module is called with, behind the tensor.
        options: And by name.

    Example:
        >>> subject = wrap(nn.Conv2d(4, 6, 2, stride=2), torch.zeros(1, 4, 8, 10))
        >>> subject.source, subject.target, subject.out_channels
        (Grid(height=8, width=10, aux=0), Grid(height=4, width=5, aux=0), 6)
    """
    layout = layout or guess_layout(module, example)
    grid = Grid(*grid) if grid is not None else None
    source, channels = shape_of(example, layout, grid)
    for dtype in (torch.float64, torch.float32):
        frozen = copy.deepcopy(module).to(dtype).eval().requires_grad_(False)
        inputs = Inputs(example.to(dtype), layout, source, tuple(rest), options or {})
        try:
            with torch.no_grad():
                first = inputs.call(frozen, from_layout(inputs.row, layout))
            break
        except RuntimeError as error:  # some modules cast inside and can't compute in float64
            if dtype == torch.float32:
                raise ValueError(f"{name or type(module).__name__} can't be called: {one_line(error)}") from None
    target = target_of(first, layout, source)

    def run(tokens: Tensor) -> Tensor:
        return to_tokens(inputs.call(frozen, tokens), layout, target)

    spread = float(example.double().std()) if example.numel() > 1 and float(example.double().std()) > 0 else 1.0
    out = to_tokens(first, layout, target).shape[-1]
    return Subject(name or type(module).__name__, run, source, channels, target, out, spread, dtype)


@dataclass(frozen=True)
class Inputs:
    """How a module is called: the tensor's layout, the rows that belong together, and everything else."""

    example: Tensor
    layout: Layout
    grid: Grid
    rest: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def middle(self) -> int:
        """Which of the rows that belong together is probed."""
        return len(self.example) // 2

    @property
    def row(self) -> Tensor:
        """That row of the example, `[1, ...]`."""
        return self.example[self.middle : self.middle + 1]

    def call(self, module: nn.Module, tokens: Tensor) -> Any:
        """Call the module with `tokens` `[B, N, C]` in place of the probed row."""
        given = to_layout(tokens, self.layout, self.grid)
        rows = len(self.example)
        if rows > 1:
            whole = self.example.repeat(len(given), *[1] * (given.ndim - 1)).unflatten(0, (len(given), rows))
            given = torch.cat((whole[:, : self.middle], given[:, None], whole[:, self.middle + 1 :]), dim=1).flatten(
                0, 1
            )
        result = call_module(module, given, self.rest, self.options)
        return pick_row(result, rows, self.middle) if rows > 1 else result


def call_module(module: nn.Module, given: Tensor, rest: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The module's answer; an attention layer of torch gets the tokens as queries, keys and values."""
    if isinstance(module, nn.MultiheadAttention):
        tokens = given if module.batch_first else given.transpose(0, 1)
        mixed, _ = module(tokens, tokens, tokens, need_weights=False)
        return mixed if module.batch_first else mixed.transpose(0, 1)
    if isinstance(module, nn.TransformerEncoderLayer) and not module.self_attn.batch_first:
        return module(given.transpose(0, 1), *rest, **options).transpose(0, 1)
    return module(given, *rest, **options)


def pick_row(result: Any, rows: int, middle: int) -> Any:
    """The answer for the probed row."""
    tensor, *rest = result if isinstance(result, (tuple, list)) else (result,)
    return (tensor.unflatten(0, (-1, rows))[:, middle], *rest)


def guess_layout(module: nn.Module, example: Tensor) -> Layout:
    """Which axis holds the channels: of four axes the second, unless the module's first layer fits only the last."""
    if example.ndim == 3:
        return "tokens"
    if example.ndim == 2:
        return "flat"
    if example.ndim != 4:
        raise ValueError(f"An input of {example.ndim} axes can't be probed; use one of {', '.join(LAYOUTS.values())}.")
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            return "map" if part.in_channels == example.shape[1] else "last"
        if isinstance(part, (nn.Linear, nn.LayerNorm)) and part.weight is not None:
            of_maps = type(part).__name__.endswith("2d")  # timm's norms of maps are layer norms by class
            return "last" if part.weight.shape[-1] == example.shape[3] and not of_maps else "map"
    return "map"


def shape_of(example: Tensor, layout: Layout, grid: Grid | None) -> tuple[Grid, int]:
    """Grid and channels of an input."""
    if layout == "map":
        return Grid(example.shape[2], example.shape[3]), example.shape[1]
    if layout == "last":
        return Grid(example.shape[1], example.shape[2]), example.shape[3]
    if layout == "flat":
        return Grid(1, 1), example.shape[1]
    if grid is None:
        return Grid(1, example.shape[1]), example.shape[2]
    if grid.tokens != example.shape[1]:
        raise ValueError(
            f"A grid of {grid.height}×{grid.width} and {grid.aux} auxiliary tokens has {grid.tokens} tokens, the input "
            f"{example.shape[1]}; give the grid of the input."
        )
    return grid, example.shape[2]


def to_layout(tokens: Tensor, layout: Layout, grid: Grid) -> Tensor:
    """Tokens `[B, N, C]` as the module wants them."""
    match layout:
        case "map":
            return tokens.unflatten(1, (grid.height, grid.width)).permute(0, 3, 1, 2)
        case "last":
            return tokens.unflatten(1, (grid.height, grid.width))
        case "flat":
            return tokens[:, 0]
        case "tokens":
            return tokens


def from_layout(given: Tensor, layout: Layout) -> Tensor:
    """Undo `to_layout`."""
    match layout:
        case "map":
            return given.flatten(2).transpose(1, 2)
        case "last":
            return given.flatten(1, 2)
        case "flat":
            return given[:, None]
        case "tokens":
            return given


def first_tensor(result: Any) -> Tensor:
    """The tensor that a module returns, alone or first of several."""
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    if not isinstance(result, Tensor) or not result.is_floating_point() or result.ndim not in (2, 3, 4):
        raise ValueError("What the module returns is no tensor of tokens or of a map; it can't be probed.")
    return result


def to_tokens(result: Any, layout: Layout, target: Grid) -> Tensor:
    """What a module returned as tokens `[B, target.tokens, C]`."""
    tensor = first_tensor(result)
    if tensor.ndim == 4:
        return from_layout(tensor, "last" if layout == "last" else "map")
    return tensor[:, None] if tensor.ndim == 2 else tensor


def target_of(result: Any, layout: Layout, source: Grid) -> Grid:
    """Grid of what a module returned: what it says itself, or what the number of tokens tells."""
    if isinstance(result, (tuple, list)):
        named = [one for one in result if isinstance(one, Grid)]
        if named:
            return named[0]
    tensor = first_tensor(result)
    if tensor.ndim == 4:
        rows, columns = tensor.shape[1:3] if layout == "last" else tensor.shape[2:]
        return Grid(rows, columns)
    return grid_of(tensor.shape[1] if tensor.ndim == 3 else 1, source)


def grid_of(tokens: int, source: Grid) -> Grid:
    """Grid of so many tokens that came from a `source`: the same, a smaller one, or a line."""
    for aux in dict.fromkeys((source.aux, 0, 1, 2)):  # a class token, and one for a teacher
        for stride in (1, 2, 4, 8, 16, 32):
            smaller = Grid(math.ceil(source.height / stride), math.ceil(source.width / stride), aux)
            if smaller.tokens == tokens:
                return smaller
    return Grid(1, tokens)


def one_line(error: Exception) -> str:
    """The first line of what an error says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
