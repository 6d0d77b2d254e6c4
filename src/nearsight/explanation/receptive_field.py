"""The effective receptive field: which pixels a token really depends on (Luo et al., 2016)."""

from typing import Any

import torch
from torch import Tensor, nn

from .capture import capture, evaluating
from .maps import Maps, Place, to_numpy


def receptive_field(
    model: nn.Module,
    images: Tensor,
    *,
    layer: int | str = -1,
    at: Place | None = None,
) -> Maps:
    """How strongly the token at a place depends on each pixel: the size of its gradient, summed over channels.

    Args:
        model: The model; not a folded one, which has no gradients.
        images: `[B, C, H, W]`.
        layer: The layer behind which the token is looked at.
        at: The pixel (x, y) whose token is meant; None: the middle of the image.

    Returns:
        A map for each image in pixels, each with sum one, in `values`; their mean over the images in `raw["mean"]`.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("dwnet_nano", num_classes=3)
        >>> receptive_field(model, torch.randn(2, 3, 32, 32), layer="1.1").values.shape
        (2, 1, 32, 32)
    """
    seen = capture(model, images)
    chosen = seen.layer(layer)
    x, y = at if at is not None else (seen.image_size[1] / 2, seen.image_size[0] / 2)
    seen.check_place(x, y)
    place = chosen.token_at(x, y)
    given = images.detach().clone().requires_grad_()
    with torch.enable_grad(), evaluating(model):
        features = output_of(model, chosen.module, given)  # [B, N, C]
        (gradient,) = torch.autograd.grad(features[:, place].sum(), given)
    strength = gradient.abs().sum(dim=1, keepdim=True)  # [B, 1, H, W]
    total = strength.sum(dim=(2, 3), keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError(f"The token at ({x:g}, {y:g}) behind layer {chosen.name} depends on no pixel of an image.")
    values = to_numpy(strength / total)
    title = f"layer {chosen.name} at ({x:g}, {y:g})"
    label, raw = "share of the dependence", {"mean": values.mean(axis=(0, 1))}
    return Maps("receptive-field", values, (title,), (1, 1), seen.image_size, label, marks=((x, y),), raw=raw)


class Found(Exception):
    """What a layer put out; nothing behind it needs to run."""

    def __init__(self, tokens: Tensor):
        self.tokens = tokens


def output_of(model: nn.Module, module: nn.Module, images: Tensor) -> Tensor:
    """What a module of the model puts out for these images: tokens `[B, N, C]`."""

    def stop(_: nn.Module, __: Any, output: Tensor) -> None:
        raise Found(output.flatten(1, 2) if output.ndim == 4 else output)

    handle = module.register_forward_hook(stop)
    try:
        model(images)
    except Found as found:
        return found.tokens
    finally:
        handle.remove()
    raise ValueError(f"{type(module).__name__} did not run, so there is nothing to look at.")
