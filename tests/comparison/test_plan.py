"""A plan is the identity of a comparison."""

from pathlib import Path

import pytest

from nearsight.comparison.plan import (
    Job,
    Plan,
    Planned,
    Shared,
    check_same,
    make_job,
    parse_duration,
    parse_seeds,
    read_plan,
    write_plan,
)
from nearsight.config.candidates import parse_candidates

SHARED = Shared(data="digits", recipe="small-data", changes=("ema=0.99",), img_size=32, limit=100, epochs=4)
PLAN = Plan(
    shared=SHARED,
    models=(
        Planned(label="deit_nano", name="deit_nano", options={}, epochs=4),
        Planned(label="low", name="localvit_nano", options={"local_layers": "1-2"}, epochs=4),
    ),
    seeds=(0, 1),
    baseline="deit_nano",
)


def test_a_plan_reads_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_plan(tmp_path) is None
    write_plan(PLAN, tmp_path)
    assert read_plan(tmp_path) == PLAN


def test_every_model_is_seen_with_the_first_seed_before_the_second_begins(tmp_path: Path) -> None:
    folders = [run.folder.name for run in PLAN.runs(tmp_path)]
    assert folders == ["deit_nano-seed0", "low-seed0", "deit_nano-seed1", "low-seed1"]


def test_runs_differ_in_model_and_seed_alone(tmp_path: Path) -> None:
    first, second, third, _ = (make_job(run, SHARED, threads=2) for run in PLAN.runs(tmp_path))
    assert first.recipe.ema == 0.99
    assert (second.recipe.model.name, second.recipe.model.options) == ("localvit_nano", {"local_layers": "1-2"})
    assert second.recipe.model_copy(update={"model": first.recipe.model}) == first.recipe
    assert third.recipe == first.recipe.model_copy(update={"seed": 1})
    assert (first.source, first.folder, first.threads) == ("digits", tmp_path / "runs" / "deit_nano-seed0", 2)


def test_a_job_reads_back_as_it_was_written(tmp_path: Path) -> None:
    changes = (
        "augment.crop_scale=[0.5, 1.0]",
        "loss.class_weights=[1, 2.5]",
        "model.options={qkv: life, kernels: [1, 3]}",
    )
    shared = SHARED.model_copy(update={"changes": changes})
    job = make_job(PLAN.runs(tmp_path)[0], shared, threads=1)
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epochs": 5}, "holds a comparison with epochs = 4, but now it is 5; use the same setting, or another"),
        ({"limit": None}, "limit = 100, but now it is nothing"),
        ({"changes": ()}, "changes = ema=0.99, but now it is nothing"),
        ({"data": "cifar10"}, "data = digits, but now it is cifar10"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(change: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_same(PLAN, SHARED.model_copy(update=change), [], tmp_path)


def test_models_may_be_added_but_not_change_their_meaning(tmp_path: Path) -> None:
    check_same(PLAN, SHARED, parse_candidates("deit_nano,swin_nano"), tmp_path)
    with pytest.raises(
        ValueError, match="runs of 'low' that stand for localvit_nano:local_layers=1-2, but now it is lit"
    ):
        check_same(PLAN, SHARED, parse_candidates("low=lit_nano"), tmp_path)


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match=r"plan\.json is not a plan that `nearsight compare` wrote"):
        read_plan(tmp_path)


def test_times_and_seeds() -> None:
    assert [parse_duration(text) for text in ("90s", "20m", "1.5h", "1h30m")] == [90, 1200, 5400, 5400]
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("7,5") == parse_seeds([7, 5]) == (7, 5)
    assert parse_seeds([5]) == parse_seeds("5,") == (5,)


@pytest.mark.parametrize("text", ["20", "m", "20 m", "-5m", "20x"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; write it like 90s, 20m or 1h30m"):
        parse_duration(text)


def test_no_time_and_no_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="leaves no time to train"):
        parse_duration("0m")
    with pytest.raises(ValueError, match="is more than a year"):
        parse_duration("9" * 400 + "h")
    with pytest.raises(ValueError, match="'three' are no seeds; give their number"):
        parse_seeds("three")
    with pytest.raises(ValueError, match="0 seeds were asked for; give at least 1 and at most 1000"):
        parse_seeds("0")
    with pytest.raises(ValueError, match="1000000000 seeds were asked for"):
        parse_seeds("1000000000")
    with pytest.raises(ValueError, match="The seed 5 comes twice in 5,5, and would be trained once; name each once"):
        parse_seeds("5,5")
    with pytest.raises(ValueError, match="The seed 9223372036854775808 is too large"):
        parse_seeds("1,9223372036854775808")
    with pytest.raises(ValueError, match="are no seeds"):
        parse_seeds("9" * 5000)
