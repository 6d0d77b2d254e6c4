"""Labels that a file gives to images beside those of the data, perhaps several each: ReaL's for ImageNet (Beyer, 2020).

The file is JSON: an object from names of images to lists of classes, or a list whose first entry is for the image with
the number 1 at the end of its name (`ILSVRC2012_val_00000001.JPEG`), as in ReaL's `real.json`. A class is its name or
its number; an image with an empty list is not counted.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..arguments import why_no_json
from .samples import Split

LARGEST = 1 << 28  # bytes of a file; ReaL's has less than a hundredth of that
NUMBER = re.compile(r"(\d+)$")
HOW = 'write {"IMAGE": [CLASS, ...], ...}, or a list in the order of the images\' numbers'


def read_labels(path: Path, images: Split, classes: Sequence[str]) -> dict[int, frozenset[int]]:
    """The class numbers that count as right, by the index of the image; images that the file leaves out are missing.

    Args:
        path: The file.
        images: What is evaluated.
        classes: Names of the model's classes.

    Raises:
        ValueError: The file can't be read, names a class that the model does not know, or none of the images.
    """
    given = read_file(path)
    found: dict[int, frozenset[int]] = {}
    known: dict[Any, int] = {str(number): number for number in range(len(classes))}
    known |= {name: number for number, name in enumerate(classes)}  # names that are numbers, too
    for index in range(len(images)):
        name = Path(images.name(index))
        if (listed := entry_of(given, name)) is None:
            continue
        if not isinstance(listed, list) or not all(isinstance(one, int | str) for one in listed):
            raise ValueError(f"{path}: the labels of {name.name} are {short(listed)}, not a list of classes; {HOW}.")
        for one in listed:
            if str(one) not in known:
                raise ValueError(
                    f"{path}: {name.name} has the class {short(one)}, which the model does not know; give names of "
                    f"its {len(classes)} classes, or numbers from 0 to {len(classes) - 1}."
                )
        found[index] = frozenset(known[str(one)] for one in listed)
    if not any(found.values()):
        first = Path(images.name(0)).name
        raise ValueError(
            f"{path} has labels for none of the {len(images)} images, the first of which is {first}; {HOW}."
        )
    return found


def read_file(path: Path) -> dict[str, Any] | list[Any]:
    """What the file holds."""
    try:
        if path.exists() and not path.is_file():  # a device may never end
            raise OSError(0, "it is no file")
        if path.stat().st_size > LARGEST:
            raise OSError(0, f"it is larger than {LARGEST >> 20} MB")
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}); {HOW}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no labels ({why_no_json(error)}); {HOW}.") from None
    if not isinstance(given, dict | list):
        raise ValueError(f"{path} holds {short(given)}; {HOW}.")
    return given


def entry_of(given: dict[str, Any] | list[Any], name: Path) -> Any:
    """What is given for an image: by its path, its file name, or that without suffix; or by its number."""
    if isinstance(given, dict):
        return next((given[key] for key in (str(name), name.name, name.stem) if key in given), None)
    number = NUMBER.search(name.stem)
    position = int(number[1][-12:]) - 1 if number else -1
    return given[position] if 0 <= position < len(given) else None


def short(value: Any) -> str:
    """A value in a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"
