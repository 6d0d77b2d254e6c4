"""What timm's models can do, localized ones can: other sizes, intermediates, checkpointing, copies, graphs, folding."""

import copy
from pathlib import Path

import pytest
import timm
import torch
from small_hosts import fresh, host, named, pictures
from timm.models import FeatureListNet
from torch import Tensor, nn

from nearsight import fold, localize
from nearsight.deployment.graph import Axes, Exportable, capture
from tests.rounding import assert_rounded
from tools.hosts import Example

TRAINED = {"ffn": "localvit", "qkv": "life", "mixer": "depthwise"}


def learned(model: nn.Module) -> nn.Module:
    """With numbers in the new parameters, as after training; places stay near."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in model.localized.new:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def local(example: Example) -> nn.Module:
    parts = {slot: part for slot, part in TRAINED.items() if slot != "qkv" or example.family not in ("TNT", "PVT v2")}
    pyramid = example.family in ("Swin", "Swin v2", "PVT v2", "Twins-SVT", "VOLO", "Swin (ours)")
    return learned(localize(host(example), **parts, **({"merge": "deformable"} if pyramid else {})))


def test_a_prediction_depends_on_its_image_alone(example: Example) -> None:
    model = local(example)
    images = pictures(3, example.size)
    with torch.no_grad():
        together, alone = model(images), torch.cat([model(one[None]) for one in images])
    assert_rounded(together, alone, model)
    assert not torch.allclose(together, host(example)(images))  # what was learned counts


@pytest.mark.parametrize("family", ["ViT", "ViT with registers", "EVA (DINOv3)", "Swin", "Swin v2"])
def test_set_input_size_before_is_set_input_size_after(family: str) -> None:
    example = named(family)
    plain, other = fresh(example), (48, 32)
    after = localize(plain, **TRAINED)
    after.set_input_size(img_size=other)
    plain.set_input_size(img_size=other)
    before = localize(plain, **TRAINED)
    before.load_state_dict(after.state_dict())
    for model in (before, after):
        learned(model)
    images = pictures(2, other)
    with torch.no_grad():
        assert torch.equal(before(images), after(images))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
def test_any_size_with_dynamic_img_size_and_padding(name: str) -> None:
    small = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    plain = timm.create_model(name, img_size=32, dynamic_img_size=True, dynamic_img_pad=True, **small).eval()
    model = localize(plain, **TRAINED)
    moved = learned(localize(plain, **TRAINED))
    for size in ((32, 32), (24, 56), (30, 41)):
        images = pictures(2, size)
        with torch.no_grad():
            assert torch.equal(model(images), plain(images))
            assert not torch.equal(moved(images), plain(images))


def test_the_grid_is_that_of_the_image_and_not_a_square() -> None:
    """A map of 2x8 patches has as many tokens as one of 4x4, and its neighbours are others."""
    plain = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=48,
        depth=2,
        dynamic_img_size=True,
        global_pool="avg",
    ).eval()
    model = learned(localize(plain, ffn="localvit"))
    seen: list[tuple[int, int]] = []
    conv = model.blocks[0].mlp.fc2.local
    conv.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[2:])))
    for size in ((16, 64), (64, 16), (32, 32)):
        model(pictures(1, size))
    assert seen == [(2, 8), (8, 2), (4, 4)]


def test_forward_intermediates_are_the_same(example: Example) -> None:
    plain = host(example)
    if not hasattr(plain, "forward_intermediates"):
        pytest.skip("timm has none for this family")
    model = localize(plain, ffn="localvit", mixer="depthwise")
    images = pictures(2, example.size)
    with torch.no_grad():
        ours, theirs = (m.forward_intermediates(images, indices=2) for m in (model, plain))
    assert torch.equal(ours[0], theirs[0])
    assert all(torch.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "pvt_v2_b0"])
def test_features_only_models_are_localized_like_others(name: str) -> None:
    sized = {} if name.startswith("pvt") else {"img_size": 64}
    plain = timm.create_model(name, features_only=True, **sized).eval()
    model = localize(plain, ffn="localvit", mixer="depthwise", layers="low")
    images = pictures(1, (64, 64))
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(model(images), plain(images), strict=True))


def test_a_localized_model_becomes_a_features_only_model() -> None:
    plain = fresh(named("Swin"))
    model = localize(plain, ffn="localvit", mixer="depthwise", merge="deformable")
    nets = [FeatureListNet(m, out_indices=(0, 1), flatten_sequential=True).eval() for m in (model, plain)]
    images = pictures(1, (32, 32))
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(nets[0](images), nets[1](images), strict=True))


def gradients(model: nn.Module, *batches: Tensor) -> dict[str, Tensor]:
    """Of all batches together: every forward pass comes before the backward pass."""
    model.zero_grad()
    sum(model(images).square().mean() for images in batches).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["ViT", "EVA (DINOv3)", "CaiT", "XCiT", "Swin", "Swin v2", "PVT v2", "DeiT (ours)"])
def test_checkpointing_changes_no_gradient(family: str) -> None:
    example = named(family)
    model = local(example)
    images = pictures(2, example.size)
    plain = gradients(model, images)
    model.set_grad_checkpointing()
    torch.testing.assert_close(gradients(model, images), plain)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
def test_checkpointed_blocks_remember_the_grid_of_their_own_images(name: str) -> None:
    """The second images have the same number of patches, and come by before the first are gone back through."""
    small = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "drop_path_rate": 0.0}
    model = timm.create_model(name, img_size=32, dynamic_img_size=True, num_classes=4, **small)
    model = learned(localize(model, ffn="localvit", qkv="life"))
    batches = pictures(2, (16, 64)), pictures(2, (32, 32))
    plain = gradients(model, *batches)
    model.set_grad_checkpointing()
    torch.testing.assert_close(gradients(model, *batches), plain)


def test_copies_are_apart(example: Example) -> None:
    model = local(example)
    twin = copy.deepcopy(model)
    images = pictures(2, example.size)
    with torch.no_grad():
        expected = model(images)
        for parameter in model.parameters():
            parameter.zero_()
        model(pictures(2, example.size, seed=1))
        assert torch.equal(twin(images), expected)
    keepers = [{id(m) for m in one.modules() if type(m).__name__ == "GridKeeper"} for one in (model, twin)]
    assert keepers[0] and not keepers[0] & keepers[1]


def test_folded_outputs_are_the_same(example: Example) -> None:
    model = local(example)
    folded = fold(model)
    for batch in (1, 3):
        images = pictures(batch, example.size)
        with torch.no_grad():
            assert_rounded(folded(images), model(images), model)


@pytest.mark.parametrize("family", ["ViT", pytest.param("DeiT (ours)", marks=pytest.mark.drill)])
def test_a_recorded_graph_gives_the_same_outputs(family: str) -> None:
    """The matrix does this for all families, up to an ONNX file."""
    example = named(family)
    model = local(example)
    axes = Axes(batch=True, size=example.ours)
    program = capture(Exportable(model), example.size, axes)
    for size in (example.size, example.other) if example.ours else (example.size,):
        images = pictures(3, size)
        with torch.no_grad():
            (recorded,) = program.module()(images)
            assert_rounded(recorded, model(images), model)
    copy.deepcopy(model)  # what was noted while recording does not stay


@pytest.mark.drill
@pytest.mark.parametrize("family", ["ViT", "Swin", "PVT v2"])
def test_compiled_outputs_are_the_same(family: str) -> None:
    example = named(family)
    model = local(example)
    compiled = torch.compile(model, backend="aot_eager")
    for batch in (2, 3):
        images = pictures(batch, example.size)
        with torch.no_grad():
            assert_rounded(compiled(images), model(images), model)


def test_nothing_of_timm_is_changed(tmp_path: Path) -> None:
    """A model built after another was localized is the plain one, in class and in answers."""
    example = named("Swin")
    before = fresh(example)
    localize(before, ffn="localvit", mixer="depthwise", inplace=True)
    after, images = fresh(example), pictures(1, example.size)
    assert {type(m).__module__.split(".")[0] for m in after.modules()} <= {"timm", "torch"}
    with torch.no_grad():
        assert torch.equal(after(images), before(images))
