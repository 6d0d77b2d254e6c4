"""What the size of the data decides."""

from typing import Any

import pytest
import torch
from timm.data import IMAGENET_DEFAULT_MEAN

from nearsight import create_model, list_models
from nearsight.config.files import load_recipe, read_recipe, to_yaml
from nearsight.config.recipe import Recipe
from nearsight.data.sizes import SIZES
from nearsight.models import MODELS
from nearsight.reproduction.recipes import WithoutNumbers
from nearsight.tasks.build import build
from nearsight.tasks.classify import EPOCHS, choose_batch, choose_epochs, choose_patch, fill_in

QUICK = [*list_models("*_nano*"), "tnt_tiny", "t2t_vit_7", "swinv2_tiny_life", "lightvit_tiny"]


def answers(name: str, size: int, **options: Any) -> torch.Size:
    """Shape of a model's answer to two images, by shapes alone."""
    patch = choose_patch(name, size, options)
    with torch.device("meta"), WithoutNumbers():
        model = create_model(name, img_size=size, patch_size=patch, num_classes=5, **options).eval()
        return model(torch.empty(2, 3, size, size)).shape


@pytest.mark.parametrize("name", QUICK)
def test_models_build_and_predict_at_the_ends_and_in_the_middle(name: str) -> None:
    for size in (28, 48, 512):
        assert answers(name, size) == (2, 5)


@pytest.mark.drill
@pytest.mark.parametrize("name", list_models())
def test_every_model_builds_and_predicts_at_every_size(name: str) -> None:
    for size in SIZES:
        assert answers(name, size) == (2, 5)


@pytest.mark.parametrize("size", [32, 224])
def test_a_changed_embedding_gets_a_patch_it_can_have(size: int) -> None:
    assert choose_patch("swin_tiny", size, {"embed": "conv_stem"}) in (2, 4, 8)
    assert answers("swin_nano", size, embed="conv_stem", drop_rate=0.1) == (2, 5)


@pytest.mark.parametrize(
    ("name", "patches"),
    [  # at 32, 64 and 224 pixels; LIFE's experiments have 4 for DeiT and T2T and 1 for Swin at 32
        ("deit_tiny", (4, 8, 16)),
        ("t2t_vit_12_life", (4, 8, 16)),
        ("swinv2_tiny", (1, 2, 4)),
        ("pvt_tiny", (1, 2, 4)),
        ("dwnet_nano", (2, 4, 8)),
        ("lightvit_tiny", (2, 4, 8)),
        ("tnt_tiny", (8, 8, 16)),
    ],
)
def test_patches_follow_the_image(name: str, patches: tuple[int, ...]) -> None:
    assert tuple(choose_patch(name, size) for size in (32, 64, 224)) == patches


def test_the_models_own_size_keeps_its_own_patch() -> None:
    for name, spec in MODELS.items():
        assert isinstance(spec.img_size, int)
        assert choose_patch(name, spec.img_size) == spec.embed.stride


def test_possible_patches_are_those_that_build() -> None:
    for name in ("lightvit_nano", "t2t_vit_7", "tnt_tiny", "swin_nano"):
        for patch in MODELS[name].embed.possible_patches:
            with torch.device("meta"), WithoutNumbers():
                model = create_model(name, img_size=32, patch_size=patch)
            assert model.spec.embed.stride == patch


def test_a_given_patch_and_models_of_timm_are_left_alone() -> None:
    assert choose_patch("resnet18", 32) is None
    assert choose_patch("deit_tiny", 32, {"patch_size": 8}) is None


@pytest.mark.parametrize("images", [1, 100, 500, 2_000, 5_000, 50_000, 1_281_167])
def test_epochs_and_batch_stay_in_their_limits(images: int) -> None:
    epochs, batch = choose_epochs(images), choose_batch(images)
    assert 20 <= epochs <= 300
    assert batch in (16, 32, 64, 128)
    assert images // batch >= 20 or batch == 16
    if 20 < epochs < 300:  # about half a million images are seen
        assert 250_000 < epochs * images <= 500_000


def test_more_images_never_get_more_epochs_nor_a_smaller_batch() -> None:
    counts = [10 * 2**power for power in range(18)]
    assert [choose_epochs(n) for n in counts] == sorted((choose_epochs(n) for n in counts), reverse=True)
    assert [choose_batch(n) for n in counts] == sorted(choose_batch(n) for n in counts)
    assert list(EPOCHS) == sorted(EPOCHS, reverse=True)


def fill(changes: dict[str, Any] | None = None, name: str = "small-data", images: int = 5000, side: int = 32) -> Recipe:
    return fill_in(load_recipe(name, changes), images=images, classes=10, side=side)


@pytest.mark.parametrize(("images", "side"), [(100, 8), (1437, 8), (5000, 32), (20_000, 64), (3000, 500)])
def test_nothing_stays_open(images: int, side: int, tmp_path: Any) -> None:
    recipe = fill(images=images, side=side)
    assert recipe.epochs and recipe.batch and recipe.augment.crop != "auto"
    assert recipe.model.name in list_models()
    assert recipe.model.img_size and recipe.model.patch_size
    assert 0 < recipe.schedule.warmup_epochs < recipe.epochs
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(recipe))
    again = read_recipe(path)
    assert fill_in(again, images=7, classes=2, side=500) == recipe


def test_small_images_get_a_nano_model_and_large_ones_a_tiny_one() -> None:
    assert fill(side=64).model.name == "near_nano"
    large = fill(side=500).model
    assert (large.name, large.img_size, large.patch_size) == ("near_tiny", 224, 4)


def test_the_family_of_dense_convolutions_has_an_optimizer_of_its_own_unless_one_is_asked_for() -> None:
    def learns(changes: dict[str, Any]) -> tuple[str, float, float]:
        filled = fill(changes)
        return filled.optimizer.kind, filled.optimizer.lr, filled.schedule.min_lr

    assert learns({}) == ("muon", 4e-3, 0.0)
    assert learns({"optimizer.lr": 2e-3, "schedule.min_lr": 0.1}) == ("muon", 2e-3, 0.1)
    assert learns({"optimizer.kind": "adamw"}) == learns({"model.name": "localvit_nano"}) == ("adamw", 1e-3, 0.01)


def test_small_images_are_padded_and_large_ones_cut() -> None:
    assert fill(side=64).augment.crop == "padded"
    assert fill(side=96).augment.crop == "resized"
    assert fill({"augment.crop": "none"}, side=96).augment.crop == "none"


def test_what_is_seen_more_often_is_varied_more() -> None:
    few, some, many = (fill({"epochs": epochs}).augment for epochs in (12, 60, 300))
    assert few.mixup < some.mixup < many.mixup
    assert few.erase < some.erase < many.erase
    assert few.rand_augment is None and many.rand_augment == "rand-m9-mstd0.5-inc1"
    assert not few.mixes


def test_what_the_user_says_stays() -> None:
    changes = {
        "model.name": "swin_nano",
        "model.img_size": 48,
        "epochs": 300,
        "batch": 24,
        "augment.mixup": 0.0,
        "augment.rand_augment": None,
        "schedule.warmup_epochs": 7,
    }
    recipe = fill(changes)
    assert (recipe.model.name, recipe.model.img_size, recipe.model.patch_size) == ("swin_nano", 48, 2)
    assert (recipe.epochs, recipe.batch, recipe.schedule.warmup_epochs) == (300, 24, 7)
    assert (recipe.augment.mixup, recipe.augment.rand_augment, recipe.augment.cutmix) == (0.0, None, 1.0)
    assert fill({"model.patch_size": 2}).model.patch_size == 2


def test_colour_jitter_of_the_user_takes_the_place_of_rand_augment() -> None:
    augment = fill({"augment.color_jitter": 0.3}).augment
    assert (augment.color_jitter, augment.rand_augment) == (0.3, None)


def test_the_recipes_of_papers_keep_their_augmentation() -> None:
    for name in ("deit", "resnet", "life-small"):
        recipe, filled = load_recipe(name), fill(name=name)
        assert filled.augment.model_copy(update={"crop": recipe.augment.crop}) == recipe.augment
        assert (filled.epochs, filled.batch, filled.schedule) == (recipe.epochs, recipe.batch, recipe.schedule)


def test_life_on_cifar_is_as_in_its_release() -> None:
    recipe = fill(name="life-small", images=50_000)
    assert (recipe.model.img_size, recipe.model.patch_size, recipe.augment.crop) == (32, 4, "padded")


def test_life_on_tiny_imagenet_takes_random_parts_and_is_evaluated_at_64_of_73_pixels() -> None:
    recipe = fill(name="life-small", images=100_000, side=64)
    assert (recipe.model.img_size, recipe.augment.crop) == (64, "resized")
    preprocessing = build(recipe.model, 200, recipe.data).preprocessing
    assert int(64 / preprocessing.crop) == int(256 / 224 * 64) == 73
    ours = fill(side=64)
    assert ours.augment.crop == "padded" and build(ours.model, 200, ours.data).preprocessing.crop == 1


@pytest.mark.parametrize(
    ("model", "side", "size"),
    [
        ("swinv2_tiny_life", 375, 256),
        ("deit_tiny_life", 375, 224),
        ("swinv2_tiny_life", 230, 224),
        ("swinv2_tiny", 32, 32),
    ],
)
def test_swin_v2_sees_large_images_at_256_pixels_as_in_the_life_paper(model: str, side: int, size: int) -> None:
    assert fill({"model.name": model}, name="life-small", side=side).model.img_size == size


def test_mean_and_deviation_of_the_data_are_a_setting() -> None:
    cifar = {"data.mean": [0.4914, 0.4822, 0.4465], "data.std": [0.2470, 0.2435, 0.2616]}
    recipe = fill(cifar, name="life-small")
    preprocessing = build(recipe.model, 10, recipe.data).preprocessing
    assert (preprocessing.mean, preprocessing.std) == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    plain = fill(name="life-small")
    assert build(plain.model, 10, plain.data).preprocessing.mean == IMAGENET_DEFAULT_MEAN
    with pytest.raises(ValueError, match=r"data\.std = .* won't do; give a number above 0 and at most 1"):
        fill({"data.std": [0.2, 0.0, 0.2]})


def test_the_warm_up_follows_the_epochs_where_no_paper_sets_it() -> None:
    assert fill({"epochs": 100}).schedule.warmup_epochs == 5
    assert fill(name="fine-tune").schedule.warmup_epochs == 2
    assert fill({"epochs": 1}, name="fine-tune").schedule.warmup_epochs == 0.1


def test_weights_bring_their_own_model_and_sizes() -> None:
    model = fill({"model.weights": "run"}, name="fine-tune").model
    assert (model.name, model.img_size, model.patch_size) == (None, None, None)


@pytest.mark.parametrize(("images", "classes"), [(0, 0), (10, 1)])
def test_nothing_to_learn_is_refused(images: int, classes: int) -> None:
    with pytest.raises(ValueError) as caught:
        fill_in(load_recipe("small-data"), images=images, classes=classes, side=32)
    assert str(caught.value) == (
        f"There are {images} training image(s) of {classes} class(es); training takes images of at least 2 classes."
    )


def test_a_batch_that_was_chosen_must_be_divisible_too() -> None:
    with pytest.raises(ValueError, match=r"^The recipe small-data: batch 128 can't be worked off in 3 "):
        fill({"accumulate": 3})
