"""Before anything is trained, every model is built and weighed."""

from pathlib import Path

import pytest
import timm
from PIL import Image

from nearsight import create_model
from nearsight.comparison.plan import (
    BuiltCandidate,
    Planned,
    RunPlan,
    Shared,
    build_candidates,
    check_run,
    choose_baseline,
    is_convnet,
    recipe_of,
    suggest_convnet,
)
from nearsight.config.candidates import parse_candidates
from nearsight.runs.run import Run
from nearsight.training.session import prepare

SHARED = Shared(data="digits", recipe="small-data", epochs=3, limit=200)


def weighed(text: str, shared: Shared = SHARED) -> list[BuiltCandidate]:
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
    deit, resnet = weighed("deit_nano,test_resnet", SHARED.model_copy(update={"changes": ("model.patch_size=8",)}))
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
