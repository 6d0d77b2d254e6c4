"""The recorded official models: deterministic weights from the names of the tensors, and the outputs they gave."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent.parent / "reference"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

SCALED_BY_FAN_IN = {"W": 1.0, "O": 0.5, "Q": 0.25, "D": 0.1, "F": 0.25}
SCALED = {"E": 0.1, "R": 0.5, "B": 0.1, "M": 0.1, "P": 1.5**0.5}


def uniform(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [-1, 1) from a hash of the counter and the name."""
    with np.errstate(over="ignore"):
        bits = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            bits ^= bits >> np.uint32(shift)
            bits *= np.uint32(factor)
        bits ^= bits >> np.uint32(16)
    return (bits.astype(np.float64) / 2.0**31 - 1.0).reshape(shape)


def filled(name: str, shape: tuple[int, ...], rule: str) -> Tensor:
    """A tensor by its rule: W weights, E tokens and positions, R bias tables, G norm scales, V variances, ..."""
    values = uniform(name, shape)
    if rule in SCALED_BY_FAN_IN:
        values = values * np.sqrt(3.0 / np.prod(shape[1:])) * SCALED_BY_FAN_IN[rule]
    elif rule in SCALED:
        values = values * SCALED[rule]
    elif rule == "V":
        values = 1.0 + 0.5 * np.abs(values)
    elif rule == "G":
        values = 1.0 + 0.2 * values
    else:
        raise ValueError(f"unknown rule {rule}")
    return torch.from_numpy(values.astype(np.float32))


@dataclass(frozen=True)
class Recorded:
    """One official variant."""

    name: str
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def load(cls, name: str) -> "Recorded":
        facts = json.loads((FOLDER / f"{name}.json").read_text())
        with np.load(FOLDER / f"{name}.npz") as arrays:
            return cls(name, facts, dict(arrays))

    def state(self) -> dict[str, Tensor]:
        """The state dict under the official names."""
        state = {}
        for name, shape, _, rule in self.facts["keys"]:
            if rule != "K":
                state[name] = filled(name, tuple(shape), rule)
            elif f"keep::{name}" in self.arrays:
                state[name] = torch.from_numpy(self.arrays[f"keep::{name}"])
            else:  # num_batches_tracked
                state[name] = torch.tensor(0)
        return state

    def images(self) -> Tensor:
        return torch.from_numpy(uniform("input", tuple(self.facts["input_size"])).astype(np.float32))

    def outputs(self) -> list[Tensor]:
        names = ["logits"] if "logits" in self.arrays else ["out0", "out1", "out2"]
        return [torch.from_numpy(self.arrays[name]) for name in names]

    @property
    def tolerance(self) -> float:
        """Twenty times the rounding noise of the official model itself."""
        return max(20 * self.facts["fp32_vs_fp64_max_abs"], 1e-5)

    def options(self) -> dict[str, str]:
        """What the names and shapes of the file can't tell."""
        arguments = self.facts["constructor_arguments"]
        options = {}
        if str(arguments.get("act", "")).startswith("1 "):
            options["act"] = "relu6"
        if str(arguments.get("act", "")).startswith("5 "):
            options["channel_attention"] = "eca_hsigmoid"
        if self.name.endswith("_corrected"):
            options["behaviour"] = "paper"
        return options
