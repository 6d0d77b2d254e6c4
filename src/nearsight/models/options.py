"""Named options of `create_model`: other parts in the slots, and other settings of the parts that are there.

A slot (`embed`, `qkv`, `mixer`, `ffn`, `merge`) takes a name, a part, or a tuple with one of them per stage. Any other
option is the name of a field of the model's parts (`gamma`, `kernels`, `window`, ...) and is set wherever it occurs;
`none` stands for None.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from ..parts import Global, Patchify
from ..parts.ranges import check_fields
from ..parts.slots import Embed, Ffn, Merge, Mixer, Position, Qkv
from .names import EMBEDS, PARTS, POSITIONS, Context
from .spec import BackboneSpec, has_field, iter_parts, map_part, map_parts, map_stage

SLOT_TYPES = {"qkv": Qkv, "mixer": Mixer, "ffn": Ffn, "merge": Merge}
OF_SPEC = ("behaviour", "embed", *PARTS, "position", "norm", "aux", "pool", "neck", "local_layers", "patch_size")
OF_BACKBONE = ("img_size", "in_chans", "num_classes", "global_pool", "drop_rate", "drop_path_rate")


def apply_options(name: str, spec: BackboneSpec, options: Mapping[str, Any]) -> BackboneSpec:
    """The spec that a model's name and the options given to `create_model` describe."""
    left, embed = dict(options), spec.embed
    if "embed" in left:
        spec = replace(spec, embed=choose("embed", left.pop("embed"), EMBEDS, Embed, spec.embed))
    for slot in PARTS:
        if slot in left:
            spec = fill_slot(spec, slot, left.pop(slot))
    if "position" in left:
        spec = set_positions(spec, left.pop("position"))
    if "behaviour" in left:
        spec = behave(spec, left.pop("behaviour"))
    if "patch_size" in left:
        left["patch"] = left.pop("patch_size")
    spec = set_structure(spec, left)
    for option, value in left.items():
        changed = set_field(spec, option, value)
        if changed is None:
            known = sorted({*OF_SPEC, *(f.name for part in iter_parts(spec) for f in fields(part))})
            near = get_close_matches(option, [*known, *OF_BACKBONE], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{name} has no option {option!r}.{hint} It takes {', '.join(known)}.")
        spec = changed
    check_fields(spec)
    return spec if spec.embed == embed else fit_inner(spec)


def fit_inner(spec: BackboneSpec) -> BackboneSpec:
    """Make the inner transformers for the pixel tokens that the embedding gives them."""
    if spec.embed.pixel_tokens is None:
        return spec
    side, dim = spec.embed.pixel_tokens
    stages = (replace(s, inner=replace(s.inner, dim=dim, side=side)) if s.inner else s for s in spec.stages)  # type: ignore[type-var]
    return replace(spec, stages=tuple(stages))


def choose(slot: str, given: Any, named: Mapping[str, Callable[[Any], Any]], kind: Any, context: Any) -> Any:
    """The part that a name stands for in this context, or the part itself."""
    if isinstance(given, kind):
        return given
    if given is None and "none" in named:
        return None
    if given not in named:
        near = get_close_matches(str(given), named, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{slot}={given!r} is not known; use one of {', '.join(named)}, or a part.{hint}")
    return named[given](context)


def fill_slot(spec: BackboneSpec, slot: str, given: Any) -> BackboneSpec:
    """Put another part into a slot: of every stage that has one, or of each stage its own."""
    count = len(spec.stages)
    per_stage = spread(slot, given, count) if isinstance(given, (tuple, list)) else [given] * count
    stages = list(spec.stages)
    for index, wanted in enumerate(per_stage):
        stage = stages[index]
        absent = (
            stage.merge is None if slot == "merge" else not isinstance(given, (tuple, list)) and stage.mixer is None
        )
        if absent and slot in ("merge", "mixer", "qkv"):
            continue
        part = choose(slot, wanted, PARTS[slot], SLOT_TYPES[slot], Context(spec, index))
        stages[index] = replace(stage, **{slot: part})
    return replace(spec, stages=tuple(stages))


def set_positions(spec: BackboneSpec, given: Any) -> BackboneSpec:
    """Other absolute positions: where the model has some, at its entry if it has none, or of each stage its own."""
    count = len(spec.stages)
    if isinstance(given, (tuple, list)):
        wanted = dict(enumerate(spread("position", given, count)))
    else:
        present = [index for index, stage in enumerate(spec.stages) if stage.position] or [0]
        wanted = dict.fromkeys(present, given)
    stages = [
        replace(stage, position=choose("position", wanted[index], POSITIONS, Position, stage))
        if index in wanted
        else stage
        for index, stage in enumerate(spec.stages)
    ]
    return replace(spec, stages=tuple(stages))


def spread(name: str, given: Sequence[Any], count: int) -> Sequence[Any]:
    """One value for each stage; refuses another number."""
    if len(given) != count:
        raise ValueError(f"{name} was given {len(given)} values, but the model has {count} stages; give 1 or {count}.")
    return given


def set_structure(spec: BackboneSpec, left: dict[str, Any]) -> BackboneSpec:
    """Options of the whole model; they are taken out of `left`."""
    if "norm" in left:
        norm = left.pop("norm")
        spec = replace(spec, stages=tuple(replace(stage, norm=norm) for stage in spec.stages))
        spec = map_parts(spec, lambda part: part.with_norm(norm))
    if "aux" in left:
        aux = left.pop("aux")
        joining = next((index for index, stage in enumerate(spec.stages) if stage.aux), 0)
        stages = list(spec.stages)
        stages[joining] = replace(stages[joining], aux=aux)
        spec = replace(spec, stages=tuple(stages))
    for key in ("pool", "neck"):
        if key in left:
            value = left.pop(key)
            change: dict[str, Any] = {key: None if value == "none" else value}
            spec = replace(spec, **change)
    if "local_layers" in left:
        spec = set_local_layers(spec, layer_numbers(left.pop("local_layers")))
    return spec


def layer_numbers(given: str | Sequence[int]) -> set[int]:
    """Layers counted from 1: a list of numbers, or text like `1-4` or `1,3,9-12`."""
    if not isinstance(given, str):
        return {int(number) for number in given}
    numbers: set[int] = set()
    for piece in given.split(","):
        first, _, last = piece.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ValueError(
                f"local_layers={given!r} is not understood; write layers counted from 1, such as '1-4' or '1,3,9-12'."
            )
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def set_local_layers(spec: BackboneSpec, numbers: set[int]) -> BackboneSpec:
    """Keep the local feed-forward and qkv parts in these layers, plain ones in the others (LocalViT Table 3)."""
    depth = sum(stage.depth for stage in spec.stages)
    if wrong := sorted(number for number in numbers if not 1 <= number <= depth):
        raise ValueError(f"local_layers names layer {wrong[0]}, but the model has layers 1 to {depth}.")
    layers = [layer for stage in spec.stages for layer in stage.layers()]
    if all(layer.ffn.plain and layer.qkv.plain for layer in layers):
        raise ValueError(
            "local_layers chooses among local parts but there are none; give ffn='localvit' or qkv='life'."
        )
    stages, before = [], 0
    for index, stage in enumerate(spec.stages):
        context = Context(spec, index)
        plain_ffn, plain_qkv = PARTS["ffn"]["mlp"](context), PARTS["qkv"]["linear"](context)
        keep = [before + block + 1 in numbers for block in range(stage.depth)]
        kept = list(zip(stage.layers(), keep, strict=True))
        ffn = tuple(layer.ffn if local else plain_ffn for layer, local in kept)
        qkv = tuple(layer.qkv if local or layer.qkv.plain else plain_qkv for layer, local in kept)
        stages.append(replace(stage, ffn=ffn, qkv=qkv))
        before += stage.depth
    return replace(spec, stages=tuple(stages))


def behave(spec: BackboneSpec, behaviour: str) -> BackboneSpec:
    """Follow the `paper` or the `released` code where they differ: LIFE's auxiliary key, the heads of LocalViT-T and S.

    LocalViT on DeiT has 64 channels a head in the paper and 48 in the release.
    """
    if behaviour not in ("paper", "released"):
        raise ValueError(f"behaviour={behaviour!r} is not known; use paper or released.")
    stage = spec.stages[0]
    is_local = any(layer.ffn.family == "localvit" for layer in stage.layers())
    on_deit = len(spec.stages) == 1 and is_local and isinstance(spec.embed, Patchify)
    widths = {64, 48} if on_deit else set()
    wanted = 48 if behaviour == "released" else 64

    def change(part: Any) -> Any:
        if isinstance(part, Global) and stage.dim / part.heads in widths and stage.dim % wanted == 0:
            return replace(part, heads=stage.dim // wanted)
        return part.behaving(behaviour)

    return map_parts(spec, change)


def set_field(spec: BackboneSpec, field: str, value: Any) -> BackboneSpec | None:
    """Set a field wherever the stages' parts (or else the embedding) have it; None if none has."""
    count = len(spec.stages)
    found = False

    def setter(index: int) -> Callable[[Any], Any]:
        def change(part: Any) -> Any:
            nonlocal found
            if not has_field(part, field):
                return part
            found = True
            per_stage = isinstance(value, (tuple, list)) and not isinstance(getattr(part, field), tuple)
            mine = spread(field, value, count)[index] if per_stage else value
            mine = None if mine == "none" else mine  # timm drops options that are None
            return replace(part, **{field: tuple(mine) if isinstance(mine, list) else mine})

        return change

    stages = tuple(map_stage(stage, setter(index)) for index, stage in enumerate(spec.stages))
    if found:
        return replace(spec, stages=stages)
    embed = map_part(spec.embed, setter(0))
    return replace(spec, embed=embed) if found else None
