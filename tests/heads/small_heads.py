"""Small targets and heads that the tests of detectors and segmenters share."""

import torch
from torch import Tensor

from nearsight.heads import CascadeMaskRcnn, Detr, LinearHead, MaskRcnn, Retina, SemanticFpn, UperNet

SMALL = {
    "retinanet": Retina(finest=4, levels=3, channels=16, score_threshold=0.001),
    "mask-rcnn": MaskRcnn(finest=4, levels=3, channels=16, hidden=32, rois=32),
    "cascade-mask-rcnn": CascadeMaskRcnn(finest=4, levels=3, channels=16, hidden=32, rois=32, convs=1),
    "detr": Detr(stride=8, dim=24, heads=2, encoder_layers=2, decoder_layers=2, hidden=32, queries=10),
    "semantic-fpn": SemanticFpn(finest=4, channels=16, hidden=16),
    "upernet": UperNet(finest=4, channels=16, helper_channels=16),
    "linear": LinearHead(),
}
DETECTORS = [name for name, head in SMALL.items() if head.task == "detect"]
SEGMENTERS = [name for name, head in SMALL.items() if head.task == "segment"]


def make_target(*boxes: tuple[float, float, float, float], size: tuple[int, int] = (64, 80)) -> dict[str, Tensor]:
    """A target with rectangles of classes 0, 1, 0, ..."""
    masks = torch.zeros(len(boxes), *size, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes, strict=True):
        mask[int(top) : int(bottom), int(left) : int(right)] = True
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.arange(len(boxes)) % 2,
        "masks": masks,
        "crowd": torch.zeros(len(boxes), dtype=torch.bool),
    }
