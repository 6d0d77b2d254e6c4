"""Named options of `create_model`: other parts in the slots, and other settings of the parts that are there.

A slot (`embed`, `qkv`, `mixer`, `ffn`, `merge`) takes a name, a part, or a tuple with one of them per stage. Any other
option is the name of a field of the model's parts (`gamma`, `kernels`, `window`, ...) and is set wherever it occurs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from ..parts import (
    BiGate,
    ConcatMerge,
    ConvMerge,
    ConvStem,
    DeformableMerge,
    DepthWise,
    DepthwiseThen,
    GatherBroadcast,
    Global,
    Life,
    LinearQkv,
    LocalityFfn,
    LocalMlp,
    Mlp,
    Patchify,
    ResidualMerge,
    Sliding,
    SpatialReduction,
    Squeezed,
    TokensToToken,
    Window,
)
from ..parts.slots import Embed, Ffn, Merge, Mixer, Qkv
from .spec import BackboneSpec, Stage, alternate


class Context:
    """What a named part takes over from the stage it goes into."""

    def __init__(self, spec: BackboneSpec, index: int):
        self.stage: Stage = spec.stages[index]
        self.later_stages = len(spec.stages) - 1 - index
        layer = next(self.stage.layers())
        self.heads: int = find_field(layer.mixer, "heads") or max(1, self.stage.dim // 32)
        self.window: int = find_field(layer.mixer, "window") or 7
        self.ratio: float = find_field(layer.ffn, "ratio") or find_field(layer.ffn, "gamma") or 4.0
        self.bias: Any = find_field(layer.qkv, "bias")


MIXERS: dict[str, Callable[[Context], Any]] = {
    "none": lambda c: None,
    "global": lambda c: Global(heads=c.heads),
    "window": lambda c: Window(heads=c.heads, window=c.window),
    "shifted_window": lambda c: alternate(Window(heads=c.heads, window=c.window), c.stage.depth),
    "cosine_window": lambda c: alternate(Window(heads=c.heads, window=c.window, cosine=True), c.stage.depth),
    "spatial_reduction": lambda c: SpatialReduction(heads=c.heads, ratio=max(2, 2**c.later_stages)),
    "gather_broadcast": lambda c: GatherBroadcast(heads=c.heads, window=c.window),
    "depthwise": lambda c: DepthWise(),
    "dynamic_depthwise": lambda c: DepthWise(weights="dynamic"),
    "inhomogeneous_depthwise": lambda c: DepthWise(weights="inhomogeneous", channels_per_group=channels_per_group(c)),
    "local_mlp": lambda c: alternate(LocalMlp(heads=c.heads, window=c.window), c.stage.depth),
    "sliding": lambda c: Sliding(heads=c.heads),
    "pre_conv_attention": lambda c: Sliding(heads=c.heads, conv="pre"),
    "post_conv_attention": lambda c: Sliding(heads=c.heads, conv="post"),
    "squeezed": lambda c: squeezed(c.stage),
}
PARTS: dict[str, dict[str, Callable[[Context], Any]]] = {
    "qkv": {
        "linear": lambda c: LinearQkv() if c.bias is None else LinearQkv(bias=c.bias),
        "life": lambda c: Life(),
        "life_one_scale": lambda c: Life(kernels=(3,)),
    },
    "mixer": MIXERS,
    "ffn": {
        "mlp": lambda c: Mlp(ratio=c.ratio),
        "localvit": lambda c: LocalityFfn(gamma=c.ratio),
        "bigate": lambda c: BiGate(ratio=c.ratio),
        "depthwise_mlp": lambda c: DepthwiseThen(then=Mlp(ratio=c.ratio)),
    },
    "merge": {
        "concat": lambda c: ConcatMerge(),
        "conv": lambda c: ConvMerge(),
        "residual": lambda c: ResidualMerge(),
        "deformable": lambda c: DeformableMerge(),
    },
}
EMBEDS: dict[str, Callable[[int], Embed]] = {
    "patchify": lambda stride: Patchify(patch=stride, norm=True),
    "conv_stem": lambda stride: ConvStem(patch=stride),
    "t2t": lambda stride: TokensToToken(patch=stride),
}
SLOT_TYPES = {"qkv": Qkv, "mixer": Mixer, "ffn": Ffn, "merge": Merge}
OF_SPEC = ("behaviour", "embed", *PARTS, "norm", "aux", "pool", "neck", "local_layers", "patch_size")


def channels_per_group(context: Context) -> int:
    """32 groups, as in all stages of the release, where they divide the width."""
    return context.stage.dim // 32 if context.stage.dim % 32 == 0 else 1


def squeezed(stage: Stage) -> Any:
    """The stage's own mixers with squeeze-and-excitation behind them."""
    return tuple(Squeezed(mixer=layer.mixer) if layer.mixer else None for layer in stage.layers())


def apply_options(name: str, spec: BackboneSpec, options: Mapping[str, Any]) -> BackboneSpec:
    """The spec that a model's name and the options given to `create_model` describe."""
    left = dict(options)
    if (behaviour := left.pop("behaviour", "paper")) not in ("paper", "released"):
        raise ValueError(f"behaviour={behaviour!r} is not known; use paper or released.")
    if "embed" in left:
        spec = replace(spec, embed=choose("embed", left.pop("embed"), EMBEDS, Embed, spec.embed.stride))
    for slot in PARTS:
        if slot in left:
            spec = fill_slot(spec, slot, left.pop(slot))
    if "patch_size" in left:
        left["patch"] = left.pop("patch_size")
    spec = set_structure(spec, left)
    for option, value in left.items():
        changed = set_field(spec, option, value)
        if changed is None:
            raise TypeError(unknown_option(name, spec, option))
        spec = changed
    return released(spec) if behaviour == "released" else spec


def choose(slot: str, given: Any, named: Mapping[str, Callable[[Any], Any]], kind: type, context: Any) -> Any:
    """The part that a name stands for in this context, or the part itself."""
    if isinstance(given, kind):
        return given
    if given is None and slot == "mixer":
        return None
    if given not in named:
        near = get_close_matches(str(given), named, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{slot}={given!r} is not known; use one of {', '.join(named)}, or a part.{hint}")
    return named[given](context)


def fill_slot(spec: BackboneSpec, slot: str, given: Any) -> BackboneSpec:
    """Put another part into a slot: of every stage that has one, or of each stage its own."""
    count = len(spec.stages)
    per_stage = list(given) if isinstance(given, (tuple, list)) else [given] * count
    if len(per_stage) != count:
        raise ValueError(f"{slot} was given {len(per_stage)} parts, but the model has {count} stages; give one or {count}.")
    stages = list(spec.stages)
    for index, wish in enumerate(per_stage):
        stage = stages[index]
        absent = stage.merge is None if slot == "merge" else not isinstance(given, (tuple, list)) and stage.mixer is None
        if absent and slot in ("merge", "mixer", "qkv"):
            continue
        part = choose(slot, wish, PARTS[slot], SLOT_TYPES[slot], Context(spec, index))
        stages[index] = replace(stage, **{slot: part})
    return replace(spec, stages=tuple(stages))


def set_structure(spec: BackboneSpec, left: dict[str, Any]) -> BackboneSpec:
    """Options of the whole model; they are taken out of `left`."""
    if "norm" in left:
        norm = left.pop("norm")
        spec = replace(spec, stages=tuple(replace(stage, norm=norm) for stage in spec.stages))
        spec = map_parts(spec, lambda part: replace(part, norm=norm) if isinstance(part, DepthWise) else part)
    if "aux" in left:
        aux = left.pop("aux")
        joining = next((index for index, stage in enumerate(spec.stages) if stage.aux), 0)
        stages = list(spec.stages)
        stages[joining] = replace(stages[joining], aux=aux)
        spec = replace(spec, stages=tuple(stages))
    for key in ("pool", "neck"):
        if key in left:
            spec = replace(spec, **{key: left.pop(key)})
    if "local_layers" in left:
        spec = place_locality(spec, layer_numbers(left.pop("local_layers")))
    return spec


def layer_numbers(given: str | Sequence[int]) -> set[int]:
    """Layers counted from 1: a list of numbers, or text like `1-4` or `1,3,9-12`."""
    if not isinstance(given, str):
        return {int(number) for number in given}
    numbers: set[int] = set()
    for piece in given.split(","):
        first, _, last = piece.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ValueError(f"local_layers={given!r} is not understood; write layers counted from 1, such as '1-4' or '1,3,9-12'.")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def place_locality(spec: BackboneSpec, numbers: set[int]) -> BackboneSpec:
    """Keep the local feed-forward and qkv parts in these layers, plain ones in the others (LocalViT Table 3)."""
    depth = sum(stage.depth for stage in spec.stages)
    if wrong := sorted(number for number in numbers if not 1 <= number <= depth):
        raise ValueError(f"local_layers names layer {wrong[0]}, but the model has layers 1 to {depth}.")
    stages, before = [], 0
    for index, stage in enumerate(spec.stages):
        context = Context(spec, index)
        plain_ffn, plain_qkv = PARTS["ffn"]["mlp"](context), PARTS["qkv"]["linear"](context)
        keep = [before + place + 1 in numbers for place in range(stage.depth)]
        layers = list(zip(stage.layers(), keep, strict=True))
        ffn = tuple(layer.ffn if local else plain_ffn for layer, local in layers)
        qkv = tuple(layer.qkv if local or not isinstance(layer.qkv, Life) else plain_qkv for layer, local in layers)
        stages.append(replace(stage, ffn=ffn, qkv=qkv))
        before += stage.depth
    return replace(spec, stages=tuple(stages))


def released(spec: BackboneSpec) -> BackboneSpec:
    """The release's behaviour where it differs from the paper's: LocalViT-T/S with 48 channels a head, LIFE's aux key."""

    def change(part: Any) -> Any:
        return replace(part, aux_key="released") if isinstance(part, Life) else part

    spec = map_parts(spec, change)
    stage = spec.stages[0]
    is_local = any(isinstance(layer.ffn, LocalityFfn) for layer in stage.layers())
    if len(spec.stages) == 1 and is_local and isinstance(spec.embed, Patchify) and stage.dim % 48 == 0:
        heads = stage.dim // 48
        return map_parts(spec, lambda part: replace(part, heads=heads) if isinstance(part, Global) else part)
    return spec


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
            if per_stage and len(value) != count:
                raise ValueError(f"{field} was given {len(value)} values, but the model has {count} stages; give one or {count}.")
            mine = value[index] if per_stage else value
            return replace(part, **{field: tuple(mine) if isinstance(mine, list) else mine})

        return change

    stages = tuple(map_stage(stage, setter(index)) for index, stage in enumerate(spec.stages))
    if found:
        return replace(spec, stages=stages)
    embed = map_part(spec.embed, setter(0))
    return replace(spec, embed=embed) if found else None


def unknown_option(name: str, spec: BackboneSpec, option: str) -> str:
    """The sentence for an option that this model does not have."""
    known = sorted({*OF_SPEC, *(f.name for part in iter_parts(spec) for f in fields(part))})
    near = get_close_matches(option, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{name} has no option {option!r}; {hint}It takes {', '.join(known)}."


# Going through the parts of a spec


def has_field(part: Any, field: str) -> bool:
    """Whether a part has a field of that name."""
    return is_dataclass(part) and any(f.name == field for f in fields(part))


def find_field(part: Any, field: str) -> Any:
    """The field of a part, or of a part inside it; None if there is none."""
    if not is_dataclass(part):
        return None
    if has_field(part, field):
        return getattr(part, field)
    return next((v for f in fields(part) if (v := find_field(getattr(part, f.name), field)) is not None), None)


def map_part(part: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a part and to the parts inside it."""
    if isinstance(part, tuple):
        return tuple(map_part(item, change) for item in part)
    if not is_dataclass(part):
        return part
    inside = {f.name: map_part(getattr(part, f.name), change) for f in fields(part)}
    return change(replace(part, **inside))  # type: ignore[type-var]


def map_stage(stage: Stage, change: Callable[[Any], Any]) -> Stage:
    """Apply `change` to every part of a stage."""
    slots = ("mixer", "qkv", "ffn", "merge", "position", "inner")
    return replace(stage, **{slot: map_part(getattr(stage, slot), change) for slot in slots})


def map_parts(spec: BackboneSpec, change: Callable[[Any], Any]) -> BackboneSpec:
    """Apply `change` to every part of a spec."""
    stages = tuple(map_stage(stage, change) for stage in spec.stages)
    return replace(spec, embed=map_part(spec.embed, change), stages=stages)


def iter_parts(spec: BackboneSpec) -> Iterator[Any]:
    """Every part of a spec."""
    seen: list[Any] = []

    def note(part: Any) -> Any:
        seen.append(part)
        return part

    map_parts(spec, note)
    yield from seen
