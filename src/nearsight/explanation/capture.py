"""Look into a model while it predicts: what goes into each layer, and how stages are joined.

The model runs as always, fused kernels and all; hooks keep what its layers were given, and attention is computed again
from that, for the layers and rows that are asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.pvt_v2 import Block as PyramidBlock
from timm.models.pvt_v2 import OverlapPatchEmbed
from timm.models.swin_transformer import PatchMerging, SwinTransformerBlock
from timm.models.swin_transformer_v2 import PatchMerging as PatchMergingV2
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..lattice import Grid
from ..models.backbone import Block
from ..ops.attention_matrix import AttentionMatrix
from ..ops.back_projection import BackProjection, plain_back_projection
from ..parts.slots import EmbedModule, MergeModule, TokenModule
from . import adapters_timm as adapters


@dataclass(eq=False)
class CapturedLayer:
    """One layer as it worked on these images.

    Attributes:
        number: Its index among all layers, from 0.
        stage: Number of its stage, from 1.
        block: Its number in the stage, from 1.
        grid: The lattice of its tokens.
        cell: Height and width of a token's cell in pixels.
        module: The block.
        recompute: Computes its attention matrix; None for a layer that does not mix positions.
        exit: The module that is given what was mixed, heads joined; None where it is not known.
    """

    number: int
    stage: int
    block: int
    grid: Grid
    cell: tuple[int, int]
    module: nn.Module
    recompute: Callable[[], AttentionMatrix] | None = field(default=None, repr=False)
    exit: nn.Module | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """`stage.block`, both from 1, as `Capture.layer` takes it."""
        return f"{self.stage}.{self.block}"

    @cached_property
    def attention_matrix(self) -> AttentionMatrix:
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
        """Number of the token whose cell holds the pixel (x, y), auxiliary tokens counted."""
        row, column = int(y // self.cell[0]), int(x // self.cell[1])
        row, column = min(max(row, 0), self.grid.height - 1), min(max(column, 0), self.grid.width - 1)
        return self.grid.aux + row * self.grid.width + column


@dataclass(eq=False)
class Capture:
    """A model's work on a batch of images.

    Attributes:
        model: The model.
        images: What it was given `[B, C, H, W]`.
        output: What it put out.
        image_size: Height and width of the images in pixels; what a detector pads is not counted.
        first: The lattice behind the embedding.
        cell: Height and width of a patch in pixels.
        steps: Layers, and the ways back through the merges between stages, in the order in which they worked.
    """

    model: nn.Module
    images: Tensor
    output: Any
    image_size: tuple[int, int]
    first: Grid
    cell: tuple[int, int]
    steps: list[CapturedLayer | BackProjection]

    @property
    def layers(self) -> list[CapturedLayer]:
        """The layers, first to last."""
        return [step for step in self.steps if isinstance(step, CapturedLayer)]

    @property
    def back_projections(self) -> list[BackProjection]:
        """The ways back through the merges, first to last."""
        return [step for step in self.steps if isinstance(step, BackProjection)]

    def layer(self, which: int | str = -1) -> CapturedLayer:
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

    def mixing_layer(self, which: int | str | None = None) -> CapturedLayer:
        """The layer that is asked for; None takes the last one that mixes positions."""
        if which is not None:
            return self.layer(which)
        mixers = [layer for layer in self.layers if layer.recompute is not None]
        if not mixers:
            raise ValueError("No layer of this model mixes positions, so there is no attention to show.")
        return mixers[-1]

    def check_pixel(self, x: float, y: float) -> None:
        """Refuse a pixel that is not in the image."""
        height, width = self.image_size
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(f"The pixel ({x:g}, {y:g}) is outside the image, which is {width} x {height} pixels.")


ModelOrCapture = nn.Module | Capture


def capture(model: ModelOrCapture, images: Tensor | None = None, **inputs: Any) -> Capture:
    """Run a model, and keep what its layers were given.

    The model is run in evaluation mode without gradients; its prediction is what it always is. Of our models all can be
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
        >>> seen.layer("3.1").attention_matrix.rows(torch.tensor([0])).shape
        torch.Size([1, 4, 1, 24])
    """
    if isinstance(model, Capture):
        return model
    if images is None:
        raise ValueError("A model needs images to look at; give them behind the model, [B, 3, H, W].")

    recorder = Recorder(model)
    with recorder.watching(), torch.no_grad(), evaluating(model):
        output = model(images, **inputs)
    if recorder.first is None or not any(isinstance(step, CapturedLayer) for step in recorder.steps):
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


class Recorder:
    """Notes, in the order in which they work, the layers and merges of a model.

    Attributes:
        first: The lattice behind the embedding; None before the model has run.
        image_size: Height and width of what the embedding was given.
        cell: Height and width of a patch in pixels.
        steps: What was noted.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.first: Grid | None = None
        self.image_size = (0, 0)
        self.cell = (1, 1)
        self.steps: list[CapturedLayer | BackProjection] = []
        self.stage = 1
        self.block = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks that are set for a while."""
        handles = []
        try:
            for handle in self.set_hooks():  # one by one: what was placed before a refusal is taken away, too
                handles.append(handle)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def set_hooks(self) -> Iterator[Any]:
        """A hook on everything that is known."""
        for module in self.model.modules():
            if isinstance(module, EmbedModule):
                yield module.register_forward_hook(self.embedded)
            elif isinstance(module, MergeModule):
                yield module.register_forward_hook(self.merged)
            elif isinstance(module, Block):
                yield module.register_forward_pre_hook(self.enters_block)
                if module.mixer is not None:
                    yield module.mixer.register_forward_pre_hook(self.mixes)
            elif isinstance(module, VisionTransformer):
                yield from self.hooks_of_vit(module)
            elif isinstance(module, (SwinTransformerBlock, SwinTransformerV2Block)):
                yield module.register_forward_pre_hook(self.enters_swin)
                yield module.attn.register_forward_pre_hook(self.attends_in_windows, with_kwargs=True)
                if (near := part_inside(getattr(module, "near", None))) is not None and module.near.alone:
                    yield near.register_forward_pre_hook(self.mixes)  # a part of ours instead of the windows
            elif isinstance(module, (PatchMerging, PatchMergingV2)) and not hasattr(module, "part"):
                yield module.register_forward_hook(self.merged_swin)
            elif isinstance(module, PyramidBlock):
                yield module.register_forward_pre_hook(self.enters_pyramid)
                yield self.hook_attention(module.attn, self.attends_in_pyramid)
            elif isinstance(module, OverlapPatchEmbed):
                yield module.register_forward_hook(self.embedded_overlapping)
            elif type(module) is PatchEmbed:
                yield module.register_forward_hook(self.embedded_patches)

    def hook_attention(self, attention: nn.Module, note: Callable[[nn.Module, Any], None]) -> Any:
        """A hook on timm's attention, or on a part of ours instead."""
        part = part_inside(attention)
        return attention.register_forward_pre_hook(note) if part is None else part.register_forward_pre_hook(self.mixes)

    def start(self, images: Tensor, grid: Grid, cell: tuple[int, int]) -> None:
        """An embedding has worked; whatever was noted of an earlier pass is forgotten."""
        self.first, self.cell, self.image_size = grid, cell, (images.shape[-2], images.shape[-1])
        self.steps, self.stage, self.block = [], 1, 0

    def add_layer(self, grid: Grid, module: nn.Module) -> None:
        """The next block begins."""
        scale = 2 ** (self.stage - 1)
        cell = (self.cell[0] * scale, self.cell[1] * scale)
        self.block += 1
        number = sum(isinstance(step, CapturedLayer) for step in self.steps)
        self.steps.append(CapturedLayer(number, self.stage, self.block, grid, cell, module))

    def add_merge(self, merge: BackProjection) -> None:
        """The next stage begins."""
        self.steps.append(merge)
        self.stage, self.block = self.stage + 1, 0

    @property
    def present(self) -> CapturedLayer:
        """The layer that works now."""
        layer = self.steps[-1]
        assert isinstance(layer, CapturedLayer)
        return layer

    # Our own models

    def embedded(self, module: Any, inputs: Any, output: Any) -> None:
        self.start(inputs[0], output[1], (module.stride, module.stride))

    def merged(self, module: Any, inputs: Any, output: Any) -> None:
        self.add_merge(module.back_projection(inputs[0], inputs[1], output[1]))

    def enters_block(self, module: nn.Module, inputs: Any) -> None:
        self.add_layer(inputs[1], module)

    def mixes(self, module: Any, inputs: Any) -> None:
        tokens, grid = inputs[0].detach(), inputs[1]
        self.present.recompute = lambda: module.attention_matrix(tokens, grid)
        self.present.exit = module.exit()

    # timm's

    def embedded_patches(self, module: Any, inputs: Any, output: Tensor) -> None:
        images = inputs[0]
        self.start(images, Grid(*module.dynamic_feat_size(images.shape[-2:])), tuple(module.patch_size))

    def hooks_of_vit(self, model: Any) -> Iterator[Any]:
        if type(model.patch_embed) is not PatchEmbed:
            raise ValueError(
                f"timm's {type(model).__name__} with {type(model.patch_embed).__name__} can't be looked into; only "
                "with plain patches."
            )
        for block in model.blocks:
            if not hasattr(block, "attn"):
                raise ValueError(f"timm's {type(block).__name__} has no attention layer of its own to look into.")
            yield block.register_forward_pre_hook(self.enters_vit)
            yield self.hook_attention(block.attn, self.attends)

    def enters_vit(self, module: nn.Module, inputs: Any) -> None:
        assert self.first is not None
        aux = inputs[0].shape[1] - self.first.patches
        if aux < 0:
            raise ValueError("This model drops patches on its way, so they have no position in the image any more.")
        self.add_layer(Grid(self.first.height, self.first.width, aux), module)

    def attends(self, module: nn.Module, inputs: Any) -> None:
        tokens, grid = inputs[0].detach(), self.present.grid
        self.remember(module, lambda: adapters.plain_matrix(module, tokens, grid))

    def remember(self, attention: Any, recompute: Callable[[], AttentionMatrix]) -> None:
        """How the present layer is computed again: later, or now if its queries depend on what the model is doing."""
        self.present.exit = adapters.exit_of(attention)
        if type(getattr(attention, "qkv", None)) not in (nn.Linear, type(None)):  # LIFE in a host asks for the grid
            made = recompute()
            self.present.recompute = lambda: made
        else:
            self.present.recompute = recompute

    def enters_swin(self, module: nn.Module, inputs: Any) -> None:
        self.add_layer(Grid(inputs[0].shape[1], inputs[0].shape[2]), module)

    def attends_in_windows(self, module: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
        layer = self.present
        pieces = inputs[0].detach()
        mask = options.get("mask", inputs[1] if len(inputs) > 1 else None)
        self.remember(module, lambda: adapters.window_matrix(layer.module, pieces, mask, layer.grid))

    def merged_swin(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        fine, coarse = Grid(*inputs[0].shape[1:3]), Grid(*output.shape[1:3])
        self.add_merge(plain_back_projection(fine, coarse, output.device))

    def embedded_overlapping(self, module: Any, inputs: Any, output: Tensor) -> None:
        given, grid = inputs[0], Grid(*output.shape[1:3])
        if self.is_stem(module):
            self.start(given, grid, tuple(module.proj.stride))
        else:
            fine, size = Grid(*given.shape[2:]), module.patch_size[0]
            self.add_merge(plain_back_projection(fine, grid, output.device, size, size // 2))

    def is_stem(self, module: nn.Module) -> bool:
        """Whether it is the first of the model's overlapping embeddings."""
        return next(m for m in self.model.modules() if isinstance(m, OverlapPatchEmbed)) is module

    def enters_pyramid(self, module: nn.Module, inputs: Any) -> None:
        self.add_layer(Grid(*inputs[1]), module)

    def attends_in_pyramid(self, module: nn.Module, inputs: Any) -> None:
        tokens, grid = inputs[0].detach(), self.present.grid
        self.remember(module, lambda: adapters.pyramid_matrix(module, tokens, grid))


def part_inside(module: Any) -> TokenModule | None:
    """The part of ours that `localize` put where a host has its attention; None where the host's own is."""
    part = getattr(module, "part", None)
    return part if isinstance(part, TokenModule) else None
