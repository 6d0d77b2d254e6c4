"""Open a program of `torch.export` that may come from anywhere.

`torch.export.load` runs what a file says in five places: pickled tensors and objects, a pickle of example inputs (tried
safely, then unsafely), sizes that sympy evaluates as Python, operators looked up by any name below `torch`, and guards
that `module()` executes as Python. Here a file is read with PyTorch's own reader first, refused where it goes beyond
what an exported model needs, and its guards are not executed.
"""

import io
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .bundle import BundleError

FILES = re.compile(
    r"(models/model\.json|data/(weights|constants)/model_(weights|constants)_config\.json"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+|data/sample_inputs/model\.pt"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version)"
)
CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
EXAMPLES = "data/sample_inputs/model.pt"
OPERATORS = re.compile(
    r"torch\.ops\.nearsight\.(nms_keep|pool_levels)\.default|torch\.ops\.aten\.(?!from_file\b)\w+\.\w+|torch\.sym_(max|min|not|ite|float|int|sum)|math\.(ceil|floor|trunc)"
    r"|_operator\.(getitem|add|sub|mul|neg|pow|floordiv|truediv|mod|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
# Whole numbers, symbols such as s12, and functions of these: nothing with attributes, other texts or indices.
SIZES = re.compile(
    r"([-+*/%<>=!&|~(), ]|\d+(\.\d+)?\b|\b[su]\d+\b"
    r"|\bSymbol\('[su]\d+'(, (integer|positive|negative|nonnegative|nonzero|zero)=(True|False))*\)"
    r"|\b(Add|Mul|Pow|Integer|Rational|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|IntTrueDiv|FloatTrueDiv|ToFloat"
    r"|TruncToInt|FloorToInt|CeilToInt|RoundToInt|Abs|Equality|Unequality|StrictLessThan|LessThan|StrictGreaterThan"
    r"|GreaterThan|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|True|False|true|false)\b)*"
)


def open_program(file: Path) -> nn.Module:
    """The model of a `.pt2` file.

    Raises:
        BundleError: The file holds what could run code, or is none that Nearsight wrote.
    """
    look_through(file)
    import_module("..heads.graph", __package__)  # registers the operators of detectors
    return torch.export.load(file).module(check_guards=False)


def look_through(file: Path) -> None:
    """Refuse a file with anything that PyTorch would unpickle, evaluate or call beyond plain operators."""
    try:
        from torch.export.pt2_archive._package import PT2ArchiveReader
    except ImportError:
        raise BundleError(f"{file} needs PyTorch 2.9 or newer; this is {torch.__version__}.") from None

    with PT2ArchiveReader(str(file)) as archive:
        names = archive.get_file_names()
        refuse(file, "the file", [name for name in names if not FILES.fullmatch(name)])
        for config in CONFIGS:
            entries = json.loads(archive.read_string(config))["config"]
            refuse(file, "the pickled value", [name for name, entry in entries.items() if entry["use_pickle"]])
            odd = [entry["path_name"] for entry in entries.values() if not is_plain(entry["path_name"])]
            refuse(file, "the value", odd)
        examples = archive.read_bytes(EXAMPLES)
        try:
            if examples:  # as PyTorch does: nothing is no pickle
                torch.load(io.BytesIO(examples), weights_only=True)
        except Exception:  # only then PyTorch would load it without care
            refuse(file, "the pickle", [EXAMPLES])
        inspect_graph(file, json.loads(archive.read_string("models/model.json")))


def is_plain(name: str) -> bool:
    """Whether a value is stored as bytes."""
    return re.fullmatch(r"(weight|tensor)_\d+", name) is not None


def inspect_graph(file: Path, program: Any) -> None:
    """Refuse operators that are none of tensors, and sizes that are more than arithmetic."""
    for value in dictionaries(program):
        if "target" in value and "inputs" in value and not OPERATORS.fullmatch(str(value["target"])):
            refuse(file, "the operator", [str(value["target"])])
        if "expr_str" in value and not SIZES.fullmatch(str(value["expr_str"])):
            refuse(file, "the size", [str(value["expr_str"])])


def dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """All dictionaries within a JSON value."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def refuse(file: Path, what: str, found: list[str]) -> None:
    """Refuse a file because of what was found in it, if anything was."""
    if found:
        raise BundleError(
            f"{file} holds {what} {found[0][:80]!r}, which an exported model has no need of and which could run code; "
            "it is not opened."
        )
