"""Recipes from YAML files and the command line: defaults <- a recipe's file <- changes by dotted key.

What is wrong is refused in one sentence; the resolved recipe is saved in the run's folder and opens again with
`read_recipe`.
"""

import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..arguments import checked
from .recipe import Recipe
from .validation import explain

MOST_DIGITS = 100  # of a whole number


class Loader(yaml.SafeLoader):
    """YAML without its traps: `1e-3` is a number, dates stay text, a key may not come twice, and nothing is repeated
    by reference, since few lines of that stand for more than any memory holds."""

    # Without the dates of the class above; a copy, because resolvers are kept on the class.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A value; a reference to another one is refused."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(
                f"line {event.start_mark.line + 1} repeats *{event.anchor}, which is not read here; write it out"
            )
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number; Python itself gives up on thousands of digits, with an error that no user understands."""
        if len(node.value) > MOST_DIGITS:
            raise yaml.YAMLError(f"the number in line {node.start_mark.line + 1} has {len(node.value):,} digits")
        return super().construct_yaml_int(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping, with keys that are text and differ."""
        seen: set[str] = set()
        for key, _ in node.value:
            where = f"in line {key.start_mark.line + 1}"
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise yaml.YAMLError(f"the key {where} is not text; write the name of a setting")
            if key.value in seen:
                raise yaml.YAMLError(f"{key.value!r} {where} is set twice; keep one of them")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def recipe_names() -> list[str]:
    """Names of the recipes that come with the library.

    Example:
        >>> "deit" in recipe_names()
        True
    """
    folder = files("nearsight.config") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


@checked
def load_recipe(name: str | Path | Recipe, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by name or from a YAML file, with changes.

    Args:
        name: One of `recipe_names()`, a file that ends in .yaml or .yml, or a recipe itself.
        changes: Values by dotted key, such as `optimizer.lr`.

    Raises:
        ValueError: There is no such recipe, or a setting is wrong.

    Example:
        >>> load_recipe("small-data", {"optimizer.lr": 3e-4}).optimizer.lr
        0.0003
    """
    settings, origin = read_settings(name)
    recipe = parse(settings, origin)
    if not changes:
        return recipe
    for key, value in changes.items():
        set_dotted(settings, key, value)
    return parse(settings, f"{origin} with your changes")


def read_recipe(path: Path) -> Recipe:
    """A resolved recipe from a run's folder."""
    return parse(read_yaml(path), str(path), hint=False)


def to_yaml(recipe: Recipe) -> str:
    """The recipe as text that `read_recipe` reads."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def parse_change(text: str) -> tuple[str, Any]:
    """Key and value of a change that was written as `KEY=VALUE`; the value is YAML.

    Example:
        >>> parse_change("optimizer.lr=3e-4"), parse_change("augment.crop_scale=[0.5, 1.0]")
        (('optimizer.lr', 0.0003), ('augment.crop_scale', [0.5, 1.0]))
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ValueError(f"{text!r} is not a change of a setting; write KEY=VALUE, such as optimizer.lr=3e-4.")
    return key, parse_yaml(value, f"The value of {key}")


def parse_changes(changes: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Any]:
    """Changes of a recipe by dotted key, from a mapping or from texts `KEY=VALUE`.

    Example:
        >>> parse_changes(["optimizer.lr=3e-4", "augment.mixup=0"]) == parse_changes(
        ...     {"optimizer.lr": 3e-4, "augment.mixup": 0}
        ... )
        True
    """
    return dict(changes) if isinstance(changes, Mapping) else dict(map(parse_change, changes or ()))


def read_settings(name: str | Path | Recipe) -> tuple[dict[str, Any], str]:
    """What a recipe's file says, and what to call it in messages."""
    if isinstance(name, Recipe):
        return name.model_dump(), f"The recipe {name.name}"
    if isinstance(name, Path) or name.endswith((".yaml", ".yml")):
        path = Path(name)
        return {"name": path.stem, **read_yaml(path)}, str(path)
    known = recipe_names()
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? Use" if near else "use"
        raise ValueError(f"There is no recipe {name!r}; {hint} one of {', '.join(known)}, or a .yaml file.")
    text = (files("nearsight.config") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    origin = f"The recipe {name}"
    return {"name": name, **as_mapping(parse_yaml(text, origin), origin)}, origin


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give the name of a recipe or a YAML file that exists.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; a recipe is a YAML file.") from None
    return as_mapping(parse_yaml(text, str(path)), str(path))


def parse_yaml(text: str, origin: str) -> Any:
    """The value that YAML text stands for."""
    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{origin} is not valid YAML{where}: {error.problem or error.context}.") from None
    except yaml.reader.ReaderError:
        raise ValueError(f"{origin} is not valid YAML: there is an unprintable character in it.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{origin}: {error}.") from None
    except RecursionError:
        raise ValueError(f"{origin} is not a recipe: it is nested too deeply.") from None


def as_mapping(value: Any, origin: str) -> dict[str, Any]:
    """Refuse YAML that is not a mapping; an empty file is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else f"just {value!r}"
        raise ValueError(f"{origin} holds {kind}; a recipe is a mapping of settings, such as `epochs: 100`.")
    return value


def set_dotted(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set `a.b.c` in nested mappings."""
    *sections, last = key.split(".")
    for section in sections:
        inner = settings.get(section)
        settings[section] = dict(inner) if isinstance(inner, Mapping) else {}
        settings = settings[section]
    settings[last] = value


# Settings as version 0.1 called them. Recipes with these names are read for one more release.
OLD_NAMES = {"scene.shorter": "min_size", "scene.longest": "max_size", "scene.crop_share": "max_class_fraction"}
OLD_NAMES |= {"distill.share": "weight", "scene": "dense"}


def with_new_names(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings under today's names, and those that came under an old one.

    Example:
        >>> with_new_names({"scene": {"shorter": 64}})
        ({'dense': {'min_size': 64}}, ['scene.shorter', 'scene'])
    """
    renamed, found = dict(settings), []
    for old, new in OLD_NAMES.items():
        section, _, name = old.rpartition(".")
        holder = renamed.get(section) if section else renamed
        if not isinstance(holder, Mapping) or name not in holder:
            continue
        # What came later, such as a change, counts.
        both = isinstance(holder[name], Mapping) and isinstance(holder.get(new), Mapping)
        value = {**holder[new], **holder[name]} if both else holder[name]
        changed = {key: one for key, one in holder.items() if key not in (name, new)} | {new: value}
        renamed = {**renamed, section: changed} if section else changed
        found.append(old)
    return renamed, found


def parse(settings: Mapping[str, Any], origin: str, hint: bool = True) -> Recipe:
    """Check settings; the first thing that is wrong becomes one sentence."""
    settings, found = with_new_names(settings)
    if found and hint:
        old = found[0]
        new = ".".join([OLD_NAMES.get(section, section) for section in old.split(".")[:-1]] + [OLD_NAMES[old]])
        warnings.warn(f"{origin}: {old} is called {new} now; the old name will go.", FutureWarning, stacklevel=3)
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"{origin}: {explain(error, settings)}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{origin}: a text in it is not in UTF-8; write it anew.") from None
