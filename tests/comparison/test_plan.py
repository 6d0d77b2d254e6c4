"""A plan is the identity of a comparison; before anything is trained, every model is built and its cost counted."""

from pathlib import Path

import pytest
import timm
from PIL import Image

from nearsight import create_model
from nearsight.comparison.plan import (
    BuiltCandidate,
    Job,
    Plan,
    Planned,
    RunPlan,
    Shared,
    build_candidates,
    check_run,
    check_same,
    choose_baseline,
    is_convnet,
    make_job,
    parse_seeds,
    read_plan,
    recipe_of,
    suggest_convnet,
    write_plan,
)
from nearsight.comparison.runner import worker_command
from nearsight.config.candidates import parse_candidates
from nearsight.runs.run import Run
from nearsight.timing import parse_duration
from nearsight.training.session import prepare

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


DIGITS = Shared(data="digits", recipe="small-data", epochs=3, limit=200)


def weighed(text: str, shared: Shared = DIGITS) -> list[BuiltCandidate]:
    return build_candidates(parse_candidates(text), shared)[0]


def test_models_get_the_same_recipe_and_their_own_cost() -> None:
    deit, life, resnet = weighed("deit_nano,life=deit_nano:qkv=life,resnet18")
    assert deit.parameters == sum(p.numel() for p in create_model("deit_nano", num_classes=10).parameters())
    assert life.parameters > deit.parameters
    assert (resnet.convnet, deit.convnet) == (True, False)
    same = [one.recipe.model_dump(exclude={"model"}) for one in (deit, life, resnet)]
    assert same[0] == same[1] == same[2]
    assert deit.recipe.epochs == 3


def test_a_patch_size_for_all_leaves_convnets_as_they_are() -> None:
    deit, resnet = weighed("deit_nano,test_resnet", DIGITS.model_copy(update={"changes": ("model.patch_size=8",)}))
    assert (deit.recipe.model.patch_size, resnet.recipe.model.patch_size) == (8, None)
    with pytest.raises(ValueError, match="has no patch size to set"):
        weighed("test_resnet:patch_size=8")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "deit_nano,deit_nan",
            "deit_nan can't be compared: Neither Nearsight nor timm has a model 'deit_nan'; did you",
        ),
        ("deit_nano:qkv=lif", "deit_nano:qkv=lif can't be compared: qkv='lif' is not known; use one of linear, life"),
        ("deit_nano:kernls=3", "can't be compared: deit_nano has no option 'kernls'"),
    ],
)
def test_a_model_that_does_not_build_is_refused_before_the_first_step(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        weighed(text)


@pytest.fixture
def begun(tmp_path: Path, write_photos: None) -> tuple[RunPlan, Shared]:
    """A run of a comparison that was begun: its plan, and the settings that it shares."""
    shared = Shared(data=str(tmp_path / "photos"), recipe=str(tmp_path / "own.yaml"), epochs=2)
    run = RunPlan(Planned(label="x", name="deit_nano", options={}, epochs=2), 1, tmp_path / "runs" / "x-seed1")
    recipe = recipe_of(run.model.candidate, shared, 2, seed=1)
    prepared = prepare(shared.data, recipe)
    Run(run.folder).begin(prepared.recipe, prepared.record)
    return run, shared


@pytest.fixture
def write_photos(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("optimizer: {lr: 1e-3}\nbatch: 4\n")
    for number in range(24):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number, 0, 0)).save(folder / f"{number}.png")


def again(run: RunPlan, shared: Shared) -> None:
    _, prepared = build_candidates([run.model.candidate], shared)
    check_run(run, shared, prepared)


def test_a_run_of_another_model_recipe_or_data_is_not_taken_for_one_of_now(
    begun: tuple[RunPlan, Shared], tmp_path: Path
) -> None:
    run, shared = begun
    again(run, shared)  # nothing changed, and nothing is refused
    other = run._replace(model=run.model.model_copy(update={"name": "localvit_nano"}))
    with pytest.raises(ValueError, match=r"model\.name is deit_nano there and localvit_nano here; put back what was"):
        again(other, shared)
    longer = run._replace(model=run.model.model_copy(update={"epochs": 3}))
    with pytest.raises(ValueError, match="epochs is 2 there and 3 here"):
        again(longer, shared)
    (tmp_path / "own.yaml").write_text("optimizer: {lr: 1e-6}\nbatch: 4\n")
    with pytest.raises(ValueError, match=r"optimizer\.lr is 0\.001 there and 1e-06 here"):
        again(run, shared)
    (tmp_path / "own.yaml").write_text("optimizer: {lr: 1e-3}\nbatch: 4\n")
    (tmp_path / "photos/a/0.png").rename(tmp_path / "photos/b/0.png")
    with pytest.raises(ValueError, match="the images or their labels have changed since"):
        again(run, shared)


@pytest.mark.parametrize("name", ["resnet18", "lcnet_050", "convnext_atto", "efficientnet_lite0", "regnety_002"])
def test_convnets_are_known_as_such(name: str) -> None:
    assert is_convnet(name, timm.create_model(name))


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s16_224"])
def test_others_are_not(name: str) -> None:
    assert not is_convnet(name, timm.create_model(name))


def test_a_convnet_of_like_size_is_suggested_where_none_is() -> None:
    built = weighed("deit_nano,localvit_nano")
    name = suggest_convnet(built)
    assert name is not None
    model = timm.create_model(name, num_classes=10)
    size = sum(p.numel() for p in model.parameters())
    assert is_convnet(name, model)
    assert 0.4 < size / built[0].parameters < 2.5
    assert suggest_convnet(weighed("deit_nano,resnet18")) is None


def test_the_baseline_is_the_convnet_else_the_first_unless_one_is_wanted() -> None:
    mixed, plain = weighed("deit_nano,resnet18"), weighed("deit_nano,lit_nano")
    assert choose_baseline(mixed, None) == "resnet18"
    assert choose_baseline(plain, None) == "deit_nano"
    assert choose_baseline(mixed, "deit_nano") == "deit_nano"


def test_a_worker_gets_a_recipe_that_leaves_as_much_to_the_data(tmp_path: Path) -> None:
    shared = Shared(data="digits", recipe="small-data", epochs=60, limit=100)
    (candidate,) = parse_candidates("deit_nano")
    recipe = recipe_of(candidate, shared, seed=1)
    job = Job(source="digits", recipe=recipe, folder=tmp_path, threads=1)
    worker_command("train", job, tmp_path / "job.json")
    read = Job.model_validate_json((tmp_path / "job.json").read_text())
    given, got = (prepare("digits", one).recipe for one in (recipe, read.recipe))
    assert got == given and given.schedule.warmup_epochs == 3 and given.augment.mixup > 0
