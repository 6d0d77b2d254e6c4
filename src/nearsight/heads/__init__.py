"""Detectors and segmenters: any backbone as a pyramid of maps, and a head on it.

Example:
    >>> import torch
    >>> from nearsight.heads import DenseModel, DenseSpec, MaskRcnn
    >>> from nearsight.models import MODELS
    >>> head = MaskRcnn(finest=4, levels=3, channels=32, hidden=64)
    >>> model = DenseModel(DenseSpec(MODELS["lit_nano"], head), num_classes=3).eval()
    >>> sorted(model(torch.randn(1, 3, 64, 80))[0])
    ['boxes', 'labels', 'masks', 'scores']
"""

from .detr import Detr
from .model import DenseModel
from .pyramid import TimmBackbone, make_pyramid
from .rcnn import CascadeMaskRcnn, MaskRcnn
from .retina import Retina
from .segmentation import LinearHead, SemanticFpn, UperNet
from .spec import HEADS, DenseSpec, from_json, to_json
from .windows import slide

__all__ = [
    "HEADS",
    "CascadeMaskRcnn",
    "DenseModel",
    "DenseSpec",
    "Detr",
    "LinearHead",
    "MaskRcnn",
    "Retina",
    "SemanticFpn",
    "TimmBackbone",
    "UperNet",
    "from_json",
    "make_pyramid",
    "slide",
    "to_json",
]
