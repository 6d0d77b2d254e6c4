"""Local parts put into a model of timm, slot by slot."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ..models.names import PARTS
from ..models.options import SLOT_TYPES, choose
from ..parts import BiGate, DeformableMerge, DepthWise, GatherBroadcast, Life, LinearQkv, LocalityFfn, Squeezed
from ..parts.gates import SqueezeExcite
from .cells import CellMover, move_map, move_picture
from .hosts import MergePlace, NoPlace, Place, find_merges, find_places
from .layers import gated_linear, life_linear, local_linear
from .options import Choice
from .parallel import Beside, Gathering, Near, Squeezing, open_squeezing, put_near
from .replacement import exact_feed, exact_merge, exact_mixer, exact_qkv

Layers = dict[str, tuple[int, ...]]
Placed = Mapping[str, Sequence[int]] | None
Taken = list[nn.Parameter]  # of the parts, filled with pretrained numbers

# Names that localize() takes, of those that create_model() does.
NAMES = {
    "ffn": ("localvit", "bigate"),
    "qkv": ("life",),
    "mixer": ("depthwise", "dynamic_depthwise", "inhomogeneous_depthwise", "gather_broadcast", "squeezed"),
    "merge": ("deformable",),
}
KINDS: dict[str, tuple[type, ...]] = {
    "ffn": (LocalityFfn, BiGate),
    "qkv": (Life,),
    "mixer": (DepthWise, GatherBroadcast, Squeezed),
    "merge": (DeformableMerge,),
}


def put_into_timm(model: nn.Module, choice: Choice, placed: Placed) -> tuple[Layers, Taken]:
    """Put the chosen parts into a model of timm.

    Args:
        model: The model.
        choice: Which parts.
        placed: Layers that got each part before, of a model that is built again; None follows the choice.

    Returns:
        The layers that got each part, and the parameters that took over pretrained numbers.
    """
    places = find_places(model)
    layers: Layers = {}
    taken: Taken = []
    for slot, given in choice.parts().items():
        sites: list[Any] = find_merges(places) if slot == "merge" else places
        layers[slot], more = fill_slot(type(model).__name__, slot, given, sites, choice, placed, PUT[slot])
        taken += more
    return layers, taken


def fill_slot(
    kind: str,
    slot: str,
    given: Any,
    sites: Sequence[Any],
    choice: Choice,
    placed: Placed,
    put: Callable[[Any, Any, bool], Taken],
) -> tuple[tuple[int, ...], Taken]:
    """Put a part into the chosen layers that have a place for it; refused if none has, or one of those numbered."""
    if not sites:
        raise ValueError(f"{kind} has no place for {slot}={given!r}: it has one stage, so nothing merges in it.")
    numbers = choice.numbers(sites[0].depth) if placed is None else placed[slot]
    done: list[int] = []
    taken: Taken = []
    missing = ""
    for site in sites:
        if site.number not in numbers:
            continue
        try:
            part = choose_part(slot, given, site, choice.preserve)
            if placed is None and choice.preserve:
                check_use(site, part)
            taken += put(site, part, choice.preserve)
            done.append(site.number)
        except NoPlace as reason:
            missing = missing or f"{reason} (layer {site.number})"
    named = slot != "merge" and not isinstance(choice.layers, str)
    if not done or (missing and named):
        raise ValueError(f"{kind} has no place for {slot}={given!r}: {missing or 'none in the chosen layers'}.")
    return tuple(done), taken


def check_use(site: Any, part: Any) -> None:
    """Refuse what could never learn: a part for patches behind which the head reads prefix tokens alone."""
    if site.number == site.depth and site.reads_prefix and isinstance(part, (LocalityFfn, DepthWise)):
        raise NoPlace("behind the last layer the head reads the class token, and nothing would come of its patches")


def choose_part(slot: str, given: Any, site: Any, preserve: bool) -> Any:
    """The part that a name stands for in a block, or the part itself; a part that has no form here is refused."""
    if isinstance(given, tuple):
        raise ValueError(f"{slot} was given {len(given)} parts, but a model of timm takes one for all of its layers.")
    if slot == "mixer" and given == "squeezed":
        return Squeezed()
    named = {name: PARTS[slot][name] for name in NAMES[slot]}
    part = choose(slot, given, named, SLOT_TYPES[slot], site)
    if not isinstance(part, KINDS[slot]) and (preserve or slot != "mixer"):  # any mixer can replace attention
        kinds = ", ".join(kind.__name__ for kind in KINDS[slot])
        raise ValueError(f"{type(part).__name__} is no part that localize() can put into a model; it knows {kinds}.")
    return part


def put_ffn(place: Place, part: Any, preserve: bool) -> Taken:
    """LocalViT's or LightViT's feed-forward part."""
    layer = place.output
    if not preserve:
        return exact_feed(place, part)
    make: Any = local_linear if isinstance(part, LocalityFfn) else gated_linear
    place.feed.fc2 = make(layer, part, place.keeper())
    return []


def put_qkv(place: Place, part: Life, preserve: bool) -> Taken:
    """LIFE."""
    attention = place.attention
    layer = getattr(attention, "qkv", None)
    if type(layer) is not nn.Linear:
        raise NoPlace(f"{type(attention).__name__} does not make queries, keys and values in one layer from one map")
    if not preserve:
        return exact_qkv(place, part)
    biases = take_biases(attention)
    attention.qkv = life_linear(layer, part, place.attention_keeper(), **biases)
    return []


def take_biases(attention: Any) -> dict[str, Any]:
    """Biases that an attention module adds to its qkv layer's weights itself, so that the layer can add them."""
    if getattr(attention, "q_bias", None) is None or attention.qkv_bias_separate:
        return {"q_bias": None, "v_bias": None}
    biases = {"q_bias": attention.q_bias, "v_bias": attention.v_bias}
    attention.q_bias = attention.k_bias = attention.v_bias = None
    return biases


def put_mixer(place: Place, part: Any, preserve: bool) -> Taken:
    """A depth-wise convolution, gathering tokens or a gate, beside or in place of attention."""
    if preserve:
        put_near(place, beside(place, part))
        return []
    if isinstance(part, Squeezed):
        put_near(place, Squeezing(SqueezeExcite(place.dim, place.dim // part.se_reduction), place.keeper()))
        return []
    return exact_mixer(place, part)


def beside(place: Place, part: Any) -> Near:
    """The preserving form of a mixer."""
    if isinstance(part, Squeezed):
        return open_squeezing(place.dim, part.se_reduction, place.keeper())
    if isinstance(part, GatherBroadcast):
        return Beside(Gathering(place.dim, part.heads), place.dim, place.keeper(), carries_aux=True)
    return Beside(part.build(place.site, LinearQkv()), place.dim, place.keeper(), carries_aux=False)


def put_merge(place: MergePlace, part: DeformableMerge, preserve: bool) -> Taken:
    """LIT's deformable merging."""
    if not preserve:
        return exact_merge(place, part)
    picture = place.family.layout != "map"
    place.merge.mover = CellMover(place.in_dim)
    place.merge.register_forward_pre_hook(move_picture if picture else move_map)
    return []


PUT: dict[str, Callable[[Any, Any, bool], Taken]] = {
    "ffn": put_ffn,
    "qkv": put_qkv,
    "mixer": put_mixer,
    "merge": put_merge,
}
