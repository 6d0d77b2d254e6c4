"""A detector or segmenter as a value: a backbone and a head, and how that value is written to and read from JSON."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from ..models.spec import BackboneSpec
from ..models.spec import from_json as read_value
from ..models.spec import to_json as to_json
from ..parts.ranges import Depth, Range, check_fields
from ..parts.slots import REGISTERED
from .base import DenseHead
from .detr import Detr
from .pyramid import Task, TimmBackbone
from .rcnn import CascadeMaskRcnn, MaskRcnn
from .retina import Retina
from .segmentation import LinearHead, SemanticFpn, UperNet


@dataclass(frozen=True)
class DenseSpec:
    """A detector or segmenter.

    Attributes:
        backbone: A backbone of ours or of timm. `img_size` of ours is the size that positions and windows are made
            for; other sizes can be fed.
        head: What stands behind it, and so the task.
        layers: Of a backbone of one stride, blocks whose maps are spread to the strides of the head, evenly spaced up
            to the last one; see `make_pyramid`.
        detail: Channels of a few convolutions on the image itself that join the finest map, for what is thinner than
            the patches of the backbone; 0 for none.

    Example:
        >>> from nearsight.models import MODELS
        >>> spec = DenseSpec(MODELS["lit_nano"], Retina(finest=4, levels=3, channels=64))
        >>> spec.task, from_json(to_json(spec)) == spec
        ('detect', True)
    """

    backbone: BackboneSpec | TimmBackbone
    head: DenseHead
    layers: Depth = 1
    detail: Annotated[int, Range(0, 1024)] = 0

    @property
    def task(self) -> Task:
        """`detect` or `segment`."""
        return self.head.task

    def check(self) -> None:
        """Refuse what has no meaning, with a sentence that says why."""
        check_fields(self)
        if isinstance(self.backbone, BackboneSpec):
            self.backbone.check()


HEADS: dict[str, type[DenseHead]] = {
    "retinanet": Retina,
    "mask-rcnn": MaskRcnn,
    "cascade-mask-rcnn": CascadeMaskRcnn,
    "detr": Detr,
    "semantic-fpn": SemanticFpn,
    "upernet": UperNet,
    "linear": LinearHead,
}

REGISTERED.update({cls.__name__: cls for cls in (DenseSpec, TimmBackbone, *HEADS.values())})


def from_json(value: Any) -> DenseSpec:
    """Undo `to_json`; only the types of this library can come out."""
    spec = read_value(value)
    if not isinstance(spec, DenseSpec):
        raise ValueError(f"A description of a detector or segmenter is needed, not of a {type(spec).__name__}.")
    if isinstance(spec.backbone, TimmBackbone):  # the weights come from the file beside the description
        options = tuple(pair for pair in spec.backbone.options if pair[0] != "pretrained")
        spec = replace(spec, backbone=replace(spec.backbone, options=options))
    spec.check()
    return spec
