"""What is given to a public function is of a kind that it takes: one check, by the function's own annotations.

Kept our own: pydantic's `validate_call` copies what it is given, refuses NumPy's numbers where it is strict and takes
texts for numbers where it is not, and can't read annotations that name torch where torch is not loaded.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from types import SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
SHOWN = 3  # elements of a collection that a sentence names


class Module:
    """Stands for `torch.nn.Module` while torch is not loaded: nothing is one."""


class device:
    """Stands for `torch.device` likewise."""


NO_TORCH = SimpleNamespace(device=device, nn=SimpleNamespace(Module=Module))


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which says in a sentence what it takes where it is given something else.

    Which of the values of a kind it takes is its own to say, but for paths: an empty one would mean the present folder.
    NumPy's numbers, also several in a row, reach it as Python's own.

    Example:
        >>> @checked
        ... def crop(image: str | os.PathLike[str], size: int | tuple[int, int] = 32) -> None: ...
        >>> crop("a.png", (20, 30))
        >>> crop("a.png", sice=20)
        Traceback (most recent call last):
        ...
        TypeError: crop() has no argument 'sice'; did you mean 'size'? It takes image and size.
        >>> crop(5)
        Traceback (most recent call last):
        ...
        TypeError: crop() takes str or os.PathLike as its image, not int.
        >>> crop("a.png", size=[20, "x"])
        Traceback (most recent call last):
        ...
        TypeError: crop() takes int or (int, int) as its size, not list (int, str).
        >>> crop("")
        Traceback (most recent call last):
        ...
        ValueError: crop() was given an empty image; name a file or folder.
    """
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name in function.__annotations__]

    @cache
    def read_kinds(torch_is_loaded: bool) -> dict[str, Any]:
        own = SimpleNamespace(__annotations__={name: function.__annotations__[name] for name in names})
        torch = sys.modules["torch"] if torch_is_loaded else NO_TORCH
        return get_type_hints(own, function.__globals__, {"torch": torch})

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        verb = f"{function.__name__}()"
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(misfit(verb, str(error), kwargs, names)) from None
        for name, kind in read_kinds("torch" in sys.modules).items():
            if name in given.arguments and kind is not Any:
                value = given.arguments[name]
                given.arguments[name] = plain = without_numpy(value)
                check(verb, name, plain, kind, came(value))
        return function(*given.args, **given.kwargs)

    return call


def misfit(verb: str, reason: str, given: Mapping[str, Any], names: list[str]) -> str:
    """The sentence for arguments that are missing, unknown or too many."""
    takes = f"t takes {join(names, 'and')}."
    unknown = next((name for name in given if name not in names), None)
    if unknown is None or "unexpected" not in reason:
        return f"{verb}: {reason}; i{takes}"
    near = get_close_matches(unknown, names, 1)
    return f"{verb} has no argument {unknown!r}; " + (f"did you mean {near[0]!r}? I{takes}" if near else f"i{takes}")


def without_numpy(value: Any) -> Any:
    """NumPy's numbers, single, in a row, or in a list or tuple, as Python's own; all else as it is.

    Example:
        >>> import numpy as np
        >>> without_numpy(np.int64(3)), without_numpy(np.array([1.5, 2])), without_numpy((np.int8(3), "a"))
        (3, [1.5, 2.0], (3, 'a'))
    """
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 2) < 2:
        return value.tolist()
    return type(value)(map(without_numpy, value)) if type(value) in (list, tuple) else value


def check(verb: str, name: str, value: Any, kind: Any, what: str) -> None:
    """Refuse a value that is not of a kind, or that is no path where a path is meant."""
    if not fits(value, kind):
        raise TypeError(f"{verb} takes {join(words(kind), 'or')} as its {name}, not {what}.")
    if "os.PathLike" not in join(words(kind), "or"):
        return
    for text in [value] if isinstance(value, str) else elements(value) or ():
        if isinstance(text, str) and not text.strip():
            raise ValueError(f"{verb} was given an empty {name}; name a file or folder.")
        if isinstance(text, str) and "\0" in text:
            raise ValueError(f"{verb} was given the {name} {text!r}; no file has a zero byte in its name.")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind; whole numbers are numbers, and all paths and collections count.

    A stream, which could be read only once, is no sequence.

    Example:
        >>> fits(3, float), fits("3", int), fits([3, "x"], list[int]), fits(None, int | None), fits([3, 4], tuple[int])
        (True, False, False, True, False)
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if isinstance(kind, TypeVar):
        return fits(value, kind.__bound__)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(isinstance(value, type(one)) for one in inner)
    if origin is Callable:
        return callable(value)
    base = origin or kind
    if issubclass(base, os.PathLike):
        return isinstance(value, os.PathLike)
    if origin is None or issubclass(base, Mapping):
        return isinstance(value, (float, int) if base is float else base)
    found = elements(value)
    if found is None:
        return False
    if issubclass(base, tuple) and Ellipsis not in inner:
        return len(found) == len(inner) and all(map(fits, found, inner))
    return all(fits(one, inner[0]) for one in found)


def elements(value: Any) -> list[Any] | None:
    """What is in a collection; None of anything else, such as a text or an array without axes."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        return None
    try:
        return list(value)
    except TypeError:
        return None


def words(kind: Any) -> list[str]:
    """What a kind is called.

    Example:
        >>> words(str | os.PathLike[str] | list[int | None] | None)
        ['str', 'os.PathLike', 'a sequence of int or None', 'None']
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, TypeVar):
        return words(kind.__bound__)
    if origin in (Union, UnionType):
        return list(dict.fromkeys(word for one in inner for word in words(one)))
    if origin is Literal:
        return [repr(one) for one in inner]
    if origin is Callable:
        return ["a function"]
    base = origin or kind
    if issubclass(base, os.PathLike):
        return ["os.PathLike"]
    if issubclass(base, Mapping):
        return ["a mapping"]
    if base is tuple and Ellipsis not in inner:
        return [f"({', '.join(join(words(one), 'or') for one in inner)})"]
    if origin:
        return [f"a sequence of {join(words(inner[0]), 'or')}"]
    return [title(base)]


def title(kind: type) -> str:
    """The name of a class, as people write it."""
    known = {"NoneType": "None", "Module": "torch.nn.Module", "device": "torch.device"}
    return known.get(kind.__name__, kind.__name__)


def came(value: Any) -> str:
    """What a value is called.

    Example:
        >>> came(None), came([3, "x"]), came(range(9)), came({})
        ('None', 'list (int, str)', 'range (int, int, int, ...)', 'dict')
    """
    name, found = title(type(value)), elements(value)
    if not found:
        return name
    kinds = [title(type(one)) for one in found[:SHOWN]]
    return f"{name} ({', '.join(kinds)}{', ...' if len(found) > SHOWN else ''})"


def join(names: Iterable[str], last: str) -> str:
    """Names as in a sentence.

    Example:
        >>> join(["a", "b", "c"], "or"), join(["a"], "or")
        ('a, b or c', 'a')
    """
    *others, final = names
    return f"{', '.join(others)} {last} {final}" if others else final


def why_no_json(error: ValueError | RecursionError) -> str:
    """What is wrong with a text that `json.loads` could not read, for people.

    Example:
        >>> try:
        ...     json.loads('{"a":')
        ... except ValueError as error:
        ...     print(why_no_json(error))
        it is no JSON from line 1, column 6 on
    """
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not in UTF-8 from byte {error.start} on"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "it has a number of thousands of digits"
