"""The section of a recipe that says how images with objects or regions are sized and varied."""

from typing import Annotated

from pydantic import AfterValidator, Field, Strict, model_validator

from .section import Range, Section


def check_sides(sides: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse sides that are none, or smaller than any model could use."""
    if not sides or min(sides) < 16:
        raise ValueError("give one side or more, each of at least 16 pixels")
    return sides


def check_pair(pair: tuple[int, int]) -> tuple[int, int]:
    """Refuse a smallest and largest side that are not in this order."""
    if not 16 <= pair[0] <= pair[1]:
        raise ValueError("the first of the two sides must be at least 16 and not above the second")
    return pair


# YAML has lists where Python has tuples.
Sides = Annotated[tuple[int, ...], Strict(False), AfterValidator(check_sides)]
SidePair = Annotated[tuple[int, int], Strict(False), AfterValidator(check_pair)]


class SceneAugment(Section):
    """Sizes of images with objects or regions, and what is done to training images, in this order.

    Attributes:
        shorter: Shorter side in pixels that images are shown with; None follows the data.
        longest: Longest side that an image may get by that; None allows 5/3 of the shorter side, as in 1333 × 800.
        stretch: Show every image as a square of `shorter`, whatever its shape.
        sides: Shorter sides to draw from for a training image; None takes `shorter`.
        ratio: Smallest and largest factor for the size of a training image, beside `sides`.
        cut: Probability of DETR's way instead: resize to one of `cut_sides`, cut a random part of `cut_range`, resize.
        cut_sides: Shorter sides before cutting.
        cut_range: Smallest and largest side of the part that is cut.
        crop: Side of a random square that is cut out in the end; None for the whole image.
        crop_share: For regions: parts of which one class has more than this share are drawn again, up to ten times.
        flip: Probability of mirroring left and right.
        flip_vertical: Probability of mirroring up and down.
        distort: Probability of each change of brightness, contrast, saturation and hue.
    """

    shorter: int | None = Field(default=None, ge=16, le=4096)
    longest: int | None = Field(default=None, ge=16, le=8192)
    stretch: bool = False
    sides: Sides | None = None
    ratio: Range = (1.0, 1.0)
    cut: float = Field(default=0.0, ge=0, le=1)
    cut_sides: Sides = (400, 500, 600)
    cut_range: SidePair = (384, 600)
    crop: int | None = Field(default=None, ge=16, le=4096)
    crop_share: float = Field(default=1.0, gt=0, le=1)
    flip: float = Field(default=0.5, ge=0, le=1)
    flip_vertical: float = Field(default=0.0, ge=0, le=1)
    distort: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def check_together(self) -> "SceneAugment":
        """Refuse sizes that contradict each other."""
        if self.shorter is not None and self.longest is not None and self.longest < self.shorter:
            raise ValueError(f"scene.longest {self.longest} is less than scene.shorter {self.shorter}; set both")
        return self
