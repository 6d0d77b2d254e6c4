"""Hooks that note what the layers of a model are given."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from timm.layers import PatchEmbed
from timm.models.pvt_v2 import Block as PyramidBlock
from timm.models.pvt_v2 import OverlapPatchEmbed
from timm.models.swin_transformer import PatchMerging, SwinTransformerBlock
from timm.models.swin_transformer_v2 import PatchMerging as PatchMergingV2
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..explanation import adapters_timm as timms
from ..lattice import Grid
from ..models.backbone import Block
from ..ops.attention_matrix import AttentionMatrix
from ..ops.back_projection import BackProjection, plain_back_projection
from ..parts.slots import EmbedModule, MergeModule, TokenModule
from .adapters import mixing_of
from .capture import Layer


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
        self.steps: list[Layer | BackProjection] = []
        self.stage = 1
        self.block = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks in place for a while."""
        handles = []
        try:
            for handle in self.place_hooks():  # one by one: what was placed before a refusal is taken away, too
                handles.append(handle)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def place_hooks(self) -> Iterator[Any]:
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
                    yield near.register_forward_pre_hook(self.mixes)  # a part of ours in the place of the windows
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
        """A hook on timm's attention, or on a part of ours in its place."""
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
        number = sum(isinstance(step, Layer) for step in self.steps)
        self.steps.append(Layer(number, self.stage, self.block, grid, cell, module))

    def add_passage(self, passage: BackProjection) -> None:
        """The next stage begins."""
        self.steps.append(passage)
        self.stage, self.block = self.stage + 1, 0

    @property
    def present(self) -> Layer:
        """The layer that works now."""
        layer = self.steps[-1]
        assert isinstance(layer, Layer)
        return layer

    # Our own models

    def embedded(self, module: Any, inputs: Any, output: Any) -> None:
        self.start(inputs[0], output[1], (module.stride, module.stride))

    def merged(self, module: Any, inputs: Any, output: Any) -> None:
        self.add_passage(module.back_projection(inputs[0], inputs[1], output[1]))

    def enters_block(self, module: nn.Module, inputs: Any) -> None:
        self.add_layer(inputs[1], module)

    def mixes(self, module: Any, inputs: Any) -> None:
        tokens, grid = inputs[0].detach(), inputs[1]
        self.present.recompute = lambda: mixing_of(module, tokens, grid)

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
            raise ValueError("This model drops patches on its way, so they have no place in the image any more.")
        self.add_layer(Grid(self.first.height, self.first.width, aux), module)

    def attends(self, module: nn.Module, inputs: Any) -> None:
        tokens, grid = inputs[0].detach(), self.present.grid
        self.remember(module, lambda: timms.plain_mixing(module, tokens, grid))

    def remember(self, attention: Any, recompute: Callable[[], AttentionMatrix]) -> None:
        """How the present layer is computed again: later, or now if its queries depend on what the model is doing."""
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
        self.remember(module, lambda: timms.window_mixing(layer.module, pieces, mask, layer.grid))

    def merged_swin(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        fine, coarse = Grid(*inputs[0].shape[1:3]), Grid(*output.shape[1:3])
        self.add_passage(plain_back_projection(fine, coarse, output.device))

    def embedded_overlapping(self, module: Any, inputs: Any, output: Tensor) -> None:
        given, grid = inputs[0], Grid(*output.shape[1:3])
        if self.is_stem(module):
            self.start(given, grid, tuple(module.proj.stride))
        else:
            fine, size = Grid(*given.shape[2:]), module.patch_size[0]
            self.add_passage(plain_back_projection(fine, grid, output.device, size, size // 2))

    def is_stem(self, module: nn.Module) -> bool:
        """Whether it is the first of the model's overlapping embeddings."""
        return next(m for m in self.model.modules() if isinstance(m, OverlapPatchEmbed)) is module

    def enters_pyramid(self, module: nn.Module, inputs: Any) -> None:
        self.add_layer(Grid(*inputs[1]), module)

    def attends_in_pyramid(self, module: nn.Module, inputs: Any) -> None:
        tokens, grid = inputs[0].detach(), self.present.grid
        self.remember(module, lambda: timms.pyramid_mixing(module, tokens, grid))


def part_inside(module: Any) -> TokenModule | None:
    """The part of ours that `localize` put where a host has its attention; None where the host's own is."""
    part = getattr(module, "part", None)
    return part if isinstance(part, TokenModule) else None
