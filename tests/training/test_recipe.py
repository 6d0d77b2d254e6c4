"""Each shipped recipe is what its paper says."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
from timm.data.auto_augment import rand_augment_transform

from nearsight import create_model
from nearsight.checkpoints import save_model
from nearsight.config.files import load_recipe, parse_change, recipe_names
from nearsight.config.recipe import Augment, Recipe
from nearsight.models import MODELS
from nearsight.tasks.build import build

IMAGENET = ("deit", "swin", "lit", "dwconv", "lightvit")


def rates(recipe: Recipe) -> tuple[float, float, float]:
    """Learning rate at its height, at the start of the warm-up and at the end."""
    optimizer, schedule = recipe.optimizer, recipe.schedule
    height = optimizer.lr * recipe.batch / (optimizer.lr_batch or recipe.batch)
    return height, height * schedule.warmup_lr, height * schedule.min_lr


def test_the_shipped_recipes() -> None:
    papers = {"deit", "swin", "lightvit", "lit", "dwconv", "dwconv-384", "dwconv-22k", "life-small", "resnet"}
    objects = {"lightvit-detect", "lit-retinanet", "lit-mask-rcnn", "dwconv-detect", "life-detect"}
    regions = {"lit-segment", "dwconv-segment", "life-segment"}
    ours = {"small-data", "small-multilabel", "small-detect", "small-segment", "frozen", "fine-tune", "retrofit"}
    assert set(recipe_names()) == papers | objects | regions | ours
    for task, names in {"detect": objects | {"small-detect"}, "segment": regions | {"small-segment"}}.items():
        assert {load_recipe(name).task for name in names} == {task}
    for name in recipe_names():
        assert load_recipe(name).name == name


@pytest.mark.parametrize("name", recipe_names())
def test_the_head_states_command_time_and_result(name: str) -> None:
    text = (files("nearsight.config") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    assert text.startswith(head)
    for word in ("Command:  nearsight train ", "Time:  ", "Result:  "):
        assert word in head
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize("name", IMAGENET)
def test_training_on_imagenet_is_300_epochs_of_batches_of_1024_at_a_rate_of_1e_3(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.epochs, recipe.batch, recipe.model.img_size, recipe.ema) == (300, 1024, 224, None)
    assert rates(recipe)[0] == pytest.approx(1e-3)
    optimizer, augment = recipe.optimizer, recipe.augment
    assert (optimizer.kind, optimizer.momentum, optimizer.beta2, optimizer.eps) == ("adamw", 0.9, 0.999, 1e-8)
    assert (augment.erase, augment.cutmix, augment.mix_switch, recipe.loss.smoothing) == (0.25, 1.0, 0.5, 0.1)
    assert recipe.schedule.kind == "cosine"


def test_deit_has_5_epochs_of_warm_up_and_repeated_augmentation() -> None:
    recipe = load_recipe("deit")
    assert rates(recipe) == pytest.approx((1e-3, 1e-6, 1e-5))
    assert (recipe.schedule.warmup_epochs, recipe.optimizer.clip, recipe.model.drop_path) == (5, None, 0.1)
    assert (recipe.augment.rand_augment, recipe.augment.mixup) == ("rand-m9-mstd0.5-inc1", 0.8)
    assert (recipe.augment.repeats, recipe.optimizer.weight_decay) == (3, 0.05)
    assert load_recipe("deit", {"batch": 512}).optimizer.lr * 512 / 512 == 5e-4


@pytest.mark.parametrize("name", ["swin", "lit", "dwconv"])
def test_swin_lit_and_dwconv_share_a_recipe(name: str) -> None:
    recipe = load_recipe(name)
    assert rates(recipe) == pytest.approx((1e-3, 5e-7 * 1024 / 512, 5e-6 * 1024 / 512))
    assert (recipe.schedule.warmup_epochs, recipe.optimizer.clip, recipe.augment.repeats) == (20, 5.0, 1)
    assert (recipe.augment.rand_augment, recipe.augment.mixup) == ("rand-m9-mstd0.5-inc1", 0.8)
    assert recipe.optimizer.weight_decay == 0.05


@pytest.mark.parametrize("name", ["lit", "deit"])  # LIT-S, -M, -B; and LIT-Ti, which follows PVT
def test_the_offsets_of_lit_learn_at_1e_5_which_is_the_smallest_rate_of_the_release(name: str) -> None:
    recipe = load_recipe(name)
    assert rates(recipe)[0] * recipe.optimizer.offsets == pytest.approx(1e-5) == pytest.approx(rates(recipe)[2])
    assert recipe.optimizer.offsets_flat


@pytest.mark.parametrize("name", ["lit-retinanet", "lit-mask-rcnn", "lit-segment"])
def test_the_lower_rate_of_the_offsets_is_for_imagenet_alone(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.optimizer.offsets == 1 and not recipe.optimizer.offsets_flat


@pytest.mark.parametrize(("name", "size", "drop_path"), [("dwconv-384", 384, 0.1), ("dwconv-22k", 224, 0.2)])
def test_depth_wise_networks_go_on_for_30_epochs_at_1e_5(name: str, size: int, drop_path: float) -> None:
    recipe, first = load_recipe(name), load_recipe("dwconv")
    assert (recipe.model.img_size, recipe.model.drop_path, recipe.epochs) == (size, drop_path, 30)
    assert (rates(recipe)[0], recipe.optimizer.weight_decay, recipe.schedule.kind) == (1e-5, 1e-8, "constant")
    assert recipe.augment == first.augment  # all else as in the first training
    assert (recipe.loss, recipe.batch, recipe.optimizer.clip) == (first.loss, first.batch, first.optimizer.clip)


def test_kernels_grow_from_7_to_12_with_the_images_of_table_14(tmp_path: Path) -> None:
    trained = create_model("dwnet_nano", kernel=7, img_size=28, num_classes=3)
    weights = str(save_model(trained, tmp_path / "trained.safetensors"))
    changes = {"model.weights": weights, "model.img_size": 48, "model.options.kernel": 12}
    recipe = load_recipe("dwconv-384", changes)
    built = build(recipe.model, 3, recipe.data)
    tensors = built.model.state_dict().items()
    kernels = {tuple(tensor.shape[-2:]) for name, tensor in tensors if ".mixer." in name and tensor.ndim == 4}
    assert kernels == {(12, 12)} and built.preprocessing.size == (48, 48)


def test_detecting_with_lightvit_is_as_the_paper_says() -> None:
    recipe = load_recipe("lightvit-detect")
    assert (recipe.optimizer.kind, rates(recipe)[0], recipe.optimizer.weight_decay) == ("adamw", 1e-4, 0.05)
    assert recipe.batch == 16
    assert [fraction * 12 for fraction in recipe.schedule.milestones] == pytest.approx([9, 11], abs=1e-3)  # 3/4, 11/12
    assert recipe.schedule.gamma == 0.1
    assert recipe.model.drop_path is None  # the model's own: 0.3 for LightViT-B
    assert not recipe.model.freeze_stem_norms


def test_the_release_of_lightvits_detector_stands_beside_the_paper() -> None:
    text = (files("nearsight.config") / "recipes" / "lightvit-detect.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("#")]
    (start,) = [number for number, line in enumerate(lines) if "as in the release:" in line]
    changes = re.findall(r"--set (\S+)", " ".join(lines[start : start + 2]))
    recipe = load_recipe("lightvit-detect", dict(map(parse_change, changes)))
    assert (rates(recipe)[0], recipe.optimizer.weight_decay, recipe.model.drop_path) == (2e-4, 0.04, 0.1)
    assert recipe.model.freeze_stem_norms
    assert [round(12 * fraction) for fraction in recipe.schedule.milestones] == [8, 11]


def test_segmenting_with_life_is_as_in_setr() -> None:
    recipe = load_recipe("life-segment")
    assert (recipe.optimizer.kind, recipe.optimizer.momentum, recipe.optimizer.nesterov) == ("sgd", 0.9, False)
    head, backbone = rates(recipe)[0], rates(recipe)[0] * recipe.optimizer.backbone
    assert (head, backbone) == pytest.approx((0.1, 0.01))  # the head learns ten times as fast
    assert (recipe.schedule.kind, recipe.schedule.power) == ("poly", 0.9)


def test_lightvit_is_its_table_2() -> None:
    recipe = load_recipe("lightvit")
    assert rates(recipe) == pytest.approx((1e-3, 1e-7, 1e-6))
    assert (recipe.schedule.warmup_epochs, recipe.optimizer.weight_decay) == (20, 0.04)
    assert (recipe.augment.rand_augment, recipe.augment.mixup, recipe.augment.repeats) == ("rand-m9-mstd0.5", 0.2, 1)


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        *(("deit_tiny", 0.1), ("swin_tiny", 0.2), ("swin_small", 0.3), ("swin_base", 0.5), ("dwnet_tiny", 0.2)),
        *(("dwnet_base", 0.5), ("lit_tiny", 0.1), ("lit_small", 0.2), ("lit_medium", 0.3), ("lit_base", 0.5)),
        *(("lightvit_tiny", 0.1), ("lightvit_small", 0.1), ("lightvit_base", 0.3)),
    ],
)
def test_stochastic_depth_is_the_models_own(model: str, rate: float) -> None:
    assert MODELS[model].drop_path == rate
    for name in IMAGENET[1:]:
        assert load_recipe(name).model.drop_path is None


def test_life_on_small_data_is_deit_with_a_batch_of_512() -> None:
    life, deit = load_recipe("life-small"), load_recipe("deit")
    assert life.batch == 512
    assert rates(life) == pytest.approx((5e-4, 1e-6, 1e-5))
    assert life.augment.model_copy(update={"crop": "resized"}) == deit.augment
    optimizer = deit.optimizer.model_copy(update={"offsets_flat": False})  # which LIFE's models have none of
    assert (life.epochs, life.loss, life.optimizer) == (deit.epochs, deit.loss, optimizer)


def test_resnets_of_the_life_paper_step_at_60_120_and_160() -> None:
    recipe = load_recipe("resnet")
    assert [fraction * recipe.epochs for fraction in recipe.schedule.milestones] == pytest.approx([60, 120, 160])
    assert (recipe.schedule.kind, recipe.schedule.gamma) == ("step", 0.2)
    assert (recipe.optimizer.kind, recipe.optimizer.momentum, rates(recipe)[0]) == ("sgd", 0.9, 0.1)
    assert (recipe.batch, recipe.optimizer.nesterov) == (512, False)
    assert recipe.augment == Augment()  # crops and flips alone
    assert recipe.schedule.gamma**3 > recipe.schedule.min_lr  # nothing holds the third step up


def test_fine_tuning_is_short_and_decays_by_layer() -> None:
    recipe = load_recipe("fine-tune")
    assert recipe.epochs <= 30
    assert recipe.optimizer.layer_decay is not None
    assert recipe.optimizer.layer_decay < 0.8


@pytest.mark.parametrize("name", recipe_names())
def test_models_and_augmentations_exist(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.model.name is None or recipe.model.name in {*MODELS, "resnet18"}
    if recipe.augment.rand_augment:
        ops = rand_augment_transform(recipe.augment.rand_augment, {})
        magnitude = re.search(r"-m(\d+)", recipe.augment.rand_augment)
        assert magnitude and ops.ops[0].magnitude == int(magnitude[1])


def test_mixing_needs_a_strength_and_a_probability() -> None:
    assert Augment(cutmix=1.0).mixes
    assert not Augment(cutmix=1.0, mix_probability=0.0).mixes
    assert not Augment().mixes
