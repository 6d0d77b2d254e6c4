"""Arithmetic that a model made for inference alone can do beforehand.

A batch norm in evaluation is a multiplication and an addition per channel, so it disappears into the layer on either
side of it. What depends on the weights and the grid alone is computed once for each grid.
"""

from collections.abc import Callable
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

GRIDS_KEPT = 4  # of each table: a large map's table is large
Method = TypeVar("Method", bound=Callable[..., Any])


def scale_and_shift(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """What a batch norm multiplies by and adds in evaluation, `[C]` each, in float64."""
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise ValueError("A batch norm without running statistics can't be folded; train it with them.")
    scale = (variance.double() + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight.double()
    shift = -mean.double() * scale
    return scale, shift + norm.bias.double() if norm.affine else shift


@torch.no_grad()
def fold_behind(layer: nn.Linear | nn.Conv2d, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
    """Change `layer` into what computes `norm(layer(x))`.

    Example:
        >>> layer, norm, tokens = nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), torch.randn(5, 4)
        >>> before = norm(layer(tokens))
        >>> fold_behind(layer, norm)
        >>> torch.allclose(layer(tokens), before, atol=1e-6)
        True
    """
    scale, shift = scale_and_shift(norm)
    weight, bias = layer.weight, layer.bias
    if bias is not None:
        shift = shift + bias.double() * scale
    scaled = weight.double() * scale.view(-1, *[1] * (weight.ndim - 1))
    layer.weight = frozen(scaled, like=weight)
    layer.bias = frozen(shift, like=weight)


@torch.no_grad()
def fold_before(norm: nn.BatchNorm1d | nn.BatchNorm2d, layer: nn.Linear) -> None:
    """Change `layer` into what computes `layer(norm(x))`; of no use in front of a convolution that pads with zeros."""
    scale, shift = scale_and_shift(norm)
    weight = layer.weight.double()
    added = weight @ shift
    if layer.bias is not None:
        added = added + layer.bias.double()
    layer.weight = frozen(weight * scale, like=layer.weight)
    layer.bias = frozen(added, like=layer.weight)


def frozen(values: Tensor, like: Tensor) -> nn.Parameter:
    """A parameter that is not trained, in the type of another."""
    return nn.Parameter(values.to(like.dtype), requires_grad=False)


def once_per_grid(method: Method) -> Method:
    """Let a module that was folded compute this once for each set of arguments, which must say all but the weights.

    A graph that is being recorded computes it itself, as its sizes may be symbols.
    """

    @wraps(method)
    def remember(self: nn.Module, *arguments: Any) -> Any:
        if not getattr(self, "folded", False) or torch.compiler.is_compiling():
            return method(self, *arguments)
        like = next(chain(self.parameters(), self.buffers()))
        known: dict[Any, Any] = self.__dict__.setdefault("known", {})
        key = (method.__name__, arguments, like.device, like.dtype)
        if key not in known:
            while sum(name == method.__name__ for name, *_ in known) >= GRIDS_KEPT:
                del known[next(k for k in known if k[0] == method.__name__)]
            # Kept for calls in other modes: a tensor made in inference mode could not be used where gradients flow.
            with torch.inference_mode(False), torch.no_grad():
                known[key] = method(self, *arguments)
        return known[key]

    return remember  # type: ignore[return-value]
