"""Layers of torch in writing: `torch:Conv2d(16, 16, 3, groups=16)`, read without running it."""

import ast
from difflib import get_close_matches
from typing import Any

from torch import nn

# fmt: off
ALLOWED = (
    "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool2d", "BatchNorm1d",
    "BatchNorm2d", "ChannelShuffle", "Conv2d", "ConvTranspose2d", "Dropout", "ELU", "Flatten", "GELU",
    "GLU", "GroupNorm", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "InstanceNorm2d", "LayerNorm",
    "LeakyReLU", "Linear", "LocalResponseNorm", "MaxPool2d", "Mish", "MultiheadAttention", "PReLU", "PixelShuffle",
    "PixelUnshuffle", "RMSNorm", "ReLU", "ReLU6", "SELU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus",
    "Tanh", "TransformerEncoderLayer", "Unflatten", "Upsample", "ZeroPad2d",
)
# fmt: on
LARGEST = 10**9  # parameters


def parse_layer(text: str) -> nn.Module:
    """The layer that a text describes: a name of `torch.nn` and its arguments, which are plain values or layers.

    Example:
        >>> parse_layer("Conv2d(16, 16, 3, groups=16)")
        Conv2d(16, 16, kernel_size=(3, 3), stride=(1, 1), groups=16)
        >>> parse_layer("Sequential(Linear(4, 8), GELU(), Linear(8, 4))")[1]
        GELU(approximate='none')
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"torch:{text} is no layer; write it like torch:Conv2d(16, 16, 3, groups=16).") from None
    if not isinstance(tree, ast.Call):
        raise ValueError(f"torch:{text} is no layer; write its arguments too, like torch:Linear(16, 16).")
    return build(tree, text)


def build(call: ast.Call, text: str) -> nn.Module:
    """The layer of a parsed call."""
    if not isinstance(call.func, ast.Name) or call.func.id not in ALLOWED:
        name = ast.unparse(call.func)
        near = get_close_matches(name, ALLOWED, 1)
        hint = f"did you mean {near[0]}?" if near else f"it can be one of {', '.join(sorted(ALLOWED))}."
        raise ValueError(f"torch:{text} asks for {name}, which is not a layer that can be probed; {hint}")
    arguments = [value(one, text) for one in call.args]
    if any(word.arg is None for word in call.keywords):
        raise ValueError(f"torch:{text} has ** in it; write arguments as name=value.")
    named = {str(word.arg): value(word.value, text) for word in call.keywords}
    try:
        refuse_huge(call.func.id, arguments, named)
        return getattr(nn, call.func.id)(*arguments, **named)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"torch:{text} can't be made: {reason}") from None


def value(node: ast.expr, text: str) -> Any:
    """A plain value, or a layer inside a layer."""
    if isinstance(node, ast.Call):
        return build(node, text)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise ValueError(
            f"torch:{text} has {ast.unparse(node)!r} as an argument; only numbers, texts, True, False, None, tuples "
            "and layers are taken."
        ) from None


def refuse_huge(name: str, arguments: list[Any], named: dict[str, Any]) -> None:
    """Refuse a layer that would not fit into memory, before it is made."""
    import torch

    if name == "Sequential":
        return
    with torch.device("meta"):
        layer = getattr(nn, name)(*arguments, **named)
    count = sum(parameter.numel() for parameter in layer.parameters())
    if count > LARGEST:
        raise ValueError(f"it would have {count:,} parameters; {LARGEST:,} are the most.")
