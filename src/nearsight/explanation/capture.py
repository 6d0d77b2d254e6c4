"""Look into a model while it answers: what goes into each layer, and how stages are joined.

The model runs as always, fused kernels and all; hooks keep what its layers were given, and attention is computed again
from that, for the layers and rows that are asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..lattice import Grid
from ..ops.attention_matrix import AttentionMatrix
from ..ops.back_projection import BackProjection


@dataclass(eq=False)
class Layer:
    """One layer as it worked on these images.

    Attributes:
        number: Its place among all layers, from 0.
        stage: Number of its stage, from 1.
        block: Its place in the stage, from 1.
        grid: The lattice of its tokens.
        cell: Height and width of a token's place in pixels.
        module: The block.
        recompute: Computes its mixing weights; None for a layer that does not mix positions.
    """

    number: int
    stage: int
    block: int
    grid: Grid
    cell: tuple[int, int]
    module: nn.Module
    recompute: Callable[[], AttentionMatrix] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """`stage.block`, both from 1, as `Capture.layer` takes it."""
        return f"{self.stage}.{self.block}"

    @cached_property
    def mixing(self) -> AttentionMatrix:
        """The weights with which it mixes positions.

        Raises:
            ValueError: It does not mix positions, or in a way that is not known.
        """
        if self.recompute is None:
            raise ValueError(
                f"Layer {self.name} has no mixer, so no token listens to another there; choose a layer that has one."
            )
        with torch.no_grad():
            return self.recompute()

    def token_at(self, x: float, y: float) -> int:
        """Number of the token whose place holds the pixel (x, y), auxiliary tokens counted."""
        row, column = int(y // self.cell[0]), int(x // self.cell[1])
        row, column = min(max(row, 0), self.grid.height - 1), min(max(column, 0), self.grid.width - 1)
        return self.grid.aux + row * self.grid.width + column


@dataclass(eq=False)
class Capture:
    """A model's work on a batch of images.

    Attributes:
        model: The model.
        images: What it was given `[B, C, H, W]`.
        output: What it answered.
        image_size: Height and width of the images in pixels; what a detector pads is not counted.
        first: The lattice behind the embedding.
        cell: Height and width of a patch in pixels.
        steps: Layers, and the passages between stages, in the order in which they worked.
    """

    model: nn.Module
    images: Tensor
    output: Any
    image_size: tuple[int, int]
    first: Grid
    cell: tuple[int, int]
    steps: list[Layer | BackProjection]

    @property
    def layers(self) -> list[Layer]:
        """The layers, first to last."""
        return [step for step in self.steps if isinstance(step, Layer)]

    @property
    def passages(self) -> list[BackProjection]:
        """The ways back through the merges, first to last."""
        return [step for step in self.steps if isinstance(step, BackProjection)]

    def layer(self, which: int | str = -1) -> Layer:
        """A layer by its number (negative ones count from the end), or by name such as `3.2`: stage 3, block 2."""
        layers = self.layers
        if isinstance(which, str) and "." in which:
            found = [layer for layer in layers if layer.name == which]
            if not found:
                raise ValueError(f"There is no layer {which}; there are {layers[0].name} to {layers[-1].name}.")
            return found[0]
        try:
            number = int(which)
            return layers[number]
        except (ValueError, IndexError):
            raise ValueError(
                f"There is no layer {which}; give a number from 0 to {len(layers) - 1}, or a name from "
                f"{layers[0].name} (stage 1, block 1) to {layers[-1].name}."
            ) from None

    def mixing_layer(self, which: int | str | None = None) -> Layer:
        """The layer that is asked for; without a wish the last one that mixes positions."""
        if which is not None:
            return self.layer(which)
        mixers = [layer for layer in self.layers if layer.recompute is not None]
        if not mixers:
            raise ValueError("No layer of this model mixes positions, so there is no attention to show.")
        return mixers[-1]

    def check_place(self, x: float, y: float) -> None:
        """Refuse a pixel that is not in the image."""
        height, width = self.image_size
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(f"The pixel ({x:g}, {y:g}) is outside the image, which is {width} x {height} pixels.")


Subject = nn.Module | Capture


def capture(model: Subject, images: Tensor | None = None, **inputs: Any) -> Capture:
    """Let a model answer, and keep what its layers were given.

    The model is run in evaluation mode without gradients; its answer is what it always is. Of our models all can be
    looked into, and whatever contains one (a detector, a segmenter); of timm's VisionTransformer, Swin, SwinV2, PVTv2.

    Args:
        model: The model; or a capture, which is returned as it is.
        images: `[B, C, H, W]`, as the model wants them.
        **inputs: What else the model's `forward` takes.

    Raises:
        ValueError: The model can't be looked into.

    Example:
        >>> import nearsight
        >>> seen = capture(nearsight.create_model("lit_nano", num_classes=3), torch.randn(1, 3, 32, 48))
        >>> [layer.name for layer in seen.layers], seen.first
        (['1.1', '1.2', '2.1', '2.2', '3.1', '3.2'], Grid(height=16, width=24, aux=0))
        >>> seen.layer("3.1").mixing.rows(torch.tensor([0])).shape
        torch.Size([1, 4, 1, 24])
    """
    if isinstance(model, Capture):
        return model
    if images is None:
        raise ValueError("A model needs images to look at; give them behind the model, [B, 3, H, W].")
    from .hooks import Recorder

    recorder = Recorder(model)
    with recorder.watching(), torch.no_grad(), evaluating(model):
        output = model(images, **inputs)
    if recorder.first is None or not any(isinstance(step, Layer) for step in recorder.steps):
        raise ValueError(
            f"{type(model).__name__} can't be looked into; give a model of Nearsight, or timm's VisionTransformer, "
            "Swin, SwinV2 or PVTv2."
        )
    given = (images.shape[-2], images.shape[-1])
    padded = all(seen >= side for seen, side in zip(recorder.image_size, given, strict=True))
    size = given if padded else recorder.image_size
    return Capture(model, images, output, size, recorder.first, recorder.cell, recorder.steps)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model in evaluation mode for a while; each of its modules is put back as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
