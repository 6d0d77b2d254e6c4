"""What is wrong with a recipe, and what its settings take, in words."""

import types
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from .recipe import ConfigBase, Recipe

OTHER_NAMES = {  # what other tools call a setting, where the names are not alike
    "learning_rate": "optimizer.lr",
    "base_lr": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "opt": "optimizer.kind",
    "betas": "optimizer.beta2",
    "clip_grad": "optimizer.clip",
    "sched": "schedule.kind",
    "scheduler": "schedule.kind",
    "warmup": "schedule.warmup_epochs",
    "batch_size": "batch",
    "bs": "batch",
    "num_workers": "data.workers",
    "image_size": "model.img_size",
    "input_size": "model.img_size",
    "label_smoothing": "loss.smoothing",
    "alpha": "distill.weight",
    "aa": "augment.rand_augment",
    "auto_augment": "augment.rand_augment",
    "reprob": "augment.erase",
    "random_erasing": "augment.erase",
    "dropout": "model.drop",
    "pretrained": "model.weights",
    "amp": "precision",
}
COUNTS = {2: "two", 3: "three"}
PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping of options"}


def explain(error: ValidationError, settings: Mapping[str, Any]) -> str:
    """The first mistake that was found in settings: what came, and what is allowed."""
    mistakes = error.errors(include_url=False)
    first = mistakes[0]
    path = [str(piece) for piece in first["loc"]]
    if first["type"] == "extra_forbidden":
        return unknown(path)
    key = known_part(path)
    if first["type"] == "missing" and path == key.split("."):
        return f"{key} is missing; it takes {takes(field_of(key))}."
    # Of a setting that takes one thing or another, each has its mistake; ours says most.
    ours = [m["msg"] for m in mistakes if m["type"] == "value_error" and known_part([*map(str, m["loc"])]) == key]
    reason = ours[0].removeprefix("Value error, ") if ours else ""
    is_section = key in Recipe.model_fields and config_type(Recipe.model_fields[key]) is not None
    if reason and (not key or is_section):
        return f"{reason}."
    value: Any = settings
    for name in key.split("."):
        value = value[name]
    return f"{key} = {show(value)} won't do; {reason or 'it takes ' + takes(field_of(key))}."


def show(value: Any) -> str:
    """A value as YAML has it."""
    return yaml.safe_dump(value).split()[0] if value is None or isinstance(value, bool) else repr(value)


def unknown(path: list[str]) -> str:
    """The sentence for a setting that does not exist: the nearest one, and what the section takes."""
    near = nearest(path)
    hint = f"; did you mean {near}?" if near else "."
    section = ".".join(path[:-1]) or "a recipe"
    fields = ", ".join(fields_at(path[:-1]))
    return f"there is no setting {'.'.join(path)!r}{hint} {section.capitalize()} takes {fields}."


def nearest(path: list[str]) -> str | None:
    """The setting that was probably meant: of the same section, by its last name in another one, or by another name."""
    name = path[-1].replace("-", "_").lower()
    keys = setting_keys()
    own = {field: ".".join([*path[:-1], field]) for field in fields_at(path[:-1])}
    ends = {key.rpartition(".")[2]: key for key in reversed(keys)}
    if near := own.get(name) or OTHER_NAMES.get(name) or ends.get(name):
        return near
    for names in (own, ends, OTHER_NAMES):
        if close := get_close_matches(name, names, 1, cutoff=0.7):
            return names[close[0]]
    return None


def known_part(path: list[str]) -> str:
    """The dotted key of a setting, without indices inside its value (`crop_scale.0`) and branches of its type."""
    known = {*setting_keys(), *Recipe.model_fields}
    for end in range(len(path), 0, -1):
        if (key := ".".join(path[:end])) in known:
            return key
    return ""


def config_type(field: FieldInfo) -> type[ConfigBase] | None:
    """The class of a section that a field holds, whether it may be None or not."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, ConfigBase)), None)


def fields_at(path: list[str]) -> Mapping[str, FieldInfo]:
    """The settings of the recipe, or of a section of it."""
    kind = config_type(Recipe.model_fields[path[0]]) if path else Recipe
    return kind.model_fields if kind else {}


def field_of(key: str) -> FieldInfo:
    """The field behind a dotted key."""
    *section, name = key.split(".")
    return fields_at(section)[name]


def setting_keys() -> list[str]:
    """Dotted names of all settings, in the order of the recipe.

    Example:
        >>> setting_keys()[:3]
        ['name', 'task', 'model.name']
    """
    keys = []
    for name, field in Recipe.model_fields.items():
        kind = config_type(field)
        keys += [f"{name}.{inner}" for inner in kind.model_fields] if kind else [name]
    return keys


def takes(field: FieldInfo) -> str:
    """What a setting takes.

    Example:
        >>> takes(field_of("optimizer.momentum")), takes(field_of("patience"))
        ('a number of at least 0 and below 1', 'a whole number of at least 1 and at most 100000, or null')
    """
    null = ", or null" if type(None) in get_args(field.annotation) else ""
    return wording(field.annotation) + bounds(field.metadata) + null


def wording(kind: Any) -> str:
    """A type in words."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inside))}" if len(inside) > 1 else str(inside[0])
    if origin in (Union, types.UnionType):
        return ", or ".join(wording(member) for member in inside if member is not type(None))
    if origin is tuple and inside[0] is str:
        return "a list of texts"
    if origin is tuple:
        return "a list of numbers" if inside[-1] is Ellipsis else f"a list of {COUNTS[len(inside)]} numbers"
    if origin is dict:
        return PLAIN[dict]
    if hasattr(kind, "__metadata__"):
        return wording(inside[0])
    return f"a mapping with {', '.join(kind.model_fields)}"


def bounds(metadata: list[Any]) -> str:
    """The limits of a number in words, with a space in front."""
    low, high = "", ""
    for limit in metadata:
        if isinstance(limit, Ge):
            low = f"of at least {number(limit.ge)}"
        elif isinstance(limit, Gt):
            low = f"above {number(limit.gt)}"
        elif isinstance(limit, Le):
            high = f"at most {number(limit.le)}"
        elif isinstance(limit, Lt):
            high = f"below {number(limit.lt)}"
    words = " and ".join(filter(None, (low, high)))
    return f" {words}" if words else ""


def number(limit: Any) -> str:
    """A limit in digits; a whole number with all of its own."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
