"""Reading weight files without running anything that is in them."""

import argparse
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

WRAPPERS = ("model", "state_dict", "state_dict_ema", "model_ema", "ema", "module", "net", "teacher", "student")
PREFIXES = ("module.", "model.", "_orig_mod.", "backbone.")


class WeightFileError(ValueError):
    """A weight file that can't be used, with a sentence that says why."""


class InertPath:
    """Stands for a path beside the weights."""

    def __init__(self, *parts: str):
        self.parts = parts


numpy_scalar = np.float64(0).__reduce__()[0]  # what NumPy's numbers are unpickled with

# What released files carry beside tensors: arguments, configurations, paths, numbers. All of it inert.
ALLOWED: list[Any] = [
    argparse.Namespace,
    (OrderedDict, "yacs.config.CfgNode"),
    (OrderedDict, "addict.addict.Dict"),
    (OrderedDict, "mmcv.utils.config.ConfigDict"),
    (OrderedDict, "mmengine.config.config.ConfigDict"),
    (InertPath, "pathlib.PosixPath"),
    (InertPath, "pathlib.WindowsPath"),
    np.dtype,
    (numpy_scalar, "numpy.core.multiarray.scalar"),
    (numpy_scalar, "numpy._core.multiarray.scalar"),
    *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.int32, np.bool_)),
]


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a `.safetensors` file or of a PyTorch checkpoint, unwrapped, under their bare names.

    Nothing in the file is executed: a checkpoint that asks for a class beyond plain data is refused by name.

    Raises:
        WeightFileError: The file is missing, truncated, asks for a class, or holds no tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightFileError(f"{path} is not a file; give the path of a checkpoint (.pth, .pt, .bin or .safetensors).")
    if path.suffix == ".safetensors":
        try:
            return strip_prefixes(load_file(path))
        except SafetensorError as error:
            raise WeightFileError(f"{path} is not a whole safetensors file ({error}); download it again.") from None
    with sentences(path), torch.serialization.safe_globals(ALLOWED):
        content = torch.load(path, map_location="cpu", weights_only=True)
    tensors = strip_prefixes(unwrap(content, path))
    if not tensors:
        raise WeightFileError(f"{path} holds no tensors; is it a checkpoint?")
    return tensors


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of our own file, under their names."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise WeightFileError(f"{path} is not a whole safetensors file ({error}).") from None


@contextmanager
def sentences(path: Path) -> Iterator[None]:
    """Turn what `torch.load` raises into one sentence about the file."""
    try:
        yield
    except pickle.UnpicklingError as error:
        asked = re.search(r"(?:GLOBAL|global) [`']?([\w.]+)", str(error))
        if asked:
            raise WeightFileError(
                f"{path} asks for the class {asked.group(1)}, which weights don't need; it was refused and nothing was "
                "run. Save the tensors alone (torch.save(model.state_dict(), ...)) if you trust the file."
            ) from None
        raise WeightFileError(f"{path} is not a checkpoint that PyTorch can read safely; it was refused.") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightFileError(f"{path} is truncated or not a checkpoint ({reason}); download it again.") from None


def unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside whatever a training script wrapped around it; averaged (EMA) weights only where alone."""
    for _ in range(4):
        if not isinstance(content, Mapping):
            raise WeightFileError(f"{path} holds a {type(content).__name__}, not named tensors.")
        tensors = {key: value for key, value in content.items() if isinstance(value, Tensor) and isinstance(key, str)}
        inside = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inside is None or len(tensors) > len(inside):
            return tensors
        content = inside
    return tensors


def strip_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without `module.` and the like. Of a detector or segmenter, what stands under `backbone.` is kept."""
    changed = True
    while changed and tensors:
        changed = False
        for prefix in PREFIXES:
            inside = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            if inside and (prefix == "backbone." or len(inside) == len(tensors)):
                tensors, changed = inside, True
    return tensors
