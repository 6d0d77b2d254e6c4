"""Every row of the five papers gets a verdict, and the page in `docs/` says the same."""

from collections import Counter
from pathlib import Path

import pytest

from nearsight.reproduction import PAPERS, reproduce, rows_of
from nearsight.reproduction.recipes import NOT_SHIPPED
from nearsight.reproduction.verdicts import register_line, section, summary, to_json, used

PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"
STATUSES = {
    "localvit": {"match": 39, "explained": 9},
    "lightvit": {"match": 14, "explained": 39, "not built": 4},
    "lit": {"match": 35, "explained": 19},
    "dwconv": {"match": 43, "explained": 80, "not built": 1, "no figures": 8},
    "life": {"match": 9, "explained": 36, "no figures": 5},
}


@pytest.mark.parametrize(
    "paper", ["localvit", *(pytest.param(paper, marks=pytest.mark.slow) for paper in PAPERS if paper != "localvit")]
)
def test_every_row_has_the_recorded_kind_of_verdict(paper: str) -> None:
    verdicts = reproduce(paper)
    assert [verdict.row for verdict in verdicts] == list(rows_of(paper))
    assert [v.row.name for v in verdicts if v.status == "differs"] == []
    assert Counter(v.status for v in verdicts) == STATUSES[paper]

    # Only models that nobody ships are missing; no model of the paper is.
    missing = [v for v in verdicts if v.status == "not built"]
    assert {v.reason for v in missing} <= {NOT_SHIPPED.reason}
    assert not any(v.row.own or v.row.dense for v in missing)

    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(section(verdicts, paper)) in page, "run `nearsight reproduce --markdown docs/reproduction.md`"
    assert all(register_line(entry) in page for entry in used(verdicts))
    assert summary(verdicts)[2 + list(PAPERS).index(paper)] in page
    assert to_json(verdicts).count('"printed"') == sum(len(v.figures) for v in verdicts)


def test_the_data_are_complete() -> None:
    rows = rows_of(None)
    assert len(rows) == 341
    assert sum(bool({"params_m", "flops_g", "gmacs"} & row.costs.keys()) for row in rows) == 315
    assert {row.paper for row in rows} == set(PAPERS)


def test_an_unknown_paper_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"'lift'.* localvit, lightvit, lit, dwconv, life"):
        reproduce("lift")
