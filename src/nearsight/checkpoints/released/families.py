"""A released state dict while its names are being translated to ours."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...models.spec import BackboneSpec
from ...parts import TokensToToken
from ..safe import WeightFileError

# Constants that the releases store although they follow from the shapes.
DERIVED = re.compile(r"(relative_position_index|relative_coords_table|attn_mask|k_bias)$")


@dataclass(frozen=True)
class Choices:
    """What names and shapes of a released file can't tell.

    Attributes:
        behaviour: Follow the `released` code or the `paper` where they differ.
        act: LocalViT's activation, `hswish` or `relu6`.
        channel_attention: LocalViT's ECA with a sigmoid (`eca`) or with a hard one (`eca_hsigmoid`).
        heads: Attention heads of models that have one stage; None takes the release's.
        trained_window: Swin v2: side of the windows before fine-tuning with larger ones; None takes the release's.
    """

    behaviour: str = "released"
    act: str = "hswish"
    channel_attention: str = "eca"
    heads: int | None = None
    trained_window: int | None = None

    def __post_init__(self) -> None:
        allowed = {
            "behaviour": ("released", "paper"),
            "act": ("hswish", "relu6"),
            "channel_attention": ("eca", "eca_hsigmoid"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known; use {' or '.join(values)}.")


@dataclass
class Reading:
    """What a released file turned out to be.

    Attributes:
        spec: The model; its family says whose it is, `hosts` being a baseline that several releases have.
        tensors: The weights under our names.
        output_norms: For the backbone of a detector or segmenter: which norm a stage's output gets; else None.
    """

    spec: BackboneSpec
    tensors: dict[str, Tensor]
    output_norms: dict[int, str] | None = None

    @property
    def num_classes(self) -> int:
        """Classes of the head; 0 without one."""
        return len(self.tensors["head.weight"]) if "head.weight" in self.tensors else 0

    @property
    def in_chans(self) -> int:
        """Channels of the images."""
        channels = self.tensors[f"{self.spec.embed.first_conv}.weight"].shape[1]
        if isinstance(self.spec.embed, TokensToToken):
            return channels // self.spec.embed.splits[0][0] ** 2
        return channels


@dataclass
class Released:
    """Names, shapes and tensors of a released file; `move` takes tensors out of it and files them under our names."""

    left: dict[str, Tensor]
    moved: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Released":
        """A copy of the mapping without the constants that follow from the shapes."""
        return cls({key: value for key, value in tensors.items() if not DERIVED.search(key)})

    def __contains__(self, name: str) -> bool:
        return name in self.left or any(key.startswith(name + ".") for key in self.left)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that is still here."""
        if name not in self.left:
            raise WeightFileError(f"The tensor {name} is missing.")
        return tuple(self.left[name].shape)

    def count(self, prefix: str, first: int = 0) -> int:
        """How many of `prefix + number` there are, counting up from `first`."""
        number = first
        while f"{prefix}{number}" in self:
            number += 1
        return number - first

    def numbers(self, prefix: str) -> list[int]:
        """The numbers behind a prefix, in order."""
        found = {
            int(key[len(prefix) :].split(".")[0]) for key in self.left if re.match(re.escape(prefix) + r"\d+\.", key)
        }
        return sorted(found)

    def move(self, old: str, new: str, change: Callable[[Tensor], Tensor] | None = None) -> None:
        """File the tensor `old`, or all tensors under `old.`, under `new`."""
        names = [old] if old in self.left else [key for key in self.left if key.startswith(old + ".")]
        for name in names:
            tensor = self.left.pop(name)
            self.moved[new + name[len(old) :]] = change(tensor) if change else tensor

    def join(self, olds: tuple[str, ...], new: str) -> None:
        """File the tensors under several layers `olds`, one upon another, as those of the layer `new`."""
        for kind in ("weight", "bias"):
            if f"{olds[0]}.{kind}" in self.left:
                self.moved[f"{new}.{kind}"] = torch.cat([self.left.pop(f"{old}.{kind}") for old in olds])

    def drop(self, name: str) -> None:
        """Forget tensors that the released model has but never uses."""
        for key in [key for key in self.left if key == name or key.startswith(name + ".")]:
            del self.left[key]

    def finish(self) -> dict[str, Tensor]:
        """The weights under our names; refuses a file of which something is left."""
        if self.left:
            names = sorted(self.left)
            raise WeightFileError(
                f"{len(names)} tensors have no place in the recognised model, first of all {names[0]}; "
                "the file is of another model."
            )
        return self.moved


def read_output_norms(released: Released, count: int) -> dict[int, str]:
    """The norms `norm0`, `norm1`, ... on the outputs of dense models: number of the stage to `layer` or `batch`."""
    norms: dict[int, str] = {}
    for index in range(count):
        if f"norm{index}" in released:
            batch = f"norm{index}.running_mean" in released
            norms[index] = "batch" if batch else "layer"
            released.move(f"norm{index}", f"norms.{index}.bn" if batch else f"norms.{index}")
    return norms


def square_side(area: int, what: str) -> int:
    """Side of a square map."""
    side = math.isqrt(area)
    if side * side != area:
        raise WeightFileError(f"{what} has {area} entries, which is no square map.")
    return side
