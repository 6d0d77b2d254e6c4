"""What a run is said to cost, and the precision that follows from measured steps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nearsight
from nearsight.config.files import load_recipe, parse
from nearsight.runs.run import Run, read_record
from nearsight.training import estimate
from nearsight.training.estimate import RunCost, TrialSteps, measure
from nearsight.training.loop import run_training
from nearsight.training.session import anchor, prepare

CPU = torch.device("cpu")


@pytest.fixture
def steps_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Lets steps take a given time in each precision; returns the list of those that were taken."""

    def install(float32: float, bfloat16: float) -> list[str]:
        taken: list[str] = []

        def train(self: TrialSteps, batch: Any, precision: str, clock: Any = None) -> float:
            taken.append(precision)
            return {"float32": float32, "bfloat16": bfloat16}[precision]

        monkeypatch.setattr(TrialSteps, "train", train)
        return taken

    return install


@pytest.mark.parametrize(
    ("float32", "bfloat16", "chosen"),
    [(9.0, 5.0, "bfloat16"), (9.0, 8.0, "float32"), (9.0, 90.0, "float32"), (1e-9, 1e-10, "float32")],
)
def test_bfloat16_is_taken_where_steps_are_clearly_faster(
    float32: float, bfloat16: float, chosen: str, steps_of: Callable[..., list[str]], colours: str, tiny: Any
) -> None:
    taken = steps_of(float32, bfloat16)
    trial = TrialSteps(prepare(colours, tiny({"precision": "auto"})), CPU)
    found, compared = trial.choose_precision()
    assert found == chosen
    if float32 < 1:  # a training of some milliseconds is not worth it
        assert compared is None and "bfloat16" not in taken
    else:
        assert compared == {"float32": float32, "bfloat16": bfloat16}
        assert taken.count("bfloat16") == (1 if bfloat16 > 2 * float32 else estimate.ROUNDS)


@pytest.mark.usefixtures("no_page")
def test_the_choice_is_recorded_and_kept(
    steps_of: Callable[..., list[str]], colours: str, tiny: Any, tmp_path: Path, state_of: Any
) -> None:
    recipe = tiny({"precision": "auto"})
    steps_of(9.0, 4.0)
    run_training(colours, recipe, tmp_path / "auto", quiet=True)
    assert Run(tmp_path / "auto").recipe().precision == "bfloat16"
    noted = read_record(tmp_path / "auto" / "environment.json")
    assert noted["seconds_of_an_image"] == {"float32": 9.0, "bfloat16": 4.0}
    run_training(colours, tiny({"precision": "bfloat16"}), tmp_path / "given", quiet=True)
    assert state_of(tmp_path / "auto") == state_of(tmp_path / "given")  # a trial leaves no trace in what is learned
    taken = steps_of(4.0, 9.0)
    (tmp_path / "auto" / "outcome.json").unlink()
    run_training(colours, recipe, tmp_path / "auto", quiet=True)
    assert not taken and state_of(tmp_path / "auto") == state_of(tmp_path / "given")


def test_a_trial_changes_nothing_that_is_drawn_or_learned(colours: str, tiny: Any) -> None:
    prepared = prepare(colours, tiny({"precision": "auto", "ema": 0.9}))
    trial = TrialSteps(prepared, CPU)
    before = {name: tensor.clone() for name, tensor in trial.model.named_parameters()}
    for precision in ("float32", "bfloat16"):
        assert trial.train(trial.read(), precision) > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in trial.model.named_parameters())


def test_images_without_labels_are_no_hindrance(colours: str, tiny: Any) -> None:
    settings = {"distill.teacher": "resnet10t", "distill.unlabelled": ["digits"], "precision": "auto"}
    prepared = prepare(colours, tiny(settings | {"augment.mixup": 0.2, "epochs": 3}))
    assert (prepared.train.labels < 0).any()
    trial = TrialSteps(prepared, CPU)
    trial.size = trial.most
    assert trial.train(trial.read(), "float32") > 0


@pytest.mark.parametrize(
    ("task", "head"), [("detect", "mask-rcnn"), ("detect", "detr"), ("segment", "semantic-fpn"), ("segment", "upernet")]
)
def test_losses_of_dense_heads_are_whole_in_half_the_bits(task: str, head: str) -> None:
    settings = {"model.head": head, "data.limit": 4, "batch": 4, "dense.min_size": 48, "epochs": 1}
    trial = TrialSteps(prepare("shapes?images=12&size=48", load_recipe(f"small-{task}", settings)), CPU)
    batch, losses = trial.read(), []
    for half in (False, True):
        torch.manual_seed(0)  # of regions and queries that are drawn
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(trial.objective.loss(trial.model.train(), *trial.objective.prepare(batch, 0, 0)).detach())
    assert losses[1].dtype == torch.float32 and losses[0] != losses[1]
    assert float(losses[1]) == pytest.approx(float(losses[0]), rel=0.1)


@pytest.mark.parametrize(("short", "full"), [("fp32", "float32"), ("bf16", "bfloat16"), ("auto", "auto")])
def test_short_names_are_understood(short: str, full: str) -> None:
    assert load_recipe("small-data", {"precision": short}).precision == full
    with pytest.raises(ValueError, match="precision = 'half' won't do; it takes one of auto, float32, bfloat16"):
        parse({"precision": "half"}, "It")


def test_frozen_features_are_in_the_precision_of_predictions() -> None:
    for given in ("auto", "bfloat16"):
        assert anchor(load_recipe("frozen", {"precision": given})).precision == "float32"


def test_what_the_run_says_of_test_images_is_what_its_model_says(tmp_path: Path) -> None:
    outcome = nearsight.train(
        "digits",
        model="deit_nano",
        epochs=1,
        limit=200,
        batch=20,
        precision="bfloat16",
        out=tmp_path / "run",
        quiet=True,
    )
    assert nearsight.evaluate(tmp_path / "run").metrics.top1.value == pytest.approx(outcome.test_score)


def test_a_run_is_the_sum_of_its_parts() -> None:
    prepared = prepare("digits", load_recipe("small-data", {"data.limit": 100, "batch": 30}))
    test = prepared.data.test
    assert test is not None
    cost = RunCost(forward=0.5, step=2.0, start=7.0, saving=1.0, features=0.25, head=11.0)
    epoch = 90 * 2.0 + len(prepared.val) * 0.5 + 1.0  # three whole batches
    assert cost.epoch(prepared) == epoch
    assert cost.training(prepared, 4) == 7.0 + 4 * epoch + len(test) * 0.5
    assert cost.frozen(prepared) == 7.0 + (100 + len(prepared.val) + len(test)) * 0.25 + 11.0


def test_what_is_measured_is_not_far_from_what_a_step_takes(colours: str, tiny: Any) -> None:
    prepared = prepare(colours, tiny({"precision": "auto"}))
    cost = measure(prepared, CPU)
    assert 0 < cost.forward < cost.step < 1 and cost.precision == "float32" and cost.head == 0
    frozen = measure(replace(prepared, recipe=prepared.recipe.model_copy(update={"frozen": True})), CPU)
    assert frozen.step == 0 and frozen.forward > 0
