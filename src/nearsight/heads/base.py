"""What a dense head is: a value that says what is wanted, and the module that it builds."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from .image_list import ImageList
from .pyramid import Levels, Task


class DenseHead:
    """Base of the heads' values: frozen dataclasses with the settings.

    Attributes:
        task: `detect` or `segment`.
        finds_masks: Whether it can learn the objects' masks.
    """

    task: ClassVar[Task]
    finds_masks: ClassVar[bool] = False

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Strides of the backbone's maps that it has a use for, or None for the last map alone."""
        raise NotImplementedError

    def build(self, levels: Levels, num_classes: int, masks: bool) -> "HeadModule":
        """The module for a backbone's maps."""
        raise NotImplementedError


class HeadModule(nn.Module):
    """Base of the modules: takes the backbone's maps and the padded images.

    With targets it returns losses by name. Without, a detector returns a list of detections, a segmenter logits
    `[B, num_classes, h, w]` at a stride of its own.

    Attributes:
        any_batch: Whether an exported graph takes several images at once.
    """

    any_batch: ClassVar[bool] = True

    def forward(self, maps: list[Tensor], image_list: ImageList, targets: Sequence[Any] | None = None) -> Any:
        raise NotImplementedError

    def export_outputs(self, maps: list[Tensor], padded: tuple[int, int], size: tuple[int, int]) -> dict[str, Tensor]:
        """What an exported graph gives for images of one size, before the steps that `postprocessing` names.

        Args:
            maps: The backbone's maps.
            padded: Height and width that the images were padded to.
            size: Height and width of the images.
        """
        raise NotImplementedError

    def postprocessing(self) -> dict[str, Any]:
        """What is left to do with the outputs: the name of a function of `runs.postprocess`, and its settings."""
        raise NotImplementedError


def strides_from(finest: int, count: int) -> tuple[int, ...]:
    """`count` strides from the finest one on, each twice the one before.

    Example:
        >>> strides_from(4, 3)
        (4, 8, 16)
    """
    if finest < 1 or finest & (finest - 1) or count < 1:
        raise ValueError(
            f"finest={finest} and levels={count} are no pyramid; use a power of two and one level or more."
        )
    return tuple(finest * 2**step for step in range(count))
