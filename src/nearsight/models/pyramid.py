"""A backbone as a pyramid of maps, for detection and segmentation."""

from collections.abc import Mapping

from torch import Tensor, nn

from ..lattice import Grid, image, sequence
from ..parts.norm import make_norm
from .backbone import Backbone


class FeaturePyramid(nn.Module):
    """The maps behind each stage, without auxiliary tokens, some of them layer-normed.

    Args:
        backbone: The model; its last norm and head are dropped.
        norms: Which norm a stage's map gets, `layer` or `batch`, by the number of the stage.
        first: Number of the first stage whose map is given out.
        last: Number of the last stage; None for all. Stages behind it are dropped.

    Attributes:
        channels: Width of each map.
        strides: Pixels between neighbouring places of each map.

    Example:
        >>> import torch
        >>> from nearsight.models.lightvit import SPECS
        >>> pyramid = FeaturePyramid(Backbone(SPECS["lightvit_nano"], num_classes=0), norms={0: "layer", 2: "layer"})
        >>> [tuple(m.shape) for m in pyramid(torch.randn(1, 3, 40, 32))]
        [(1, 32, 20, 16), (1, 64, 10, 8), (1, 128, 5, 4)]
        >>> pyramid.channels, pyramid.strides
        ((32, 64, 128), (2, 4, 8))
    """

    def __init__(
        self, backbone: Backbone, norms: Mapping[int, str] | None = None, first: int = 0, last: int | None = None
    ):
        super().__init__()
        self.spec = backbone.spec
        self.first = first
        self.levels = len(backbone.feature_info) if last is None else last + 1
        rows = backbone.feature_info[first : self.levels]
        self.channels: tuple[int, ...] = tuple(row["num_chs"] for row in rows)
        self.strides: tuple[float, ...] = tuple(row["reduction"] for row in rows)
        backbone.prune_intermediate_layers(list(range(self.levels)), prune_norm=True)
        self.backbone = backbone
        stages, eps = backbone.spec.stages, backbone.spec.eps
        self.norm_kinds = dict(norms or {})
        self.norms = nn.ModuleDict({str(i): make_norm(kind, stages[i].dim, eps) for i, kind in self.norm_kinds.items()})

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images `[B, C, H, W]` to maps `[B, C_i, H_i, W_i]`, fine to coarse."""
        wanted = list(range(self.first, self.levels))
        maps: list[Tensor] = self.backbone.forward_intermediates(images, indices=wanted, intermediates_only=True)
        for index, norm in self.norms.items():
            level = int(index) - self.first
            height, width = maps[level].shape[2:]
            maps[level] = image(norm(sequence(maps[level])), Grid(height, width))
        return maps
