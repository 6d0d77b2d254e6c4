"""Back-projection through a merge: which fine cells a coarse one was made from."""

import torch
from torch import Tensor

from ..lattice import Grid


class BackProjection:
    """From one stage's lattice to the finer one before it.

    Args:
        fine: Grid before the merge.
        coarse: Grid behind it.
        cells: The fine cells of each coarse one `[B or 1, coarse patches, K]`; `fine.patches` for none.
        fractions: Their fractions `[B or 1, coarse patches, K]`.
        offsets: What a deformable merge adds to its sampling positions `[B, 8, rows, columns]`; None for another merge.
    """

    def __init__(self, fine: Grid, coarse: Grid, cells: Tensor, fractions: Tensor, offsets: Tensor | None = None):
        self.fine = fine
        self.coarse = coarse
        self.cells = torch.where(fractions > 0, cells, fine.patches)
        total = fractions.sum(dim=-1, keepdim=True)
        self.fractions = fractions / total.clamp(min=torch.finfo(fractions.dtype).tiny)
        self.offsets = offsets

    def pull(self, vectors: Tensor) -> Tensor:
        """Hand weights of coarse tokens `[B, r, N]` down to the fine tokens they were made from: `[B, r, N']`.

        Auxiliary tokens that came along keep theirs. A coarse cell all of whose samples fell outside the map gives
        nothing.
        """
        batch, count, _ = vectors.shape
        aux, patches = vectors[..., : self.coarse.aux], vectors[..., self.coarse.aux :]
        fine = vectors.new_zeros(batch, count, self.fine.patches + 1)
        given = patches[..., None] * self.fractions[:, None].to(vectors.dtype)
        cells = self.cells[:, None].expand(given.shape)
        fine.scatter_add_(-1, cells.flatten(2), given.flatten(2))
        return torch.cat((aux, fine[..., :-1]), dim=-1)


def plain_back_projection(
    fine: Grid, coarse: Grid, device: torch.device, kernel: int = 2, padding: int = 0
) -> BackProjection:
    """Each coarse cell is made from `kernel` x `kernel` fine ones, two apart, at a border from those that there are."""
    offsets = torch.arange(kernel, device=device) - padding
    rows = 2 * torch.arange(coarse.height, device=device)[:, None] + offsets  # [rows, kernel]
    columns = 2 * torch.arange(coarse.width, device=device)[:, None] + offsets
    row, column = rows[:, None, :, None], columns[None, :, None, :]
    inside = (row >= 0) & (row < fine.height) & (column >= 0) & (column < fine.width)
    cells = (row * fine.width + column).flatten(2).flatten(0, 1)
    return BackProjection(fine, coarse, cells[None], inside.flatten(2).flatten(0, 1)[None].float())
