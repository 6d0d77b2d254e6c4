"""What is probed: any module, seen as a function from tokens on a grid to tokens on a grid, and rows of its Jacobian.

An attention layer computes `y = A(x) x`. Its derivative has two terms: `A(x)`, the connections, and what `A` changes
with `x`. The dwconv paper speaks of the first ("given the attention weights"). `freeze_predicted` makes a backward pass
return that term alone, for any module: it goes through the recorded graph, and

- where two tensors that both depend on the input are multiplied, the one that went through more layers (a softmax, a
  sigmoid, a prediction) is the weight and counts as a constant;
- activations and norms, which connect nothing, let gradients pass: the slope of a ReLU is no connection weight.
"""

import copy
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...console import first_line
from ...lattice import Grid
from ...parts.slots import PartModule, identity_rows

Layout = Literal["map", "last", "tokens", "flat"]
LAYOUTS = {"map": "[B, C, H, W]", "last": "[B, H, W, C]", "tokens": "[B, N, C]", "flat": "[B, F]"}


@dataclass(frozen=True)
class ProbedLayer:
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
        """Positions of the input per position of the output, down and across."""
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
) -> ProbedLayer:
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
        >>> probed = wrap(nn.Conv2d(4, 6, 2, stride=2), torch.zeros(1, 4, 8, 10))
        >>> probed.source, probed.target, probed.out_channels
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
                raise ValueError(f"{name or type(module).__name__} can't be called: {first_line(error)}.") from None
    target = target_of(first, layout, source)

    def run(tokens: Tensor) -> Tensor:
        return to_tokens(inputs.call(frozen, tokens), layout)

    spread = float(example.double().std()) if example.numel() > 1 and float(example.double().std()) > 0 else 1.0
    out = to_tokens(first, layout).shape[-1]
    return ProbedLayer(name or type(module).__name__, run, source, channels, target, out, spread, dtype)


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
        """Call the module with `tokens` `[B, N, C]` instead of the probed row."""
        given = to_layout(tokens, self.layout, self.grid)
        rows = len(self.example)
        if rows > 1:
            whole = self.example.repeat(len(given), *[1] * (given.ndim - 1)).unflatten(0, (len(given), rows))
            around = (whole[:, : self.middle], given[:, None], whole[:, self.middle + 1 :])
            given = torch.cat(around, dim=1).flatten(0, 1)
        result = call_module(module, given, self.rest, self.options)
        if rows == 1:
            return result
        tensor, *others = result if isinstance(result, (tuple, list)) else (result,)
        return (tensor.unflatten(0, (-1, rows))[:, self.middle], *others)


def call_module(module: nn.Module, given: Tensor, rest: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The module's prediction; an attention layer of torch gets the tokens as queries, keys and values."""
    if isinstance(module, nn.MultiheadAttention):
        tokens = given if module.batch_first else given.transpose(0, 1)
        mixed, _ = module(tokens, tokens, tokens, need_weights=False)
        return mixed if module.batch_first else mixed.transpose(0, 1)
    if isinstance(module, nn.TransformerEncoderLayer) and not module.self_attn.batch_first:
        return module(given.transpose(0, 1), *rest, **options).transpose(0, 1)
    return module(given, *rest, **options)


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


def to_tokens(result: Any, layout: Layout) -> Tensor:
    """What a module returned as tokens `[B, N, C]`."""
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


@torch.no_grad()
def strip_projections(module: nn.Module) -> nn.Module:
    """Make the layers of values and outputs the identity, in the module itself; returns it.

    The dwconv paper's analysis ignores these layers (footnote 1): they mix channels at a position, whatever stands
    between them. Without them a module shows its own connections. Queries and keys keep their layers, since weights are
    predicted with them.

    Example:
        >>> from torch import nn
        >>> layer = strip_projections(nn.MultiheadAttention(8, 2))
        >>> torch.equal(layer.out_proj.weight, torch.eye(8))
        True
    """
    for part in module.modules():
        if isinstance(part, PartModule):
            part.strip_projections()
        elif isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            identity_rows(part.in_proj_weight, part.embed_dim, last=True)
            identity_rows(part.out_proj.weight, part.embed_dim)
        joint = getattr(part, "qkv", None)
        if isinstance(joint, nn.Linear):  # timm's attention layers
            identity_rows(joint.weight, joint.in_features, last=True)
        out = getattr(part, "proj", None)
        if isinstance(out, nn.Linear) and out.in_features == out.out_features:
            identity_rows(out.weight, out.out_features)
    return module


BUDGET = 2**22  # numbers in the copies of an input that go through a module at once


def draw(probed: ProbedLayer, seed: int) -> Tensor:
    """A random input `[1, N, C]`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, probed.source.tokens, probed.channels)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(probed.dtype) * probed.spread


def jacobian_rows(probed: ProbedLayer, tokens: Tensor, cotangents: Sequence[Tensor], *, given_weights: bool) -> Tensor:
    """The derivative of chosen outputs by all inputs.

    Copies of the input go through the module side by side, and each is asked for another output, so that any module
    that treats the images of a batch alone is served, in pieces that fit into memory.

    Args:
        probed: What is probed.
        tokens: The input `[1, N, C]`.
        cotangents: Which outputs: each `[M, D]`, a weight for every output neuron.
        given_weights: Count predicted weights as constants, and activations and norms as nothing.

    Returns:
        `[len(cotangents), N, C]`.
    """
    cost = max(tokens[0].numel(), probed.target.tokens * probed.out_channels)
    at_once = max(1, min(32, BUDGET // cost))
    rows = []
    for start in range(0, len(cotangents), at_once):
        piece = torch.stack(list(cotangents[start : start + at_once]))
        copies = tokens.expand(len(piece), -1, -1).clone().requires_grad_()
        with torch.enable_grad():
            output = probed.run(copies)
            if given_weights:
                freeze_predicted(output)
            if output.grad_fn is None:
                rows.append(torch.zeros_like(copies).detach())
                continue
            (row,) = torch.autograd.grad(output, copies, piece, allow_unused=True)
        rows.append(torch.zeros_like(copies).detach() if row is None else row.detach())
    return torch.cat(rows)


Picker = Callable[[int], Tensor]


def one_channel(probed: ProbedLayer, position: int, channel: int) -> Tensor:
    """Asks for one output neuron: `[M, D]`."""
    asked = torch.zeros(probed.target.tokens, probed.out_channels, dtype=probed.dtype)
    asked[position, channel] = 1
    return asked


def mixed_channels(probed: ProbedLayer, position: int, weights: Tensor) -> Tensor:
    """Asks for a weighted sum `[D]` of one position's channels."""
    asked = torch.zeros(probed.target.tokens, probed.out_channels, dtype=probed.dtype)
    asked[position] = weights.to(probed.dtype)
    return asked


def random_weights(probed: ProbedLayer, seed: int, *, signs: bool = False) -> Tensor:
    """Random weights `[D]` for a sum over output channels: normal, or plus and minus one."""
    drawn = torch.randn(probed.out_channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(drawn < 0, -1.0, 1.0) if signs else drawn


def tolerance(probed: ProbedLayer) -> float:
    """Below which fraction of the largest weight a difference is rounding."""
    return 1e-8 if probed.dtype == torch.float64 else 1e-4


def spread_out(count: int, most: int) -> list[int]:
    """At most so many of `count` numbers: the first half of them neighbours, the others far from each other.

    Example:
        >>> spread_out(96, 6), spread_out(3, 6)
        ([0, 1, 2, 33, 64, 95], [0, 1, 2])
    """
    if count <= most:
        return list(range(count))
    near = most // 2
    far = most - near
    return [*range(near), *(near - 1 + math.ceil((count - near) * (step + 1) / far) for step in range(far))]


Node = Any  # torch.autograd.graph.Node
Gradients = tuple[Tensor | None, ...]

GATES = ("Softmax", "LogSoftmax", "Sigmoid", "Hardsigmoid", "Tanh")
PASSING = (
    "Relu",
    "Gelu",
    "Silu",
    "Hardswish",
    "Hardtanh",
    "LeakyRelu",
    "Elu",
    "Softplus",
    "Mish",
    "Threshold",
    "Clamp",
    "ClampMin",
    "ClampMax",
    "PreluKernel",
    *GATES,  # where they stand alone; as a factor of a product they are its weight
)
LAYERS = ("Mm", "Addmm", "Bmm", "Baddbmm", "Convolution", "Linear")  # each counts one on the way from the input
PRODUCTS = ("Mul", "Div", "Dot", "Mv", "GridSampler2D", "EmbeddingBag", "DeformConv2D", *LAYERS)
KEPT = {"Addcmul": (1, 2), "Addcdiv": (1, 2), "Addmm": (1, 2), "Baddbmm": (1, 2)}  # inputs that are multiplied
GATE = 1000  # layers that a gate counts for


def kind(node: Node) -> str:
    """The operator of a node: `Mul` of `MulBackward0`."""
    return re.sub(r"(Backward)?\d*$", "", node.name().split("::")[-1])


def in_order(root: Node) -> list[Node]:
    """All nodes that lead to `root`, inputs before what is made of them."""
    done: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            done.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((before, False) for before, _ in node.next_functions if before is not None)
    return done


def freeze_predicted(output: Tensor) -> None:
    """Let the backward pass of this output see predicted weights as constants, and activations and norms as nothing."""
    if output.grad_fn is None:
        return
    passed: dict[Node, int] = {}  # layers between the input and a node
    for node in in_order(output.grad_fn):
        before = {index: passed[made] for index, (made, _) in enumerate(node.next_functions) if made is not None}
        name = kind(node)
        passed[node] = max(before.values(), default=0) + (GATE if name in GATES else name in LAYERS)
        if change := replacement(node, name, before):
            node.register_hook(change)


def replacement(node: Node, name: str, before: dict[int, int]) -> Callable[[Gradients, Gradients], Gradients] | None:
    """What the gradients of a node's inputs are replaced with; None leaves them."""
    if name.startswith("ScaledDotProduct"):
        return without(0, 1)  # queries and keys
    if name == "Convolution":
        return without(1) if 1 in before else None
    if name in PASSING:
        return passing
    if name in ("NativeLayerNorm", "FusedRmsNorm", "RmsNorm", "NativeGroupNorm"):
        weight = getattr(node, "_saved_weight", None)
        return scaled(weight[:, None, None] if weight is not None and name == "NativeGroupNorm" else weight)
    is_own = isinstance(node, torch.autograd.function.BackwardCFunction)  # of which only the inputs are known
    factors = {index: rank for index, rank in before.items() if index in KEPT.get(name, before)}
    if len(factors) < 2 or not (name in PRODUCTS or name in KEPT or is_own):
        return None
    top = max(factors.values())
    weights = [index for index, rank in factors.items() if rank == top]
    return None if len(weights) == len(factors) else without(*weights)  # of equals none is the other's weight


def without(*indices: int) -> Callable[[Gradients, Gradients], Gradients]:
    """No gradient for these inputs."""

    def change(inputs: Gradients, outputs: Gradients) -> Gradients:
        return tuple(
            torch.zeros_like(one) if index in indices and one is not None else one for index, one in enumerate(inputs)
        )

    return change


def passing(inputs: Gradients, outputs: Gradients) -> Gradients:
    """The gradient as it came."""
    return (outputs[0], *inputs[1:])


def scaled(weight: Tensor | None) -> Callable[[Gradients, Gradients], Gradients]:
    """The gradient as it came, times the learned scale of a norm."""

    def change(inputs: Gradients, outputs: Gradients) -> Gradients:
        slope = outputs[0]
        if slope is not None and weight is not None:
            slope = slope * weight
        return (slope, *inputs[1:])

    return change
