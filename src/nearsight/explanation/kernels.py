"""The kernels that a convolution, or attention in a sliding window, has at chosen places."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..ops.attention_matrix import KernelMatrix
from ..parts.depthwise import DepthWiseModule, DynamicKernel, InhomogeneousKernel, SharedKernel
from ..parts.sliding import SlidingModule
from .attention import chosen_tokens, middle
from .capture import Capture, Layer, Subject, capture
from .maps import Floats, Place, to_numpy


@dataclass(frozen=True)
class Kernels:
    """Kernels at places of images.

    Attributes:
        weights: `[B, groups, places, side, side]`; channels of a group share a kernel.
        kind: `static`: parameters, the same everywhere; `per place`: parameters of the place; `per image`: predicted
            for the image, the same everywhere in it; `predicted`: predicted at the place; `attention`: its shares of
            the window.
        places: Middle of each place in pixels (x, y).
        cell: Height and width of a token's place in pixels.
        image_size: Height and width of the images in pixels.
        layer: Name of the layer, `stage.block`.
    """

    weights: Floats
    kind: str
    places: tuple[Place, ...]
    cell: tuple[int, int]
    image_size: tuple[int, int]
    layer: str

    def arrays(self) -> dict[str, NDArray]:
        """Everything as arrays, for a `.npz` file."""
        import numpy as np

        return {"weights": self.weights, "places": np.array(self.places), "cell": np.array(self.cell)}


def kernels(
    model: Subject,
    images: Tensor | None = None,
    *,
    layer: int | str | None = None,
    at: Place | Sequence[Place] | None = None,
) -> Kernels:
    """The kernels of a layer at chosen places: dynamic depth-wise convolution, and all that slides a window.

    Args:
        model: The model, or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        layer: Number or name of the layer; None takes the last one with kernels.
        at: Pixel (x, y), or several; None: the middle of the image.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("iddwnet_nano", num_classes=3)
        >>> found = kernels(model, torch.randn(1, 3, 32, 32), at=[(3, 3), (20, 9)])
        >>> found.kind, found.weights.shape
        ('predicted', (1, 16, 2, 5, 5))
    """
    seen = capture(model, images)
    chosen = seen.layer(layer) if layer is not None else last_with_kernels(seen)
    mixing = chosen.mixing
    if not isinstance(mixing, KernelMatrix):
        raise ValueError(
            f"Layer {chosen.name} has no kernels; depth-wise convolutions and attention in sliding windows have "
            "(`nearsight models dwnet`)."
        )
    tokens = chosen_tokens(seen, chosen, at, None)
    with torch.no_grad():
        weights = to_numpy(mixing.kernels(torch.tensor(tokens, device=seen.images.device)))
    places = tuple(middle(chosen, token) for token in tokens)
    return Kernels(weights, kind_of(chosen), places, chosen.cell, seen.image_size, chosen.name)


def last_with_kernels(seen: Capture) -> Layer:
    """The last layer that has kernels."""
    for layer in reversed(seen.layers):
        mixer = getattr(layer.module, "mixer", None)
        if isinstance(getattr(mixer, "mixer", mixer), (DepthWiseModule, SlidingModule)):
            return layer
    raise ValueError(
        "No layer of this model has kernels; depth-wise convolutions and attention in sliding windows have "
        "(`nearsight models dwnet`)."
    )


def kind_of(layer: Layer) -> str:
    """What kind of kernels a layer has."""
    mixer = layer.module.mixer
    mixer = getattr(mixer, "mixer", mixer)  # behind squeeze-and-excitation
    if isinstance(mixer, SlidingModule):
        return "attention"
    spatial = mixer.spatial  # type: ignore[union-attr]
    if isinstance(spatial, SharedKernel):
        return "static" if spatial.weight.shape[1:3] == (1, 1) else "per place"
    return {DynamicKernel: "per image", InhomogeneousKernel: "predicted"}.get(type(spatial), "static")  # type: ignore[arg-type]
