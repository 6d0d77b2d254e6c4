"""Runs in stages: what is planned, what is kept, and that nothing is done twice."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import nearsight
from nearsight import features
from nearsight.runs.run import Run
from nearsight.training import ladder, loop
from nearsight.training.estimate import RunCost
from nearsight.training.ladder import read_plan
from tests.rounding import assert_rounded

SMALL: dict[str, Any] = {"limit": 120, "img_size": 16, "batch": 24, "quiet": True, "cpu": True}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned something of digits."""
    folder = tmp_path_factory.mktemp("host") / "run"
    nearsight.train("digits", model="deit_nano", patch_size=4, epochs=2, lr=3e-3, out=folder, **SMALL | {"limit": 240})
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, no_page: None) -> None:
    """Steps whose time is known: an image takes a millisecond to show, and 10 to train with; few strengths to try."""
    monkeypatch.setattr(ladder, "measure", lambda *given: RunCost(0.001, 0.01, features=0.001, head=5.0))
    monkeypatch.setattr(features, "STRENGTHS", (1.0, 0.1))


@pytest.mark.usefixtures("quick")
def test_stages_are_runs_and_the_better_one_is_the_model(host: Path, tmp_path: Path) -> None:
    outcome = nearsight.train("digits", weights=host, epochs=1, out=tmp_path / "run", **SMALL)
    stages = {name: Run(tmp_path / "run" / name).outcome() for name in ("frozen", "fine-tune")}
    best = max((one for one in stages.values() if one is not None), key=lambda one: one.val_score)
    assert outcome.val_score == best.val_score and outcome.folder == tmp_path / "run"
    images = torch.randn(2, 3, 16, 16)
    whole, of_stage = (nearsight.load(folder).model for folder in (tmp_path / "run", best.folder or ""))
    with torch.no_grad():
        assert torch.equal(whole(images), of_stage(images))
    judged = nearsight.evaluate(tmp_path / "run")
    assert judged.metrics.top1.value == pytest.approx(outcome.test_score)
    assert stages["frozen"].epochs == 0 and stages["fine-tune"].epochs == 1  # type: ignore[union-attr]


@pytest.mark.usefixtures("quick")
def test_fine_tuning_starts_from_the_head_of_the_frozen_features(host: Path, tmp_path: Path) -> None:
    nearsight.train("digits", weights=host, epochs=1, lr=1e-12, out=tmp_path / "run", **SMALL)
    frozen, tuned = (nearsight.load(tmp_path / "run" / name).model for name in ("frozen", "fine-tune"))
    assert_rounded(tuned.head.weight, frozen.head.weight, sums=1)  # steps of 1e-12 are lost in rounding


@pytest.mark.usefixtures("quick")
def test_a_run_that_was_ended_goes_on_with_the_same_bits(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = nearsight.train("digits", weights=host, epochs=2, out=tmp_path / "whole", **SMALL)
    real, calls = ladder.run_training, []

    def ending(*given: Any, **settings: Any) -> Any:
        calls.append(given[2].name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given, **settings)

    monkeypatch.setattr(ladder, "run_training", ending)
    with pytest.raises(KeyboardInterrupt):
        nearsight.train("digits", weights=host, epochs=2, out=tmp_path / "ended", **SMALL)
    assert nearsight.load(tmp_path / "ended").classes == tuple("0123456789")  # the first stage is in use already
    assert Run(tmp_path / "ended").outcome() is None
    again = nearsight.train(resume=tmp_path / "ended", quiet=True, cpu=True)
    assert again.val_score == whole.val_score
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "ended")]
    assert same[0] == same[1]
    assert nearsight.train("digits", weights=host, epochs=2, out=tmp_path / "ended", **SMALL) == again
    with pytest.raises(ValueError, match="other settings"):
        nearsight.train("digits", weights=host, epochs=3, out=tmp_path / "ended", **SMALL)


@pytest.mark.usefixtures("quick")
def test_a_better_epoch_is_in_the_folder_before_the_stage_ends(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    real = ladder.publish_epoch

    def watching(run: Run, best: Any) -> Any:
        show = real(run, None if best is None else best.__class__(**{**best.__dict__, "val_score": -1.0}))

        def look(session: Any) -> None:
            show(session)
            held = nearsight.load(run.folder).model.state_dict()
            now = session.eval_model.state_dict()
            seen.append(max(float((held[name] - now[name]).abs().max()) for name in now))

        return look

    monkeypatch.setattr(ladder, "publish_epoch", watching)
    nearsight.train("digits", weights=host, epochs=1, out=tmp_path / "run", **SMALL)
    assert seen == [0.0]


@pytest.mark.usefixtures("quick")
def test_the_plan_keeps_to_the_budget(host: Path) -> None:
    from nearsight.config.files import load_recipe

    recipe = load_recipe("fine-tune", {"model.weights": str(host), "data.limit": 120, "batch": 24})
    plans = {seconds: ladder.make_plan("digits", recipe, seconds, cpu=True) for seconds in (6.0, 20.0, 1000.0)}
    assert [stage.name for stage in plans[6.0].stages] == ["frozen"] and "left out" in plans[6.0].notes[0]
    epochs = {seconds: plan.stages[-1].recipe.epochs for seconds, plan in plans.items() if seconds > 6}
    assert 1 <= epochs[20.0] < epochs[1000.0] == ladder.MOST_EPOCHS
    assert all(plan.seconds <= seconds for seconds, plan in plans.items())


@pytest.mark.usefixtures("quick")
def test_time_that_runs_out_ends_with_the_best_epoch(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: 0.25 * next(ticks)))  # a step: 0.25 seconds
    monkeypatch.setattr(ladder, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(ladder, "measure", lambda *given: RunCost(1e-6, 1e-6))  # much too hopeful
    outcome = nearsight.train("digits", weights=host, budget=12.0, out=tmp_path / "run", **SMALL)
    plan = read_plan(Run(tmp_path / "run"))
    tuned = Run(tmp_path / "run" / "fine-tune").outcome()
    assert plan is not None and tuned is not None
    assert 1 <= tuned.epochs < plan.stages[1].recipe.epochs and tuned.stopped_early
    rates = [line["lr"] for line in Run(tmp_path / "run" / "fine-tune").records() if line["kind"] == "epoch"]
    assert rates[-1] < 0.3 * max(rates)  # the rate came down with the time, not with the epochs that were planned
    assert nearsight.load(outcome.folder or "").classes


def test_a_measured_step_is_near_the_real_one(host: Path) -> None:
    from nearsight.config.files import load_recipe
    from nearsight.training.session import prepare

    recipe = load_recipe("fine-tune", {"model.weights": str(host), "data.limit": 120, "batch": 24, "epochs": 1})
    prepared = prepare("digits", recipe)
    cost = ladder.measure(prepared, torch.device("cpu"))
    assert 0 < cost.forward < cost.step < 1
    assert np.isfinite(cost.epoch(prepared))


@pytest.mark.usefixtures("quick")
def test_the_same_command_goes_on_from_the_weights_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm_vit = timm.create_model("test_vit", num_classes=1000)
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file(timm_vit.state_dict(), folder / "test_vit.r160_in1k.safetensors")
    monkeypatch.setenv("NEARSIGHT_WEIGHTS", str(folder))
    settings = SMALL | {"limit": 40, "img_size": 32, "model": "timm/test_vit", "epochs": 1, "out": tmp_path / "run"}
    first = nearsight.train("digits", **settings)
    assert read_plan(Run(tmp_path / "run")).asked.model.weights.startswith(str(folder))  # type: ignore[union-attr]
    (tmp_path / "run" / "outcome.json").unlink()
    assert nearsight.train("digits", **settings) == first


@pytest.mark.usefixtures("quick")
def test_one_stage_says_its_time_and_keeps_a_budget() -> None:
    from nearsight.config.files import load_recipe

    small = {"model.name": "deit_nano", "data.limit": 100, "batch": 20, "model.img_size": 16, "epochs": 50}
    recipe = load_recipe("small-data", small)
    prepared = ladder.prepare("digits", recipe)
    cost = RunCost(0.001, 0.01, features=0.001, head=5.0)
    _, _, (said,) = ladder.plan_one("digits", recipe, None, cpu=True)
    expected = ladder.duration(cost.training(prepared, 50))
    assert "deit_nano from scratch, 50 epochs at 16 pixels" in said and expected in said
    kept, _, _ = ladder.plan_one("digits", recipe, 10 * cost.training(prepared, 10), cpu=True)
    assert kept.epochs == 50
    kept, _, _ = ladder.plan_one("digits", recipe, cost.training(prepared, 20), cpu=True)
    assert 15 <= kept.epochs < 20 and cost.training(prepared, kept.epochs) < cost.training(prepared, 20)
    with pytest.raises(ValueError, match="is less than one epoch, with which a run takes"):
        ladder.plan_one("digits", recipe, cost.training(prepared, 1) / 2, cpu=True)
    _, _, (said,) = ladder.plan_one("digits", load_recipe("frozen", small), None, cpu=True)
    assert "logistic regression on features of deit_nano" in said
    with pytest.raises(ValueError, match="less than frozen features take"):
        ladder.plan_one("digits", load_recipe("frozen", small), 3.0, cpu=True)
