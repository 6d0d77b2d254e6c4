"""What a search chooses among: every slot of every stage, sizes, and the learning rate.

All parameters are drawn for all stages, also those of stages or parts that a model does not have: importances then
compare all trials, and what a part was worth does not depend on which others were drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from ..models.names import EMBEDS, PARTS, POSITIONS, Context
from ..models.spec import BackboneSpec, Stage
from ..parts import ConcatMerge, Global, LinearQkv, Mlp, Patchify
from ..parts.slots import Embed

STAGES = 3  # the most
HEAD = 16  # channels of a head; widths are multiples of it
WIDTHS = (16, 32, 48, 64, 96, 128)  # of the first stage
GROWTHS = (1.0, 1.5, 2.0)  # of the width, from a stage to the next
DEPTHS = (1, 2, 3, 4)
KERNELS = (3, 5, 7)
GAMMAS = (1.0, 2.0, 3.0, 4.0)
WINDOW = 4
# Names of parts, as `models.names` has them.
MIXERS = ("none", "depthwise", "dynamic_depthwise", "window", "global", "locality_attention")
QKVS = ("linear", "life")
FFNS = ("mlp", "localvit", "bigate", "dense")
MERGES = ("concat", "conv", "residual", "deformable", "pool")
TOKENIZERS = ("patchify", "conv_stem", "conv_tokenizer", "shifted_patches", "dense_stem")
POOLS = ("mean", "sequence")
NORMS = ("layer", "batch")
TABLES = ("none", "learned")  # of positions, in the first stage
PATCHES = (2, 4, 8)
SIDES = (4, 32)  # tokens along a side of the first map, fewest and most
RATES = 3.0  # the learning rate is drawn from the recipe's divided by it to the recipe's times it

# Which slot a parameter belongs to, for what each slot is worth.
SLOTS = {
    "embed": "embed",
    "patch": "embed",
    "stages": "depth",
    "depth": "depth",
    "width": "width",
    "grow": "width",
    "mixer": "mixer",
    "kernel": "kernel",
    "qkv": "qkv",
    "ffn": "ffn",
    "gamma": "gamma",
    "merge": "merge",
    "norm": "norm",
    "pool": "pool",
    "position": "position",
    "lr": "learning rate",
}


class Trial(Protocol):
    """What draws parameters: a trial of Optuna."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """One of the choices."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number between two others."""


class Smallest:
    """Draws what is computed fastest, as far as one can tell beforehand: the limit must leave room for it."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """The first choice, but the coarsest patches."""
        return choices[-1] if name == "patch" else choices[0]

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """The smallest number."""
        return low


@dataclass(frozen=True)
class DrawnModel:
    """A model that is tried.

    Attributes:
        spec: The model.
        lr: Learning rate.
    """

    spec: BackboneSpec
    lr: float


def patches_for(img_size: int) -> tuple[int, ...]:
    """Strides of the embedding that leave the first map enough tokens, and not too many.

    Example:
        >>> patches_for(32), patches_for(16), patches_for(224)
        ((2, 4, 8), (2, 4), (8,))
    """
    fitting = tuple(patch for patch in PATCHES if SIDES[0] <= -(-img_size // patch) <= SIDES[1])
    return fitting or PATCHES[-1:]


def draw(trial: Trial, img_size: int, lr: float) -> DrawnModel:
    """Draw a model and its learning rate.

    Args:
        trial: Draws each parameter by its name.
        img_size: Side of the images in pixels.
        lr: The recipe's learning rate.

    Example:
        >>> smallest = draw(Smallest(), 32, 1e-3)
        >>> smallest.spec.embed.label, [(stage.dim, stage.depth, stage.mixer) for stage in smallest.spec.stages]
        ('Patchify 8', [(16, 1, None)])
    """
    name, patch = (
        trial.suggest_categorical("embed", TOKENIZERS),
        trial.suggest_categorical("patch", patches_for(img_size)),
    )
    embed = EMBEDS[name](Patchify(patch=patch, norm=True))
    count = trial.suggest_categorical("stages", tuple(range(1, STAGES + 1)))
    norm = trial.suggest_categorical("norm", NORMS)
    position = trial.suggest_categorical("position", TABLES)
    width: float = trial.suggest_categorical("width", WIDTHS)
    stages = []
    for number in range(1, STAGES + 1):
        if number > 1:
            width *= trial.suggest_categorical(f"grow{number}", GROWTHS)
        dim = max(HEAD, round(width / HEAD) * HEAD)
        kernel = trial.suggest_categorical(f"kernel{number}", KERNELS)
        mixer = trial.suggest_categorical(f"mixer{number}", MIXERS)
        qkv = trial.suggest_categorical(f"qkv{number}", QKVS)
        gamma = trial.suggest_categorical(f"gamma{number}", GAMMAS)
        ffn = trial.suggest_categorical(f"ffn{number}", FFNS)
        merge = trial.suggest_categorical(f"merge{number}", MERGES) if number > 1 else None
        stage = Stage(
            dim, trial.suggest_categorical(f"depth{number}", DEPTHS), Global(dim // HEAD), Mlp(gamma), norm=norm
        )
        filled = replace(
            stage,
            mixer=named("mixer", mixer, embed, stage, kernel=kernel, window=WINDOW),
            # Only depth-wise convolutions may be larger than 3x3.
            ffn=named("ffn", ffn, embed, stage, gamma=gamma, **({} if ffn == "dense" else {"kernel": kernel})),
            merge=named("merge", merge, embed, stage) if merge else None,
            position=POSITIONS[position](stage) if number == 1 else None,
        )
        if getattr(filled.mixer, "fed_by_qkv", False):
            filled = replace(filled, qkv=named("qkv", qkv, embed, stage))
        stages.append(filled)
    spec = BackboneSpec(
        embed, tuple(stages[:count]), "search", pool=trial.suggest_categorical("pool", POOLS), img_size=img_size
    )
    return DrawnModel(spec, trial.suggest_float("lr", lr / RATES, lr * RATES, log=True))


def named(slot: str, name: str, embed: Embed, stage: Stage, **settings: Any) -> Any:
    """A part by its name for a plain stage, with those of the settings that it has."""
    part = PARTS[slot][name](Context(BackboneSpec(embed, (stage,), "search"), 0))
    known = {field.name for field in fields(part)} if part else set()
    return replace(part, **{key: value for key, value in settings.items() if key in known}) if part else None


def plain_forms(spec: BackboneSpec) -> Iterator[tuple[str, BackboneSpec]]:
    """A model with one slot at a time filled with the plain part in all stages; slots that are plain are left out.

    Example:
        >>> from nearsight.models import MODELS
        >>> [slot for slot, _ in plain_forms(MODELS["lightvit_nano"])]
        ['embed', 'mixer', 'ffn', 'merge']
    """
    forms: dict[str, BackboneSpec] = {
        "embed": replace(spec, embed=Patchify(patch=spec.embed.stride, norm=True)),
        "mixer": each_stage(spec, lambda stage: {"mixer": Global(heads=max(1, stage.dim // HEAD))}),
        "qkv": each_stage(spec, lambda stage: {"qkv": LinearQkv()}),
        "ffn": each_stage(spec, lambda stage: {"ffn": named("ffn", "mlp", spec.embed, stage)}),
        "merge": each_stage(spec, lambda stage: {"merge": ConcatMerge() if stage.merge else None}),
        "pool": replace(spec, pool="mean") if spec.pool == "sequence" else spec,
        "norm": each_stage(spec, lambda stage: {"norm": "layer"}),
    }
    for slot, form in forms.items():
        if form != spec:
            yield slot, form


def each_stage(spec: BackboneSpec, change: Any) -> BackboneSpec:
    """A spec with other fields in each stage."""
    return replace(spec, stages=tuple(replace(stage, **change(stage)) for stage in spec.stages))


def summarise(spec: BackboneSpec) -> str:
    """A model in one line.

    Example:
        >>> summarise(draw(Smallest(), 32, 1e-3).spec)
        'Patchify 8 / 16x1 - + Mlp 1 / mean'
    """
    stages = []
    for stage in spec.stages:
        layer = next(stage.layers())
        fed = f" by {layer.qkv.label}" if not layer.qkv.plain else ""
        mixer = "-" if layer.mixer is None else layer.mixer.label + fed
        merge = "" if stage.merge is None else f"{stage.merge.label} > "
        stages.append(f"{merge}{stage.dim}x{stage.depth} {mixer} + {layer.ffn.label}")
    return " / ".join([spec.embed.label, *stages, spec.pool])
