"""Several looks at an image: test-time augmentation and ensembles, as a model that is called like one.

A task says which views there are and how what was said of them becomes one prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou

if TYPE_CHECKING:
    from .base import Task

SAME_OBJECT = 0.55  # IoU from which on boxes of several views are of one object, as in the paper on weighted fusion
ZOOM = 7 / 8  # side of a crop, as a fraction of the image's


@dataclass(frozen=True)
class View:
    """A way to show an image.

    Attributes:
        flip: Mirrored left and right.
        flip_vertical: Mirrored up and down.
        scale: Factor of its sides.
        corner: Of a crop, as fractions of what is left over: (top, left); None for the whole image.
    """

    flip: bool = False
    flip_vertical: bool = False
    scale: float = 1.0
    corner: tuple[float, float] | None = None

    def show(self, images: Tensor, size: tuple[int, int]) -> Tensor:
        """The view of images `[B, 3, H, W]`, of which height and width of `size` count; without padding."""
        height, width = size
        shown = images[..., :height, :width]
        if self.corner is not None:
            rows, columns = max(1, round(ZOOM * height)), max(1, round(ZOOM * width))
            top, left = round(self.corner[0] * (height - rows)), round(self.corner[1] * (width - columns))
            shown = resize(shown[..., top : top + rows, left : left + columns], size)
        if self.scale != 1:
            shown = resize(shown, (max(1, round(self.scale * height)), max(1, round(self.scale * width))))
        return shown.flip(self.axes) if self.axes else shown

    @property
    def axes(self) -> list[int]:
        """Axes of an image that are mirrored."""
        return [axis for axis, mirrored in ((-1, self.flip), (-2, self.flip_vertical)) if mirrored]

    def undo_map(self, values: Tensor, size: tuple[int, int]) -> Tensor:
        """What was said of each pixel of the view `[..., h, w]`, in the pixels of the image."""
        return resize(values.flip(self.axes) if self.axes else values, size)

    def undo_objects(self, found: dict[str, Tensor], size: tuple[int, int]) -> dict[str, Tensor]:
        """Detections of the view, in the pixels of the image."""
        height, width = size
        shown = max(1, round(self.scale * height)), max(1, round(self.scale * width))
        x1, y1, x2, y2 = found["boxes"].unbind(dim=1)
        if self.flip:
            x1, x2 = shown[1] - x2, shown[1] - x1
        if self.flip_vertical:
            y1, y2 = shown[0] - y2, shown[0] - y1
        factors = found["boxes"].new_tensor([width / shown[1], height / shown[0]] * 2)
        undone = {**found, "boxes": torch.stack((x1, y1, x2, y2), dim=1) * factors}
        if found.get("masks") is not None:
            inside = found["masks"][:, : shown[0], : shown[1]].float()
            undone["masks"] = self.undo_map(inside[None], size)[0] if len(inside) else inside.new_zeros(0, *size)
        return undone


def resize(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Images or maps `[B, C, h, w]` in another size."""
    if tuple(values.shape[-2:]) == tuple(size):
        return values
    return F.interpolate(values, size=size, mode="bilinear", align_corners=False, antialias=True)


def parse_views(task: "Task", text: str | None) -> tuple[View, ...]:
    """The views that a text such as `flip,scales` asks for, all with all; the image as it is comes first.

    Raises:
        ValueError: The task has no such views.

    Example:
        >>> from nearsight.tasks import get_task
        >>> len(parse_views(get_task("segment"), "flip,scales")), parse_views(get_task("classify"), None)
        (6, (View(flip=False, flip_vertical=False, scale=1.0, corner=None),))
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    unknown = [name for name in names if name not in task.views]
    if unknown or len(set(names)) < len(names):
        wrong = unknown[0] if unknown else names[-1]
        raise ValueError(
            f"{wrong!r} is no view to {task.name} with, or named twice; there are {', '.join(task.views)}."
        )
    whole = View()
    found = []
    for chosen in product(*([whole, *task.views[name]] for name in names)):
        settings: dict[str, Any] = {}
        for view in chosen:
            settings |= {key: value for key, value in vars(view).items() if value != getattr(whole, key)}
        found.append(View(**settings))
    return tuple(found)


class Merged(nn.Module):
    """Several models, or several views of an image, as one model: a classifier gives logits of the mean probabilities.

    Args:
        task: What the models were trained for; it merges what they say.
        members: The models, which are shown images alike.
        views: How each is shown an image.
    """

    def __init__(self, task: "Task", members: Sequence[nn.Module], views: Sequence[View] = (View(),)):
        super().__init__()
        self.task, self.members, self.views = task, nn.ModuleList(members), tuple(views)

    def forward(self, images: Tensor, sizes: Tensor | Sequence[Sequence[int]] | None = None) -> Any:
        """What a member gives for images `[B, 3, H, W]`, merged.

        Args:
            images: Normalised images.
            sizes: Height and width of each image before it was padded, the same for all; None for no padding.
        """
        size = (images.shape[-2], images.shape[-1])
        if sizes is not None:
            ((height, width),) = {tuple(map(int, row)) for row in torch.as_tensor(sizes).tolist()}
            size = (height, width)
        outputs = []
        for view in self.views:
            shown = view.show(images, size)
            given = (shown,) if sizes is None else (shown, [list(shown.shape[-2:])] * len(shown))
            outputs += [self.task.undo_view(member(*given), view, size) for member in self.members]
        return self.task.merge(outputs)


def fuse_detections(found: Sequence[dict[str, Tensor]], iou: float = SAME_OBJECT) -> dict[str, Tensor]:
    """Detections of an image by several models or views as one: weighted boxes fusion (Solovyev et al., 2021).

    Boxes of a class that overlap a fused box join it, the top-scoring first: it is the mean of its boxes, weighted by
    their scores. Its score is the mean of theirs, times the fraction of the views that found it. Masks are averaged
    with the same weights, and a pixel belongs to the object from one half on.

    Args:
        found: Of each view, in pixels of the image: `boxes` `[n, 4]`, `labels` `[n]`, `scores` `[n]` and perhaps
            `masks` `[n, H, W]` from 0 to 1.
        iou: IoU from which on boxes are of one object.
    """
    keys = [key for key in found[0] if found[0][key] is not None]
    whole = {key: torch.cat([one[key] for one in found]) for key in keys}
    order = whole["scores"].argsort(descending=True, stable=True)
    clusters: dict[int, list[list[int]]] = {}
    fused: dict[int, list[Tensor]] = {}
    for number in order.tolist():
        label, box = int(whole["labels"][number]), whole["boxes"][number]
        groups, boxes = clusters.setdefault(label, []), fused.setdefault(label, [])
        overlaps = box_iou(box[None], torch.stack(boxes))[0] if boxes else box.new_zeros(0)
        best = int(overlaps.argmax()) if len(overlaps) else -1
        if best >= 0 and float(overlaps[best]) > iou:
            groups[best].append(number)
            boxes[best] = weighted(whole["boxes"], whole["scores"], groups[best])
        else:
            groups.append([number])
            boxes.append(box)
    rows = [(label, group, box) for label in clusters for group, box in zip(clusters[label], fused[label], strict=True)]
    if not rows:
        return {key: value[:0] for key, value in whole.items()}
    scores = torch.stack(
        [whole["scores"][group].mean() * min(len(group), len(found)) / len(found) for _, group, _ in rows]
    )
    ranked = scores.argsort(descending=True, stable=True)
    result = {
        "boxes": torch.stack([box for _, _, box in rows])[ranked],
        "labels": whole["labels"].new_tensor([label for label, _, _ in rows])[ranked],
        "scores": scores[ranked],
    }
    if "masks" in whole:
        masks = [weighted(whole["masks"], whole["scores"], group) >= 0.5 for _, group, _ in rows]
        result["masks"] = torch.stack(masks)[ranked]
    return result


def weighted(values: Tensor, scores: Tensor, rows: list[int]) -> Tensor:
    """Mean of some rows, weighted by their scores."""
    weight = scores[rows].reshape(-1, *[1] * (values.ndim - 1))
    return (values[rows].float() * weight).sum(dim=0) / weight.sum().clamp(min=1e-12)
