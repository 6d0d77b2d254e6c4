"""What joins a pretrained layer and starts at nothing, for `localize`."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..lattice import Grid, zeros_for_aux
from .slots import Branch, GridSource, TokenModule

Adopted = TypeVar("Adopted", bound=nn.Module)


def adopt(kind: type[Adopted], module: nn.Module, **fields: Any) -> Adopted:
    """A module of `kind` that has all that `module` has, and `fields` beside it.

    Weights are the same tensors under the same names, so that files and optimizers of the old module fit.

    Example:
        >>> class Doubling(nn.Linear):
        ...     def forward(self, input):
        ...         return 2 * super().forward(input)
        >>> linear = nn.Linear(3, 4)
        >>> adopt(Doubling, linear).weight is linear.weight
        True
    """
    new = kind.__new__(kind)
    # Its tables of weights, children and hooks are copied, so that what is added does not appear in the old module.
    new.__dict__.update({k: v.copy() if isinstance(v, dict) else v for k, v in module.__dict__.items()})
    for name, value in fields.items():
        setattr(new, name, value)
    return new


class ParallelBranch(Branch):
    """`attention(x) + fade * part(x)`, where the scale `fade` starts at zero.

    Args:
        part: The module beside attention.
        dim: Width of the tokens.
        keeper: Tells their grid.
        carries_aux: Whether the module takes auxiliary tokens, too.
    """

    def __init__(self, part: TokenModule, dim: int, keeper: GridSource, carries_aux: bool):
        super().__init__()
        self.part = part
        self.keeper = keeper
        self.carries_aux = carries_aux
        self.fade = nn.Parameter(torch.zeros(dim))

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(entering)
        if self.carries_aux:
            local = self.part(tokens, grid)
        else:
            local = zeros_for_aux(self.part(tokens[:, grid.aux :], Grid(grid.height, grid.width)), grid)
        return mixed + (self.fade * local).reshape(mixed.shape)
