"""Checkpoints: everything a run needs to go on, written whole or not at all.

A checkpoint is a folder with the weights, the running mean of the weights and the optimizer's state as safetensors, and
the rest as JSON. A folder of its name is always complete; the name is `step-00001234` within an epoch, and
`step-00001300-epoch-0007` behind an epoch that was validated.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..atomic import writing_folder
from ..checkpoints.format import read_safetensors

NAME = re.compile(r"step-\d{8,}(-epoch-\d{4,})?")


@dataclass
class Progress:
    """How far a run has come. Random draws follow from the seed and the step, so no generator is stored.

    Attributes:
        step: Steps done.
        epoch: Epochs done.
        best: Highest validation figure so far; None before the first.
        best_epoch: Epoch in which it was reached.
        best_name: Name of that epoch's checkpoint.
        sums: Loss, gradient norm and seconds, summed over the steps of the epoch in progress.
        elapsed: Seconds of training and validation, over all resumptions.
        bad: Unreadable images met so far, with the reasons.
        planned: Epochs that fit into the time, where those of the recipe no longer do; None for the recipe's.
    """

    step: int = 0
    epoch: int = 0
    best: float | None = None
    best_epoch: int = 0
    best_name: str = ""
    sums: dict[str, float] = field(default_factory=lambda: {"loss": 0.0, "grad_norm": 0.0, "seconds": 0.0})
    elapsed: float = 0.0
    bad: dict[str, str] = field(default_factory=dict)
    planned: int | None = None

    def name(self, steps_per_epoch: int) -> str:
        """Name of the checkpoint for this state."""
        validated = self.step == self.epoch * steps_per_epoch
        return f"step-{self.step:08d}" + (f"-epoch-{self.epoch:04d}" if validated else "")


class Checkpoints:
    """The checkpoints of one run: the newest `keep`, and the one of the best epoch."""

    def __init__(self, folder: Path, keep: int, steps_per_epoch: int):
        self.folder, self.keep, self.steps_per_epoch = folder, keep, steps_per_epoch

    def names(self) -> list[str]:
        """Names of the complete checkpoints, from the oldest to the newest."""
        if not self.folder.is_dir():
            return []
        return sorted(entry.name for entry in self.folder.iterdir() if NAME.fullmatch(entry.name))

    def last(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        names = self.names()
        return self.folder / names[-1] if names else None

    def write(
        self, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, ema: nn.Module | None
    ) -> None:
        """Write a checkpoint, then remove those that are no longer wanted; one that is there already stays."""
        target = self.folder / progress.name(self.steps_per_epoch)
        if target.is_dir():
            return
        tensors, groups = optimizer_tensors(optimizer)
        parts = {"model": dict(model.state_dict()), "optimizer": tensors}
        if ema is not None:
            parts["average"] = dict(ema.state_dict())
        state = {"progress": asdict(progress), "optimizer_groups": groups}
        with writing_folder(target) as folder:
            for name, content in parts.items():
                whole = {key: tensor.detach().cpu().contiguous() for key, tensor in content.items()}
                (folder / f"{name}.safetensors").write_bytes(save(whole))
            (folder / "state.json").write_text(json.dumps(state))
        for name in self.names()[: -self.keep]:
            if name != progress.best_name:
                old, going = self.folder / name, self.folder / f".{name}.part"  # never there in part under its name
                old.rename(going)
                shutil.rmtree(going)

    def remove_unfinished(self) -> None:
        """Remove what a killed process had begun to write."""
        if self.folder.is_dir():
            for entry in self.folder.glob(".*.part"):
                shutil.rmtree(entry)

    def read_last(self, model: nn.Module, optimizer: torch.optim.Optimizer, ema: nn.Module | None) -> Progress:
        """Bring everything to the state of the newest checkpoint; without one, nothing changes.

        Raises:
            ValueError: The checkpoint is damaged.
        """
        names = self.names()
        if not names:
            return Progress()
        last = self.folder / names[-1]
        try:
            return self.read(last, model, optimizer, ema)
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError) as error:
            start = self.folder / names[-2] if len(names) > 1 else "the start"
            edited = isinstance(error, KeyError | TypeError | AttributeError | json.JSONDecodeError)
            edited = edited or "zip()" in str(error)  # other groups of parameters than the optimizer has
            reason = "its state.json is not what was written" if edited else " ".join(str(error).split()).rstrip(".")
            raise ValueError(
                f"The checkpoint {last} is damaged ({reason}); delete this folder, and the run goes on from {start}."
            ) from None

    @staticmethod
    def read(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, ema: nn.Module | None) -> Progress:
        """Bring everything to the state of a checkpoint."""
        state = json.loads((folder / "state.json").read_text())
        model.load_state_dict(read_safetensors(folder / "model.safetensors"))
        if ema is not None:
            ema.load_state_dict(read_safetensors(folder / "average.safetensors"))
        restore_optimizer(optimizer, read_safetensors(folder / "optimizer.safetensors"), state["optimizer_groups"])
        progress = Progress(**state["progress"])
        counts = (progress.step, progress.epoch, progress.best_epoch, progress.planned or 0)
        numbers = (progress.best or 0.0, progress.elapsed, *progress.sums.values())
        if not (
            all(type(count) is int and count >= 0 for count in counts)
            and all(type(number) in (int, float) for number in numbers)
            and {"loss", "grad_norm", "seconds"} <= progress.sums.keys()
            and type(progress.best_name) is str
            and all(type(text) is str for pair in progress.bad.items() for text in pair)
            and folder.name.startswith(f"step-{progress.step:08d}")
        ):
            raise TypeError
        return progress

    def weights(self, name: str) -> dict[str, Tensor]:
        """Weights to use from a checkpoint: the running mean where there is one."""
        ema = self.folder / name / "average.safetensors"
        return read_safetensors(ema if ema.is_file() else self.folder / name / "model.safetensors")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimizer's state by the names of the parameters, tensors of its groups by number, and their other values."""
    tensors: dict[str, Tensor] = {}
    for number, group in enumerate(optimizer.param_groups):
        tensors |= {f"{key}|{number}": value for key, value in group.items() if isinstance(value, Tensor)}
        for name, parameter in zip(group["names"], group["params"], strict=True):
            for key, value in optimizer.state[parameter].items():
                if value is not None:
                    tensors[f"{key}|{name}"] = torch.as_tensor(value)
    plain = (bool, int, float, str, type(None))
    groups = [{k: v for k, v in group.items() if isinstance(v, plain)} for group in optimizer.param_groups]
    return tensors, groups


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """The state that `optimizer_tensors` gave, in an optimizer of the same parameters."""
    parameters_by_name = {
        name: p for group in optimizer.param_groups for name, p in zip(group["names"], group["params"], strict=True)
    }
    numbers = {str(number): group for number, group in enumerate(optimizer.param_groups)}
    optimizer.state.clear()
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("|")
        if name in numbers:
            numbers[name][key] = tensor
            continue
        parameter = parameters_by_name[name]
        on_device = key != "step"  # torch keeps this counter on the CPU
        optimizer.state[parameter][key] = tensor.to(parameter.device) if on_device else tensor
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: value for key, value in saved.items() if key != "fused"})  # which the device decides
