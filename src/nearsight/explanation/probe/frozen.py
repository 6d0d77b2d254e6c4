"""A layer's connections, given the weights that it predicts for an input.

An attention layer computes `y = A(x) x`. Its derivative has two terms: `A(x)`, the connections, and what `A` changes
with `x`. The dwconv paper speaks of the first ("given the attention weights"). `freeze_predicted` makes a backward pass
return that term alone, for any module: it goes through the recorded graph, and

- where two tensors that both depend on the input are multiplied, the one that went through more layers (a softmax, a
  sigmoid, a prediction) is the weight and counts as a constant;
- activations and norms, which connect nothing, let gradients pass: the slope of a ReLU is no connection weight.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
        before = {place: passed[made] for place, (made, _) in enumerate(node.next_functions) if made is not None}
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
        return scaled(norm_weight(node, name))
    factors = {place: rank for place, rank in before.items() if place in KEPT.get(name, before)}
    if len(factors) < 2 or not (name in PRODUCTS or name in KEPT or is_own(node)):
        return None
    top = max(factors.values())
    weights = [place for place, rank in factors.items() if rank == top]
    return None if len(weights) == len(factors) else without(*weights)  # of equals none is the other's weight


def is_own(node: Node) -> bool:
    """Whether a node is somebody's `torch.autograd.Function`, of which nothing is known but its inputs."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def without(*places: int) -> Callable[[Gradients, Gradients], Gradients]:
    """No gradient for these inputs."""

    def change(inputs: Gradients, outputs: Gradients) -> Gradients:
        return tuple(
            torch.zeros_like(one) if place in places and one is not None else one for place, one in enumerate(inputs)
        )

    return change


def passing(inputs: Gradients, outputs: Gradients) -> Gradients:
    """The gradient as it came."""
    return (outputs[0], *inputs[1:])


def norm_weight(node: Node, name: str) -> Tensor | None:
    """The learned scale of a norm, in a shape that multiplies its output; None if there is none."""
    weight = getattr(node, "_saved_weight", None)
    return weight[:, None, None] if weight is not None and name == "NativeGroupNorm" else weight


def scaled(weight: Tensor | None) -> Callable[[Gradients, Gradients], Gradients]:
    """The gradient as it came, times the learned scale of a norm."""

    def change(inputs: Gradients, outputs: Gradients) -> Gradients:
        slope = outputs[0]
        if slope is not None and weight is not None:
            slope = slope * weight
        return (slope, *inputs[1:])

    return change
