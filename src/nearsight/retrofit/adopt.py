"""Putting a module of a subclass in the place of a module, with its weights, settings, hooks and names."""

from typing import Any, TypeVar

from torch import nn

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
