"""The verdict on each row: match, explained, or not built."""

from dataclasses import dataclass
from typing import Any, Literal

from ..models import MODELS, BackboneSpec
from .dense import DenseRecipe
from .explanations import Explanation
from .figures import UNITS, Figure, agrees
from .own import plan
from .published import Row, rows_of
from .recipe import Derived, Measured, NotBuilt, Recipe, measure
from .register import explain

Status = Literal["match", "explained", "not built", "no figures", "differs"]


@dataclass(frozen=True)
class Verdict:
    """What became of a row.

    Attributes:
        row: The row.
        status: `match`: every figure comes out as printed. `explained`: one does not, and the register says why or
            what was tried. `not built`: there is no model. `no figures`: the row prints neither parameters nor
            multiply-adds. `differs`: a figure without an explanation.
        built: What was built.
        measured: What it costs, unless the row compares models.
        figures: Printed figures beside ours.
        entries: The explanation of each figure, None where it matches.
        reason: Why there is no model.
    """

    row: Row
    status: Status
    built: str = ""
    measured: Measured | None = None
    figures: tuple[Figure, ...] = ()
    entries: tuple[Explanation | None, ...] = ()
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain values."""
        pairs = zip(self.figures, self.entries, strict=True)
        figures = {
            f.key: {"printed": f.printed, "ours": round(f.ours, 6), "explanation": entry.number if entry else None}
            for f, entry in pairs
        }
        cost = self.measured.cost if self.measured else None
        return {
            "number": self.row.number,
            "paper": self.row.paper,
            "table": self.row.table,
            "row": self.row.name,
            "own": self.row.own,
            "status": self.status,
            "built": self.built,
            "reason": self.reason,
            "parameters": cost.parameters if cost else None,
            "multiply_adds": cost.macs if cost else None,
            "formula": self.measured.formula if self.measured else None,
            "figures": figures,
        }


def reproduce(paper: str | None = None) -> list[Verdict]:
    """Build and count what every row of a paper describes.

    Args:
        paper: `localvit`, `lightvit`, `lit`, `dwconv` or `life`; None for all five.

    Example:
        >>> verdicts = reproduce("localvit")
        >>> sorted({v.status for v in verdicts})
        ['explained', 'match']
    """
    return [judge(row) for row in rows_of(paper)]


def judge(row: Row) -> Verdict:
    """The verdict on one row."""
    what = plan(row)
    match what:
        case NotBuilt():
            return Verdict(row, "not built", reason=what.reason)
        case Derived():
            return compare(row, Verdict(row, "no figures", what.what), what.figures(), what)
        case Recipe() | DenseRecipe():
            measured = measure(what)
            cost = measured.cost
            ours = {key: (cost.parameters if key == "params_m" else cost.macs) / unit for key, unit in UNITS.items()}
            return compare(row, Verdict(row, "no figures", str(what), measured), ours, what)


def compare(row: Row, base: Verdict, ours: dict[str, float], what: Recipe | DenseRecipe | Derived) -> Verdict:
    """Put our figures beside those printed."""
    figures = tuple(Figure(row, key, printed, ours[key], what) for key, printed in row.costs.items())
    if not figures:
        status: Status = "match" if isinstance(what, Recipe) and same_architecture(row, what) else "no figures"
        return Verdict(row, status, base.built, base.measured)
    fits = [agrees(figure.printed, figure.ours) for figure in figures]
    entries = tuple(None if fit else explain(figure) for fit, figure in zip(fits, figures, strict=True))
    if all(fits):
        status = "match"
    else:
        known = all(fit or entry for fit, entry in zip(fits, entries, strict=True))
        status = "explained" if known else "differs"
    return Verdict(row, status, base.built, base.measured, figures, entries)


def same_architecture(row: Row, what: Recipe) -> bool:
    """Whether a row of an architecture table prints the stages of our model."""
    spec = MODELS.get(what.model)
    return "blocks" in row.setting and spec is not None and architecture(spec).items() >= printed_stages(row).items()


def printed_stages(row: Row) -> dict[str, Any]:
    """What an architecture table prints of the stages."""
    known = ("channels", "blocks", "heads", "heads_stage3_4", "global_tokens", "expansion")
    return {key: row.setting[key] for key in known if row.setting.get(key) is not None}


def architecture(spec: BackboneSpec) -> dict[str, Any]:
    """The same of a spec."""
    heads = [getattr(next(stage.layers()).mixer, "heads", None) for stage in spec.stages]
    return {
        "channels": [stage.dim for stage in spec.stages],
        "blocks": [stage.depth for stage in spec.stages],
        "heads": heads,
        "heads_stage3_4": heads[2:],
        "global_tokens": spec.aux,
        "expansion": [getattr(next(stage.layers()).ffn, "ratio", None) for stage in spec.stages],
    }
