"""Tables that say which value or colour of a mask is which class, in the forms that data sets come with."""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..samples import BadImage
from .tree import Tree, join

COLOURED = re.compile(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(.+)")  # 128 0 0 building


@dataclass(frozen=True)
class ClassTable:
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


def find_table(tree: Tree, folders: tuple[str, ...] = ("",)) -> ClassTable | None:
    """The table of classes in one of some folders; None if there is none.

    Raises:
        ValueError: There is one, but it can't be read.
    """
    for folder in folders:
        for name, reader in READERS.items():
            path = tree.find(name, folder)
            if path is None or not tree.has(path):
                continue
            try:
                table = reader(path, tree.read(path).decode("utf-8-sig"))
            except UnicodeDecodeError:
                raise ValueError(f"{join(tree.title, path)} is not in UTF-8; save it so.") from None
            except BadImage as error:
                raise ValueError(f"{join(tree.title, path)} can't be read: {error.reason}.") from None
            if table is not None and table.names:
                check_table(tree, table)
                return table
    return None


def check_table(tree: Tree, table: ClassTable) -> None:
    """Refuse names, colours or values that occur twice."""
    for what, entries in (("name", table.names), ("colour", table.colours), ("value", table.values)):
        if len(set(entries)) < len(entries):
            twice = next(entry for entry in entries if entries.count(entry) > 1)  # type: ignore[arg-type]
            text = f"#{twice:06x}" if what == "colour" else twice
            raise ValueError(f"{join(tree.title, table.file)} has the {what} {text} more than once; keep one.")


def read_json_table(file: str, text: str) -> ClassTable | None:
    """`["sky", ...]`, `{"classes": [...], "void_index": 11}` or `{"0": "sky", ...}`."""
    try:
        content: Any = json.loads(text)
    except ValueError:
        raise ValueError(f"{file} is not valid JSON.") from None
    ignored: tuple[int, ...] = ()
    if isinstance(content, dict):
        marks = [content[key] for key in ("void_index", "ignore_index", "ignore") if key in content]
        ignored = tuple(mark for mark in marks if isinstance(mark, int))
        content = next((content[key] for key in ("classes", "names", "labels") if key in content), content)
    if isinstance(content, dict) and content and all(str(key).isdecimal() for key in content):
        pairs = sorted((int(key), str(name)) for key, name in content.items())
        return ClassTable(
            file, tuple(name for _, name in pairs), values=tuple(value for value, _ in pairs), ignored=ignored
        )
    if isinstance(content, list) and content and all(isinstance(entry, str) for entry in content):
        return ClassTable(file, tuple(content), ignored=ignored)
    if isinstance(content, list) and content and all(isinstance(entry, dict) and "name" in entry for entry in content):
        return read_records(file, content, ignored)
    return None


def read_records(file: str, entries: list[dict[str, Any]], ignored: tuple[int, ...]) -> ClassTable:
    """A list of `{"id": 1, "name": "sky", "color": [70, 130, 180]}`."""
    names = tuple(str(entry["name"]) for entry in entries)
    given = [entry.get("color", entry.get("colour")) for entry in entries]
    colours = tuple(pack(*colour) for colour in given if isinstance(colour, list) and len(colour) == 3)
    values = tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), int))
    whole = len(names)
    return ClassTable(
        file, names, colours if len(colours) == whole else (), values if len(values) == whole else (), ignored
    )


def read_csv_table(file: str, text: str) -> ClassTable | None:
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
        return ClassTable(file, names)
    return ClassTable(file, names, tuple(pack(*(int(row[key]) for key in channels)) for row in rows))


def read_lines(file: str, text: str) -> ClassTable | None:
    """A class in a line: `building`, `128 0 0 building`, or `building:128,0,0::`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    coloured = [match for line in lines if (match := COLOURED.fullmatch(line))]
    if lines and len(coloured) == len(lines):
        return ClassTable(
            file,
            tuple(match[4].strip() for match in coloured),
            tuple(pack(*(int(match[place]) for place in (1, 2, 3))) for match in coloured),
        )
    fields = [line.split(":") for line in lines]
    if lines and all(len(parts) >= 2 and parts[1].count(",") == 2 for parts in fields):
        colours = tuple(pack(*(int(part) for part in parts[1].split(","))) for parts in fields)
        return ClassTable(file, tuple(parts[0].strip() for parts in fields), colours)
    return ClassTable(file, tuple(lines))


def read_ade(file: str, text: str) -> ClassTable | None:
    """ADE20K's table: a line of titles, then number and names of each class; of several names the first."""
    rows = [line.split("\t") for line in text.splitlines()[1:] if "\t" in line]
    return ClassTable(
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


READERS: dict[str, Callable[[str, str], ClassTable | None]] = {  # by file name, the more telling first
    "label_colors.txt": read_lines,
    "labelmap.txt": read_lines,
    "class_dict.csv": read_csv_table,
    "classes.csv": read_csv_table,
    "_classes.csv": read_csv_table,
    "classes.json": read_json_table,
    "class_names.json": read_json_table,
    "labels.json": read_json_table,
    "objectInfo150.txt": read_ade,
    "classes.txt": read_lines,
    "class_names.txt": read_lines,
    "labels.txt": read_lines,
    "names.txt": read_lines,
    "codes.txt": read_lines,
}
