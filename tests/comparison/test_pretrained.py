"""Pretrained weights in a comparison: what is added by itself, and what the verdict says of it."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import nearsight
from nearsight.comparison import compare as comparing
from nearsight.comparison import runner
from nearsight.comparison.compare import pretrained_candidates
from nearsight.comparison.plan import Shared, build_candidates, make_job, read_plan
from nearsight.comparison.report import pretraining
from nearsight.comparison.results import Difference, ModelResult
from nearsight.comparison.runner import Slot, epochs_within
from nearsight.comparison.worker import time_run
from nearsight.config.candidates import parse_candidates
from nearsight.interval import Interval
from nearsight.training import run_training


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with weights of a tiny host."""
    torch.manual_seed(0)
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file(timm.create_model("test_vit").state_dict(), folder / "test_vit.r160_in1k.safetensors")
    monkeypatch.setenv("NEARSIGHT_WEIGHTS", str(folder))
    return folder


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_frozen_and_a_fine_tuned_host_are_compared_by_themselves(
    processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_in_this_process(runs: Any, shared: Any, *_: Any) -> dict[Path, str]:
        for run in runs:
            if not run.is_finished():
                job = make_job(run, shared, threads=1)
                run_training(job.source, job.recipe, job.folder, quiet=True)
        return {}

    if not processes:
        monkeypatch.setattr(comparing, "run_here", run_in_this_process)
        monkeypatch.setattr(comparing, "ROUNDS", 1)
    settings: dict[str, Any] = {"epochs": 1, "seeds": 1, "limit": 40, "img_size": 32, "quiet": True}
    found = nearsight.compare("digits", "deit_nano", out=tmp_path / "all", changes=["batch=20"], **settings)
    assert [model.label for model in found.models] == ["deit_nano", "frozen", "fine-tuned"]
    assert not found.failures and [model.runs[0].epochs for model in found.models] == [1, 0, 1]
    assert all(model.seconds for model in found.models)
    plan = read_plan(tmp_path / "all")
    assert (
        plan is not None and [model.precision for model in plan.models] == ["float32"] * 3
    )  # chosen once for all seeds
    again = nearsight.compare("digits", "deit_nano", out=tmp_path / "all", changes=["batch=20"], **settings)
    assert [model.score for model in again.models] == [model.score for model in found.models]


@pytest.mark.usefixtures("weights")
def test_they_are_added_where_nobody_chose_weights_and_images_have_classes() -> None:
    shared = Shared(data="digits", recipe="small-data", img_size=32)
    named = parse_candidates("deit_nano")
    assert [one.label for one in pretrained_candidates(named, shared, False, True, True)] == ["frozen", "fine-tuned"]
    assert pretrained_candidates(parse_candidates("timm/test_vit:weights=auto"), shared, False, True, True) == []
    boxes = shared.model_copy(update={"recipe": "small-detect", "data": "shapes"})
    assert pretrained_candidates(named, boxes, False, True, True) == []


def test_the_features_of_a_frozen_host_count_into_a_budget(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(data="digits", recipe="small-data", img_size=32, limit=40)
    file = next(weights.iterdir())
    hosts = parse_candidates(f"frozen=timm/test_vit:weights={file}:recipe=frozen")
    built, _ = build_candidates(hosts, shared)
    epoch, around = time_run("digits", built[0].recipe)
    assert epoch == 0 and around > 0
    monkeypatch.setattr(runner, "worker_command", lambda *given: ["echo", f"{epoch} {around}"])
    assert epochs_within(2 * around, built, "digits", [Slot(1)]) == [1]
    with pytest.raises(ValueError, match=r"A run of frozen with its features takes about .* --scratch-only"):
        epochs_within(around / 2, built, "digits", [Slot(1)])


def result(label: str, score: float, verdict: Any) -> ModelResult:
    """A model with a score, and how it stands to the best; one whose name begins with p is pretrained."""
    behind = Difference(mean=score - 0.9, low=-1.0, high=1.0, p=0.01, seeds=3, verdict=verdict) if verdict else None
    return ModelResult(
        label=label,
        name=label,
        options={"weights": "x"} if label.startswith("p") else {},
        convnet=False,
        parameters=1,
        macs=1,
        runs=[],
        score=Interval(score, score - 0.01, score + 0.01),
        behind_best=behind,
    )


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([("p", 0.9, None), ("s", 0.6, "worse")], "Pretrained weights are worth 30.0 points here: p gets 90.0"),
        ([("s", 0.9, None), ("p", 0.6, "worse")], "Pretrained weights are not worth it here: p gets 60.0"),
        (
            [("p", 0.9, None), ("s", 0.89, "no difference shown")],
            "Whether pretrained weights are worth it is not shown",
        ),
        ([("p", 0.9, None), ("p2", 0.6, "worse")], None),
    ],
)
def test_the_verdict_says_whether_they_are_worth_it(models: list[tuple[str, float, Any]], said: str | None) -> None:
    sentences = pretraining([result(*one) for one in models])
    assert sentences == [] if said is None else sentences[0].replace("\N{NO-BREAK SPACE}", " ").startswith(said)
