"""What several processes have to agree on, so that all of them do the same."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn

from ..runs.run import Run
from .signals import note_bad

if TYPE_CHECKING:
    from .session import Session


class Step(NamedTuple):
    """What the processes agree on in a step.

    Attributes:
        loss: Mean over the batch.
        norm: Of the gradient.
        signal_number: Of a signal that one of them got; 0 for none.
        is_save_due: Whether it is time for a checkpoint, by the clock of one of them.
    """

    loss: float
    norm: float
    signal_number: int
    is_save_due: bool


def agree(session: "Session", loss: Tensor, norm: Tensor, signal_number: int, is_save_due: bool) -> Step:
    """The step as all processes see it: each has a loss, signals and a clock of its own."""
    if session.accelerator.num_processes == 1:
        return Step(float(loss), float(norm), signal_number, is_save_due)
    mine = torch.stack([loss, *torch.tensor([signal_number, is_save_due], dtype=loss.dtype, device=loss.device)])
    everybody = session.accelerator.gather(mine[None])
    signals, due = everybody[:, 1:].amax(dim=0).tolist()
    return Step(float(everybody[:, 0].mean()), float(norm), int(signals), bool(due))


def from_main(accelerator: Accelerator, value: Any) -> Any:
    """What the first process gives, in all of them."""
    return broadcast_object_list([value])[0] if accelerator.num_processes > 1 else value


def join_model(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """The model whose gradients are the mean over all processes.

    Kernels of depth-wise convolutions get the strides that their gradients have. With one input channel these are two
    names of the same order in memory, but DDP would warn about the difference.
    """
    if accelerator.num_processes > 1:
        for kernel in model.parameters():
            if kernel.dim() == 4 and kernel.shape[1] == 1 and kernel.is_contiguous():
                height, width = kernel.shape[2:]
                kernel.data = kernel.data.as_strided(kernel.shape, (height * width, 1, width, 1))
    joined: nn.Module = accelerator.prepare_model(model)
    return joined


def agree_on_bad(session: "Session") -> None:
    """Tell all processes which images the others could not read."""
    if session.accelerator.num_processes > 1:
        for found in gather_object([session.progress.bad]):
            note_bad(session, found)


def check_together(run: Run, accelerator: Accelerator, step: int) -> None:
    """Refuse processes that would go on from different steps."""
    if accelerator.num_processes > 1 and len(set(gather_object([step]))) > 1:
        raise ValueError(
            f"The processes find different checkpoints in {run.folder}; it must be a folder that all machines share."
        )
