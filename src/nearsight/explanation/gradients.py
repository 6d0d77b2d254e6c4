"""Maps from gradients: Grad-CAM of a class, and the effective receptive field of a token."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .capture import capture, evaluating
from .maps import Maps, Pixel, to_numpy
from .rollout import pooling


def grad_cam(
    model: nn.Module,
    images: Tensor,
    *,
    classes: Sequence[int] | None = None,
    layer: int | str | None = None,
) -> Maps:
    """Which positions of a layer's map speak for a class (Selvaraju et al., 2017).

    Needs the extra `explain`: `pip install nearsight[explain]`.

    Args:
        model: A classifier.
        images: `[B, C, H, W]`.
        classes: The class asked about, one for each image; None: the model's prediction.
        layer: Number or name of the layer whose map is looked at; None: the last.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("localvit_nano", num_classes=3)
        >>> grad_cam(model, torch.randn(1, 3, 32, 32), classes=[2]).values.shape
        (1, 1, 8, 8)
    """
    try:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
    except ImportError as error:
        raise ValueError(f"Grad-CAM needs a package ({error.name}); run `pip install nearsight[explain]`.") from None
    seen = capture(model, images)
    output = seen.output
    headless = getattr(model, "num_classes", None) == 0
    if not isinstance(output, Tensor) or output.ndim != 2 or headless:
        raise ValueError("Grad-CAM asks which positions speak for a class; give a classifier with a head.")
    chosen = seen.layer(-1 if layer is None else layer)
    predictions = output.argmax(dim=1).tolist() if classes is None else list(classes)
    if len(predictions) != len(images):
        raise ValueError(f"{len(predictions)} classes were given for {len(images)} images; give one for each.")
    if wrong := [number for number in predictions if not 0 <= number < output.shape[1]]:
        raise ValueError(f"There is no class {wrong[0]}; the model has {output.shape[1]}, counted from 0.")

    def to_map(tokens: Tensor) -> Tensor:
        tokens = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
        patches = tokens[:, chosen.grid.aux :].transpose(1, 2)
        return patches.unflatten(2, (chosen.grid.height, chosen.grid.width))

    targets = [ClassifierOutputTarget(number) for number in predictions]
    given = images.detach().clone().requires_grad_()  # so that a model without gradients of its own has some
    # Behind the block; but what patches are behind the last one does not reach a head that reads the class token alone.
    behind_token = chosen is seen.layers[-1] and chosen.grid.aux > 0 and pooling(model)[0] == "token"
    target = chosen.module.norm1 if behind_token else chosen.module
    camera = GradCAM(model, [target], reshape_transform=to_map)
    with evaluating(model), keeping_gradients(model), torch.enable_grad(), camera as cam:
        cam(input_tensor=given, targets=targets)
        kept = cam.activations_and_grads
        # The package enlarges and smooths what it returns; the map itself has one number for each token.
        values = cam.get_cam_image(given, target, targets, kept.activations[0].numpy(), kept.gradients[0].numpy())
    values = np.maximum(values, 0)[:, None].astype(np.float32)
    titles = (f"Grad-CAM, layer {chosen.name}",)
    raw: dict[str, Any] = {"classes": np.array(predictions)}
    return Maps("grad-cam", values, titles, chosen.cell, seen.image_size, "class activation", raw=raw)


@contextmanager
def keeping_gradients(model: nn.Module) -> Iterator[None]:
    """Put the gradients of the parameters back as they were."""
    before = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(model.parameters(), before, strict=True):
            parameter.grad = gradient


def receptive_field(
    model: nn.Module,
    images: Tensor,
    *,
    layer: int | str = -1,
    at: Pixel | None = None,
) -> Maps:
    """How strongly the token at a pixel depends on each pixel: the size of its gradient, summed over channels.

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
    seen.check_pixel(x, y)
    index = chosen.token_at(x, y)
    given = images.detach().clone().requires_grad_()
    with torch.enable_grad(), evaluating(model):
        features = output_of(model, chosen.module, given)  # [B, N, C]
        (gradient,) = torch.autograd.grad(features[:, index].sum(), given)
    strength = gradient.abs().sum(dim=1, keepdim=True)  # [B, 1, H, W]
    total = strength.sum(dim=(2, 3), keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError(f"The token at ({x:g}, {y:g}) behind layer {chosen.name} depends on no pixel of an image.")
    values = to_numpy(strength / total)
    title = f"layer {chosen.name} at ({x:g}, {y:g})"
    label, raw = "fraction of the gradient", {"mean": values.mean(axis=(0, 1))}
    return Maps("receptive-field", values, (title,), (1, 1), seen.image_size, label, marks=((x, y),), raw=raw)


class LayerReached(Exception):
    """What a layer put out; nothing behind it needs to run."""

    def __init__(self, tokens: Tensor):
        self.tokens = tokens


def output_of(model: nn.Module, module: nn.Module, images: Tensor) -> Tensor:
    """What a module of the model puts out for these images: tokens `[B, N, C]`."""

    def stop(_: nn.Module, __: Any, output: Tensor) -> None:
        raise LayerReached(output.flatten(1, 2) if output.ndim == 4 else output)

    handle = module.register_forward_hook(stop)
    try:
        model(images)
    except LayerReached as found:
        return found.tokens
    finally:
        handle.remove()
    raise ValueError(f"{type(module).__name__} did not run, so there is nothing to look at.")
