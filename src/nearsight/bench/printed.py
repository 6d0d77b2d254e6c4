"""The ImageNet accuracy that the papers print for a model."""

from functools import cache

from ..reproduce.own import plan
from ..reproduce.published import Row, published_rows
from ..reproduce.recipe import Recipe

# timm's names of models that are hosts here.
HOSTS = {
    **{f"deit_{size}_patch16_224": f"deit_{size}" for size in ("tiny", "small", "base")},
    **{f"deit_{size}_distilled_patch16_224": f"deit_{size}_distilled" for size in ("tiny", "small", "base")},
    **{f"swin_{size}_patch4_window7_224": f"swin_{size}" for size in ("tiny", "small", "base")},
    "swinv2_tiny_window8_256": "swinv2_tiny",
    "tnt_s_legacy_patch16_224": "tnt_small",
}


def printed_top1(name: str) -> float | None:
    """Top-1 accuracy in percent on ImageNet-1K's validation images, trained on ImageNet-1K alone.

    Where several papers print one, that of the model's own paper is taken, else the first of them.

    Args:
        name: Of a model of ours or of timm.

    Example:
        >>> printed_top1("localvit_tiny"), printed_top1("deit_tiny_patch16_224"), printed_top1("deit_nano")
        (74.8, 72.2, None)
    """
    return all_printed().get(HOSTS.get(name, name))


@cache
def all_printed() -> dict[str, float]:
    """By name."""
    found: dict[str, float] = {}
    for row in sorted(published_rows(), key=lambda row: not row.own):
        top1 = accuracy_of(row)
        what = plan(row) if top1 is not None else None
        if top1 is not None and isinstance(what, Recipe) and is_unchanged(what):
            found.setdefault(what.model, top1)
    return found


def accuracy_of(row: Row) -> float | None:
    """What a row prints for ImageNet-1K at 224 pixels (256 for Swin v2), if it does."""
    if row.dense or row.setting.get("init", "random") != "random" or row.setting.get("image_size", 224) != 224:
        return None
    if "ImageNet-1K" not in str(row.setting.get("dataset", row.setting.get("datasets", ""))):
        return None
    printed = row.printed.get("top1_im1k", row.printed.get("top1", "-"))
    return float(printed) if printed.replace(".", "").isdigit() else None


def is_unchanged(what: Recipe) -> bool:
    """Whether a row is about a model as its name stands for it, apart from the number of classes."""
    options = {key for key, _ in what.options} - {"num_classes"}
    return not options and what.change is None and what.spec is None
