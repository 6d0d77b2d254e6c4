"""A localized model is saved, opened, trained, resumed and compared like any other."""

import json
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from small_hosts import fresh, host, named, pictures
from torch import nn
from typer.testing import CliRunner

import nearsight
from nearsight import localize
from nearsight.cli.shell import app
from nearsight.config.candidates import parse_candidates
from nearsight.config.recipe import ModelChoice, Optimizer
from nearsight.parts import DepthWise, Life, LocalityFfn
from nearsight.retrofit import LocalizeOptions, localized_of
from nearsight.runs.predictor import load_trained
from nearsight.tasks.build import build
from nearsight.training.optim import parameter_groups
from tools.hosts import NARROW, Example


def step(model: nn.Module, example: Example) -> nn.Module:
    """One step of training, so that the new branches are no longer nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    logits = model.train()(pictures(4, example.size))
    logits = logits[0] if isinstance(logits, tuple) else logits
    F.cross_entropy(logits, torch.arange(4)).backward()
    optimizer.step()
    return model.eval()


@pytest.mark.parametrize("preserve", [True, False])
def test_saved_and_opened_again(example: Example, preserve: bool, tmp_path: Path) -> None:
    if example.family == "VOLO":
        pytest.skip("the small one is not made by timm.create_model")
    slots = {"ffn": "localvit", "mixer": "squeezed"}
    model = step(localize(fresh(example), **slots, preserve=preserve), example)
    path = nearsight.save(model, tmp_path / "model.safetensors", **({} if example.ours else example.options))
    opened = nearsight.load(path).model
    images = pictures(2, example.size)
    with torch.no_grad():
        assert torch.equal(opened(images), model(images))
    assert [name for name, _ in opened.named_parameters()] == [name for name, _ in model.named_parameters()]
    if preserve:
        assert localized_of(opened) == localized_of(model)


def test_parts_with_settings_travel_as_values(tmp_path: Path) -> None:
    parts = {"ffn": LocalityFfn(kernel=5, channel_attention="eca"), "qkv": Life(kernels=(1, 5)), "mixer": DepthWise(3)}
    model = localize(host(named("ViT")), **parts, layers=[1, 2])
    opened = nearsight.load(nearsight.save(model, tmp_path / "model.safetensors", **NARROW)).model
    assert opened.localized.choice == model.localized.choice
    assert opened.blocks[0].mlp.fc2.local.kernel_size == (5, 5)


def test_the_file_says_what_was_done_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = nearsight.save(localize(host(named("ViT")), ffn="localvit"), tmp_path / "model.safetensors", **NARROW)
    beside = path.with_suffix(".json")
    about = json.loads(beside.read_text())
    assert about["localized"] == {"ffn": "localvit", "layers": "all", "preserve": True, "placed": {"ffn": [1, 2]}}
    for wrong in ({"ffn": "localvit"}, {"ffn": "os.system", "placed": {"ffn": [1]}}, {"fnn": "x", "placed": {}}, 7):
        beside.write_text(json.dumps(about | {"localized": wrong}))
        with pytest.raises(ValueError, match=r"locali|not known"):
            nearsight.load(path)


def test_options_that_save_is_not_told_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give save\\(\\) the options"):
        nearsight.save(host(named("ViT")), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"\.safetensors"):
        nearsight.save(host(named("ViT")), tmp_path / "model.pt", **NARROW)


def test_a_model_of_ours_is_resized_with_its_parts(tmp_path: Path) -> None:
    for family in ("DeiT (ours)", "Swin (ours)"):
        example = named(family)
        model = step(localize(fresh(example), ffn="localvit", qkv="life", mixer="depthwise"), example)
        path = nearsight.save(model, tmp_path / "model.safetensors")
        larger = nearsight.create_model(weights=path, img_size=(48, 40))
        model.set_input_size((48, 40))
        assert larger.img_size == (48, 40) == model.img_size
        images = pictures(2, (48, 40))
        with torch.no_grad():
            torch.testing.assert_close(larger(images), model(images))
        assert model.localized.new and set(model.localized.new) <= dict(model.named_parameters()).keys()


def test_a_recipe_builds_it_from_pretrained_weights(tmp_path: Path) -> None:
    plain = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, **NARROW)
    save_file(plain.state_dict(), tmp_path / "vit.safetensors")
    choice = ModelChoice(
        name="timm/vit_tiny_patch16_224",
        img_size=32,
        options=dict(NARROW),
        weights=str(tmp_path / "vit.safetensors"),
        localize={"ffn": "localvit", "qkv": "life", "layers": "low"},
    )
    built = build(choice, classes=3)
    images = pictures(2, (32, 32))
    with torch.no_grad():
        assert torch.equal(built.model.eval()(images), plain.eval()(images))
    assert built.model.localized.layers == {"ffn": (1,), "qkv": (1,)}
    with pytest.raises(ValueError, match="did you mean 'ffn'"):
        build(choice.model_copy(update={"localize": {"fnn": "localvit"}}), classes=3)


def test_new_parameters_learn_at_the_full_rate_and_pretrained_ones_layer_by_layer() -> None:
    model = localize(host(named("Swin")), ffn="localvit", mixer="gather_broadcast", merge="deformable")
    groups = parameter_groups(model, Optimizer(layer_decay=0.5, offsets=0.01, weight_decay=0.05))
    scales = {name: group["lr_scale"] for group in groups for name in group["names"]}
    decays = {name: group["weight_decay"] for group in groups for name in group["names"]}
    assert scales.keys() == dict(model.named_parameters()).keys()
    for name in model.localized.new:
        assert scales[name] == (0.01 if ".mover." in name else 1.0)
    assert scales["patch_embed.proj.weight"] < scales["layers.1.blocks.1.mlp.fc2.weight"] < 1.0
    assert scales["head.fc.weight"] == 1.0
    assert decays["layers.0.blocks.0.near.part.asking"] == decays["layers.0.blocks.0.near.fade"] == 0.0


def test_text_of_a_choice() -> None:
    choice = LocalizeOptions.parse("ffn=localvit, qkv=life,layers=1,3-4,preserve=False")
    assert choice == LocalizeOptions(ffn="localvit", qkv="life", layers=(1, 3, 4), preserve=False)
    assert LocalizeOptions.parse(str(choice)) == choice
    assert LocalizeOptions.from_json(json.loads(json.dumps(choice.as_json()))) == choice
    assert LocalizeOptions.parse("ffn=localvit,start=0.02") == LocalizeOptions(ffn="localvit", start=0.02)
    assert str(LocalizeOptions(ffn="localvit", start=0.02)) == "ffn=localvit,start=0.02"
    for wrong in ("ffn=localvit,start=2", "ffn=localvit,start=much"):
        with pytest.raises(ValueError, match="is no standard deviation"):
            LocalizeOptions.parse(wrong)
    for wrong in ("", "localvit", "ffn=", "ffn=localvit,preserve=perhaps", "qqv=life", "ffn=localvit,layers=x"):
        with pytest.raises(ValueError):
            LocalizeOptions.parse(wrong)


def test_candidates_of_a_comparison() -> None:
    text = "vit_tiny_patch16_224:qkv=life:layers=1-4:depth=6,deit_nano:qkv=life,p=deit_nano:localize={ffn: localvit}"
    settings = [candidate.settings() for candidate in parse_candidates(text)]
    assert settings == [
        ["model.localize.qkv=life", "model.localize.layers=1-4", "model.options.depth=6"],
        ["model.options.qkv=life"],
        ["model.localize={ffn: localvit}"],
    ]


@pytest.mark.drill
def test_trained_from_the_command_line_and_resumed(tmp_path: Path) -> None:
    """Train a plain model, localize it from its run, and open, export and continue the result."""
    small = [
        "--img-size",
        "16",
        "--epochs",
        "1",
        "--limit",
        "64",
        "--batch",
        "32",
        "--cpu",
        "--quiet",
        "--threads",
        "1",
    ]
    options = "{patch_size: 4, embed_dim: 48, depth: 2, num_heads: 3}"
    runner = CliRunner()

    def run(*words: str) -> None:
        done = runner.invoke(app, ["train", "digits", *words])
        assert done.exit_code == 0, done.output + repr(done.exception)

    first, second = tmp_path / "first", tmp_path / "second"
    run("--model", "timm/vit_tiny_patch16_224", "--set", f"model.options={options}", "--out", str(first), *small)
    again = [word for word in small if word not in ("--img-size", "16")]
    run("--weights", str(first), "--localize", "ffn=localvit,qkv=life,layers=low", "--out", str(second), *again)
    recipe = (second / "recipe.yaml").read_text()
    assert "name: retrofit" in recipe and "ffn: localvit" in recipe
    trained = load_trained(second)
    assert trained.model.localized.layers == {"ffn": (1,), "qkv": (1,)}
    assert trained.model.blocks[0].mlp.fc2.local.weight.abs().sum() > 0
    run("--weights", str(second), "--out", str(tmp_path / "third"), *again)  # goes on from localized weights
    assert load_trained(tmp_path / "third").model.localized == trained.model.localized
