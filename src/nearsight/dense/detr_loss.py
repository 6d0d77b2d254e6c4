"""DETR's loss: queries and objects are paired at the least cost, and each pair is compared."""

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torchvision.ops import box_convert, generalized_box_iou, generalized_box_iou_loss

from .scene import Target

L1_WEIGHT, GIOU_WEIGHT = 5.0, 2.0
IMPOSSIBLE = 1e9


@torch.no_grad()
def pair(logits: Tensor, boxes: Tensor, wanted: Target) -> tuple[Tensor, Tensor]:
    """Which query finds which object of an image, at the least total cost.

    Args:
        logits: Class logits of the queries, `[queries, classes + 1]`.
        boxes: Their boxes in shares of the image, centre and size, `[queries, 4]`.
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
    overlap = generalized_box_iou(corners(boxes), corners(wanted["boxes"]))
    cost = classes + L1_WEIGHT * distance - GIOU_WEIGHT * overlap
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
    for place, target in enumerate(wanted):
        queries, objects = pair(logits[place], boxes[place], target)
        labels[place, queries] = target["labels"][objects]
        found.append(boxes[place, queries])
        true.append(target["boxes"][objects])
    ours, theirs = torch.cat(found), torch.cat(true)
    weights = torch.ones(empty + 1, device=logits.device)
    weights[empty] = empty_weight
    total = max(len(theirs), 1)
    return {
        "classes": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weights),
        "boxes": L1_WEIGHT * F.l1_loss(ours, theirs, reduction="sum") / total,
        "overlaps": GIOU_WEIGHT * generalized_box_iou_loss(corners(ours), corners(theirs), reduction="sum") / total,
    }


def corners(boxes: Tensor) -> Tensor:
    """Boxes by centre and size as boxes by corners."""
    return box_convert(boxes, "cxcywh", "xyxy")
