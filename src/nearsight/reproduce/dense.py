"""Detectors and segmenters of the papers' tables, as recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..heads import CascadeMaskRcnn, DenseModel, DenseSpec, Detr, LinearHead, MaskRcnn, Retina, SemanticFpn, UperNet
from ..heads.base import DenseHead
from ..heads.detr import DetrModule
from ..heads.image_list import Canvas
from ..heads.pyramid import TimmBackbone
from ..heads.rcnn import RcnnModule
from ..heads.retina import RetinaModule
from ..heads.segmentation import Segmenter, UperNetModule
from ..models import MODELS
from ..models.counting import Cost, ProductCounter, visible_attention
from ..models.options import apply_options
from ..ops.flops import macs_hook
from .conventions import ElementwiseCounter
from .published import Row
from .recipe import Measured, WithoutNumbers, short

BOXES, MASKS = 1000, 100  # regions for which mmdetection counts the second half of a detector


@dataclass(frozen=True)
class DenseRecipe:
    """A detector or segmenter at one image size.

    Attributes:
        backbone: Name of one of our models or of a timm model.
        head: The head.
        image_size: Height and width that multiply-adds are counted for.
        num_classes: Classes of the data.
        options: Options of the backbone, sorted by name.
        helper: Whether the helper that only training uses is counted too.
    """

    backbone: str
    head: DenseHead
    image_size: tuple[int, int]
    num_classes: int
    options: tuple[tuple[str, Any], ...] = ()
    helper: bool = False

    def __str__(self) -> str:
        options = "".join(f", {key}={short(value)}" for key, value in self.options)
        height, width = self.image_size
        return f"{self.backbone}{options}, {short(self.head)} at {height}x{width}"

    def build(self) -> nn.Module:
        """What is counted, on the meta device: shapes without numbers."""
        options = dict(self.options)
        with torch.device("meta"), WithoutNumbers():
            backbone: Any = TimmBackbone(self.backbone)
            if self.backbone in MODELS:
                spec = replace(MODELS[self.backbone], img_size=options.pop("img_size", 224))
                backbone = apply_options(self.backbone, spec, options)
            return OnePass(DenseModel(DenseSpec(backbone, self.head), self.num_classes), self.helper)

    def measure(self) -> Measured:
        """Count the model."""
        return Measured(survey(self).cost)


@dataclass(frozen=True)
class Survey:
    """What one image costs, taken apart.

    Attributes:
        cost: The count.
        batched: Multiply-adds of batched products, such as those inside attention.
        elementwise: Operations done once for each element of a tensor.
    """

    cost: Cost
    batched: int
    elementwise: int


@cache
def survey(what: DenseRecipe) -> Survey:
    """Count a recipe in one pass, once."""
    model = what.build().eval()
    images = torch.empty(1, 3, *what.image_size, device="meta")
    reported: list[int] = []
    counters = ElementwiseCounter(), BatchedProducts(), ProductCounter()
    with torch.no_grad(), visible_attention(), macs_hook(reported.append), counters[0], counters[1], counters[2]:
        model(images)
    elements, batched, products = counters
    cost = Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        buffers=sum(b.numel() for b in model.buffers()),
        macs=products.flops // 2 + sum(reported),
    )
    return Survey(cost, batched.flops // 2, elements.total)


class BatchedProducts(ProductCounter):
    """Counts batched matrix products alone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.flops
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func._overloadpacket is not torch.ops.aten.bmm:
            self.flops = before
        return out


class OnePass(nn.Module):
    """What a detector or segmenter computes for one image, with a fixed number of regions.

    A real detector judges as many regions as it finds. mmdetection counts 1000 of them, and 100 masks.
    """

    def __init__(self, model: DenseModel, helper: bool):
        super().__init__()
        self.model = model
        self.helper = helper

    def forward(self, images: Tensor) -> None:
        maps, head = self.model.pyramid(images), self.model.head
        match head:
            case RetinaModule():
                head.head(head.fpn(maps))
            case RcnnModule():
                self.judge_regions(head, maps)
            case DetrModule():
                canvas = Canvas(images, (images.shape[-2:],) * len(images))  # type: ignore[arg-type]
                for found in head.decode(maps[-1], canvas):
                    head.answer(found)
            case Segmenter():
                head.classify(maps)
                if self.helper and isinstance(head, UperNetModule) and head.helper is not None:
                    head.helper(maps[-2])

    def judge_regions(self, head: RcnnModule, maps: list[Tensor]) -> None:
        """Proposals on all levels, then boxes and masks of regions that were cut out."""
        head.rpn.head(head.fpn(maps))
        width, device = head.settings.channels, maps[0].device
        for stage in head.stages:
            stage.box_predictor(stage.box_head(torch.empty(BOXES, width, 7, 7, device=device)))
        for stage in head.mask_stages:
            stage.predictor(stage.convs(torch.empty(MASKS, width, 14, 14, device=device)))


DETECTION, SEGMENTATION = (800, 1280), (512, 2048)
CLASSES = {"COCO val2017": 80, "ADE20K val": 150, "PASCAL VOC": 20, "Cityscapes": 19}
HEADS: Mapping[str, tuple[DenseHead, tuple[int, int]]] = {
    "RetinaNet": (Retina(), DETECTION),
    "Mask R-CNN": (MaskRcnn(), DETECTION),
    "Cascade Mask R-CNN": (CascadeMaskRcnn(), DETECTION),
    "Semantic FPN": (SemanticFpn(), (512, 512)),
    "UPerNet": (UperNet(), SEGMENTATION),
    "DETR EncDec": (Detr(), (512, 512)),
    "DETR EncDec-Linear": (Detr(encoder="linear"), (512, 512)),
    "DETR EncDec-LIFE": (Detr(encoder="life"), (512, 512)),
    "linear + upsampling": (LinearHead(), (512, 512)),
}
BACKBONES = {
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50",
    "ResNet-101": "resnet101",
    "PVT-T": "pvt_tiny",
    "PVT-S": "pvt_small",
    "PVT-M": "pvt_medium",
    "LightViT-T": "lightvit_tiny",
    "LightViT-S": "lightvit_small",
    "LightViT-B": "lightvit_base",
    "LIT-Ti": "lit_tiny",
    "LIT-S": "lit_small",
    "Swin-Ti": "swin_tiny",
    "Swin-T": "swin_tiny",
    "Swin-B": "swin_base",
    "DW Conv.-T": "dwnet_tiny",
    "DW Conv.-B": "dwnet_base",
    "D-DW Conv.-T": "ddwnet_tiny",
    "D-DW Conv.-B": "ddwnet_base",
    "I-D-DW Conv.-T": "iddwnet_tiny",
    "I-D-DW Conv.-B": "iddwnet_base",
    "DeiT-T": "deit_tiny",
    "DeiT-T-LIFE": "deit_tiny_life",
    "Swinv2-T": "swinv2_tiny",
    "Swinv2-T-LIFE": "swinv2_tiny_life",
}


def plan_dense(row: Row) -> DenseRecipe:
    """A row of LightViT's Table 4, LIT's Tables 6 to 8, the dwconv paper's Tables 3 and 11, LIFE's Tables 2 and 3."""
    head, size = HEADS[row.setting["head"]]
    name = BACKBONES[row.setting.get("backbone", row.name)]
    if row.setting["head"] == "Semantic FPN" and name.startswith("resnet"):
        name += "c"  # mmsegmentation's ResNets have a stem of three convolutions
    options = (("img_size", 512),) if row.paper == "life" else ()
    return DenseRecipe(name, head, size, CLASSES[row.setting["dataset"]], options)
