"""What the training loop asks of a task: batches, a loss, and the figures of a validation."""

from dataclasses import dataclass
from typing import Any, Protocol

from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..data.loader import Batches
from ..data.samples import Split


@dataclass(frozen=True)
class Metric:
    """The figure that tells which epoch is best: a share of 1, the larger the better.

    Attributes:
        key: Its name among the figures of a validation.
        title: What people call it.
    """

    key: str
    title: str


class Meter(Protocol):
    """Collects what a validation finds, batch by batch."""

    def add(self, model: nn.Module, batch: Any) -> None:
        """Show a batch to the model and keep what matters."""

    def gather(self, accelerator: Accelerator) -> None:
        """Bring together what several processes found."""

    def figures(self) -> dict[str, float]:
        """The figures over all batches, by name; among them that of the task's metric."""


class Task(Protocol):
    """A task, made for the data, the model and the recipe of a run."""

    metric: Metric

    def train_loader(self, split: Split, batches: Batches, workers: int) -> DataLoader:
        """Batches of augmented training images; each has `bad`, the names of unreadable ones."""

    def eval_loader(self, split: Split, batch: int, workers: int, indices: range) -> DataLoader:
        """Batches of some images of a split, as the model is shown them in use."""

    def prepare(self, batch: Any, epoch: int, step: int) -> tuple[Any, ...]:
        """A training batch on the device; what is drawn in it follows from the step alone."""

    def loss(self, model: nn.Module, *prepared: Any) -> Tensor:
        """Mean loss over what `prepare` gave."""

    def meter(self) -> Meter:
        """A fresh meter for a validation."""
