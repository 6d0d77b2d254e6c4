"""Label maps: which value or colour of a mask is which class, in the forms that data sets come with."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..plots.overlays import IGNORE_INDEX
from .file_system import FileSystem, join
from .image import explain, readable_formats
from .labels import shorten
from .samples import BadImage

COLOURED = re.compile(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(.+)")  # 128 0 0 building


@dataclass(frozen=True)
class LabelMapFile:
    """Names of classes.

    Attributes:
        file: Where they come from.
        names: In the order of their numbers.
        colours: The colour of each as one number, or nothing.
        values: The value of each in a mask, or nothing if they count from 0.
        ignored: Values that are not to be counted.
    """

    file: str
    names: tuple[str, ...]
    colours: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    ignored: tuple[int, ...] = ()


def find_label_map_file(fs: FileSystem, folders: tuple[str, ...] = ("",)) -> LabelMapFile | None:
    """The table of classes in one of some folders; None if there is none.

    Raises:
        ValueError: There is one, but it can't be read.
    """
    for folder in folders:
        for name, reader in READERS.items():
            path = fs.find(name, folder)
            if path is None or not fs.has(path):
                continue
            try:
                table = reader(path, fs.read(path).decode("utf-8-sig"))
            except UnicodeDecodeError:
                raise ValueError(f"{join(fs.title, path)} is not in UTF-8; save it so.") from None
            except BadImage as error:
                raise ValueError(f"{join(fs.title, path)} can't be read: {error.reason}.") from None
            if table is not None and table.names:
                refuse_duplicates(fs, table)
                return table
    return None


def refuse_duplicates(fs: FileSystem, table: LabelMapFile) -> None:
    """Refuse names, colours or values that occur twice."""
    for what, entries in (("name", table.names), ("colour", table.colours), ("value", table.values)):
        if len(set(entries)) < len(entries):
            twice = next(entry for entry in entries if entries.count(entry) > 1)  # type: ignore[arg-type]
            text = f"#{twice:06x}" if what == "colour" else twice
            raise ValueError(f"{join(fs.title, table.file)} has the {what} {text} more than once; keep one.")


def read_json(file: str, text: str) -> LabelMapFile | None:
    """`["sky", ...]`, `{"classes": [...], "void_index": 11}` or `{"0": "sky", ...}`."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{file} is not valid JSON.") from None
    ignored: tuple[int, ...] = ()
    if isinstance(content, dict):
        marks = [content[key] for key in ("void_index", "ignore_index", "ignore") if key in content]
        ignored = tuple(mark for mark in marks if isinstance(mark, int))
        content = next((content[key] for key in ("classes", "names", "labels") if key in content), content)
    if isinstance(content, dict) and content and all(str(key).isdecimal() for key in content):
        pairs = sorted((int(key), str(name)) for key, name in content.items())
        return LabelMapFile(
            file, tuple(name for _, name in pairs), values=tuple(value for value, _ in pairs), ignored=ignored
        )
    if isinstance(content, list) and content and all(isinstance(entry, str) for entry in content):
        return LabelMapFile(file, tuple(content), ignored=ignored)
    if isinstance(content, list) and content and all(isinstance(entry, dict) and "name" in entry for entry in content):
        return read_records(file, content, ignored)
    return None


def read_records(file: str, entries: list[dict[str, Any]], ignored: tuple[int, ...]) -> LabelMapFile:
    """A list of `{"id": 1, "name": "sky", "color": [70, 130, 180]}`."""
    names = tuple(str(entry["name"]) for entry in entries)
    given = [entry.get("color", entry.get("colour")) for entry in entries]
    colours = tuple(pack(*colour) for colour in given if isinstance(colour, list) and len(colour) == 3)
    values = tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), int))
    whole = len(names)
    return LabelMapFile(
        file, names, colours if len(colours) == whole else (), values if len(values) == whole else (), ignored
    )


def read_csv(file: str, text: str) -> LabelMapFile | None:
    """Columns `name` and `r`, `g`, `b`, as in class_dict.csv; or a name only."""
    rows = [
        {str(key).strip().lower(): str(value).strip() for key, value in row.items() if value is not None}
        for row in csv.DictReader(io.StringIO(text), skipinitialspace=True)
    ]
    titles = rows[0] if rows else {}
    name = next((title for title in ("name", "class", "class_name", "label") if title in titles), None)
    if name is None:
        return None
    names = tuple(row.get(name, "") for row in rows)
    channels = next(
        (keys for keys in (("r", "g", "b"), ("red", "green", "blue")) if all(k in titles for k in keys)), ()
    )
    if not channels or not all(row.get(key, "").isdecimal() for row in rows for key in channels):
        return LabelMapFile(file, names)
    return LabelMapFile(file, names, tuple(pack(*(int(row[key]) for key in channels)) for row in rows))


def read_lines(file: str, text: str) -> LabelMapFile | None:
    """A class in a line: `building`, `128 0 0 building`, or `building:128,0,0::`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    coloured = [match for line in lines if (match := COLOURED.fullmatch(line))]
    if lines and len(coloured) == len(lines):
        return LabelMapFile(
            file,
            tuple(match[4].strip() for match in coloured),
            tuple(pack(*(int(match[index]) for index in (1, 2, 3))) for match in coloured),
        )
    fields = [line.split(":") for line in lines]
    if lines and all(len(parts) >= 2 and parts[1].count(",") == 2 for parts in fields):
        colours = tuple(pack(*(int(part) for part in parts[1].split(","))) for parts in fields)
        return LabelMapFile(file, tuple(parts[0].strip() for parts in fields), colours)
    return LabelMapFile(file, tuple(lines))


def read_ade(file: str, text: str) -> LabelMapFile | None:
    """ADE20K's table: a line of titles, then number and names of each class; of several names the first."""
    rows = [line.split("\t") for line in text.splitlines()[1:] if "\t" in line]
    return LabelMapFile(
        file,
        tuple(row[-1].split(",")[0].strip() for row in rows),
        values=tuple(int(row[0]) for row in rows),
    )


def pack(red: int, green: int, blue: int) -> int:
    """A colour as one number.

    Example:
        >>> hex(pack(128, 0, 64))
        '0x800040'
    """
    return (red << 16) | (green << 8) | blue


READERS: dict[str, Callable[[str, str], LabelMapFile | None]] = {  # by file name, the more telling first
    "label_colors.txt": read_lines,
    "labelmap.txt": read_lines,
    "class_dict.csv": read_csv,
    "classes.csv": read_csv,
    "_classes.csv": read_csv,
    "classes.json": read_json,
    "class_names.json": read_json,
    "labels.json": read_json,
    "objectInfo150.txt": read_ade,
    "classes.txt": read_lines,
    "class_names.txt": read_lines,
    "labels.txt": read_lines,
    "names.txt": read_lines,
    "codes.txt": read_lines,
}


GREYS = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L", "I;16N")
TINT, STAINED = 24, 0.0005  # difference of channels, and fraction of pixels, up to which an image is grey
NEAR, FEW, MOSTLY = 24, 8, 0.95  # of 0 or 255; other values; fraction of pixels
VOID = ("void", "unlabelled", "unlabeled", "ignore", "ignored", "unknown", "don't care", "dontcare")


@dataclass(frozen=True)
class LabelMap:
    """How pixels of masks become class numbers.

    Attributes:
        codes: Values, or colours as one number each, that have a meaning; ascending.
        numbers: The class of each code; 255 if it is not to be counted.
        colours: Whether the codes are colours.
        classes: Names of the classes.

    Example:
        >>> label_map = LabelMap(np.array([0, 1, 9]), np.array([0, 1, 255], dtype=np.uint8), False, ("ground", "cat"))
        >>> label_map.apply(np.array([[0, 1, 9, 5]]))
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
        index = np.searchsorted(self.codes, pixels).clip(max=len(self.codes) - 1)
        return np.where(self.codes[index] == pixels, self.numbers[index], IGNORE_INDEX).astype(np.uint8)

    @property
    def table(self) -> NDArray[np.uint8]:
        """The class number of each value of a byte `[256]`."""
        table = np.full(256, IGNORE_INDEX, dtype=np.uint8)
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


def is_coloured(fs: FileSystem, path: str, table: LabelMapFile | None) -> bool:
    """Whether a mask speaks in colours: it has such that are not grey, or a palette of those in the table."""
    try:
        with Image.open(io.BytesIO(fs.read(path)), formats=readable_formats()) as image:
            if image.mode == "P" and table is not None and table.colours:
                return set(np.unique(codes_of("", image, colours=True)).tolist()) <= set(table.colours)
            if image.mode in GREYS or image.mode in ("LA", "PA"):
                return False
            return has_colours(image)
    except Exception:  # what can't be read says nothing
        return False


def make_label_map(
    source: str,
    table: LabelMapFile | None,
    present: Mapping[int, int],
    colours: bool,
    ignore: Sequence[str] | None,
    background: bool | None,
) -> LabelMap:
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
    if is_binary and len(present) > 2:  # edges were smoothed or saved as JPEG: the nearer of 0 and 255 counts
        codes = np.arange(256)
        return LabelMap(codes, (codes >= 128).astype(np.uint8), False, tuple(names.values()))
    if is_binary:
        names = dict(zip((0, 255), names.values(), strict=True))
    elif not colours:
        names.pop(IGNORE_INDEX, None)
    uncounted = ignored_codes(source, names, ignore, table, colours)
    if background is False:
        uncounted |= {0}
    known = sorted(set(names) | uncounted | (set() if colours or 255 in names else {IGNORE_INDEX}))
    counted = [code for code in (names if table is not None else known) if code in names and code not in uncounted]
    if len(counted) > IGNORE_INDEX:
        raise ValueError(f"{source} has {len(counted)} classes; at most {IGNORE_INDEX} can be told apart in a map.")
    numbers = {code: number for number, code in enumerate(counted)}
    return LabelMap(
        np.array(known, dtype=np.int64),
        np.array([numbers.get(code, IGNORE_INDEX) for code in known], dtype=np.uint8),
        colours,
        tuple(names[code] for code in counted),
    )


def is_black_and_white(present: Mapping[int, int]) -> bool:
    """Whether masks have the values 0 and 255, and others at most at smoothed edges."""
    extremes = sum(count for code, count in present.items() if code <= NEAR or code >= 255 - NEAR)
    others = len(set(present) - {0, 255})
    return max(present, default=0) == 255 and (
        others == 0 or (others > FEW and extremes >= MOSTLY * sum(present.values()))
    )


def code_names(
    source: str, table: LabelMapFile | None, present: Mapping[int, int], colours: bool, background: bool | None
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
    highest = max((code for code in present if code != IGNORE_INDEX), default=0)
    if background is False and not table.values and highest == len(table.names):
        values = tuple(value + 1 for value in values)  # the names begin with the value 1
        return {0: "background", **dict(zip(values, table.names, strict=True))}
    return dict(zip(values, table.names, strict=True))


def ignored_codes(
    source: str, names: Mapping[int, str], ignore: Sequence[str] | None, table: LabelMapFile | None, colours: bool
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
