"""The cells that a matrix has found so far: a stopped one goes on after its last whole host."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import timm
import torch

from .. import __version__
from ..atomic import write_whole
from .cells import Cell


@dataclass(frozen=True)
class Unfinished:
    """A file beside the page, which is there until the page is.

    Attributes:
        file: Where the cells are.
        terms: What they were found with and for; others are not taken over.
    """

    file: Path
    terms: dict[str, object]

    @classmethod
    def beside(cls, page: Path, parts: Iterable[str], export: bool) -> "Unfinished":
        """What is unfinished of a page with these parts."""
        versions = {"nearsight": __version__, "torch": torch.__version__, "timm": timm.__version__}
        return cls(page.with_name(f".{page.name}.unfinished"), versions | {"parts": sorted(parts), "export": export})

    def read(self) -> list[Cell]:
        """The cells of whole hosts; none if the file is absent, spoiled, or made with other versions or settings."""
        try:
            held = json.loads(self.file.read_text(encoding="utf-8"))
            return [Cell(**cell) for cell in held["cells"]] if held["terms"] == self.terms else []
        except (OSError, ValueError, TypeError, KeyError):
            return []

    def write(self, cells: Sequence[Cell]) -> None:
        """Keep the cells of whole hosts."""
        held = {"terms": self.terms, "cells": [cell.as_dict() for cell in cells]}
        write_whole(self.file, json.dumps(held).encode())

    def finish(self) -> None:
        """The page is written."""
        self.file.unlink(missing_ok=True)
