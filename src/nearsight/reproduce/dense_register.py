"""Why printed figures of detectors and segmenters are not our counts: their part of the register."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .dense import DenseRecipe, survey
from .explanations import Cover, Explanation, elementwise_between, printed_as, within
from .figures import Figure, between, rounds_up, truncates

MACS, PARAMS = ("flops_g", "gmacs"), ("params_m",)
DW_ROWS = tuple(f"{kind}DW Conv.-{size}" for kind in ("", "D-") for size in "TB")
SWIN = {"swin_tiny": "swin_tiny_patch4_window7_224", "swin_base": "swin_base_patch4_window7_224"}


def dense(figure: Figure) -> DenseRecipe:
    """The recipe behind a figure that only detectors and segmenters have."""
    assert isinstance(figure.plan, DenseRecipe)
    return figure.plan


def without_attention(what: DenseRecipe) -> int:
    """Multiply-adds without the products inside attention."""
    return survey(what).cost.macs - survey(what).batched


def with_elementwise(what: DenseRecipe) -> int:
    """Multiply-adds and all element-wise work."""
    return survey(what).cost.macs + survey(what).elementwise


def depthwise_range(figure: Figure) -> bool:
    """Between the plain count and one with padded maps, helper and element-wise work."""
    plain = dense(figure)
    released = replace(plain, options=(("pad_to", 7),), helper=True)
    return between(figure.printed, survey(plain).cost.macs / 1e9, with_elementwise(released) / 1e9)


def swin_range(figure: Figure) -> bool:
    """The same for Swin, whose code projects the padding of its windows too, as timm's does."""
    plain = dense(figure)
    released = replace(plain, backbone=SWIN[plain.backbone], helper=True)
    return between(figure.printed, survey(plain).cost.macs / 1e9, with_elementwise(released) / 1e9)


def resnext(figure: Figure) -> bool:
    """The figures are those of ResNeXt-101 (64x4d), whose frozen first stage is not counted as parameters."""
    other = replace(dense(figure), backbone="resnext101_64x4d")
    cost = survey(other).cost
    if figure.key in MACS:
        return between(figure.printed, cost.macs / 1e9, with_elementwise(other) / 1e9)
    backbone: Any = other.build().get_submodule("model.pyramid.backbone")
    names = ("conv1.", "bn1.", "layer1.")
    frozen = sum(p.numel() for name, p in backbone.named_parameters() if name.startswith(names))
    return truncates(figure.printed, (cost.parameters - frozen) / 1e6)


def in_excess(low: float, high: float) -> Callable[[Figure], bool]:
    """More is printed than we count, by an amount between two bounds."""
    return lambda figure: low <= float(figure.printed) - figure.ours <= high


DENSE_REGISTER = (
    Explanation(
        9,
        "101 M and 493 G are not ResNet-101's (63.4 M, 335 G) but those of ResNeXt-101 (64x4d): 491.4 G, 495.6 G with "
        "all element-wise work, and 101.9 M where the first stage, which is frozen, is not counted.",
        (Cover("lightvit", ("params_m", "flops_g"), ("ResNet-101",), ("Table 4",)),),
        resnext,
    ),
    Explanation(
        25,
        "LIFE's detectors and segmenters are printed with 3.7 to 4.8 M parameters more than backbone, DETR or linear "
        "layer have, at no more multiply-adds. The steps between rows come out: +1.18 M for EncDec-Linear, +0.07 M "
        "for LIFE in DeiT-T. EncDec-LIFE adds 0.99 M, our cascade of width 255 adds 1.23 M; a width of 223 or 224 "
        "would fit, but three scales do not divide it. Tried for the rest: classifiers of 100 and 1000 classes that "
        "stayed (0.02 to 0.77 M), a fifth stage behind Swin's merge (4.72 M, but 0.30 G), Swin's masks and tables as "
        "parameters (1.6 M), 3x3 convolutions to 256 channels behind the backbone (0.44 and 1.77 M), helper heads on "
        "four stages (5.7 M).",
        (Cover("life", PARAMS, tables=("Table 2", "Table 3")),),
        in_excess(3.65, 4.85),
        cause=False,
    ),
    Explanation(
        45,
        "mmdetection's counter does not see the products inside attention and counts some element-wise work: the "
        "figure lies between our count without those products and that with all element-wise work.",
        (Cover("lightvit", MACS, tables=("Table 4",)),),
        elementwise_between(without_attention),
    ),
    Explanation(
        46,
        "Rounded up: LIT-S has 38.1 M with RetinaNet and 47.5 M with Mask R-CNN. LIT's other rows in Tables 6 to 8 "
        "come out rounded up as well as rounded.",
        (Cover("lit", PARAMS, ("LIT-S",), ("Table 6", "Table 7")),),
        printed_as(rounds_up),
    ),
    Explanation(
        47,
        "The release pads maps to multiples of 7 before its spatial part, and its counter takes element-wise work. The "
        "figure lies between our count and that with padding, element-wise work and UPerNet's helper.",
        (Cover("dwconv", MACS, DW_ROWS, ("Table 3", "Table 11")),),
        depthwise_range,
    ),
    Explanation(
        48,
        "Swin's code projects the padding of its windows too. The figure lies between our count and that of timm's "
        "Swin with element-wise work and UPerNet's helper.",
        (Cover("dwconv", MACS, ("Swin-T", "Swin-B"), ("Table 3", "Table 11")),),
        swin_range,
    ),
    Explanation(
        49,
        "986 G for Swin-B with Cascade Mask R-CNN: our count is 977.4 G, 981.3 G with the padding of windows, 985.1 G "
        "with all element-wise work; Swin's authors print 982. No further work was found that a counter could take.",
        (Cover("dwconv", MACS, ("Swin-B",), ("Table 3", "Table 11")),),
        within(0.01),
        cause=False,
    ),
)
