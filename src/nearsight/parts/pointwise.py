"""1x1 convolutions, applied to tokens, and the activations of the convolutional parts."""

from typing import Literal

from torch import nn

Activation = Literal["gelu", "relu", "relu6", "hswish"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hswish": nn.Hardswish,
}


class Conv1x1(nn.Linear):
    """A 1x1 convolution as a linear layer on tokens; unlike a transformer's linear layer it keeps the default init."""


def make_activation(name: str) -> nn.Module:
    """An activation by its name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"act={name!r} is not known; use one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]()
