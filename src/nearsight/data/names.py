"""Many names in little memory, and the order in which people expect them."""

import os
import re
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np


class Names(Sequence[str]):
    """A sequence of texts in one piece of memory.

    A list of 100,000 texts is copied bit by bit into every worker process, as Python counts references in each; this
    one is shared.

    Example:
        >>> Names(["cat/1.jpg", "dog/2.jpg"])[1]
        'dog/2.jpg'
    """

    def __init__(self, texts: Iterable[str]):
        encoded = [os.fsencode(text) for text in texts]
        self._joined = b"".join(encoded)
        self._ends = np.cumsum([0] + [len(text) for text in encoded])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        return os.fsdecode(self._joined[self._ends[number] : self._ends[number + 1]])


def natural_key(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts 2 before 10, and capitals beside small letters.

    Example:
        >>> sorted(["b10", "B2", "a"], key=natural_key)
        ['a', 'B2', 'b10']
    """
    parts = re.split(r"([0-9]+)", text.casefold())
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts], text
