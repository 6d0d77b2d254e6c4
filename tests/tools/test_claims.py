"""Claims of the papers: each names runs that are listed, and its verdict follows from the interval."""

from pathlib import Path

import numpy as np
import pytest

from nearsight.comparison.statistics import Estimate
from tools.claims import PAGES, Claim, measure, page, read_claims
from tools.evidence import LISTED, RESULTS, Queue, read_questions

CLAIMS = read_claims()


def test_every_claim_names_runs_that_are_listed_or_says_why_not() -> None:
    labels = {question.name: {one.label for one in question.experiments} for question in read_questions(LISTED)}
    for claim in CLAIMS:
        if claim.of is None:
            assert claim.why
        elif not (PAGES / f"{claim.of}.npz").is_file():
            assert {claim.better, claim.than} <= labels[claim.of], claim.text
    assert {claim.paper for claim in CLAIMS} == {"LocalViT", "LightViT", "LIT", "dwconv", "LIFE"}


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (0.001, 0.2, 0.0, "confirmed"),
        (-0.2, -0.001, 0.0, "not confirmed"),
        (-0.02, 0.019, 0.0, "undecided"),
        (-0.03, 0.03, 0.0, "open"),
        (-0.009, 0.03, 0.01, "confirmed"),  # no worse by more than a point
        (-0.03, -0.011, 0.01, "not confirmed"),
    ],
)
def test_verdicts_follow_from_the_interval(low: float, high: float, margin: float, verdict: str) -> None:
    claim = Claim("LIT", "Table 3", "It helps.", of="x", margin=margin)
    assert claim.verdict(Estimate((low + high) / 2, low, high, 0.5, None, 0.01)) == verdict
    assert claim.verdict(None) == "open"


def test_differences_are_those_of_the_recorded_images(tmp_path: Path) -> None:
    claim = Claim("LocalViT", "Table 1", "It helps.", of="images-2000-longer", better="localvit_nano", than="deit_nano")
    found = measure(claim, Queue(LISTED, RESULTS, tmp_path, tmp_path))
    with np.load(PAGES / "images-2000-longer.npz") as file:
        right = dict(zip(file["runs"], (file["answers"] == file["labels"]).mean(axis=1), strict=True))
    gaps = [right[f"localvit_nano-seed{seed}"] - right[f"deit_nano-seed{seed}"] for seed in range(3)]
    assert found is not None and found.seeds == 3 and found.gap.mean == pytest.approx(np.mean(gaps))


def test_the_page_is_that_of_the_files(tmp_path: Path) -> None:
    text, png = page(CLAIMS, Queue(LISTED, RESULTS, tmp_path, tmp_path))
    assert (PAGES / "claims.md").read_text() == text  # else: python -m tools.claims
    assert png[:4] == b"\x89PNG"
