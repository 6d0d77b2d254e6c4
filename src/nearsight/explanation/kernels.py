"""What local parts look at: kernels at chosen positions, and the sampling points of deformable merges."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..ops.attention_matrix import KernelMatrix
from ..ops.back_projection import BackProjection
from .attention import chosen_tokens, middle, to_pixels
from .capture import Capture, CapturedLayer, ModelOrCapture, capture
from .maps import Floats, Pixel, to_numpy


@dataclass(frozen=True)
class Kernels:
    """Kernels at pixels of images.

    Attributes:
        weights: `[B, groups, pixels, side, side]`; channels of a group share a kernel.
        kind: `static`: parameters, the same everywhere; `per position`: parameters of the position; `per image`:
            predicted for the image, the same everywhere in it; `predicted`: predicted at the position; `attention`: its
            fractions of the window.
        pixels: Middle of each position in pixels (x, y).
        cell: Height and width of a token's cell in pixels.
        image_size: Height and width of the images in pixels.
        layer: Name of the layer, `stage.block`.
    """

    weights: Floats
    kind: str
    pixels: tuple[Pixel, ...]
    cell: tuple[int, int]
    image_size: tuple[int, int]
    layer: str

    def arrays(self) -> dict[str, NDArray]:
        """Everything as arrays, for a `.npz` file."""
        import numpy as np

        return {"weights": self.weights, "pixels": np.array(self.pixels), "cell": np.array(self.cell)}


def kernels(
    model: ModelOrCapture,
    images: Tensor | None = None,
    *,
    layer: int | str | None = None,
    at: Pixel | Sequence[Pixel] | None = None,
) -> Kernels:
    """The kernels of a layer at chosen pixels: dynamic depth-wise convolution, and all that slides a window.

    Args:
        model: The model, or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        layer: Number or name of the layer; None takes the last one with kernels.
        at: Pixel (x, y), or several; None: the middle of the image.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("iddwnet_nano", num_classes=3)
        >>> found = kernels(model, torch.randn(1, 3, 32, 32), at=[(3, 3), (20, 9)])
        >>> found.kind, found.weights.shape
        ('predicted', (1, 16, 2, 5, 5))
    """
    seen = capture(model, images)
    chosen = seen.layer(layer) if layer is not None else last_with_kernels(seen)
    matrix = chosen.attention_matrix
    if not isinstance(matrix, KernelMatrix):
        raise ValueError(
            f"Layer {chosen.name} has no kernels; depth-wise convolutions and attention in sliding windows have "
            "(`nearsight models dwnet`)."
        )
    tokens = chosen_tokens(seen, chosen, at, None)
    with torch.no_grad():
        weights = to_numpy(matrix.kernels(torch.tensor(tokens, device=seen.images.device)))
    pixels = tuple(middle(chosen, token) for token in tokens)
    return Kernels(weights, kind_of(chosen) or "static", pixels, chosen.cell, seen.image_size, chosen.name)


def last_with_kernels(seen: Capture) -> CapturedLayer:
    """The last layer that has kernels."""
    for layer in reversed(seen.layers):
        if kind_of(layer) is not None:
            return layer
    raise ValueError(
        "No layer of this model has kernels; depth-wise convolutions and attention in sliding windows have "
        "(`nearsight models dwnet`)."
    )


def kind_of(layer: CapturedLayer) -> str | None:
    """What kind of kernels a layer has; None for none."""
    return getattr(getattr(layer.module, "mixer", None), "kernel_kind", None)


TAPS = torch.tensor([(0, 0), (0, 1), (1, 0), (1, 1)])


@dataclass(frozen=True)
class SamplingPoints:
    """The patches that some tokens of the last stage were sampled from.

    Attributes:
        points: Pixels (x, y), middle of the patch: `[B, cells, 4**merges, 2]`.
        inside: Whether a point and all points on the way to it lie on the map `[B, cells, 4**merges]`; only then it
            counts.
        squares: The pixels of the tokens: left, top, right, bottom in pixels `[cells, 4]`.
        image_size: Height and width of the images in pixels.
    """

    points: Floats
    inside: NDArray
    squares: Floats
    image_size: tuple[int, int]

    def arrays(self) -> dict[str, NDArray]:
        """Everything as arrays, for a `.npz` file."""
        return {"points": self.points, "inside": self.inside, "squares": self.squares}


def sampling_points(
    model: ModelOrCapture,
    images: Tensor | None = None,
    *,
    at: Pixel | Sequence[Pixel] | None = None,
    between_cells: bool = False,
) -> SamplingPoints:
    """The pixels that tokens of the last stage were sampled from, through all deformable merges.

    Each merge samples four pixels for a token; through three of them a token of LIT has 64 pixels in the image. A merge
    that is not deformable takes the four cells below it.

    Args:
        model: The model, or what `capture` returned.
        images: `[B, C, H, W]`; None with a capture.
        at: Pixel (x, y) whose token is meant, or several; None: all tokens.
        between_cells: Interpolate offsets between cells; else a position is rounded to its cell before the next merge
            is asked, as in LIT's release.

    Example:
        >>> import nearsight
        >>> model = nearsight.create_model("lit_nano", num_classes=3)  # offsets are zero before training
        >>> found = sampling_points(model, torch.randn(1, 3, 32, 32), at=(12, 3))
        >>> found.points.shape, found.squares[0].tolist()
        ((1, 1, 16, 2), [8.0, 0.0, 16.0, 8.0])
        >>> found.points[0, 0, :4].tolist()
        [[9.0, 1.0], [11.0, 1.0], [9.0, 3.0], [11.0, 3.0]]
    """
    seen = capture(model, images)
    merges = seen.back_projections
    if not any(merge.offsets is not None for merge in merges):
        raise ValueError("This model has no deformable merge, so nothing is sampled; LIT has (`nearsight models lit`).")
    top = merges[-1].coarse
    side = tuple(length * 2 ** len(merges) for length in seen.cell)
    if at is None:
        cells = [(row, column) for row in range(top.height) for column in range(top.width)]
    else:
        cells = []
        for x, y in to_pixels(at):
            seen.check_pixel(x, y)
            cells.append((min(int(y // side[0]), top.height - 1), min(int(x // side[1]), top.width - 1)))
    points = torch.tensor(cells, dtype=torch.float32, device=seen.images.device)
    points = points[:, None].expand(len(seen.images), -1, -1, -1)  # [B, cells, 1, 2] as row, column
    inside = torch.ones_like(points[..., 0], dtype=torch.bool)
    for merge in reversed(merges):
        points, inside = descend(merge, points, inside, between_cells)
    height, width = seen.cell
    pixels = torch.stack((points[..., 1] * width + width / 2, points[..., 0] * height + height / 2), dim=-1)
    corners = [(c * side[1], r * side[0], (c + 1) * side[1], (r + 1) * side[0]) for r, c in cells]
    return SamplingPoints(
        to_numpy(pixels), inside.cpu().numpy(), to_numpy(torch.tensor(corners, dtype=torch.float32)), seen.image_size
    )


def descend(merge: BackProjection, points: Tensor, inside: Tensor, between_cells: bool) -> tuple[Tensor, Tensor]:
    """From pixels on the coarse lattice `[B, cells, k, 2]` to the four samples of each: `[B, cells, 4k, 2]`."""
    cells = points if between_cells else round_half_up(points)
    moves = moves_at(merge, cells)  # [B, cells, k, 4, 2]
    samples = 2 * cells[..., None, :] + TAPS.to(points) + moves
    # A sample belongs to the cell whose middle is nearest.
    limits = torch.tensor((merge.fine.height, merge.fine.width), device=points.device)
    nearest = round_half_up(samples)
    there = ((nearest >= 0) & (nearest < limits)).all(dim=-1) & inside[..., None]
    return samples.flatten(2, 3), there.flatten(2)


def moves_at(merge: BackProjection, cells: Tensor) -> Tensor:
    """The offsets (dy, dx) of the four taps at pixels of the coarse lattice: `[B, cells, k, 2]` to `[..., 4, 2]`."""
    if merge.offsets is None:
        return cells.new_zeros(*cells.shape[:3], 4, 2)
    rows, columns = merge.offsets.shape[2:]
    # On the scale on which the outer edges of the lattice are -1 and 1; a position outside takes the nearest offset.
    positions = torch.stack(((2 * cells[..., 1] + 1) / columns - 1, (2 * cells[..., 0] + 1) / rows - 1), dim=-1)
    offsets = merge.offsets.to(positions)
    found = F.grid_sample(offsets, positions, mode="bilinear", padding_mode="border", align_corners=False)
    return found.permute(0, 2, 3, 1).unflatten(-1, (4, 2))


def round_half_up(positions: Tensor) -> Tensor:
    """To the nearest whole number; halves go up."""
    return (positions + 0.5).floor()
