"""What the values or colours of a mask's pixels mean, as numbers of classes."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..image import explain, readable_formats
from ..labels import shorten
from ..samples import BadImage
from .classtable import ClassTable

NOT_COUNTED = 255
GREYS = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L", "I;16N")
TINT, STAINED = 24, 0.0005  # difference of channels, and share of pixels, up to which an image is grey
NEAR, FEW, MOSTLY = 24, 8, 0.95  # of 0 or 255; other values; share of pixels
VOID = ("void", "unlabelled", "unlabeled", "ignore", "ignored", "unknown", "don't care", "dontcare")


@dataclass(frozen=True)
class Coding:
    """How pixels of masks become class numbers.

    Attributes:
        codes: Values, or colours as one number each, that have a meaning; ascending.
        numbers: The class of each code; 255 if it is not to be counted.
        colours: Whether the codes are colours.
        classes: Names of the classes.

    Example:
        >>> coding = Coding(np.array([0, 1, 9]), np.array([0, 1, 255], dtype=np.uint8), False, ("ground", "cat"))
        >>> coding.apply(np.array([[0, 1, 9, 5]]))
        array([[  0,   1, 255, 255]], dtype=uint8)
    """

    codes: NDArray[np.int64]
    numbers: NDArray[np.uint8]
    colours: bool
    classes: tuple[str, ...]

    def apply(self, pixels: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Class numbers `[H, W]` of codes `[H, W]`; 255 where a code means nothing."""
        if not self.colours and pixels.dtype == np.uint8:
            return self.table[pixels]
        place = np.searchsorted(self.codes, pixels).clip(max=len(self.codes) - 1)
        return np.where(self.codes[place] == pixels, self.numbers[place], NOT_COUNTED).astype(np.uint8)

    @property
    def table(self) -> NDArray[np.uint8]:
        """The class number of each value of a byte `[256]`."""
        table = np.full(256, NOT_COUNTED, dtype=np.uint8)
        small = self.codes < 256
        table[self.codes[small]] = self.numbers[small]
        return table

    def spell(self, code: int) -> str:
        """A code for people."""
        return f"#{code:06x}" if self.colours else str(code)


def read_mask(name: str, content: bytes, colours: bool) -> NDArray[np.int64]:
    """The codes of a mask's pixels `[H, W]`: values, or colours as one number each.

    Raises:
        BadImage: It can't be read, or is coloured where values are expected.
    """
    try:
        with Image.open(io.BytesIO(content), formats=readable_formats()) as image:
            image.load()
            return codes_of(name, image, colours)
    except BadImage:
        raise
    except Exception as error:  # as in `decode`
        raise BadImage(name, explain(error)) from None


def codes_of(name: str, image: Image.Image, colours: bool) -> NDArray[np.int64]:
    """The codes of an opened mask."""
    if colours:
        pixels = np.asarray(image.convert("RGB")).astype(np.int64)
        return (pixels[..., 0] << 16) | (pixels[..., 1] << 8) | pixels[..., 2]
    if image.mode in GREYS:
        pixels = np.asarray(image)
        return pixels.astype(np.uint8) if pixels.dtype == bool else pixels
    if image.mode in ("LA", "PA"):
        return np.asarray(image)[..., 0]
    if has_colours(image):
        raise BadImage(name, "it has colours, but a mask here has one value for each pixel")
    return np.asarray(image.convert("RGB").convert("L"))


def has_colours(image: Image.Image) -> bool:
    """Whether an image is not grey; JPEG makes grey a little coloured."""
    pixels = np.asarray(image.convert("RGB")).astype(np.int16)
    return bool((np.ptp(pixels, axis=2) > TINT).mean() > STAINED)


def is_coloured(content: bytes, table: ClassTable | None) -> bool:
    """Whether a mask speaks in colours: it has such that are not grey, or a palette of those in the table."""
    try:
        with Image.open(io.BytesIO(content), formats=readable_formats()) as image:
            if image.mode == "P" and table is not None and table.colours:
                return set(np.unique(codes_of("", image, colours=True)).tolist()) <= set(table.colours)
            if image.mode in GREYS or image.mode in ("LA", "PA"):
                return False
            return has_colours(image)
    except Exception:  # what can't be read says nothing
        return False


def make_coding(
    source: str,
    table: ClassTable | None,
    present: Mapping[int, int],
    colours: bool,
    ignore: Sequence[str] | None,
    background: bool | None,
) -> Coding:
    """Decide what codes mean.

    Args:
        source: What to call the data in an error.
        table: Names of the classes with their values or colours, if there is such a table.
        present: Codes that masks have, and how many pixels.
        colours: Whether the codes are colours.
        ignore: Values, colours or names that are not counted; None for what is usual: 255, and names such as void.
        background: False: the value 0 (or black) is not counted, either.

    Raises:
        ValueError: There is no table of colours, or something to be ignored is not there.
    """
    names = code_names(source, table, present, colours, background)
    is_binary = not colours and is_black_and_white(present) and len(names) == 2
    if is_binary and len(present) > 2:
        return smoothed_coding(tuple(names.values()))
    if is_binary:
        names = dict(zip((0, 255), names.values(), strict=True))
    elif not colours:
        names.pop(NOT_COUNTED, None)
    uncounted = uncounted_codes(source, names, ignore, table, colours)
    if background is False:
        uncounted |= {0} & set(names)
    codes = sorted(set(names) | uncounted | (set() if colours or 255 in names else {NOT_COUNTED}))
    counted = [code for code in (names if table is not None else codes) if code in names and code not in uncounted]
    if len(counted) > NOT_COUNTED:
        raise ValueError(f"{source} has {len(counted)} classes; at most {NOT_COUNTED} can be told apart in a map.")
    numbers = {code: number for number, code in enumerate(counted)}
    return Coding(
        np.array(codes, dtype=np.int64),
        np.array([numbers.get(code, NOT_COUNTED) for code in codes], dtype=np.uint8),
        colours,
        tuple(names[code] for code in counted),
    )


def is_black_and_white(present: Mapping[int, int]) -> bool:
    """Whether masks have the values 0 and 255, and others at most at smoothed edges."""
    extremes = sum(count for code, count in present.items() if code <= NEAR or code >= 255 - NEAR)
    others = len(set(present) - {0, 255})
    return 255 in present and (others == 0 or (others > FEW and extremes >= MOSTLY * sum(present.values())))


def smoothed_coding(classes: tuple[str, ...]) -> Coding:
    """Every value counts as the nearer of 0 and 255, for masks whose edges were smoothed or saved as JPEG."""
    codes = np.arange(256)
    return Coding(codes, (codes >= 128).astype(np.uint8), False, classes)


def code_names(
    source: str, table: ClassTable | None, present: Mapping[int, int], colours: bool, background: bool | None
) -> dict[int, str]:
    """Names of the classes by code."""
    if table is None:
        if colours:
            raise ValueError(
                f"The masks in {source} have colours, but no table says what they mean; add a file label_colors.txt "
                "with a line such as `128 0 0 building` for each class."
            )
        if set(present) <= {0, 1} or is_black_and_white(present):
            return {0: "background", 1: "foreground"}
        return {code: str(code) for code in sorted(present)}
    if colours:
        if not table.colours:
            raise ValueError(
                f"The masks in {source} have colours, but {table.file} names none; write `128 0 0 building` for each."
            )
        return dict(zip(table.colours, table.names, strict=True))
    values = table.values or tuple(range(len(table.names)))
    highest = max((code for code in present if code != NOT_COUNTED), default=0)
    if background is False and not table.values and highest == len(table.names):
        values = tuple(value + 1 for value in values)  # the names begin with the value 1
        return {0: "background", **dict(zip(values, table.names, strict=True))}
    return dict(zip(values, table.names, strict=True))


def uncounted_codes(
    source: str, names: Mapping[int, str], ignore: Sequence[str] | None, table: ClassTable | None, colours: bool
) -> set[int]:
    """Codes that are not counted."""
    if ignore is None:
        by_table = set(table.ignored) if table is not None and not colours else set()
        return by_table | {code for code, name in names.items() if name.casefold() in VOID}
    found = set()
    by_name = {name.casefold(): code for code, name in names.items()}
    for text in ignore:
        if text.casefold() in by_name:
            found.add(by_name[text.casefold()])
        elif text.isdecimal() and not colours:
            found.add(int(text))
        elif text:
            raise ValueError(
                f"ignore={text} is neither a class of {source} nor a value of its masks; classes are "
                f"{shorten(list(names.values()), 10)}."
            )
    return found
