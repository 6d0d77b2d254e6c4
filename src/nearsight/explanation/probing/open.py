"""From a text to what is probed: a part, a model or a block of it, a run, or a layer of torch."""

import ast
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import timm
import torch
import yaml
from torch import Tensor, nn

from ...atomic import expand_home
from ...console import first_line
from ...lattice import Grid
from ...models import MODELS
from ...models.names import PARTS, Context
from ...parts.slots import Ffn, Merge, Mixer, Qkv, Site
from ...shipped import shipped_models
from ...tasks.build import channels_seen
from .layer import ProbedLayer, strip_projections, wrap

DIM = 24  # channels of a part that is built alone
SIDE = 21  # of its map: three windows of seven


def open_probed(
    text: str, size: tuple[int, int] | None = None, *, bare: bool = False, seed: int = 0, grid: Grid | None = None
) -> ProbedLayer:
    """What a text stands for.

    Args:
        text: A part by its name (`window`, `depthwise:kernel=5`), a model of ours (`deit_nano`) or of timm
            (`timm/resnet18`), a run's folder, a block in one of these (`swin_nano.stages.1.blocks.0.mixer`), or a layer
            of torch (`torch:Conv2d(16, 16, 3, groups=16)`).
        size: Height and width of the map (of a model: of the image).
        bare: Without projections: those that only mix channels become the identity.
        seed: Of new weights and of the random image.
        grid: Of a torch layer that takes tokens.

    Example:
        >>> open_probed("depthwise").source
        Grid(height=21, width=21, aux=0)
        >>> open_probed("swin_nano.stages.1.blocks.0.mixer").channels
        64
    """
    torch.manual_seed(seed)
    if text.startswith("torch:"):
        return open_torch_layer(text, size, grid, bare)
    name, _, options = text.partition(":")
    if slots := [slot for slot, parts in PARTS.items() if name in parts]:
        return open_part(slots[0], name, options, size, bare)
    return open_in_model(text, size, bare, seed)


def open_torch_layer(text: str, size: tuple[int, int] | None, grid: Grid | None, bare: bool) -> ProbedLayer:
    """A layer of torch on an input that its own settings ask for."""
    layer = parse_layer(text.removeprefix("torch:"))
    if bare:
        strip_projections(layer)
    channels, kind = channels_of(layer)
    height, width = size or (SIDE, SIDE)
    shape = (height * width, channels) if kind == "tokens" else (channels, height, width)
    tokens = (grid or Grid(height, width)) if kind == "tokens" else None
    return wrap(layer, torch.randn(1, *shape), name=text, grid=tokens)


def channels_of(layer: nn.Module) -> tuple[int, str]:
    """How many channels a layer takes, and whether they come as tokens or as a map."""
    for part in layer.modules():
        if isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)):
            return part.in_channels, "map"
        if isinstance(part, nn.MultiheadAttention):
            return part.embed_dim, "tokens"
        if isinstance(part, nn.Linear):
            return part.in_features, "tokens"
        if isinstance(part, nn.LayerNorm):
            return part.normalized_shape[-1], "tokens"
        if isinstance(part, (nn.BatchNorm2d, nn.InstanceNorm2d)):
            return part.num_features, "map"
        if isinstance(part, nn.GroupNorm):
            return part.num_channels, "map"
    return DIM, "map"


def open_part(slot: str, name: str, options: str, size: tuple[int, int] | None, bare: bool) -> ProbedLayer:
    """A part, built alone with new weights."""
    context = Context(MODELS["swin_tiny"], 0)
    value: Any = PARTS[slot][name](context)
    if value is None:
        raise ValueError("The part 'none' is nothing; name another.")
    if isinstance(value, tuple):  # every other block has shifted windows
        value = value[-1] if name.startswith("shifted") else value[0]
    value = changed(value, name, options)
    height, width = size or (SIDE, SIDE)
    grid = Grid(height, width, 4 if name == "gather_broadcast" else 0)
    site = Site(DIM, grid)
    module = build_part(value, site)
    stir(module)
    if bare:
        strip_projections(module)
    label = f"{name}:{options}" if options else name
    return wrap(module, torch.randn(1, grid.tokens, DIM), name=label, grid=grid, layout="tokens", rest=(grid,))


def build_part(value: Any, site: Site) -> nn.Module:
    """The module of a part's value."""
    from ...parts import LinearQkv

    match value:
        case Mixer():
            return value.build(site, LinearQkv())
        case Qkv():
            return value.build(site, 3)
        case Ffn():
            return value.build(site)
        case Merge():
            return value.build(replace(site, dim=2 * site.dim), site.dim)
    raise ValueError(f"{type(value).__name__} fills no slot that can be probed.")


def changed(value: Any, name: str, options: str) -> Any:
    """A part with other settings, `KEY=VALUE:KEY=VALUE`."""
    known = [one.name for one in fields(value)]
    for option in filter(None, options.split(":")):
        key, equals, text = option.partition("=")
        if not equals or key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}."
            raise ValueError(f"{name} has no setting {option!r}; {hint}")
        try:
            setting = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise ValueError(f"{option!r} is not KEY=VALUE with a plain value.") from None
        value = replace(value, **{key: tuple(setting) if isinstance(setting, list) else setting})
    return value


@torch.no_grad()
def stir(module: nn.Module, amount: float = 0.1) -> None:
    """Move new weights a little: some start as zero, or all equal, and would hide what a layer can do."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.add_(torch.randn_like(parameter), alpha=amount * max(0.2, float(parameter.float().abs().mean())))


class Features(nn.Module):
    """A model without its head."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return self.model.forward_features(images) if hasattr(self.model, "forward_features") else self.model(images)


def open_in_model(text: str, size: tuple[int, int] | None, bare: bool, seed: int) -> ProbedLayer:
    """A model, or a module in it with what it is fed when the model sees a random image."""
    model, path, own_size, fresh = open_model(text, seed)
    model.eval()
    if fresh:
        stir(model)
    shape = (1, channels_seen(model), *(size or own_size))
    images = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if not path:
        return wrap(Features(model), images, name=text, layout="map")
    try:
        module = model.get_submodule(path)
    except AttributeError:
        near = get_close_matches(path, [name for name, _ in model.named_modules() if name], 1, cutoff=0.3)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise ValueError(f"{text} has no module {path}{hint}") from None
    call = record_call(model, module, images, text)
    if bare:
        strip_projections(module)
    example, *rest = call.arguments
    return wrap(module, example, name=text, grid=call.grid(model), rest=rest, options=call.named)


def open_model(text: str, seed: int) -> tuple[nn.Module, str, tuple[int, int], bool]:
    """The model that a text begins with, the path of a module in it, its image size, whether its weights are new."""
    from ...runs.predictor import load_module

    file, path = expand_home(text), ""
    while not file.exists() and "." in file.name:
        stem, _, last = file.name.rpartition(".")
        file, path = file.with_name(stem), f"{last}.{path}" if path else last
    if file.exists() and ("/" in text or text.split(".")[0] not in MODELS):
        found = load_module(file)
        return found.model, path, found.preprocessing.size, False
    shipped = next((known for known in shipped_models() if f"{text}.".startswith(f"{known}.")), None)
    if shipped is not None:  # whose name has a dot of its own
        found = load_module(shipped)
        return found.model, text[len(shipped) + 1 :], found.preprocessing.size, False
    name, _, path = text.removeprefix("timm/").partition(".")
    if name not in MODELS and not timm.is_model(name):
        near = get_close_matches(name, [*MODELS, *(part for parts in PARTS.values() for part in parts)], 1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `nearsight models` lists the models."
        raise ValueError(f"There is no part, model or file {text!r}{hint}")
    new = load_module(text.split(".")[0], seed)
    return new.model, path, new.preprocessing.size, True


class Call:
    """What a module was called with."""

    def __init__(self, arguments: tuple[Any, ...], named: dict[str, Any]):
        self.arguments = arguments
        self.named = named

    def grid(self, model: nn.Module) -> Grid | None:
        """The grid of the tokens, from the call itself or from what the model says about itself."""
        tokens = self.arguments[0]
        if tokens.ndim != 3:
            return None
        for one in (*self.arguments[1:], *self.named.values()):
            if isinstance(one, Grid) and one.tokens == tokens.shape[1]:
                return one
            two = isinstance(one, (tuple, list)) and len(one) == 2 and all(isinstance(side, int) for side in one)
            if two and one[0] * one[1] == tokens.shape[1]:
                return Grid(*one)
        aux = int(getattr(model, "num_prefix_tokens", 0) or 0)
        for front in dict.fromkeys((aux, 0)):
            side = round((tokens.shape[1] - front) ** 0.5)
            if side > 1 and side * side + front == tokens.shape[1]:
                return Grid(side, side, front)
        return None


@torch.no_grad()
def record_call(model: nn.Module, module: nn.Module, images: Tensor, text: str) -> Call:
    """What a module of a model is called with when the model sees these images."""
    calls: list[Call] = []

    def hook(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append(Call(tuple(map(wide, arguments)), {key: wide(one) for key, one in named.items()}))

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        model(images)
    finally:
        handle.remove()
    if not calls:
        inside = [name for name, _ in module.named_children()]
        hint = f"; name one of its modules, such as {text}.{inside[0]}." if inside else "; name another."
        raise ValueError(f"{text} is not called when the model runs{hint}")
    if not calls[0].arguments or not isinstance(calls[0].arguments[0], Tensor):
        raise ValueError(f"{text} is not called with a tensor; name the module around it.")
    return calls[0]


def wide(value: Any) -> Any:
    """A value for a module in float64."""
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


# fmt: off
ALLOWED = (
    "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool2d", "BatchNorm1d",
    "BatchNorm2d", "ChannelShuffle", "Conv2d", "ConvTranspose2d", "Dropout", "ELU", "Flatten", "GELU",
    "GLU", "GroupNorm", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "InstanceNorm2d", "LayerNorm",
    "LeakyReLU", "Linear", "LocalResponseNorm", "MaxPool2d", "Mish", "MultiheadAttention", "PReLU", "PixelShuffle",
    "PixelUnshuffle", "RMSNorm", "ReLU", "ReLU6", "SELU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus",
    "Tanh", "TransformerEncoderLayer", "Unflatten", "Upsample", "ZeroPad2d",
)
# fmt: on
LARGEST = 10**9  # parameters


def parse_layer(text: str) -> nn.Module:
    """The layer that a text describes: a name of `torch.nn` and its arguments, which are plain values or layers.

    Example:
        >>> parse_layer("Conv2d(16, 16, 3, groups=16)")
        Conv2d(16, 16, kernel_size=(3, 3), stride=(1, 1), groups=16)
        >>> parse_layer("Sequential(Linear(4, 8), GELU(), Linear(8, 4))")[1]
        GELU(approximate='none')
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"torch:{text} is no layer; write it like torch:Conv2d(16, 16, 3, groups=16).") from None
    if not isinstance(tree, ast.Call):
        raise ValueError(f"torch:{text} is no layer; write its arguments too, like torch:Linear(16, 16).")
    return build(tree, text)


def build(call: ast.Call, text: str) -> nn.Module:
    """The layer of a parsed call."""
    if not isinstance(call.func, ast.Name) or call.func.id not in ALLOWED:
        name = ast.unparse(call.func)
        near = get_close_matches(name, ALLOWED, 1)
        hint = f"did you mean {near[0]}?" if near else f"it can be one of {', '.join(sorted(ALLOWED))}."
        raise ValueError(f"torch:{text} asks for {name}, which is not a layer that can be probed; {hint}")
    arguments = [value(one, text) for one in call.args]
    if any(word.arg is None for word in call.keywords):
        raise ValueError(f"torch:{text} has ** in it; write arguments as name=value.")
    named = {str(word.arg): value(word.value, text) for word in call.keywords}
    try:
        refuse_huge(call.func.id, arguments, named)
        return getattr(nn, call.func.id)(*arguments, **named)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ValueError(f"torch:{text} can't be made: {first_line(error)}.") from None


def value(node: ast.expr, text: str) -> Any:
    """A plain value, or a layer inside a layer."""
    if isinstance(node, ast.Call):
        return build(node, text)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise ValueError(
            f"torch:{text} has {ast.unparse(node)!r} as an argument; only numbers, texts, True, False, None, tuples "
            "and layers are taken."
        ) from None


def refuse_huge(name: str, arguments: list[Any], named: dict[str, Any]) -> None:
    """Refuse a layer that would not fit into memory, before it is made."""
    import torch

    if name == "Sequential":
        return
    with torch.device("meta"):
        layer = getattr(nn, name)(*arguments, **named)
    count = sum(parameter.numel() for parameter in layer.parameters())
    if count > LARGEST:
        raise ValueError(f"it would have {count:,} parameters; {LARGEST:,} are the most.")
