"""Claims of the papers: each names runs that are listed, and its verdict follows from the interval."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearsight.comparison.statistics import estimate_difference
from tools.claims import PAGES, RECORDED, Claim, Measured, Term, measure, page, read_claims, read_terms, settled
from tools.evidence import LISTED, RESULTS, Queue, pack, read_questions, unpack

CLAIMS = read_claims()


def test_every_claim_names_runs_that_are_listed_or_says_why_not() -> None:
    labels = {question.name: {one.label for one in question.experiments} for question in read_questions(LISTED)}
    for claim in CLAIMS:
        assert bool(claim.terms) + bool(claim.measured) + bool(claim.why) == 1, claim.text
        assert not claim.terms or (claim.better and claim.than), claim.text
        for term in claim.terms:
            if not (PAGES / f"{term.of}.npz").is_file():
                assert term.label in labels[term.of], claim.text
    assert {claim.paper for claim in CLAIMS} == {"LocalViT", "LightViT", "LIT", "dwconv", "LIFE"}


@pytest.mark.parametrize(
    ("low", "high", "margin", "ended", "verdict"),
    [
        (0.001, 0.2, 0.0, False, "confirmed"),
        (-0.2, -0.001, 0.0, False, "not confirmed"),
        (-0.02, 0.019, 0.0, False, "undecided"),
        (-0.03, 0.03, 0.0, False, "open"),
        (-0.03, 0.03, 0.0, True, "undecided"),  # nothing more is to be run
        (-0.009, 0.03, 0.01, False, "confirmed"),  # no worse by more than a point
        (-0.03, -0.011, 0.01, False, "not confirmed"),
    ],
)
def test_verdicts_follow_from_the_interval(low: float, high: float, margin: float, ended: bool, verdict: str) -> None:
    claim = Claim("LIT", "Table 3", "It helps.", margin=margin)
    assert claim.verdict(Measured((low + high) / 2, low, high, 0.5, "", "3 seeds", 1.0, "", ended)) == verdict
    assert claim.verdict(None) == "open"


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """A queue with two questions and made-up lines: what is right differs by chance, and `good` by much."""
    values = {"about": "Why?", "data": "x.npz", "command": "train", "hours": 0.1, "seeds": [0, 1, 2]}
    runs = {"good": "", "bad": "", "same": ""}
    (tmp_path / "list.yaml").write_text(
        json.dumps({"try": {**values, "runs": runs}, "other": {**values, "runs": runs}})
    )
    rng = np.random.default_rng(0)
    for question in ("try", "other"):
        lines = [
            line_of(question, label, seed, rng.random(1000) < {"good": 0.8, "bad": 0.6, "same": 0.6}[label])
            for label in runs
            for seed in (0, 1)
        ]
        (tmp_path / f"{question}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Queue(tmp_path / "list.yaml", tmp_path, tmp_path / "runs", tmp_path)


def line_of(question: str, label: str, seed: int, right: np.ndarray) -> dict[str, Any]:
    judged = {"split": "test", "images": len(right), "indices": "the same", "right": pack(right)}
    rest = {"core_seconds": 1800.0, "train_loss": 1.0 + seed / 100 - (label == "good"), "data": {"file": "x.npz"}}
    return {"id": f"{question}/{label}-seed{seed}", "label": label, "seed": seed, "fold": None, "judged": judged} | rest


def claim_of(better: str, than: str, **more: Any) -> Claim:
    sides = {"better": read_terms(better, "try", LISTED), "than": read_terms(than, "try", LISTED)}
    return Claim("LIT", "Table 3", "It helps.", **sides, **more)


def test_a_claim_is_settled_by_two_seeds_only_if_all_its_runs_have_decided_claims(queue: Queue) -> None:
    decided, not_decided = claim_of("good", "bad"), claim_of("same", "other/bad")
    assert settled([decided], queue) == {("try", "good"), ("try", "bad")}
    assert settled([decided, not_decided], queue) == {("try", "good"), ("try", "bad")}
    assert settled([decided, not_decided, claim_of("bad", "other/same")], queue) == {("try", "good")}
    (queue.results / "try.jsonl").unlink()
    assert settled([decided], queue) == set()  # nothing is measured yet


def test_runs_of_several_questions_and_differences_of_differences_are_paired(queue: Queue) -> None:
    right = {
        (question, label): np.stack(
            [unpack(line["judged"]["right"], 1000) for line in queue.lines(question) if line["label"] == label]
        ).astype(float)
        for question in ("try", "other")
        for label in ("good", "bad", "same")
    }
    found = measure(claim_of("good", "other/bad"), queue)
    told = estimate_difference(right["try", "good"], right["other", "bad"])
    assert found is not None and found[:3] == pytest.approx(told[:3]) and found.hours == pytest.approx(2.0)
    found = measure(claim_of("good - bad", "other/good - other/same"), queue)
    gaps = [right[key] for key in (("try", "good"), ("try", "bad"), ("other", "good"), ("other", "same"))]
    assert found is not None and found.mean == pytest.approx((gaps[0] - gaps[1] - gaps[2] + gaps[3]).mean())


def test_other_values_of_runs_are_compared_by_seed(queue: Queue) -> None:
    found = measure(claim_of("bad:train_loss", "good:train_loss", unit="nats"), queue)
    assert found is not None and found.mean == pytest.approx(1.0) and found.shown.endswith("nats")
    assert read_terms("a/b:c - d", "e", LISTED) == (Term("a", "b", "c"), Term("e", "d", None))
    with pytest.raises(ValueError, match="'b' is not understood; write QUESTION/LABEL"):
        read_terms("b", None, LISTED)


def test_a_recorded_number_is_held_to_its_bound(queue: Queue) -> None:
    number = {"value": 1.2, "low": 1.1, "high": 1.3, "unit": "times", "count": "9 rounds"}
    (queue.results / RECORDED).write_text(json.dumps({"ratio": number}))
    claim = Claim("LIFE", "Table 5", "It takes longer.", measured="ratio", above=1.0)
    found = measure(claim, queue)
    assert found is not None and claim.verdict(found) == "confirmed" and found.shown == "1.2 (1.1 to 1.3) times"
    for bound, verdict in (({"below": 1.0}, "not confirmed"), ({"below": 1.25}, "undecided")):
        claim = Claim("LIFE", "Table 5", "It takes less.", measured="ratio", **bound)
        assert claim.verdict(measure(claim, queue)) == verdict
    assert measure(Claim("LIFE", "Table 5", "?", measured="nobody", above=1.0), queue) is None


def test_differences_are_those_of_the_recorded_images(tmp_path: Path) -> None:
    claim = claim_of("images-2000-longer/localvit_nano", "images-2000-longer/deit_nano")
    found = measure(claim, Queue(LISTED, RESULTS, tmp_path, tmp_path))
    with np.load(PAGES / "images-2000-longer.npz") as file:
        right = dict(zip(file["runs"], (file["answers"] == file["labels"]).mean(axis=1), strict=True))
    gaps = [right[f"localvit_nano-seed{seed}"] - right[f"deit_nano-seed{seed}"] for seed in range(3)]
    assert found is not None and found.sample == "3 seeds" and found.mean == pytest.approx(np.mean(gaps))


def test_the_page_is_that_of_the_files(tmp_path: Path) -> None:
    text, png = page(CLAIMS, Queue(LISTED, RESULTS, tmp_path, tmp_path))
    assert (PAGES / "claims.md").read_text() == text  # else: python -m tools.claims
    assert png[:4] == b"\x89PNG"
