"""Grad-CAM, for comparison, through the package `grad-cam`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .capture import Capture, Layer, capture, evaluating
from .maps import Maps
from .rollout import pooling


def grad_cam(
    model: nn.Module,
    images: Tensor,
    *,
    classes: Sequence[int] | None = None,
    layer: int | str | None = None,
) -> Maps:
    """Which places of a layer's map speak for a class (Selvaraju et al., 2017).

    Needs the extra `explain`: `pip install nearsight[explain]`.

    Args:
        model: A classifier.
        images: `[B, C, H, W]`.
        classes: The class asked about, one for each image; None: the model's answer.
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
        raise ValueError("Grad-CAM asks which places speak for a class; give a classifier with a head.")
    chosen = seen.layer(-1 if layer is None else layer)
    answers = output.argmax(dim=1).tolist() if classes is None else list(classes)
    if len(answers) != len(images):
        raise ValueError(f"{len(answers)} classes were given for {len(images)} images; give one for each.")
    if wrong := [number for number in answers if not 0 <= number < output.shape[1]]:
        raise ValueError(f"There is no class {wrong[0]}; the model has {output.shape[1]}, counted from 0.")

    def to_map(tokens: Tensor) -> Tensor:
        tokens = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
        patches = tokens[:, chosen.grid.aux :].transpose(1, 2)
        return patches.unflatten(2, (chosen.grid.height, chosen.grid.width))

    targets = [ClassifierOutputTarget(number) for number in answers]
    given = images.detach().clone().requires_grad_()  # so that a model without gradients of its own has some
    place = target_layer(seen, chosen)
    camera = GradCAM(model, [place], reshape_transform=to_map)
    with evaluating(model), keeping_gradients(model), torch.enable_grad(), camera as cam:
        cam(input_tensor=given, targets=targets)
        kept = cam.activations_and_grads
        # The package enlarges and smooths what it returns; the map itself has one number for each token.
        values = cam.get_cam_image(given, place, targets, kept.activations[0].numpy(), kept.gradients[0].numpy())
    values = np.maximum(values, 0)[:, None].astype(np.float32)
    titles = (f"Grad-CAM, layer {chosen.name}",)
    raw: dict[str, Any] = {"classes": np.array(answers)}
    return Maps("grad-cam", values, titles, chosen.cell, seen.image_size, "speaks for the class", raw=raw)


def target_layer(seen: Capture, layer: Layer) -> nn.Module:
    """Where to look: behind a block; of the last one before a class token, in front of its attention.

    What the patches are behind the last block does not reach a head that reads the class token alone.
    """
    reads_token = pooling(seen.model)[0] == "token" and layer.grid.aux > 0
    is_last = layer is seen.layers[-1]
    return layer.module.norm1 if reads_token and is_last else layer.module  # type: ignore[return-value]


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
