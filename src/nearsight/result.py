"""What verbs return: values that go to JSON, into a file, and onto a notebook's page."""

import html
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from .atomic import write_whole


def as_json(values: Mapping[str, Any]) -> bytes:
    """JSON for people to read; file names that are not UTF-8 keep their bytes."""
    return json.dumps(values, indent=1, ensure_ascii=False).encode(errors="surrogateescape")


class Result(ABC):
    """What a verb found or did. One with tables or figures saves these too, and a notebook shows them."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON has."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the values as JSON; the file is complete or absent."""
        write_whole(path, as_json(self.to_dict()))
        return Path(path)


One = TypeVar("One", bound=Result)


class Results(list[One], Result):
    """Rows of a table, as a list.

    Example:
        >>> import nearsight
        >>> nearsight.describe_models("lit_*").to_dict()["rows"][0]["name"]
        'lit_tiny'
    """

    def to_dict(self) -> dict[str, Any]:
        """The values of each row."""
        return {"rows": [row.to_dict() for row in self]}

    def _repr_html_(self) -> str:
        rows = [{name: value for name, value in row.to_dict().items() if not isinstance(value, dict)} for row in self]
        lines = [dict.fromkeys(rows[0]).keys() if rows else (), *(row.values() for row in rows)]
        cells = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in line) for line in lines)
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
