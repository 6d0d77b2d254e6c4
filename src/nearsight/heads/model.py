"""From spec to model: a backbone as a pyramid, and a head on its maps."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import group_parameters
from torch import Tensor, nn

from .base import HeadModule
from .image_list import ImageList
from .pyramid import Levels, Pyramid, Task, make_pyramid, round_stride
from .segmentation import unit
from .spec import DenseSpec


class DenseModel(nn.Module):
    """A detector or segmenter.

    Images are padded on the right and at the bottom until the strides divide them, so any size is taken.

    Args:
        spec: What to build.
        num_classes: Classes, without a background.
        masks: Whether a detector that can learn masks does.

    Attributes:
        spec: What was built.
        task: `detect` or `segment`.
        num_classes: Classes, without a background.
        masks: Whether it finds masks.

    Example:
        >>> import torch
        >>> from nearsight.heads import SemanticFpn
        >>> from nearsight.models import MODELS
        >>> model = DenseModel(DenseSpec(MODELS["lit_nano"], SemanticFpn(finest=2, channels=32, hidden=32)), 5).eval()
        >>> model(torch.randn(2, 3, 50, 70)).shape
        torch.Size([2, 5, 50, 70])
    """

    def __init__(self, spec: DenseSpec, num_classes: int, masks: bool = True):
        super().__init__()
        spec.check()
        if num_classes < 1:
            raise ValueError(f"num_classes={num_classes} is too few; give the number of classes, 1 or more.")
        self.spec = spec
        self.task: Task = spec.task
        self.num_classes = num_classes
        self.masks = masks and spec.head.finds_masks
        self.pyramid: Pyramid = make_pyramid(spec.backbone, spec.task, spec.head.strides, spec.layers)
        first, *others = self.pyramid.channels
        self.detail = DetailStem(spec.detail, round_stride(self.pyramid.strides[0])) if spec.detail else None
        levels = Levels((first + spec.detail, *others), self.pyramid.strides)
        self.head: HeadModule = spec.head.build(levels, num_classes, self.masks)

    def forward(
        self,
        images: Tensor,
        sizes: Tensor | Sequence[Sequence[int]] | None = None,
        targets: Sequence[Any] | None = None,
    ) -> Any:
        """Losses in training, detections or logits in evaluation.

        Args:
            images: Normalised images, padded with zeros on the right and at the bottom: `[B, 3, H, W]`.
            sizes: Height and width of each image before it was padded: `[B, 2]`; None for no padding.
            targets: Only in training, one of each image. For a detector a dict with `boxes` `[n, 4]` (x1, y1, x2, y2 in
                pixels), `labels` `[n]` from 0, `masks` `[n, h, w]` if the model finds masks, and `crowd` `[n]` where
                there are crowds, which are left out. For a segmenter a map `[h, w]` of class numbers, 255 for pixels
                that do not count.

        Returns:
            In training a dict of losses, whose sum is to be minimised. In evaluation of a detector a list of dicts with
            `boxes`, `labels`, `scores` and, if it finds masks, `masks` `[n, h, w]`, best first; of a segmenter logits
            `[B, num_classes, H, W]`.
        """
        height, width = images.shape[-2:]
        image_list = ImageList.of(images, sizes, self.pyramid.multiple)
        if self.training and targets is None:
            raise ValueError("A model in training mode needs targets; call eval() to predict.")
        prediction = self.head(self.maps(image_list.images), image_list, targets if self.training else None)
        return prediction[..., :height, :width] if isinstance(prediction, Tensor) else prediction

    def maps(self, images: Tensor) -> list[Tensor]:
        """What the head is given for images `[B, 3, H, W]` whose sides the strides divide, fine to coarse."""
        first, *others = self.pyramid(images)
        if self.detail is not None:
            detail = self.detail(images)
            if self.pyramid.strides[0] != round_stride(self.pyramid.strides[0]):  # patches of 14 pixels
                detail = F.interpolate(detail, first.shape[-2:], mode="bilinear", align_corners=False)
            first = torch.cat((first, detail), dim=1)
        return [first, *others]

    def export_outputs(self, images: Tensor) -> dict[str, Tensor]:
        """What an exported graph gives for images `[B, 3, H, W]` of one size that are not padded, by name."""
        height, width = images.shape[-2:]
        step = self.pyramid.multiple
        tall, wide = ((side + step - 1) // step * step for side in (height, width))
        maps = self.maps(F.pad(images, (0, wide - width, 0, tall - height)))
        return self.head.export_outputs(maps, (tall, wide), (height, width))

    def postprocessing(self) -> dict[str, Any]:
        """What is left to do with these outputs, for the description of a bundle."""
        return self.head.postprocessing()

    # What a training asks of a model

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are not decayed: those that the backbone names, and learned queries."""
        inner, prefix = self._backbone()
        names: set[str] = getattr(inner, "no_weight_decay", set)()
        own = {name for name, _ in self.head.named_parameters() if name.endswith("queries")}
        return {f"{prefix}{name}" for name in names} | {f"head.{name}" for name in own}

    def group_matcher(self, coarse: bool = False) -> Any:
        """Which layer a parameter belongs to, from input to output, for layer-wise learning rates.

        The layers are those of the backbone; the head, and what makes a pyramid of the backbone, come behind them.
        """
        inner, prefix = self._backbone()
        if hasattr(inner, "group_matcher"):
            grouped = group_parameters(inner, inner.group_matcher(coarse=coarse), reverse=True)
        else:  # timm's list of layers, in the order of their use
            order = {name: index for index, (name, _) in enumerate(inner.named_children())}
            grouped = {name: order[name.split(".")[0]] for name, _ in inner.named_parameters()}
        layers = {f"{prefix}{name}": layer for name, layer in grouped.items()}
        behind = max(layers.values(), default=0) + 1
        return lambda name: layers.get(name, behind)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training: keep only what stands between the backbone's blocks."""
        self._backbone()[0].set_grad_checkpointing(enable)

    def _backbone(self) -> tuple[Any, str]:
        """The backbone, without timm's wrapper around it, and the prefix of its parameters."""
        backbone = self.pyramid.backbone
        wrapped = getattr(backbone, "model", None)
        if isinstance(wrapped, nn.Module):
            return wrapped, "pyramid.backbone.model."
        return backbone, "pyramid.backbone."


class DetailStem(nn.Sequential):
    """Convolutions on the image: one with stride 2 for each halving, up to the width, and one more.

    Args:
        width: Channels of the map that comes out.
        stride: Its stride, a power of two.

    Example:
        >>> DetailStem(32, 4)(torch.zeros(1, 3, 64, 96)).shape
        torch.Size([1, 32, 16, 24])
    """

    def __init__(self, width: int, stride: int):
        halvings = stride.bit_length() - 1
        widths = [
            3,
            *(max(width >> (halvings - step), 8) for step in range(1, halvings)),
            *([width] * min(halvings, 1)),
        ]
        convs = [conv for given, out in pairwise(widths) for conv in unit(given, out, 3, stride=2)]
        super().__init__(*convs, *unit(widths[-1], width, 3))
