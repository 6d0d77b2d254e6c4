"""From a model's spec to a row of the catalogue; `python -m tools.catalogue` records all of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import groupby

import torch

from nearsight.catalogue import RECORD, ModelInfo
from nearsight.cli.models import SLOTS
from nearsight.models import MODELS, Backbone
from nearsight.models.backbone import pair
from nearsight.models.counting import count
from nearsight.models.spec import BackboneSpec, Layer, Stage

EMPTY = "–"

# Models of which checkpoints are published: by four of the five projects, and by those of the hosts they compare with.
RELEASED = (
    "localvit_*",
    "lightvit_*",
    "lit_*",
    "*dwnet_tiny",
    "*dwnet_base",
    "deit_tiny*",
    "deit_small*",
    "deit_base*",
    "t2t_vit_7",
    "t2t_vit_12",
    "t2t_vit_14",
    "tnt_*",
    "pvt_*",
    "swin_*",
    "swinv2_tiny",
)
NOT_RELEASED = ("*_nano*", "*_life")  # LIFE released its code without weights


def summarise(name: str) -> ModelInfo:
    """The catalogue's row of a model, counted on the meta device.

    Example:
        >>> row = summarise("lit_nano")
        >>> row.mixer, row.merge, row.strides
        ('–, Global ×2/4', 'Deformable', (2, 4, 8))
    """
    spec = MODELS[name]
    with torch.device("meta"):
        model = Backbone(spec)
    cost = count(model, pair(spec.img_size))
    return ModelInfo(
        name=name,
        family=spec.family,
        image=pair(spec.img_size),
        **slot_texts(spec),
        parameters=cost.parameters,
        macs=cost.macs,
        strides=spec.strides,
        released=is_released(name),
    )


def is_released(name: str) -> bool:
    """Whether a released checkpoint of a model is known."""
    return any(fnmatchcase(name, p) for p in RELEASED) and not any(fnmatchcase(name, p) for p in NOT_RELEASED)


def slot_texts(spec: BackboneSpec) -> dict[str, str]:
    """Short text of what fills each slot.

    Example:
        >>> slot_texts(MODELS["localvit_tiny"])
        {'embed': 'Patchify 16', 'qkv': 'Linear', 'mixer': 'Global ×3', 'ffn': 'Locality γ4 se', 'merge': '–'}
    """
    texts = {"embed": spec.embed.label}
    for slot in ("mixer", "ffn"):
        texts[slot] = join_stages([stage_text(stage, slot) for stage in spec.stages])
    fed = [text for stage in spec.stages if (text := stage_text(stage, "qkv")) != EMPTY]
    texts["qkv"] = join_stages(fed)
    texts["merge"] = join_stages([stage.merge.label if stage.merge else EMPTY for stage in spec.stages[1:]])
    return {slot: texts[slot] for slot in SLOTS}


def stage_text(stage: Stage, slot: str) -> str:
    """What fills a slot of a stage: one text, or the different ones of its layers."""
    shifted = any(getattr(layer.mixer, "shifted", False) for layer in stage.layers())
    return " + ".join(dict.fromkeys(layer_text(layer, slot, shifted) for layer in stage.layers()))


def layer_text(layer: Layer, slot: str, shifted: bool = False) -> str:
    """What fills a slot of a block; queries, keys and values only where the mixer takes them."""
    if slot == "qkv" and not getattr(layer.mixer, "fed_by_qkv", False):
        return EMPTY
    part = getattr(layer, slot)
    if part is None:
        return EMPTY
    return (replace(part, shifted=shifted) if hasattr(part, "shifted") else part).label


def join_stages(texts: Sequence[str]) -> str:
    """One text for all stages: once if they agree; else slashes between alike parts, commas between different ones.

    Example:
        >>> join_stages(["Window 7 ×3", "Window 7 ×6"]), join_stages(["–", "–", "Global ×2", "Global ×4"])
        ('Window 7 ×3/6', '–/–, Global ×2/4')
    """
    if len(set(texts)) < 2:
        return texts[0] if texts else EMPTY
    runs = groupby((text.split() for text in texts), key=lambda words: (words[0], len(words)))
    return ", ".join(" ".join(join_words(column) for column in zip(*run, strict=True)) for _, run in runs)


def join_words(words: Sequence[str]) -> str:
    """`×3`, `×6` to `×3/6`; equal words to one, except that every empty stage is shown."""
    if len({*words}) == 1 and words[0] != EMPTY:
        return words[0]
    sign = words[0][0] if words[0][0] in "×γ" else ""
    return sign + "/".join(word.removeprefix(sign) for word in words)


def record() -> list[ModelInfo]:
    """Rows of all models: the families in the order of the papers, the hosts last, small models first."""
    order = ("near", "localvit", "lightvit", "lit", "dwnet", "life", "hosts")
    names = list(MODELS)
    return [summarise(name) for name in sorted(names, key=lambda n: (order.index(MODELS[n].family), names.index(n)))]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(row.to_dict(), ensure_ascii=False) for row in record())
    RECORD.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
