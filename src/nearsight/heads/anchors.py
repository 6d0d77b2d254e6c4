"""Anchors: the boxes that a detector starts from, at every position of every level."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator


class LevelAnchors(AnchorGenerator):
    """Anchors whose size follows the stride of their level, so that a level of any stride has them.

    torchvision's generator reads strides off the sizes of the maps and rounds anchors to whole pixels. Here strides are
    known and nothing is rounded, which matters for anchors of a few pixels.

    Args:
        strides: Stride of each level.
        scale: Side of a level's smallest anchor, in strides.
        steps: Sizes of a level, `2 ** (1 / steps)` apart.
        ratios: Height over width of the anchors.

    Example:
        >>> anchors = LevelAnchors((8,), scale=4.0, ratios=(1.0,))
        >>> anchors.on([torch.zeros(1, 1, 1, 2)])[0].tolist()
        [[-16.0, -16.0, 16.0, 16.0], [-8.0, -16.0, 24.0, 16.0]]
    """

    def __init__(
        self, strides: Sequence[float], scale: float, steps: int = 1, ratios: Sequence[float] = (0.5, 1.0, 2.0)
    ):
        if scale < 2 or steps < 1 or not ratios or min(ratios) <= 0:
            raise ValueError(
                f"Anchors of scale {scale}, {steps} steps and ratios {tuple(ratios)} would leave gaps between them; "
                "use a scale of 2 or more, one step or more, and ratios above 0."
            )
        self.strides = tuple(float(stride) for stride in strides)
        sizes = tuple(tuple(stride * scale * 2 ** (k / steps) for k in range(steps)) for stride in self.strides)
        super().__init__(sizes, (tuple(ratios),) * len(sizes))

    def generate_anchors(
        self,
        scales: Any,
        aspect_ratios: Any,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Tensor:
        """Anchors `[ratios * sizes, 4]` around the origin."""
        device = device or torch.device("cpu")  # also where models are built without numbers
        sizes = torch.as_tensor(scales, dtype=dtype, device=device)[None]
        stretch = torch.as_tensor(aspect_ratios, dtype=dtype, device=device).sqrt()[:, None]
        width, height = (sizes / stretch).flatten() / 2, (sizes * stretch).flatten() / 2
        return torch.stack((-width, -height, width, height), dim=1)

    def on(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The anchors of each level's map `[B, C, H, W]`: `[H * W * anchors of a position, 4]`."""
        self.set_cell_anchors(torch.float32, maps[0].device)
        found = []
        for level, stride, cell in zip(maps, self.strides, self.cell_anchors, strict=True):
            height, width = level.shape[-2:]
            x = (torch.arange(width, device=level.device) * stride).expand(height, width)
            y = (torch.arange(height, device=level.device) * stride)[:, None].expand(height, width)
            found.append((torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4) + cell).reshape(-1, 4))
        return found

    def forward(self, image_list: Any, feature_maps: list[Tensor]) -> list[Tensor]:
        """The anchors of all levels, once for each image."""
        return [torch.cat(self.on(feature_maps))] * len(image_list.image_sizes)
