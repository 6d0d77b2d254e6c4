"""What the sections of a recipe have in common: strict typing, and values that several of them hold."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Strict


def check_range(pair: tuple[float, float]) -> tuple[float, float]:
    """Refuse a smallest and largest value that are not above 0 and in this order."""
    if not 0 < pair[0] <= pair[1]:
        raise ValueError("the first of the two numbers must be above 0 and not above the second")
    return pair


def check_shares(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse shares that do not rise between 0 and 1."""
    if list(shares) != sorted(set(shares)) or not all(0 < share < 1 for share in shares):
        raise ValueError("the numbers must lie between 0 and 1 and rise, such as [0.3, 0.6, 0.9]")
    return shares


def check_positive(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Refuse weights that are not above 0."""
    if not numbers or min(numbers) <= 0:
        raise ValueError("give one number above 0 for each class")
    return numbers


# YAML has lists where Python has tuples.
Range = Annotated[tuple[float, float], Strict(False), AfterValidator(check_range)]
Shares = Annotated[tuple[float, ...], Strict(False), AfterValidator(check_shares)]
Weights = Annotated[tuple[float, ...], Strict(False), AfterValidator(check_positive)]


class Section(BaseModel):
    """Settings that belong together; unknown keys are refused, and so are values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())
