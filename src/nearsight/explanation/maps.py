"""What a method returns: lattices of numbers over images, with all that is needed to draw or store them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Place = tuple[float, float]  # a pixel, x and y


@dataclass(frozen=True)
class Maps:
    """Maps over images, one or several for each.

    Attributes:
        method: Which method made them.
        values: `[B, n, rows, columns]`; nan where there is no map.
        titles: What each of the n maps shows.
        cell: Height and width of a cell in pixels. The first cell starts at the upper left corner of the image; the
            last ones may reach beyond it.
        image_size: Height and width in pixels of the images as the model saw them.
        label: What the numbers are.
        signed: Whether zero is in the middle of the scale.
        marks: Pixels (x, y) of the images that the maps are about.
        raw: Further arrays, to be stored beside the values.

    Example:
        >>> maps = Maps("demo", np.eye(2, dtype=np.float32)[None, None], ("a",), (3, 3), (5, 6), "share")
        >>> maps.in_pixels()[0].shape
        (1, 5, 6)
    """

    method: str
    values: Floats
    titles: tuple[str, ...]
    cell: tuple[int, int]
    image_size: tuple[int, int]
    label: str
    signed: bool = False
    marks: tuple[Place, ...] = ()
    raw: Mapping[str, NDArray] = field(default_factory=dict)

    def in_pixels(self) -> Floats:
        """The maps with one number for each pixel `[B, n, H, W]`, nan where no cell lies; nothing is smoothed."""
        height, width = self.image_size
        large = self.values.repeat(self.cell[0], axis=2).repeat(self.cell[1], axis=3)[:, :, :height, :width]
        missing = height - large.shape[2], width - large.shape[3]
        return np.pad(large, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1])), constant_values=np.nan)

    def arrays(self) -> dict[str, NDArray]:
        """Everything as arrays, for a `.npz` file."""
        about = {"titles": np.array(self.titles), "cell": np.array(self.cell), "image_size": np.array(self.image_size)}
        return {"values": self.values, **about, "marks": np.array(self.marks), **self.raw}


def to_numpy(values: Tensor) -> Floats:
    """A tensor as float32 in NumPy."""
    return values.detach().float().cpu().numpy()
