"""Recipes from files and the command line: what is read, and what is refused with which sentence."""

from pathlib import Path
from typing import Any

import pytest

from nearsight.config.files import load_recipe, parse_change, read_recipe, recipe_names, to_yaml
from nearsight.config.validation import setting_keys


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refusal(name: str | Path, changes: dict[str, Any] | None = None) -> str:
    with pytest.raises(ValueError) as caught:
        load_recipe(name, changes)
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names())
def test_a_saved_recipe_opens_again(name: str, written: Any) -> None:
    recipe = load_recipe(name, {"distill.teacher": "resnet18", "loss.class_weights": [1, 2.5], "seed": 3})
    assert read_recipe(written(to_yaml(recipe))) == recipe


def test_a_file_gets_its_name_and_the_command_line_wins(written: Any) -> None:
    path = written("epochs: 7\noptimizer: {lr: 1e-3, weight_decay: 0.1}\n")
    recipe = load_recipe(path, dict([parse_change("optimizer.lr=3e-4"), parse_change("augment.flip=0")]))
    assert (recipe.name, recipe.epochs, recipe.optimizer.weight_decay) == ("mine", 7, 0.1)
    assert (recipe.optimizer.lr, recipe.augment.flip) == (3e-4, 0.0)
    assert load_recipe(str(path)) == load_recipe(path)


def test_an_empty_file_has_the_defaults(written: Any) -> None:
    assert load_recipe(written("# nothing\n")).epochs == 0


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", ".1e-2", "+1e-3", "0.001"])
def test_numbers_with_an_exponent_are_numbers(text: str, written: Any) -> None:
    assert load_recipe(written(f"optimizer: {{lr: {text}}}")).optimizer.lr == 0.001
    assert parse_change(f"optimizer.lr={text}") == ("optimizer.lr", 0.001)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("augment.crop_scale=[0.5, 1]", ("augment.crop_scale", [0.5, 1])),
        ("model.name = deit_nano", ("model.name", "deit_nano")),
        ("model.options={qkv: life}", ("model.options", {"qkv": "life"})),
        ("ema=null", ("ema", None)),
        ("model.weights=a=b.safetensors", ("model.weights", "a=b.safetensors")),
        ("model.name=2024-01-01", ("model.name", "2024-01-01")),
    ],
)
def test_a_change_is_a_key_and_yaml(text: str, change: tuple[str, Any]) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize("text", ["epochs", "=3", "optimizer.=3", ".lr=3"])
def test_a_change_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_change(text)
    assert str(caught.value) == (f"{text!r} is not a change of a setting; write KEY=VALUE, such as optimizer.lr=3e-4.")


def test_a_change_that_is_no_yaml_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^The value of augment.crop_scale is not valid YAML in line 1: "):
        parse_change("augment.crop_scale=[0.5, 1")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *(("lr", "optimizer.lr"), ("learning_rate", "optimizer.lr"), ("weight-decay", "optimizer.weight_decay")),
        *(("epoch", "epochs"), ("batch_size", "batch"), ("optimiser", "optimizer"), ("mixup", "augment.mixup")),
        *(("label_smoothing", "loss.smoothing"), ("optimizer.weigth_decay", "optimizer.weight_decay")),
        *(("augment.lr", "optimizer.lr"), ("image-size", "model.img_size"), ("warmup_epoch", "schedule.warmup_epochs")),
        *(("Epochs", "epochs"), ("optimizer.learning_rate", "optimizer.lr"), ("num_worker", "data.workers")),
    ],
)
def test_an_unknown_setting_names_the_nearest(given: str, meant: str) -> None:
    sentence = refusal("deit", {given: 1})
    assert f"there is no setting {given!r}; did you mean {meant}?" in sentence


def test_an_unknown_setting_far_from_all_lists_what_there_is() -> None:
    assert refusal("deit", {"saving.zzz": 1}) == (
        "The recipe deit with your changes: there is no setting 'saving.zzz'. Saving takes every, keep."
    )
    assert "'zzz'. A recipe takes name, task, model, data, frozen, epochs, " in refusal("deit", {"zzz.lr": 1})


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("optimizer.lr", -1, "optimizer.lr = -1 won't do; it takes a number above 0 and at most 1e+30."),
        ("optimizer.lr", "fast", "optimizer.lr = 'fast' won't do; it takes a number above 0 and at most 1e+30."),
        ("optimizer.lr", float("nan"), "optimizer.lr = nan won't do; it takes a number above 0 and at most 1e+30."),
        ("optimizer.lr.x", 1, "optimizer.lr = {'x': 1} won't do; it takes a number above 0 and at most 1e+30."),
        ("optimizer.momentum", 1, "optimizer.momentum = 1 won't do; it takes a number of at least 0 and below 1."),
        ("optimizer.kind", "adam", "optimizer.kind = 'adam' won't do; it takes one of adamw, sgd, lamb, muon."),
        ("epochs", True, "epochs = true won't do; it takes a whole number of at least 0 and at most 100000."),
        ("epochs", 1.5, "epochs = 1.5 won't do; it takes a whole number of at least 0 and at most 100000."),
        ("epochs", "10", "epochs = '10' won't do; it takes a whole number of at least 0 and at most 100000."),
        ("batch", None, "batch = null won't do; it takes a whole number of at least 0 and at most 1000000."),
        ("ema", "none", "ema = 'none' won't do; it takes a number above 0 and below 1, or null."),
        ("model.name", 7, "model.name = 7 won't do; it takes text, or null."),
        ("model.options", [1], "model.options = [1] won't do; it takes a mapping of options."),
        ("saving", 5, "saving = 5 won't do; it takes a mapping with every, keep."),
        ("saving", None, "saving = null won't do; it takes a mapping with every, keep."),
        ("distill.weight", 0.5, "distill.teacher is missing; it takes text."),
        ("augment.crop_scale", [0.5], "augment.crop_scale = [0.5] won't do; it takes a list of two numbers."),
        ("augment.crop_scale", [0.5, "a"], "augment.crop_scale = [0.5, 'a'] won't do; it takes a list of two numbers."),
        (
            "augment.crop_ratio",
            [0.9, 0.5],
            "augment.crop_ratio = [0.9, 0.5] won't do; the first of the two numbers must be above 0 and not above the "
            "second, which is at most 100.",
        ),
        ("augment.crop_scale", [0.5, 2.0], "augment.crop_scale ends at 2; a part of an image is at most 1 of it."),
        (
            "augment.rand_augment",
            "rand-z9",
            "augment.rand_augment = 'rand-z9' won't do; write timm's text for RandAugment, such as "
            "rand-m9-mstd0.5-inc1.",
        ),
        (
            "augment.color_jitter",
            0.4,
            "augment.rand_augment changes colours already; set augment.color_jitter to 0, or the other to null.",
        ),
        (
            "loss.class_weights",
            "even",
            "loss.class_weights = 'even' won't do; it takes one of none, balanced, sqrt, or a list of numbers.",
        ),
        (
            "loss.class_weights",
            [1, -1],
            "loss.class_weights = [1, -1] won't do; give one number above 0 for each class.",
        ),
        (
            "schedule.milestones",
            [0.6, 0.3],
            "schedule.milestones = [0.6, 0.3] won't do; the numbers must lie between 0 and 1 and rise, such as "
            "[0.3, 0.6, 0.9].",
        ),
        ("schedule.warmup_epochs", 300, "schedule.warmup_epochs 300 must be less than epochs 300; set both."),
        ("accumulate", 3, "batch 1024 can't be worked off in 3 equal parts (accumulate)."),
        ("batch", 9, "mixup and cutmix pair images, but batch 9 leaves parts of an odd number."),
    ],
)
def test_a_wrong_value_is_refused_with_what_came_and_what_is_allowed(key: str, value: Any, sentence: str) -> None:
    assert refusal("deit", {key: value}) == f"The recipe deit with your changes: {sentence}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs: 3\n lr: [", " is not valid YAML in line 2: mapping values are not allowed here."),
        ("a: [1, 2\n", " is not valid YAML in line 2: expected ',' or ']', but got '<stream end>'."),
        ("epochs: 3\nseed: 1\nepochs: 4\n", ": 'epochs' in line 3 is set twice; keep one of them."),
        ("optimizer:\n  lr: 1\n  lr: 2\n", ": 'lr' in line 3 is set twice; keep one of them."),
        ("5: 3\n", ": the key in line 1 is not text; write the name of a setting."),
        ("- epochs\n", " holds a list; a recipe is a mapping of settings, such as `epochs: 100`."),
        ("epochs\n", " holds just 'epochs'; a recipe is a mapping of settings, such as `epochs: 100`."),
        ("epochs: -3\n", ": epochs = -3 won't do; it takes a whole number of at least 0 and at most 100000."),
        ("epochs: \x07\n", " is not valid YAML: there is an unprintable character in it."),
        ("name: " + "[" * 5000, " is not a recipe: it is nested too deeply."),
        (b"epochs: \xff\xfe\n", " is not text in UTF-8; a recipe is a YAML file."),
    ],
)
def test_a_broken_file_is_refused_with_its_line(text: str | bytes, sentence: str, written: Any) -> None:
    path = written(text)
    assert refusal(path) == f"{path}{sentence}"


def test_yaml_makes_no_objects(written: Any) -> None:
    path = written("name: !!python/object/apply:os.system ['true']\n")
    assert "is not valid YAML in line 1: could not determine a constructor" in refusal(path)


def test_a_mistake_in_the_file_is_not_hidden_by_a_change(written: Any) -> None:
    path = written("optimizer: 5\n")
    assert "optimizer = 5 won't do" in refusal(path, {"optimizer.lr": 1e-3})


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    assert refusal("diet").startswith("There is no recipe 'diet'; did you mean 'deit'? Use one of deit, dwconv, ")
    path = tmp_path / "none.yaml"
    assert refusal(path) == f"{path} is not a file; give the name of a recipe or a YAML file that exists."
    assert refusal(tmp_path) == f"{tmp_path} is not a file; give the name of a recipe or a YAML file that exists."


def test_no_setting_leaks_the_words_of_the_checker() -> None:
    for key in setting_keys():
        sentence = refusal("deit", {key: object()})
        assert "it takes" in sentence
        for word in ("pydantic", "Input should", "type=", "valid ", "tuple", "dictionary"):
            assert word not in sentence


def test_settings_of_version_0_1_are_read_with_a_hint(tmp_path: Path) -> None:
    old = {"scene.shorter": 64, "scene.longest": 128, "scene.crop_share": 0.75, "scene.flip": 0.25}
    with pytest.warns(FutureWarning, match=r"scene\.shorter is called dense\.min_size now; the old name will go\.$"):
        recipe = load_recipe("small-segment", old)
    dense = recipe.dense
    assert (dense.min_size, dense.max_size, dense.max_class_fraction, dense.flip) == (64, 128, 0.75, 0.25)
    assert dense.distort == load_recipe("small-segment").dense.distort  # the recipe's own settings stay
    file = tmp_path / "recipe.yaml"
    file.write_text(to_yaml(recipe).replace("dense:", "scene:").replace("min_size:", "shorter:"), encoding="utf-8")
    assert read_recipe(file) == recipe
