"""How the model of a row is built, and what it costs: classifiers, detectors and segmenters."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Protocol

import timm
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..heads import CascadeMaskRcnn, DenseModel, DenseSpec, Detr, LinearHead, MaskRcnn, Retina, SemanticFpn, UperNet
from ..heads.base import DenseHead
from ..heads.detr import DetrModule
from ..heads.pyramid import TimmBackbone
from ..heads.rcnn import RcnnModule
from ..heads.retina import RetinaModule
from ..heads.segmentation import Segmenter, UperNetModule
from ..models import MODELS, BackboneSpec
from ..models.counting import Cost, ProductCounter, count, count_macs, visible_attention
from ..models.options import apply_options
from ..models.registry import create_from_spec
from ..models.spec import Layer
from ..ops.execution import macs_hook
from ..parts import BiGate, GatherBroadcast, Global, ResidualMerge
from .published import PublishedRow


@dataclass(frozen=True)
class MeasuredCost:
    """What a recipe costs.

    Attributes:
        cost: The count.
        formula: Multiply-adds by the formula behind the printed figure, if there is one.
    """

    cost: Cost
    formula: int | None = None


@dataclass(frozen=True)
class BuildRecipe:
    """A model that `create_model` builds, at one image size.

    Attributes:
        model: Name of one of our models or of a timm model.
        options: Options of `create_model`, sorted by name.
        image_size: Side of the image that multiply-adds are counted for.
        change: What is done to the model after it was built.
        spec: The whole model, where options of `model` cannot describe it.
        formula: The counting formula behind the printed figure, where it is not a count.
    """

    model: str
    options: tuple[tuple[str, Any], ...] = ()
    image_size: int = 224
    change: Callable[[nn.Module], nn.Module] | None = None
    spec: BackboneSpec | None = None
    formula: Callable[[BackboneSpec, int], int] | None = None

    def __str__(self) -> str:
        options = "".join(f", {key}={short(value)}" for key, value in self.options)
        change = f", {self.change.__name__.replace('_', ' ')}" if self.change else ""
        spec = ", another table of stages" if self.spec else ""
        size = f" at {self.image_size}" if self.image_size != 224 else ""
        return f"{self.model}{options}{change}{spec}{size}"

    def build(self) -> nn.Module:
        """The model, on the meta device: shapes without numbers."""
        with torch.device("meta"), WithoutNumbers():
            if self.spec:
                model = create_from_spec(self.model, self.spec, **dict(self.options))
            else:
                model = timm.create_model(self.model, **dict(self.options))
            return self.change(model) if self.change else model

    def measure(self) -> MeasuredCost:
        """Count the model."""
        model = self.build()
        formula = self.formula(model.spec, self.image_size) if self.formula else None  # type: ignore[arg-type]
        return MeasuredCost(count(model, self.image_size), formula)


@dataclass(frozen=True)
class NotBuilt:
    """Why there is no model for a row."""

    reason: str


@dataclass(frozen=True)
class Derived:
    """A figure of the text that is computed from models, not counted for one."""

    what: str
    figures: Callable[[], dict[str, float]]


NOT_SHIPPED = NotBuilt("neither timm nor torchvision ships it")


def recipe(model: str, image_size: int = 224, **options: Any) -> BuildRecipe:
    """A recipe from keyword options."""
    return BuildRecipe(model, tuple(sorted(options.items())), image_size)


class Countable(Hashable, Protocol):
    """A recipe of a classifier, a detector or a segmenter."""

    def build(self) -> nn.Module:
        """What is counted, on the meta device."""
        ...

    def measure(self) -> MeasuredCost:
        """Count it."""
        ...


@cache
def measure(what: Countable) -> MeasuredCost:
    """Count a recipe, once."""
    return what.measure()


def short(value: Any) -> str:
    """An option's value: of a part what differs from its defaults, of a tuple of equal things one of them."""
    if isinstance(value, tuple):
        items = [short(item) for item in value]
        return items[0] if len(set(items)) == 1 else f"({', '.join(items)})"
    if not is_dataclass(value):
        return str(value)
    changed = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
    return f"{type(value).__name__}({', '.join(f'{name}={short(item)}' for name, item in changed.items())})"


class WithoutNumbers(TorchFunctionMode):
    """Leaves out the filling of new tensors, which on the meta device changes nothing and takes most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "zero_", "fill_", "trunc_normal_", "copy_"):
            return (args or tuple((kwargs or {}).values()))[0]
        return func(*args, **(kwargs or {}))


def lightvit_formula(spec: BackboneSpec, image_size: int = 224, num_classes: int = 1000) -> int:
    """Multiply-adds of a LightViT by the formula of its release, from which the paper's FLOPs come.

    It counts the products of window attention as `2 N C` instead of `2 * 49 N C` and leaves out the key and value
    projection of the global tokens, so it is below the true count (0.733 G against 0.772 G for LightViT-T).

    Example:
        >>> from nearsight.models import MODELS
        >>> round(lightvit_formula(MODELS["lightvit_tiny"]) / 1e9, 3)
        0.733
    """
    tokens = (-(-image_size // spec.embed.stride)) ** 2
    total = stem(spec, image_size)
    aux, previous = 0, spec.stages[0].dim
    for index, stage in enumerate(spec.stages):
        if index:
            tokens //= 4
            shortcut = isinstance(stage.merge, ResidualMerge)
            total += (4 + shortcut) * tokens * previous * stage.dim + aux * previous * stage.dim
        aux += stage.aux
        total += sum(sum(terms(layer, stage.dim, tokens, aux)) for layer in stage.layers())
        previous = stage.dim
    if spec.neck:
        total += (aux + tokens) * previous * spec.neck
    return total + (spec.neck or previous) * num_classes


def stem(spec: BackboneSpec, image_size: int) -> int:
    """The embedding, which the formula counts in full."""
    with torch.device("meta"):
        module = spec.embed.build(spec.stages[0].dim, 3, (image_size, image_size))
        return count_macs(module, torch.empty(1, 3, image_size, image_size))


def terms(layer: Layer, dim: int, patches: int, aux: int) -> Iterator[int]:
    """The summands of one block: `patches` image tokens and `aux` global tokens, `dim` wide."""
    tokens = patches + aux
    yield 4 * tokens * dim**2  # queries, keys, values and the output projection
    match layer.mixer:
        case Global():
            yield 2 * tokens**2 * dim
        case GatherBroadcast():
            yield 2 * patches * dim + 4 * patches * aux * dim  # windows (49 times too few), gather and broadcast
    yield int(2 * tokens * layer.ffn.ratio * dim**2)  # type: ignore[attr-defined]
    gate = layer.ffn
    if isinstance(gate, BiGate) and (gate.channel_gate or gate.spatial_gate):
        inner = dim // gate.reduction
        yield dim * inner * (1 + gate.channel_gate)
        yield gate.spatial_gate * (tokens * dim * inner + 2 * tokens * inner)
        yield tokens * dim


BOXES, MASKS = 1000, 100  # proposals for which mmdetection counts the second half of a detector


@dataclass(frozen=True)
class DenseRecipe:
    """A detector or segmenter at one image size.

    Attributes:
        backbone: Name of one of our models or of a timm model.
        head: The head.
        image_size: Height and width that multiply-adds are counted for.
        num_classes: Classes of the data.
        options: Options of the backbone, sorted by name.
        auxiliary: Whether the auxiliary head that only training uses is counted too.
    """

    backbone: str
    head: DenseHead
    image_size: tuple[int, int]
    num_classes: int
    options: tuple[tuple[str, Any], ...] = ()
    auxiliary: bool = False

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
            return OnePass(DenseModel(DenseSpec(backbone, self.head), self.num_classes), self.auxiliary)

    def measure(self) -> MeasuredCost:
        """Count the model."""
        return MeasuredCost(survey(self).cost)


NORMS = ("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "native_group_norm")
SOFTMAX = ("_softmax", "_safe_softmax")
ONE_PASS = ("_adaptive_avg_pool2d", "avg_pool2d", "max_pool2d_with_indices", "mean")


class ElementwiseCounter(TorchDispatchMode):
    """Counts what counters of multiply-adds differ in: work done once for each element of a tensor.

    That is one operation for each element of a bias, activation, pooling, sum or product, and five for each element
    that a norm or a softmax returns (find the mean or maximum, subtract, square or exponentiate, sum, divide).
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if isinstance(first, Tensor) and first.is_floating_point():
            self.total += self.passes(func, args) * first.numel()
        return out

    def passes(self, func: Any, args: Any) -> int:
        """Operations for each element of what an operator returns."""
        name = func.overloadpacket.__name__
        if name.startswith(NORMS) or name in SOFTMAX:
            return 5
        if name in ("addmm", "convolution"):
            return int(name == "addmm" or args[2] is not None)
        return int(name in ONE_PASS or (torch.Tag.pointwise in func.tags and "copy" not in name and name != "clone"))


@dataclass(frozen=True)
class CostBreakdown:
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
def survey(what: DenseRecipe) -> CostBreakdown:
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
    return CostBreakdown(cost, batched.flops // 2, elements.total)


class BatchedProducts(ProductCounter):
    """Counts batched matrix products alone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.flops
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func._overloadpacket is not torch.ops.aten.bmm:
            self.flops = before
        return out


class OnePass(nn.Module):
    """What a detector or segmenter computes for one image, with a fixed number of proposals.

    A real detector judges as many proposals as it finds. mmdetection counts 1000 of them, and 100 masks.
    """

    def __init__(self, model: DenseModel, auxiliary: bool):
        super().__init__()
        self.model = model
        self.auxiliary = auxiliary

    def forward(self, images: Tensor) -> None:
        maps, head = self.model.maps(images), self.model.head
        match head:
            case RetinaModule():
                head.head(head.fpn(maps))
            case RcnnModule():
                self.judge_regions(head, maps)
            case DetrModule():
                sizes = [tuple(images.shape[-2:])] * len(images)
                for found in head.decode(maps[-1], head.valid_positions(maps[-1], sizes)):  # type: ignore[arg-type]
                    head.prediction(found)
            case Segmenter():
                head.classify(maps)
                if self.auxiliary and isinstance(head, UperNetModule) and head.helper is not None:
                    head.helper(maps[-2])

    def judge_regions(self, head: RcnnModule, maps: list[Tensor]) -> None:
        """Proposals on all levels, then boxes and masks of proposals that were cut out."""
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


def plan_dense(row: PublishedRow) -> DenseRecipe:
    """A row of LightViT's Table 4, LIT's Tables 6 to 8, the dwconv paper's Tables 3 and 11, LIFE's Tables 2 and 3."""
    head, size = HEADS[row.setting["head"]]
    name = BACKBONES[row.setting.get("backbone", row.name)]
    if row.setting["head"] == "Semantic FPN" and name.startswith("resnet"):
        name += "c"  # mmsegmentation's ResNets have a stem of three convolutions
    options = (("img_size", 512),) if row.paper == "life" else ()
    return DenseRecipe(name, head, size, CLASSES[row.setting["dataset"]], options)
