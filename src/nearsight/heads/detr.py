"""DETR: an encoder over a map, a decoder over queries, and a loss after one-to-one matching."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torchvision.ops import box_convert, clip_boxes_to_image, generalized_box_iou, generalized_box_iou_loss
from torchvision.ops.boxes import remove_small_boxes

from ..lattice import Grid, sequence
from ..parts import Life
from ..parts.slots import Site
from .base import DenseHead, HeadModule, strides_from
from .image_list import SMALLEST, ImageList, Target, check_objects, detection
from .pyramid import Levels, Task


class EncoderLayer(nn.Module):
    """Attention over the map and a feed-forward part, each with its norm behind it.

    `feed` makes queries, keys and values from the tokens before the attention projects them: nothing (EncDec), a
    linear layer (EncDec-Linear), or LIFE (EncDec-LIFE). LIFE has three scales of equal width; where three does not
    divide the width, zeros fill what is left.
    """

    def __init__(self, head: "Detr"):
        super().__init__()
        self.form = head.encoder
        self.feed: nn.Module | None = None
        if self.form == "linear":
            self.feed = nn.Linear(head.dim, 3 * head.dim, bias=False)
        elif self.form == "life":
            self.feed = Life(scale_width=head.dim // 3).build(Site(head.dim, Grid(1, 1)), head.heads)
        self.attention = attention(head)
        self.norm1, self.norm2 = nn.LayerNorm(head.dim), nn.LayerNorm(head.dim)
        self.drop = nn.Dropout(head.dropout)
        self.ffn = feed_forward(head)

    def forward(self, tokens: Tensor, grid: Grid, positions: Tensor, valid: Tensor) -> Tensor:
        queries, keys, values = self.fed(tokens, grid, valid)
        mixed = self.attention(
            queries + positions, keys + positions, values, key_padding_mask=~valid, need_weights=False
        )[0]
        tokens = self.norm1(tokens + self.drop(mixed))
        return self.norm2(tokens + self.drop(self.ffn(tokens)))

    def fed(self, tokens: Tensor, grid: Grid, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attention projects to queries, keys and values, each `[B, N, dim]`."""
        if self.feed is None:
            return tokens, tokens, tokens
        if self.form == "linear":
            queries, keys, values = self.feed(tokens).chunk(3, dim=-1)
            return queries, keys, values
        fed = self.feed(tokens * valid[..., None], grid)  # convolutions must not see the padding
        queries, keys, values = (F.pad(one, (0, tokens.shape[-1] - one.shape[-1])) for one in fed)
        return queries, keys, values


class DecoderLayer(nn.Module):
    """Attention among the queries, attention to the map, and a feed-forward part, each with its norm behind it."""

    def __init__(self, head: "Detr"):
        super().__init__()
        self.among, self.across = attention(head), attention(head)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(head.dim) for _ in range(3))
        self.drop = nn.Dropout(head.dropout)
        self.ffn = feed_forward(head)

    def forward(self, found: Tensor, query: Tensor, tokens: Tensor, positions: Tensor, valid: Tensor) -> Tensor:
        where = found + query
        found = self.norm1(found + self.drop(self.among(where, where, found, need_weights=False)[0]))
        seen = self.across(found + query, tokens + positions, tokens, key_padding_mask=~valid, need_weights=False)[0]
        found = self.norm2(found + self.drop(seen))
        return self.norm3(found + self.drop(self.ffn(found)))


def attention(head: "Detr") -> nn.MultiheadAttention:
    """Attention as DETR has it."""
    return nn.MultiheadAttention(head.dim, head.heads, head.dropout, batch_first=True)


def feed_forward(head: "Detr") -> nn.Module:
    """Two linear layers."""
    inner = (nn.ReLU(), nn.Dropout(head.dropout))
    return nn.Sequential(nn.Linear(head.dim, head.hidden), *inner, nn.Linear(head.hidden, head.dim))


def sine_positions(valid: Tensor, dim: int) -> Tensor:
    """Sines and cosines of row and column, counted over the positions of the image alone and scaled to a full turn.

    Args:
        valid: Which positions belong to the image: `[B, h, w]`.
        dim: Width, half for the row and half for the column.

    Returns:
        `[B, h * w, dim]`.

    Example:
        >>> sine_positions(torch.ones(1, 2, 3, dtype=torch.bool), 8).shape
        torch.Size([1, 6, 8])
    """
    half = dim // 2
    channel = torch.arange(half, device=valid.device)
    rate = 10000 ** (2 * (channel // 2) / half)
    halves = []
    for axis in (1, 2):
        position = valid.cumsum(axis, dtype=torch.float32)
        turn = 2 * math.pi * position / position.amax(axis, keepdim=True).clamp(min=1)
        angle = turn[..., None] / rate  # [B, h, w, half]
        halves.append(torch.where(channel % 2 == 0, angle.sin(), angle.cos()))
    return torch.cat(halves, dim=-1).flatten(1, 2)


L1_WEIGHT, GIOU_WEIGHT = 5.0, 2.0
IMPOSSIBLE = 1e9


@torch.no_grad()
def pair(logits: Tensor, boxes: Tensor, wanted: Target) -> tuple[Tensor, Tensor]:
    """Which query finds which object of an image, at the least total cost.

    Args:
        logits: Class logits of the queries, `[queries, classes + 1]`.
        boxes: Their boxes in fractions of the image, centre and size, `[queries, 4]`.
        wanted: The objects' `labels` and `boxes`.

    Returns:
        Numbers of queries, and of the objects that they find.

    Example:
        >>> boxes = torch.tensor([[0.2, 0.2, 0.1, 0.1], [0.8, 0.8, 0.1, 0.1]])
        >>> pair(torch.zeros(2, 3), boxes, {"labels": torch.tensor([0, 1]), "boxes": boxes.flip(0)})[1].tolist()
        [1, 0]
    """
    classes = -logits.softmax(-1)[:, wanted["labels"]]
    distance = torch.cdist(boxes, wanted["boxes"], p=1)
    giou = generalized_box_iou(corners(boxes), corners(wanted["boxes"]))
    cost = classes + L1_WEIGHT * distance - GIOU_WEIGHT * giou
    # Numbers that are none must not stop the pairing here: the loss shows them, and the training deals with it.
    cost = cost.nan_to_num(nan=IMPOSSIBLE, posinf=IMPOSSIBLE, neginf=-IMPOSSIBLE)
    queries, objects = linear_sum_assignment(cost.cpu().numpy())
    device = logits.device
    return torch.as_tensor(queries, device=device), torch.as_tensor(objects, device=device)


def set_losses(logits: Tensor, boxes: Tensor, wanted: list[Target], empty_weight: float) -> dict[str, Tensor]:
    """Losses of classes and boxes of a batch, `[B, queries, classes + 1]` and `[B, queries, 4]`."""
    empty = logits.shape[-1] - 1
    labels = torch.full(logits.shape[:2], empty, dtype=torch.int64, device=logits.device)
    found, true = [], []
    for index, target in enumerate(wanted):
        queries, objects = pair(logits[index], boxes[index], target)
        labels[index, queries] = target["labels"][objects]
        found.append(boxes[index, queries])
        true.append(target["boxes"][objects])
    ours, theirs = torch.cat(found), torch.cat(true)
    weights = torch.ones(empty + 1, device=logits.device)
    weights[empty] = empty_weight
    total = max(len(theirs), 1)
    return {
        "classes": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weights),
        "boxes": L1_WEIGHT * F.l1_loss(ours, theirs, reduction="sum") / total,
        "giou": GIOU_WEIGHT * generalized_box_iou_loss(corners(ours), corners(theirs), reduction="sum") / total,
    }


def corners(boxes: Tensor) -> Tensor:
    """Boxes by centre and size as boxes by corners."""
    return box_convert(boxes, "cxcywh", "xyxy")


@dataclass(frozen=True)
class Detr(DenseHead):
    """DETR.

    Attributes:
        stride: Stride of the map whose positions are the encoder's tokens.
        encoder: What feeds the encoder's attention (LIFE, section 4.2.2): `plain` the tokens themselves (EncDec),
            `linear` a linear layer (EncDec-Linear), `life` LIFE's cascade of convolutions (EncDec-LIFE).
        dim: Width of the tokens.
        heads: Attention heads.
        encoder_layers: Layers over the map.
        decoder_layers: Layers over the queries.
        hidden: Width inside the feed-forward parts.
        queries: Objects of an image at most.
        dropout: Fraction of numbers left out behind attention and feed-forward parts, in training.
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
        return strides_from(self.stride, 1)

    def build(self, levels: Levels, num_classes: int, masks: bool) -> HeadModule:
        if self.dim % 4 or self.dim % self.heads or self.decoder_layers < 1 or self.queries < 1:
            raise ValueError(
                f"A DETR of width {self.dim} with {self.heads} heads, {self.decoder_layers} decoder layers and "
                f"{self.queries} queries can't be built; the width must divide by 4 and by the heads, and there must "
                "be a layer and a query."
            )
        return DetrModule(self, levels, num_classes)


class DetrModule(HeadModule):
    """Encoder over the map's positions, decoder over the queries, and two small heads on the queries."""

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

    def forward(self, maps: list[Tensor], image_list: ImageList, targets: Sequence[Any] | None = None) -> Any:
        layers = self.decode(maps[-1], self.valid_positions(maps[-1], image_list.sizes))
        if targets is None:
            logits, boxes = self.prediction(layers[-1])
            return [self.detect(*one) for one in zip(logits, boxes, image_list.sizes, strict=True)]
        objects = check_objects(targets, image_list, self.num_classes, masks=False)
        wanted = [self.relative(target, size) for target, size in zip(objects, image_list.sizes, strict=True)]
        losses = [set_losses(*self.prediction(layer), wanted, self.settings.empty_weight) for layer in layers]
        return {name: torch.stack([loss[name] for loss in losses]).sum() for name in losses[0]}

    def export_outputs(self, maps: list[Tensor], padded: tuple[int, int], size: tuple[int, int]) -> dict[str, Tensor]:
        """Scores `[B, queries, classes]` and boxes `[B, queries, 4]` in pixels."""
        level = maps[-1]
        valid = self.valid_positions(level, [size]).expand(level.shape[0], -1, -1)
        logits, boxes = self.prediction(self.decode(level, valid)[-1])
        height, width = size
        x, y, wide, tall = boxes.unbind(-1)
        pixels = torch.stack((x * width, y * height, wide * width, tall * height), dim=-1)
        return {"scores": logits.softmax(-1)[..., :-1], "boxes": corners(pixels)}

    def postprocessing(self) -> dict[str, Any]:
        """One class of each query."""
        return {"name": "queries", "score_threshold": self.settings.score_threshold}

    def decode(self, level: Tensor, valid: Tensor) -> list[Tensor]:
        """A map `[B, C, h, w]` to the queries behind each decoder layer, `[B, queries, dim]`.

        Args:
            level: The map.
            valid: Which of its positions belong to the image `[B, h, w]`.
        """
        grid = Grid(*level.shape[-2:])
        positions = sine_positions(valid, self.settings.dim)
        tokens, valid = sequence(self.enter(level)), valid.flatten(1)
        for layer in self.encoder:
            tokens = layer(tokens, grid, positions, valid)
        query_positions = self.queries.expand(level.shape[0], -1, -1)
        found, predictions = torch.zeros_like(query_positions), []
        for layer in self.decoder:
            found = layer(found, query_positions, tokens, positions, valid)
            predictions.append(self.norm(found))
        return predictions

    def valid_positions(self, level: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Which positions of a map begin inside of images of these sizes: `[len(sizes), h, w]`."""
        down = torch.arange(level.shape[-2], device=level.device) * self.stride
        along = torch.arange(level.shape[-1], device=level.device) * self.stride
        rows = [(down < height)[:, None] & (along < width) for height, width in sizes]
        return torch.stack(rows)

    def prediction(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """Queries to class logits `[B, queries, classes + 1]` and boxes in fractions of the image, centre and size."""
        return self.classes(found).float(), self.boxes(found).float().sigmoid()

    def relative(self, target: Target, size: tuple[int, int]) -> Target:
        """A target with its boxes in fractions of the image, centre and size."""
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
    """Width and height of an image, twice: what fractions of it are multiplied by."""
    height, width = size
    return like.new_tensor([width, height, width, height])
