"""DETR (Carion et al., 2020) with the encoders of LIFE's Table 2: learned queries find one object each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert, clip_boxes_to_image
from torchvision.ops.boxes import remove_small_boxes

from ..lattice import Grid, sequence
from .detr_layers import DecoderLayer, EncoderLayer, sine_positions
from .detr_loss import set_losses
from .head import DenseHead, HeadModule, octaves
from .pyramid import Levels, Task
from .scene import SMALLEST, Canvas, Target, check_objects, detection


@dataclass(frozen=True)
class Detr(DenseHead):
    """DETR.

    Attributes:
        stride: Stride of the map whose places are the encoder's tokens.
        encoder: What feeds the encoder's attention (LIFE, section 4.2.2): `plain` the tokens themselves (EncDec),
            `linear` a linear layer (EncDec-Linear), `life` LIFE's cascade of convolutions (EncDec-LIFE).
        dim: Width of the tokens.
        heads: Attention heads.
        encoder_layers: Layers over the map.
        decoder_layers: Layers over the queries.
        hidden: Width inside the feed-forward parts.
        queries: Objects of an image at most.
        dropout: Share of numbers left out behind attention and feed-forward parts, in training.
        empty_weight: Weight of queries without an object in the loss of the classes.
        score_threshold: Weaker detections are left out.
    """

    stride: int = 32
    encoder: Literal["plain", "linear", "life"] = "plain"
    dim: int = 256
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    hidden: int = 2048
    queries: int = 100
    dropout: float = 0.1
    empty_weight: float = 0.1
    score_threshold: float = 0.001

    task: ClassVar[Task] = "detect"

    @property
    def strides(self) -> tuple[int, ...]:
        return octaves(self.stride, 1)

    def build(self, levels: Levels, num_classes: int, masks: bool) -> HeadModule:
        if self.dim % 4 or self.dim % self.heads or self.decoder_layers < 1 or self.queries < 1:
            raise ValueError(
                f"A DETR of width {self.dim} with {self.heads} heads, {self.decoder_layers} decoder layers and "
                f"{self.queries} queries can't be built; the width must divide by 4 and by the heads, and there must "
                "be a layer and a query."
            )
        return DetrModule(self, levels, num_classes)


class DetrModule(HeadModule):
    """Encoder over the map's places, decoder over the queries, and two small heads on the queries."""

    def __init__(self, head: Detr, levels: Levels, num_classes: int):
        super().__init__()
        self.settings = head
        self.num_classes = num_classes
        self.stride = levels.strides[-1]
        self.enter = nn.Conv2d(levels.channels[-1], head.dim, 1)
        self.encoder = nn.ModuleList(EncoderLayer(head) for _ in range(head.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(head) for _ in range(head.decoder_layers))
        for weight in (*self.encoder.parameters(), *self.decoder.parameters()):
            if weight.ndim > 1:
                nn.init.xavier_uniform_(weight)
        self.norm = nn.LayerNorm(head.dim)
        self.queries = nn.Parameter(torch.randn(head.queries, head.dim))
        self.classes = nn.Linear(head.dim, num_classes + 1)  # the last one: no object
        self.boxes = nn.Sequential(
            *(nn.Linear(head.dim, head.dim), nn.ReLU(), nn.Linear(head.dim, head.dim), nn.ReLU()),
            nn.Linear(head.dim, 4),
        )

    def forward(self, maps: list[Tensor], canvas: Canvas, targets: Sequence[Any] | None = None) -> Any:
        layers = self.decode(maps[-1], canvas)
        if targets is None:
            logits, boxes = self.answer(layers[-1])
            return [self.detect(*one) for one in zip(logits, boxes, canvas.sizes, strict=True)]
        objects = check_objects(targets, canvas, self.num_classes, masks=False)
        wanted = [self.relative(target, size) for target, size in zip(objects, canvas.sizes, strict=True)]
        losses = [set_losses(*self.answer(layer), wanted, self.settings.empty_weight) for layer in layers]
        return {name: torch.stack([loss[name] for loss in losses]).sum() for name in losses[0]}

    def decode(self, level: Tensor, canvas: Canvas) -> list[Tensor]:
        """A map `[B, C, h, w]` to the queries behind each decoder layer, `[B, queries, dim]`."""
        grid = Grid(*level.shape[-2:])
        valid = self.valid_places(grid, canvas, level.device)  # [B, h, w]
        positions = sine_positions(valid, self.settings.dim)
        tokens, valid = sequence(self.enter(level)), valid.flatten(1)
        for layer in self.encoder:
            tokens = layer(tokens, grid, positions, valid)
        places = self.queries.expand(len(level), -1, -1)
        found, answers = torch.zeros_like(places), []
        for layer in self.decoder:
            found = layer(found, places, tokens, positions, valid)
            answers.append(self.norm(found))
        return answers

    def valid_places(self, grid: Grid, canvas: Canvas, device: torch.device) -> Tensor:
        """Which places of the map begin inside of their image: `[B, h, w]`."""
        down = torch.arange(grid.height, device=device) * self.stride
        along = torch.arange(grid.width, device=device) * self.stride
        rows = [(down < height)[:, None] & (along < width) for height, width in canvas.sizes]
        return torch.stack(rows)

    def answer(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """Queries to class logits `[B, queries, classes + 1]` and boxes in shares of the image, centre and size."""
        return self.classes(found).float(), self.boxes(found).float().sigmoid()

    def relative(self, target: Target, size: tuple[int, int]) -> Target:
        """A target with its boxes in shares of the image, centre and size."""
        boxes = box_convert(target["boxes"], "xyxy", "cxcywh")
        return {"labels": target["labels"], "boxes": boxes / sides(boxes, size)}

    def detect(self, logits: Tensor, boxes: Tensor, size: tuple[int, int]) -> Target:
        """The detections of one image; each query has one class."""
        scores, labels = logits.softmax(-1)[:, :-1].max(dim=-1)
        boxes = clip_boxes_to_image(box_convert(boxes * sides(boxes, size), "cxcywh", "xyxy"), size)
        kept = scores.argsort(descending=True, stable=True)
        kept = kept[scores[kept] > self.settings.score_threshold]
        kept = kept[remove_small_boxes(boxes[kept], SMALLEST)]
        return detection(boxes[kept], labels[kept], scores[kept])


def sides(like: Tensor, size: tuple[int, int]) -> Tensor:
    """Width and height of an image, twice: what shares of it are multiplied by."""
    height, width = size
    return like.new_tensor([width, height, width, height])
