"""What is said about an image. Nothing here needs torch."""

from dataclasses import dataclass
from typing import NamedTuple


class Answer(NamedTuple):
    """A class and how likely the model holds it."""

    name: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What a model says about an image.

    Attributes:
        image: Path of the file.
        answers: The likeliest classes, the likeliest first; none if the image can't be read.
        problem: Why the image can't be read; None if it can.
    """

    image: str
    answers: tuple[Answer, ...]
    problem: str | None = None
