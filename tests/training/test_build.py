"""Models of a run: new or from weights, ours or timm's, and what they are fed with."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from nearsight import create_model
from nearsight.checkpoints.format import save_model
from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import load, load_trained, save_trained
from nearsight.tasks.build import Built, build, keep_known_classes


def test_a_model_of_ours_gets_every_setting() -> None:
    choice = ModelChoice(name="deit_nano", img_size=24, patch_size=4, drop=0.3, drop_path=0.2, options={"qkv": "life"})
    built = build(choice, classes=5)
    twin = create_model("deit_nano", img_size=24, patch_size=4, num_classes=5, qkv="life", drop_path_rate=0.2)
    assert [(n, p.shape) for n, p in built.model.named_parameters()] == [
        (n, p.shape) for n, p in twin.named_parameters()
    ]
    assert built.preprocessing.size == (24, 24)
    assert built.preprocessing.crop == 1.0  # of small images all is shown


def test_models_of_timm_get_the_image_size_if_they_have_one() -> None:
    vit = build(ModelChoice(name="timm/vit_tiny_patch16_224", img_size=32, drop_path=0.1), classes=3)
    assert vit.name == "vit_tiny_patch16_224"
    assert vit.model.patch_embed.grid_size == (2, 2)
    assert vit.timm_options == {"drop_rate": 0.0, "drop_path_rate": 0.1, "img_size": 32, "stem_stride": 0}
    net = build(ModelChoice(name="resnet18", img_size=32), classes=3)
    assert net.timm_options == {"drop_rate": 0.0, "stem_stride": 1}
    assert net.preprocessing.size == (32, 32)
    assert net.model.forward_features(torch.zeros(1, 3, 32, 32)).shape[-2:] == (2, 2)


@pytest.mark.parametrize(("side", "softened"), [(16, 2), (32, 1), (64, 0), (224, 0)])
def test_a_convnet_keeps_a_last_map_of_two_cells(side: int, softened: int) -> None:
    built = build(ModelChoice(name="resnet18", img_size=side), classes=2)
    assert built.timm_options is not None and built.timm_options["stem_stride"] == softened
    grid = built.model.forward_features(torch.zeros(1, 3, side, side)).shape[-1]
    assert grid == side * 2**softened // 32


@pytest.mark.parametrize("name", ["deit_nano", "vit_tiny_patch16_224", "resnet18"])
def test_a_former_run_with_other_classes_keeps_all_but_the_head(name: str, tmp_path: Path) -> None:
    first = build(ModelChoice(name=name, img_size=32), classes=4)
    save_trained(first, "classify", ("a", "b", "c", "d"), tmp_path / "model.safetensors")
    second = build(ModelChoice(weights=str(tmp_path)), classes=7)
    assert second.name == name
    assert second.preprocessing == first.preprocessing
    heads = {key for key in first.model.state_dict() if key.startswith(("head", "fc"))}
    old, new = first.model.state_dict(), second.model.state_dict()
    assert old.keys() == new.keys()
    assert all(torch.equal(old[key], new[key]) for key in old.keys() - heads)
    assert second.model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    same = build(ModelChoice(weights=str(tmp_path)), classes=4)  # also the head, for the same number of classes
    assert all(torch.equal(value, same.model.state_dict()[key]) for key, value in old.items())


@pytest.mark.parametrize("name", ["deit_nano", "resnet18"])
def test_a_former_run_keeps_what_it_knows_of_classes_by_name(name: str, tmp_path: Path) -> None:
    """Also if they have other numbers now; a new class starts as the mean of the known ones."""
    torch.manual_seed(0)
    first = build(ModelChoice(name=name, img_size=32), classes=3)
    file = save_trained(first, "classify", ("cat", "dog", "owl"), tmp_path / "model.safetensors")
    images = torch.randn(2, 3, 32, 32)
    old = first.model.eval()(images)
    for classes, rows in ((("ant", "owl", "cat"), (2, 0)), (("ant", "bee", "owl", "cat", "eel"), (2, 0))):
        second = build(ModelChoice(weights=str(file)), classes=len(classes))
        assert keep_known_classes(second.model, file, classes) == ("owl", "cat")
        new = second.model.eval()(images)
        torch.testing.assert_close(new[:, [classes.index("owl"), classes.index("cat")]], old[:, list(rows)])
        torch.testing.assert_close(new[:, classes.index("ant")], old.mean(1))


def test_other_numbers_of_channels_than_images_have_are_refused() -> None:
    with pytest.raises(ValueError, match="in_chans is 4, but it follows from the channels of the images"):
        build(ModelChoice(name="deit_nano", options={"in_chans": 4}), classes=2)


def test_weights_without_class_names_leave_the_head_alone(tmp_path: Path) -> None:
    model = create_model("deit_nano", num_classes=3)
    before = model.head.weight.clone()
    path = save_model(create_model("deit_nano", num_classes=3), tmp_path / "converted.safetensors")
    assert keep_known_classes(model, path, ("a", "b", "c")) == () and torch.equal(model.head.weight, before)
    assert keep_known_classes(model, None, ("a", "b", "c")) == ()


def test_a_former_run_takes_new_settings(tmp_path: Path) -> None:
    save_trained(
        build(ModelChoice(name="resnet18", img_size=32), classes=2),
        "classify",
        ("a", "b"),
        tmp_path / "model.safetensors",
    )
    built = build(ModelChoice(weights=str(tmp_path), drop=0.4, drop_path=0.1), classes=2)
    assert built.model.drop_rate == 0.4
    assert built.timm_options == {"drop_rate": 0.4, "drop_path_rate": 0.1, "stem_stride": 1}
    with pytest.raises(ValueError, match="timm's resnet18 does not take these options"):
        build(ModelChoice(weights=str(tmp_path), options={"widht": 2}), classes=2)


def test_a_converted_file_is_a_start_at_another_size(tmp_path: Path) -> None:
    old = create_model("deit_nano", img_size=32, patch_size=4, num_classes=10)
    path = save_model(old, tmp_path / "converted.safetensors")
    built = build(ModelChoice(name="deit_nano", weights=str(path), img_size=48), classes=3)
    assert built.preprocessing.size == (48, 48)
    own, before = built.model.state_dict(), old.state_dict()
    kept = [key for key in before if own[key].shape == before[key].shape]
    assert len(kept) >= len(before) - 3  # positions are resized, the head is new
    assert all(torch.equal(own[key], before[key]) for key in kept)


def test_a_plain_file_of_timm_is_a_start(tmp_path: Path) -> None:
    old = timm.create_model("resnet18", num_classes=6)
    save_file(old.state_dict(), tmp_path / "resnet.safetensors")
    built = build(ModelChoice(name="resnet18", weights=str(tmp_path / "resnet.safetensors")), classes=2)
    assert torch.equal(built.model.state_dict()["layer4.1.conv2.weight"], old.state_dict()["layer4.1.conv2.weight"])
    assert built.preprocessing.size == (224, 224)


def refusals(tmp_path: Path) -> dict[str, tuple[ModelChoice, str]]:
    ours, vit = tmp_path / "ours", tmp_path / "vit"
    save_trained(
        build(ModelChoice(name="deit_nano", img_size=32), 2), "classify", ("a", "b"), ours / "model.safetensors"
    )
    save_trained(
        build(ModelChoice(name="vit_tiny_patch16_224", img_size=32), 2),
        "classify",
        ("a", "b"),
        vit / "model.safetensors",
    )
    save_file({"a": torch.zeros(1)}, tmp_path / "bare.safetensors")
    bare = str(tmp_path / "bare.safetensors")
    return {
        "near": (
            ModelChoice(name="resnet1"),
            "Neither Nearsight nor timm has a model 'resnet1'; did you mean 'resnet1",
        ),
        "ours near": (ModelChoice(name="deit_nno"), "did you mean 'deit_nano'"),
        "option": (ModelChoice(name="resnet18", options={"colour": 1}), "timm's resnet18 does not take these options"),
        "none": (ModelChoice(), "No model was named; give --model, or weights that know their model."),
        "absent": (ModelChoice(weights=str(tmp_path / "x")), "There are no weights at .*x; give a converted file or"),
        "unfinished": (ModelChoice(weights=str(tmp_path)), r"There are no weights at .*model\.safetensors; give"),
        "other of ours": (
            ModelChoice(name="lit_nano", weights=str(ours)),
            "holds the weights of deit_nano, not of lit",
        ),
        "other of timm": (
            ModelChoice(name="resnet18", weights=str(vit)),
            "weights of vit_tiny_patch16_224, not of res",
        ),
        "patch": (ModelChoice(weights=str(vit), patch_size=8), "whose patch size is its own; leave it out"),
        "patch of ours": (
            ModelChoice(weights=str(ours), patch_size=2),
            "holds a deit_nano for patches of 4 pixels; leave model.patch_size out, or give 4",
        ),
        "no patch": (ModelChoice(name="resnet18", patch_size=4), "timm's resnet18 has no patch size to set; leave"),
        "no description": (ModelChoice(name="deit_nano", weights=bare), r"bare\.safetensors: These 1 tensors"),
        "other tensors": (ModelChoice(name="resnet18", weights=bare), "tensors are missing and 1 unknown"),
        "pretrained": (
            ModelChoice(name="deit_nano", weights="pretrained"),
            "there are no pretrained weights of deit_nan",
        ),
    }


def test_what_can_not_be_built_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for case, (choice, sentence) in refusals(tmp_path).items():
        with pytest.raises(ValueError, match=sentence):
            print(case, build(choice, classes=2))


def test_a_model_of_timm_gets_the_patch_size_if_it_has_one(tmp_path: Path) -> None:
    built = build(ModelChoice(name="vit_tiny_patch16_224", img_size=32, patch_size=8), classes=2)
    assert built.model.patch_embed.grid_size == (4, 4)
    save_trained(built, "classify", ("a", "b"), tmp_path / "model.safetensors")
    assert load(tmp_path).model.patch_embed.grid_size == (4, 4)


def test_a_former_run_keeps_its_name_with_other_patches_than_the_registered_model(tmp_path: Path) -> None:
    first = build(ModelChoice(name="deit_nano", img_size=32, patch_size=2), classes=2)
    save_trained(first, "classify", ("a", "b"), tmp_path / "model.safetensors")
    for choice in (
        ModelChoice(weights=str(tmp_path)),
        ModelChoice(name="deit_nano", weights=str(tmp_path), patch_size=2),
    ):
        second = build(choice, classes=3)
        assert second.name == "deit_nano"
        assert second.model.spec == first.model.spec
    with pytest.raises(ValueError, match="holds the weights of deit_nano, not of lit_nano; leave the name out"):
        build(ModelChoice(name="lit_nano", weights=str(tmp_path)), classes=3)


def test_a_model_with_other_parts_is_opened_under_the_name_it_was_asked_for(tmp_path: Path) -> None:
    built: Built = build(ModelChoice(name="deit_nano", img_size=32, options={"ratio": 2.0}), classes=2)
    save_trained(built, "classify", ("cat", "dog"), tmp_path / "model.safetensors")
    trained = load_trained(tmp_path)
    assert (trained.name, trained.classes, trained.preprocessing) == ("deit_nano", ("cat", "dog"), built.preprocessing)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(trained.model(images), built.model.eval()(images))
    torch.testing.assert_close(load(tmp_path).model(images), built.model(images))
