"""A model made for one image size becomes the model for another."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearsight.lattice import Grid, resize_kernel, resize_plane
from nearsight.models import MODELS, Backbone
from nearsight.models.options import apply_options
from nearsight.models.resize import resize_state
from nearsight.parts.local_mlp import LocalMlpModule
from tests.rounding import assert_rounded

Make = Callable[..., Backbone]
Stir = Callable[[Backbone], Backbone]
Images = Callable[..., Tensor]


@torch.no_grad()
def loud(model: Backbone) -> Backbone:
    """Position and bias tables large enough to decide the answer, and no norm that hides a block."""
    for name, weight in model.named_parameters():
        if name.endswith("table"):
            nn.init.normal_(weight)
        elif weight.ndim == 1:
            weight.add_(0.2 * torch.randn_like(weight))
    return model.eval()


@torch.no_grad()
def answers(model: Backbone, size: tuple[int, int]) -> Tensor:
    """What the model says to an image that is the same every time."""
    return model(torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0)))


def test_the_same_size_changes_nothing(small_name: str, make_short: Make) -> None:
    model = loud(make_short(small_name))
    before, weights = answers(model, model.img_size), {k: v.clone() for k, v in model.state_dict().items()}
    model.set_input_size(model.img_size)
    assert torch.equal(answers(model, model.img_size), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_resizing_once_is_interpolating_in_every_call(small_name: str, make: Make) -> None:
    """A larger, non-square size: the resized model answers as the old one did by interpolation at run time."""
    model = loud(make(small_name))
    stride = model.spec.strides[-1]
    size = model.img_size[0] + stride, model.img_size[1] + 2 * stride
    expected = answers(model, size)
    model.set_input_size(size)
    torch.testing.assert_close(answers(model, size), expected)
    assert model.img_size == size and model.pretrained_cfg["input_size"] == (3, *size)


@pytest.mark.parametrize("name", ["deit_nano", "lit_nano"])
def test_tables_are_stored_in_the_new_size(name: str, make: Make) -> None:
    """The weights have the shapes of a model built for that size, and fit into it."""
    model = make(name)
    model.set_input_size(48)
    fresh = make(name, img_size=48)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes == {key: value.shape for key, value in fresh.state_dict().items()}
    assert shapes != {key: value.shape for key, value in make(name).state_dict().items()}


def test_what_does_not_depend_on_the_size_is_kept(make: Make) -> None:
    """Mode, frozen weights, checkpointing, and the very modules that know no size."""
    model = make("lit_nano").eval()
    model.set_grad_checkpointing()
    model.stages[1].requires_grad_(False)
    ffn, table = model.stages[1].blocks[0].ffn, model.stages[1].blocks[0].mixer.table
    model.set_input_size(64)
    block = model.stages[1].blocks[0]
    assert block.ffn is ffn and block.mixer.table is not table
    assert not any(parameter.requires_grad for parameter in model.stages[1].parameters())
    assert all(parameter.requires_grad for parameter in model.stages[2].parameters())
    assert not any(module.training for module in model.modules())
    assert all(stage.grad_checkpointing for stage in model.stages)


def test_a_pruned_feature_model_can_be_resized() -> None:
    model = timm.create_model("deit_nano", features_only=True, out_indices=[1, 2]).eval()
    pictures = torch.randn(1, 3, 48, 40)
    with torch.no_grad():
        before = model(pictures)
        model.model.set_input_size((48, 40))
        torch.testing.assert_close(model(pictures), before)
    assert len(model.model.stages[0].blocks) == 3


def test_windows_grow_and_shrink_with_the_map(make: Make) -> None:
    """A map smaller than the window gets a window of its own size, with the bias table resized to it."""
    model = make("swin_nano")
    assert [stage.blocks[0].mixer.size for stage in model.stages] == [4, 4, 4]
    table = model.stages[2].blocks[0].mixer.table.detach().clone()
    model.set_input_size(24)
    assert [stage.blocks[0].mixer.size for stage in model.stages] == [4, 4, 3]
    plane = table.T.reshape(1, 4, 7, 7)
    expected = F.interpolate(plane, size=(5, 5), mode="bicubic", align_corners=False).flatten(2)[0].T
    torch.testing.assert_close(model.stages[2].blocks[0].mixer.table, expected)


def test_patches_of_twice_the_size_see_twice_the_image(make: Make, stir: Stir, images: Images) -> None:
    """With doubled patches, an image doubled by repeating its pixels gives the tokens that it gave before."""
    model = stir(make("deit_nano")).eval()
    picture = images(model, 32, 32)
    with torch.no_grad():
        smooth = F.interpolate(picture, scale_factor=0.25, mode="bilinear")
        small = F.interpolate(smooth, size=32, mode="bicubic")
        large = F.interpolate(smooth, size=64, mode="bicubic")
        before = model.embed(small)[0]
        model.set_input_size(64, patch_size=8)
        after, grid, _ = model.embed(large)
    assert grid == Grid(8, 8) and model.embed.proj.kernel_size == (8, 8)
    assert model.feature_info[0]["reduction"] == 8
    assert (after - before).norm() < 0.1 * before.norm()


def test_patch_sizes_that_cannot_change_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="TokensToToken has weights for patches of 16 pixels only"):
        make("t2t_vit_7", device="meta").set_input_size(patch_size=8)
    with pytest.raises(ValueError, match="not square"):
        make("deit_nano", device="meta").set_input_size(patch_size=(4, 8))


def carried_over(name: str, **options: object) -> tuple[Backbone, Backbone]:
    """A model, and the same with other options and its weights resized; the old structure may be on the meta device."""
    old = Backbone(MODELS[name], num_classes=7)
    new = Backbone(apply_options(name, MODELS[name], options), num_classes=7)
    with torch.device("meta"):
        shape = Backbone(MODELS[name], num_classes=7)
    new.load_state_dict(resize_state(old.state_dict(), shape, new))
    return old, new


def test_a_kernel_of_seven_becomes_one_of_twelve() -> None:
    """Bicubic over its side; the sum, which a constant image is multiplied by, stays (dwconv paper, Table 14)."""
    old, new = carried_over("dwnet_tiny", kernel=12)
    before = old.stages[0].blocks[0].mixer.spatial.conv.weight.detach()
    after = new.stages[0].blocks[0].mixer.spatial.conv.weight.detach()
    assert after.shape == (96, 1, 12, 12)
    torch.testing.assert_close(after, F.interpolate(before, size=12, mode="bicubic") * 49 / 144)
    bump = torch.exp(-torch.linspace(-2, 2, 7).square())
    kernel = (bump[:, None] * bump)[..., None]
    assert resize_kernel(kernel, 12).sum().item() == pytest.approx(kernel.sum().item(), rel=0.01)


@pytest.mark.parametrize("name", ["ddwnet_nano", "iddwnet_nano"])
def test_predicted_kernels_are_resized_through_their_prediction(name: str) -> None:
    """The prediction is linear: resizing its rows is resizing every kernel that it predicts."""
    old, new = carried_over(name, kernel=7)
    before, after = (model.stages[1].blocks[0].mixer.spatial for model in (old, new))
    seen = torch.randn(3, before.predict.in_features)
    small = before.predict(seen).unflatten(1, (-1, 5, 5))
    large = after.predict(seen).unflatten(1, (-1, 7, 7))
    torch.testing.assert_close(large, F.interpolate(small, size=7, mode="bicubic") * 25 / 49)


def test_kernels_per_position_are_resized_over_positions() -> None:
    """What the module does at run time for a larger map is what is stored for that map."""
    spec = apply_options("dwnet_nano", MODELS["dwnet_nano"], {"share_positions": False})
    old, new = Backbone(spec, num_classes=7).eval(), Backbone(spec, num_classes=7, img_size=(40, 48)).eval()
    new.load_state_dict(resize_state(old.state_dict(), old, new))
    assert new.stages[0].blocks[0].mixer.spatial.weight.shape[1:3] == (20, 24)
    torch.testing.assert_close(answers(new, (40, 48)), answers(old, (40, 48)))


def test_local_mlp_keeps_what_a_constant_window_gives() -> None:
    """Another window: a constant field is multiplied by the sum over keys, which stays when the weights are smooth."""
    spec = replace(MODELS["local_mlp_tiny"], stages=MODELS["local_mlp_tiny"].stages[:1])
    with torch.device("meta"):
        old, new = (Backbone(spec, img_size=size, num_classes=0) for size in (28, 20))  # windows of 7 and 5
    names = [name for name, module in new.named_modules() if isinstance(module, LocalMlpModule)]
    weight, table = (f"{names[0]}.{key}" for key in ("weight", "table"))
    down = torch.linspace(0, 1, 7).square().view(1, 7, 1, 1, 1) + torch.linspace(1, 2, 7).view(1, 1, 1, 7, 1)
    pairs = down.expand(3, 7, 7, 7, 7).reshape(1, 1, 3, 49, 49)  # differs with the rows of query and key
    state = resize_state({weight: pairs, table: torch.ones(169, 3)}, old, new)
    assert state[weight].shape == (1, 1, 3, 25, 25) and state[table].shape == (81, 3)
    before, after = pairs.sum(-1)[0, 0, 0].view(7, 7)[:, 0], state[weight].sum(-1)[0, 0, 0].view(5, 5)[:, 0]
    assert after[2].item() == pytest.approx(before[3].item(), rel=0.02)  # the middle row
    assert_rounded(state[table] * 25, torch.full((81, 3), 49.0), sums=49)


def test_there_and_back_keeps_a_smooth_table() -> None:
    rows, columns = torch.linspace(0, 3, 14), torch.linspace(0, 2, 10)
    table = torch.stack((rows.sin()[:, None] * columns.cos(), rows[:, None] + columns), dim=-1)
    back = resize_plane(resize_plane(table, (24, 17), "bicubic"), (14, 10), "bicubic")
    torch.testing.assert_close(back, table, rtol=0, atol=0.06)
