"""Heads that name the class of every pixel: Semantic FPN, UPerNet, and LIFE's linear head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..plots.overlays import IGNORE_INDEX
from .base import DenseHead, HeadModule, strides_from
from .fpn import Fpn
from .image_list import ImageList, stack_maps
from .pyramid import Levels, Task

UP_TO = 8  # levels that a backbone's maps can span


@dataclass(frozen=True)
class SemanticFpn(DenseHead):
    """Semantic FPN (Kirillov et al., 2019): the levels of a feature pyramid network, brought to one size and added.

    Attributes:
        finest: Stride of the finest level, at which classes are told.
        channels: Width of the levels.
        hidden: Width of the maps that are added.
        dropout: Fraction of channels left out in front of the classifier, in training.
    """

    finest: int = 4
    channels: int = 256
    hidden: int = 128
    dropout: float = 0.1

    task: ClassVar[Task] = "segment"

    @property
    def strides(self) -> tuple[int, ...]:
        return strides_from(self.finest, UP_TO)

    def build(self, levels: Levels, num_classes: int, masks: bool) -> HeadModule:
        return SemanticFpnModule(self, levels, num_classes)


@dataclass(frozen=True)
class UperNet(DenseHead):
    """UPerNet (Xiao et al., 2018): a view of the whole on the last map, passed down to the finer ones.

    Attributes:
        finest: Stride of the finest map used, at which classes are told.
        channels: Width of the maps.
        pools: Sides of the grids that the last map is averaged over.
        dropout: Fraction of channels left out in front of the classifier, in training.
        helper_channels: Width of the auxiliary head in training, a classifier on the last map but one (FCN).
        helper_weight: Weight of the auxiliary head in the loss; 0 for none.
    """

    finest: int = 4
    channels: int = 512
    pools: tuple[int, ...] = (1, 2, 3, 6)
    dropout: float = 0.1
    helper_channels: int = 256
    helper_weight: float = 0.4

    task: ClassVar[Task] = "segment"

    @property
    def strides(self) -> tuple[int, ...]:
        return strides_from(self.finest, UP_TO)

    def build(self, levels: Levels, num_classes: int, masks: bool) -> HeadModule:
        return UperNetModule(self, levels, num_classes)


@dataclass(frozen=True)
class LinearHead(DenseHead):
    """LIFE's head (section 4.2.3): one linear layer on each position of the backbone's last map, then interpolation."""

    task: ClassVar[Task] = "segment"

    @property
    def strides(self) -> None:
        return None

    def build(self, levels: Levels, num_classes: int, masks: bool) -> HeadModule:
        return LinearModule(levels.channels[-1], num_classes)


class Segmenter(HeadModule):
    """Base of the segmenters: `classify` gives logits at a stride of its own.

    Attributes:
        class_weights: Weight of each class in the loss `[num_classes]`; None where all are alike. A training sets it.
    """

    num_classes: int
    class_weights: Tensor | None = None

    def classify(self, maps: list[Tensor]) -> Tensor:
        """The backbone's maps to logits `[B, num_classes, h, w]`."""
        raise NotImplementedError

    def forward(self, maps: list[Tensor], image_list: ImageList, targets: Sequence[Any] | None = None) -> Any:
        logits = enlarge(self.classify(maps), image_list.shape)
        if targets is None:
            return logits
        wanted = stack_maps(targets, image_list, self.num_classes)
        return {"pixels": pixel_loss(logits, wanted, self.class_weights)}

    def export_outputs(self, maps: list[Tensor], padded: tuple[int, int], size: tuple[int, int]) -> dict[str, Tensor]:
        """Logits of every pixel `[B, num_classes, H, W]`."""
        return {"logits": enlarge(self.classify(maps), padded)[..., : size[0], : size[1]]}

    def postprocessing(self) -> dict[str, Any]:
        """The class of the largest logit."""
        return {"name": "pixels"}


class SemanticFpnModule(Segmenter):
    """Each level goes through as many convolutions as it is doubled, then all are added."""

    def __init__(self, head: SemanticFpn, levels: Levels, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.fpn = Fpn(levels, head.channels, head.finest)
        numbers = range(len(self.fpn.strides))
        self.paths: Any = nn.ModuleList(
            nn.ModuleList(convolutions(head.channels, head.hidden, max(level, 1))) for level in numbers
        )
        self.dropout = nn.Dropout2d(head.dropout)
        self.classifier = nn.Conv2d(head.hidden, num_classes, 1)

    def classify(self, maps: list[Tensor]) -> Tensor:
        total: Any = 0
        for index, (level, path) in enumerate(zip(self.fpn(maps), self.paths, strict=True)):
            for conv in path:
                level = conv(level)
                if index:
                    level = F.interpolate(level, scale_factor=2.0, mode="bilinear", align_corners=False)
            total = total + level
        return self.classifier(self.dropout(total))


class UperNetModule(Segmenter):
    """Pyramid pooling on the last map, lateral layers on the others, all brought to the finest and joined."""

    def __init__(self, head: UperNet, levels: Levels, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.helper_weight = head.helper_weight
        width, last, finer = head.channels, levels.channels[-1], levels.channels[:-1]
        self.pools = nn.ModuleList(nn.Sequential(GridMean(side), *unit(last, width, 1)) for side in head.pools)
        self.whole = nn.Sequential(*unit(last + len(head.pools) * width, width, 3))
        self.laterals = nn.ModuleList(nn.Sequential(*unit(channels, width, 1)) for channels in finer)
        self.outputs = nn.ModuleList(nn.Sequential(*unit(width, width, 3)) for _ in finer)
        self.join = nn.Sequential(*unit(len(levels.channels) * width, width, 3))
        self.dropout = nn.Dropout2d(head.dropout)
        self.classifier = nn.Conv2d(width, num_classes, 1)
        self.helper: nn.Module | None = None
        if head.helper_weight:  # the auxiliary head, which only training uses
            before_last = levels.channels[max(len(levels.channels) - 2, 0)]
            self.helper = nn.Sequential(
                *unit(before_last, head.helper_channels, 3),
                nn.Dropout2d(head.dropout),
                nn.Conv2d(head.helper_channels, num_classes, 1),
            )

    def classify(self, maps: list[Tensor]) -> Tensor:
        last = maps[-1]
        views = [enlarge(pool(last), last.shape[-2:]) for pool in self.pools]
        merged = [lateral(level) for lateral, level in zip(self.laterals, maps[:-1], strict=True)]
        merged.append(self.whole(torch.cat((last, *views), dim=1)))
        for index in range(len(merged) - 1, 0, -1):
            merged[index - 1] = merged[index - 1] + enlarge(merged[index], merged[index - 1].shape[-2:])
        levels = [output(level) for output, level in zip(self.outputs, merged[:-1], strict=True)] + merged[-1:]
        joined = self.join(torch.cat([enlarge(level, levels[0].shape[-2:]) for level in levels], dim=1))
        return self.classifier(self.dropout(joined))

    def forward(self, maps: list[Tensor], image_list: ImageList, targets: Sequence[Any] | None = None) -> Any:
        prediction = super().forward(maps, image_list, targets)
        if targets is None or self.helper is None:
            return prediction
        auxiliary = enlarge(self.helper(maps[max(len(maps) - 2, 0)]), image_list.shape)
        wanted = stack_maps(targets, image_list, self.num_classes)
        return prediction | {"helper": self.helper_weight * pixel_loss(auxiliary, wanted, self.class_weights)}


class LinearModule(Segmenter):
    """One 1x1 convolution."""

    def __init__(self, channels: int, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.classifier = nn.Conv2d(channels, num_classes, 1)

    def classify(self, maps: list[Tensor]) -> Tensor:
        return self.classifier(maps[-1])


class GridMean(nn.AdaptiveAvgPool2d):
    """Means over the cells of a grid; in an exported graph as products with matrices, which take a map of any size."""

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            return super().forward(input)
        side = int(self.output_size)  # type: ignore[arg-type]
        return cells(input.shape[-2], side) @ input @ cells(input.shape[-1], side).mT


def cells(length: int, count: int) -> Tensor:
    """The matrix `[count, length]` that averages a line of cells over `count` cells, which may overlap by one.

    Example:
        >>> cells(3, 2)
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.5000, 0.5000]])
    """
    position, cell = torch.arange(length), torch.arange(count)[:, None]
    first, last = cell * length // count, ((cell + 1) * length + count - 1) // count
    within = ((position >= first) & (position < last)).float()
    return within / within.sum(dim=1, keepdim=True)


class PatientBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that does not stop at a single value of each channel, which has no variance.

    That is what one image is behind an average over the whole map; then the running statistics serve.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() == input.shape[1]:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


def unit(in_channels: int, channels: int, kernel: int, stride: int = 1) -> Iterator[nn.Module]:
    """Convolution, batch norm, ReLU."""
    yield nn.Conv2d(in_channels, channels, kernel, stride=stride, padding=kernel // 2, bias=False)
    yield PatientBatchNorm2d(channels)
    yield nn.ReLU()


def convolutions(in_channels: int, channels: int, count: int) -> Iterator[nn.Module]:
    """`count` 3x3 convolutions with norm and activation."""
    for index in range(count):
        yield nn.Sequential(*unit(channels if index else in_channels, channels, 3))


def enlarge(level: Tensor, size: Sequence[int]) -> Tensor:
    """A map `[B, C, h, w]` on another grid, read between its cells."""
    return F.interpolate(level, size=tuple(size), mode="bilinear", align_corners=False)


def pixel_loss(logits: Tensor, wanted: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean cross-entropy over the pixels that count, times the weights of their classes; 0 if none does.

    Example:
        >>> pixel_loss(torch.zeros(1, 4, 2, 2), torch.full((1, 2, 2), 255)).item()
        0.0
    """
    total = F.cross_entropy(logits.float(), wanted, weights, ignore_index=IGNORE_INDEX, reduction="sum")
    return total / (wanted != IGNORE_INDEX).sum().clamp(min=1)
