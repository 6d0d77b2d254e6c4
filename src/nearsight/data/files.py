"""Images that are files."""

import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .image import decode, read_file
from .names import Names
from .samples import Split


class Files(Split):
    """Image files below a folder.

    Args:
        root: The folder that the paths start from.
        paths: Paths of the files, with forward slashes; absolute ones are taken as they are.
        labels: Class numbers `[n]`.
    """

    def __init__(self, root: str, paths: Iterable[str], labels: NDArray[np.int64]):
        self.root = root
        self.paths = Names(paths)
        self.labels = labels

    def name(self, index: int) -> str:
        return self.paths[index]

    def path(self, index: int) -> str:
        """Where an image lies."""
        return os.path.join(self.root, self.paths[index])

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return decode(self.name(index), self.path(index), enough)

    def content(self, index: int) -> bytes:
        return read_file(self.name(index), self.path(index))
