"""The figures that the five papers print: one row for each line of their tables, carried as data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

PAPERS = {
    "localvit": "LocalViT: Bringing Locality to Vision Transformers",
    "lightvit": "LightViT: Towards Light-Weight Convolution-Free Vision Transformers",
    "lit": "Less is More: Pay Less Attention in Vision Transformers",
    "dwconv": "On the Connection between Local Attention and Dynamic Depth-wise Convolution",
    "life": "A Flexible and Efficient Module for Incorporating Local Information into Vision Transformers",
}
COSTS = (
    "params_m",
    "flops_g",
    "gmacs",
    "extra_params",
    "params_reduction_pct",
    "flops_reduction_pct",
    "flops_share_pct",
)


@dataclass(frozen=True)
class PublishedRow:
    """A line of a table, or a figure of the text.

    Attributes:
        number: In the data, from 1.
        paper: Key of `PAPERS`.
        table: Table, or part of the text.
        name: Label of the row.
        own: Whether it is the paper's own result; otherwise it is quoted or trained again.
        setting: What the row describes.
        printed: The figures as printed, without units.
        remark: What was noticed about the row.
    """

    number: int
    paper: str
    table: str
    name: str
    own: bool
    setting: Mapping[str, Any] = field(compare=False)
    printed: Mapping[str, str] = field(compare=False)
    remark: str = ""

    @property
    def costs(self) -> dict[str, str]:
        """The printed figures that a model can be counted for."""
        return {key: self.printed[key] for key in COSTS if self.printed.get(key, "-") not in ("-", "–")}

    @property
    def dense(self) -> bool:
        """Whether the row is about a detector or a segmentation model."""
        return "head" in self.setting


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """All rows, in the order of the papers."""
    records = json.loads(files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
    return tuple(
        PublishedRow(
            number, r["paper"], r["table"], r["row"], r["own"], r["setting"], r["printed"], r.get("anomaly", "")
        )
        for number, r in enumerate(records, 1)
    )


def rows_of(paper: str | None) -> tuple[PublishedRow, ...]:
    """The rows of one paper, or all of them for None."""
    if paper is not None and paper not in PAPERS:
        raise ValueError(f"There is no paper {paper!r} here; choose one of {', '.join(PAPERS)}, or none for all five.")
    return tuple(row for row in published_rows() if paper in (None, row.paper))
