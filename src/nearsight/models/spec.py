"""A model as a value: which part fills each slot of each stage, and how that value is written to and read from JSON."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ..atomic import write_whole
from ..parts import LinearQkv, Mlp
from ..parts.layers import Norm
from ..parts.ranges import Aux, Depth, Epsilon, Pixels, Rate, Width, check_fields
from ..parts.slots import REGISTERED, Embed, Ffn, Inner, Merge, Mixer, Position, Qkv

MOST_STAGES = 8  # the last map has 1 / 128 of the first one's sides
LONGEST = 2**22  # bytes of a file with a description; the largest of ours has a hundredth of that
DEEPEST = 32  # parts inside parts in a description; five are needed


@dataclass(frozen=True)
class Layer:
    """What fills the slots of one block."""

    mixer: Mixer | None
    qkv: Qkv
    ffn: Ffn


@dataclass(frozen=True)
class Stage:
    """Blocks of one width on one grid. A slot holds a part for all layers, or a tuple with one part per layer.

    Attributes:
        dim: Width of the tokens.
        depth: Number of blocks.
        mixer: Exchange between positions, or None: the block is its feed-forward part alone.
        ffn: Exchange between channels.
        qkv: What feeds an attention mixer.
        merge: Down-sampling at the entry; None in the first stage.
        aux: Learned auxiliary tokens that join at the entry, in front of those that came along.
        position: Absolute positions added at the entry.
        inner: Inner transformer in front of each block (TNT).
        norm: Normalisation of the blocks.
        post_norm: Normalise what a part returns instead of what it gets (Swin v2).
    """

    dim: Width
    depth: Depth
    mixer: Mixer | tuple[Mixer | None, ...] | None
    ffn: Ffn | tuple[Ffn, ...] = Mlp()
    qkv: Qkv | tuple[Qkv, ...] = LinearQkv()
    merge: Merge | None = None
    aux: Aux = 0
    position: Position | None = None
    inner: Inner | None = None
    norm: Norm = "layer"
    post_norm: bool = False

    def layers(self) -> Iterator[Layer]:
        """The parts of each block."""
        slots: tuple[Any, ...] = (self.mixer, self.qkv, self.ffn)
        for index in range(self.depth):
            yield Layer(*(slot[index] if isinstance(slot, tuple) else slot for slot in slots))


@dataclass(frozen=True)
class BackboneSpec:
    """A whole model.

    Attributes:
        embed: From image to tokens.
        stages: The stages, fine to coarse.
        family: Which family file it comes from.
        eps: Epsilon of the blocks' norms and of the last norm.
        pool: What the head looks at: the first token (`token`), the mean of patch tokens (`mean`) or of all (`all`), or
            a mean of patch tokens with learned weights (`sequence`, CCT).
        neck: Width of a layer between the last norm and the pooling (LightViT), or None.
        distilled: A second head on the second auxiliary token; the predictions are averaged.
        drop_path: Default rate of stochastic depth, growing linearly over the depth.
        img_size: Height and width in pixels that the model is made for.
    """

    embed: Embed
    stages: tuple[Stage, ...]
    family: str
    eps: Epsilon = 1e-6
    pool: Literal["token", "mean", "all", "sequence"] = "token"
    neck: Width | None = None
    distilled: bool = False
    drop_path: Rate = 0.1
    img_size: Pixels | tuple[Pixels, Pixels] = 224

    @property
    def aux(self) -> int:
        """Auxiliary tokens at the end."""
        return sum(stage.aux for stage in self.stages)

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels between neighbouring tokens, per stage."""
        return tuple(self.embed.stride * 2**index for index in range(len(self.stages)))

    def check(self) -> None:
        """Refuse combinations that have no meaning, with a sentence that says why."""
        check_fields(self)
        if not 1 <= len(self.stages) <= MOST_STAGES:
            raise ValueError(f"A model has 1 to {MOST_STAGES} stages, not {len(self.stages)}.")
        aux = 0
        for number, stage in enumerate(self.stages, 1):
            aux += stage.aux
            if (stage.merge is None) != (number == 1):
                raise ValueError(f"Stage {number} must {'not ' if number == 1 else ''}have a merge part.")
            self._check_slots(stage, number)
            for layer in stage.layers():
                self._check_layer(layer, number, aux)
        if self.pool == "token" and aux < 1 + self.distilled:
            raise ValueError("The head reads an auxiliary token but the model has none; use pool='mean'.")

    def _check_slots(self, stage: Stage, number: int) -> None:
        for slot in ("mixer", "qkv", "ffn"):
            given = getattr(stage, slot)
            if isinstance(given, tuple) and len(given) != stage.depth:
                raise ValueError(
                    f"Stage {number} has {stage.depth} layers but {len(given)} parts in its {slot} slot; "
                    f"give one part or {stage.depth}."
                )
        if stage.inner is None:
            return
        inner, embed = type(stage.inner).__name__, type(self.embed).__name__
        made = self.embed.pixel_tokens
        if made is None or number > 1:
            raise ValueError(
                f"{inner} has no place in stage {number}: only an embedding with pixel tokens feeds it, in stage 1."
            )
        wanted = (stage.inner.side, stage.inner.dim)
        if wanted != made:
            raise ValueError(
                f"{inner} is made for {wanted[0]}x{wanted[0]} pixel tokens {wanted[1]} wide, "
                f"but {embed} makes {made[0]}x{made[0]} of {made[1]}."
            )

    def _check_layer(self, layer: Layer, number: int, aux: int) -> None:
        name = type(layer.mixer).__name__
        if layer.mixer is not None and aux and not layer.mixer.carries_aux:
            raise ValueError(
                f"{name} in stage {number} has no place for the {aux} auxiliary token(s) of this model; "
                "use Global or GatherBroadcast there, or build the model with aux=0 and pool='mean'."
            )
        if not layer.qkv.plain and not getattr(layer.mixer, "fed_by_qkv", False):
            reason = (
                "there is no mixer" if layer.mixer is None else f"{name} makes no queries, keys and values from one map"
            )
            raise ValueError(f"{type(layer.qkv).__name__} has no place in stage {number}: {reason}.")


def alternate(part: Any, depth: int) -> tuple[Any, ...]:
    """`depth` copies of a windowed part, every second one shifted."""
    return tuple(replace(part, shifted=index % 2 == 1) for index in range(depth))


REGISTERED.update({cls.__name__: cls for cls in (BackboneSpec, Stage)})


def to_json(value: Any) -> Any:
    """A spec, stage or part as plain JSON values.

    Example:
        >>> to_json(Mlp(ratio=2.0))
        {'type': 'Mlp', 'ratio': 2.0, 'act': 'gelu'}
    """
    if is_dataclass(value):
        if REGISTERED.get(type(value).__name__) is not type(value):
            raise TypeError(
                f"{type(value).__name__} is not registered, so a model with it has no JSON form; "
                "`nearsight.parts.register` registers a part."
            )
        return {"type": type(value).__name__} | {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    return [to_json(v) for v in value] if isinstance(value, tuple) else value


def from_json(value: Any, depth: int = 0) -> Any:
    """Undo `to_json`; only registered types can come out, and nothing is imported to find one."""
    if depth > DEEPEST:
        raise ValueError(f"A model description has parts inside parts, more than {DEEPEST} deep; no model of ours has.")
    if isinstance(value, list):
        return tuple(from_json(v, depth + 1) for v in value)
    if not isinstance(value, Mapping):
        return value
    name = value.get("type")
    kind = REGISTERED.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(
            f"A model description names the type {name!r}, which Nearsight does not have; if it is a part of your own, "
            "import the module that registers it first (nearsight.parts.register)."
        )
    known = {f.name for f in fields(kind)}
    given = {key: from_json(v, depth + 1) for key, v in value.items() if key != "type"}
    if unknown := sorted(given.keys() - known):
        raise ValueError(
            f"A model description gives {name} the unknown field {unknown[0]!r}; it has {', '.join(sorted(known))}."
        )
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if absent := sorted(required - given.keys()):
        raise ValueError(f"A model description leaves out the field {absent[0]!r} of {name}.")
    return kind(**given)


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


def spec_from_json(value: Any) -> BackboneSpec:
    """A whole model from its description, checked."""
    spec = from_json(value)
    if not isinstance(spec, BackboneSpec):
        raise ValueError(f"A model description holds {type(spec).__name__} where the spec of the model should be.")
    spec.check()
    return spec


def is_spec_file(name: str | PathLike[str]) -> bool:
    """Whether what stands for a model is the file of a description.

    Example:
        >>> is_spec_file("runs/search-digits/spec.json"), is_spec_file("deit_nano")
        (True, False)
    """
    return str(name).endswith(".json")


def read_spec(path: str | PathLike[str]) -> BackboneSpec:
    """A whole model from the file of its description, as `write_spec` or `nearsight search` wrote it.

    Raises:
        ValueError: There is no such file, or it describes no model.

    Example:
        >>> import tempfile
        >>> from nearsight.models import MODELS
        >>> path = Path(tempfile.mkdtemp()) / "mine.json"
        >>> write_spec(MODELS["lit_nano"], path)
        >>> read_spec(path) == MODELS["lit_nano"]
        True
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no file {path}; give the description of a model, such as spec.json of a search.")
    if path.stat().st_size > LONGEST:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, far more than any description of a model.")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return spec_from_json(held)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(
            f"{path} is not JSON; give the description of a model, such as spec.json of a search."
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} describes no model that can be built: {error}") from None


def write_spec(spec: BackboneSpec, path: str | PathLike[str]) -> None:
    """Write the description of a whole model, complete or not at all."""
    write_whole(path, (json.dumps(to_json(spec), indent=1) + "\n").encode())
