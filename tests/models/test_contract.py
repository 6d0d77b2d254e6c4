"""Every registered model keeps the same contract.

Shapes are checked for all models, without arithmetic, on the meta device. Numbers are checked on the small models and
on one model for each kind of part.
"""

import math
from collections.abc import Callable

import pytest
import timm
import torch
from timm.models import group_parameters
from torch import Tensor, nn

from nearsight.models import MODELS, Backbone
from tests.rounding import assert_rounded

Make = Callable[..., Backbone]
Stir = Callable[[Backbone], Backbone]
Images = Callable[..., Tensor]

# All models


def test_any_size_from_the_stride_up(any_name: str, make_short: Make) -> None:
    """One model takes the smallest image, then odd, non-square ones; a map has a cell for every stride begun."""
    with torch.device("meta"):
        model = make_short(any_name).eval()
        stride = model.spec.strides[-1]
        for batch, height, width in ((1, stride, stride), (3, 2 * stride + 7, stride + 3)):
            features = model.forward_features(torch.empty(batch, 3, height, width))
            assert model.forward_head(features).shape == (batch, 7)
            if not model.spec.aux:
                assert features.shape[2:] == (math.ceil(height / stride), math.ceil(width / stride))


def test_features_only_gives_what_it_promises(whole_name: str) -> None:
    """Channels and strides of the feature maps are those that the spec's stages have, and timm is told so."""
    with torch.device("meta"):
        model = timm.create_model(whole_name, features_only=True).eval()
        spec = MODELS[whole_name]
        size = 3 * spec.strides[-1]
        maps = model(torch.empty(2, 3, size, 2 * size))
    stages = spec.stages if len(spec.stages) > 1 else spec.stages * 3  # of a single stage: the last three blocks
    strides = spec.strides if len(spec.stages) > 1 else spec.strides * 3
    assert model.feature_info.channels() == [stage.dim for stage in stages]
    assert model.feature_info.reduction() == list(strides)
    expected = [
        (2, stage.dim, size // stride, 2 * size // stride) for stage, stride in zip(stages, strides, strict=True)
    ]
    assert [tuple(m.shape) for m in maps] == expected


def test_description_names_real_layers(any_name: str, make: Make) -> None:
    """`first_conv` sees the image's channels, `classifier` has the classes, on a model built without memory."""
    model = make(any_name, in_chans=5, device="meta", num_classes=11)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    described = model.pretrained_cfg
    first = model.get_submodule(described["first_conv"])
    seen = first.in_channels if isinstance(first, nn.Conv2d) else first.in_features
    assert seen % 5 == 0
    heads = described["classifier"]
    for head in (heads,) if isinstance(heads, str) else heads:
        assert model.get_submodule(head).out_features == 11
    assert described["input_size"] == (5, *model.img_size) and described["num_classes"] == 11


def test_layer_groups_follow_the_depth(any_name: str, make: Make) -> None:
    """Layer-wise learning rates: every parameter in one group; embedding first, then blocks in order, head last."""
    model = make(any_name, device="meta")
    assert group_parameters(model, model.group_matcher(coarse=True)).keys() == set(range(len(model.stages) + 2))
    groups = group_parameters(model, model.group_matcher(coarse=False))
    group_of = {parameter: number for number, names in groups.items() for parameter in names}
    assert group_of.keys() == {parameter for parameter, _ in model.named_parameters()}
    blocks = [
        {group_of[n] for n in group_of if n.startswith(f"stages.{s}.blocks.{b}.")}
        for s, stage in enumerate(model.stages)
        for b in range(len(stage.blocks))
    ]
    assert all(len(numbers) == 1 for numbers in blocks)
    order = [numbers.pop() for numbers in blocks]
    assert order == sorted(set(order))
    embedding = {group_of[n] for n in group_of if n.startswith("embed.")}
    assert embedding == {0} and order[0] > 0
    assert group_of["head.weight"] == max(group_of.values())
    assert model.no_weight_decay() <= group_of.keys()


# Models small enough to compute with


def test_every_parameter_gets_a_finite_gradient(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    model = stir(make_short(small_name)).train()
    logits = model(images(model, *(2 * model.spec.strides[-1] + 1,) * 2))
    (logits * torch.randn_like(logits)).sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not without


def test_a_prediction_depends_on_its_image_alone(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    """In evaluation mode: the same again after other sizes were seen, and the same alone as in a batch."""
    model = stir(make_short(small_name)).eval()
    stride = model.spec.strides[-1]
    batch = images(model, 2 * stride - 1, stride + 1, batch=3)
    with torch.no_grad():
        first = model(batch)
        model(images(model, stride, 3 * stride))
        again, alone = model(batch), model(batch[1:2])
    assert torch.equal(first, again)
    assert_rounded(alone, first[1:2], model)
    assert not torch.allclose(first[0], first[1], rtol=1e-4, atol=1e-4)


def test_parts_of_the_forward_pass_add_up(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    """`forward` is the head on the features, and `forward_intermediates` passes through the same features."""
    model = stir(make_short(small_name)).eval()
    pictures = images(model, *(model.spec.strides[-1] + 3,) * 2)
    with torch.no_grad():
        features = model.forward_features(pictures)
        final, maps = model.forward_intermediates(pictures, norm=True)
        (last, prefix) = model.forward_intermediates(
            pictures, indices=1, norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )[0]
        early = model.forward_intermediates(pictures, indices=[0], stop_early=True, intermediates_only=True)
        later = model.forward_intermediates(pictures, intermediates_only=True)
        torch.testing.assert_close(model.forward_head(features), model(pictures))
    torch.testing.assert_close(final, features)
    tokens = model.neck(torch.cat((prefix, last), dim=1))
    whole = features if model.num_prefix_tokens else features.flatten(2).transpose(1, 2)
    torch.testing.assert_close(tokens, whole)
    torch.testing.assert_close(maps[-1].flatten(2).transpose(1, 2), last)
    torch.testing.assert_close(early[0], later[0])
    assert len(maps) == len(later) == len(model.feature_info)


def test_checkpointing_changes_no_gradient(small_name: str, make: Make, stir: Stir, images: Images) -> None:
    gradients = []
    for enable in (False, True):
        model = stir(make(small_name, drop_path_rate=0.0)).train()
        model.set_grad_checkpointing(enable)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model(images(model)).square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("in_chans", [1, 2, 4, 16])
def test_images_of_any_channels(nano_name: str, in_chans: int, make: Make, stir: Stir, images: Images) -> None:
    """Each channel counts, and the description says how many there are."""
    model = stir(make(nano_name, in_chans=in_chans)).eval()
    pictures = images(model).requires_grad_()
    model(pictures).square().sum().backward()
    assert pictures.grad is not None and (pictures.grad.abs().sum(dim=(0, 2, 3)) > 0).all()
    assert model.pretrained_cfg["input_size"][0] == in_chans


def test_bfloat16_is_float32_with_fewer_digits(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    model = stir(make_short(small_name)).eval()
    pictures = images(model)
    with torch.no_grad():
        exact = model(pictures)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(pictures)
        rough = model.bfloat16()(pictures.bfloat16())
    assert rough.dtype == torch.bfloat16
    for answer in (mixed, rough):
        error = (answer.float() - exact).norm() / exact.norm()
        assert error < 0.1


def test_a_state_dict_is_the_whole_model(small_name: str, make: Make, stir: Stir, images: Images) -> None:
    """The weights of one model in another give the same answers."""
    one, other = stir(make(small_name)).eval(), timm.create_model(small_name, num_classes=7).eval()
    pictures = images(one)
    with torch.no_grad():
        before = other(pictures)
        other.load_state_dict(one.state_dict())
        assert torch.equal(other(pictures), one(pictures))
    assert not torch.equal(before, other(pictures))


def test_classifiers_come_and_go(small_name: str, make_short: Make, stir: Stir, images: Images) -> None:
    """Another number of classes keeps the features; none gives the pooled features; no pooling gives them all."""
    model = stir(make_short(small_name)).eval()
    pictures = images(model)
    with torch.no_grad():
        features = model.forward_features(pictures)
        pooled = model.forward_head(features, pre_logits=True)
        model.reset_classifier(3)
        assert model(pictures).shape == (2, 3)
        torch.testing.assert_close(model.forward_features(pictures), features)
        model.reset_classifier(0)
        torch.testing.assert_close(model(pictures), pooled)
        assert pooled.shape == (2, model.num_features)
        model.reset_classifier(0, "avg")
        patches = features[:, model.num_prefix_tokens :].mean(1) if features.ndim == 3 else features.mean((2, 3))
        torch.testing.assert_close(model(pictures), patches)
        model.reset_classifier(0, "")
        torch.testing.assert_close(model(pictures), features)


def test_a_pruned_model_can_be_given_a_head_again(nano_name: str, make: Make, images: Images) -> None:
    """What is left behind the first two maps has their width, and none of the later weights."""
    model = make(nano_name)
    whole = sum(parameter.numel() for parameter in model.parameters())
    model.prune_intermediate_layers([0, 1], prune_norm=True)
    assert sum(parameter.numel() for parameter in model.parameters()) < whole
    model.reset_classifier(5, "avg")
    assert model.head.in_features == model.feature_info[1]["num_chs"]
    assert model(images(model)).shape == (2, 5)


@pytest.mark.parametrize("global_pool", ["token", "avg", "all"])
def test_both_heads_of_a_distilled_model_learn(global_pool: str, make: Make, images: Images) -> None:
    """Whatever is pooled: the answer is the mean of both heads, and no parameter is idle."""
    model = make("deit_tiny_distilled", global_pool=global_pool)
    logits = model(images(model))
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.set_distilled_training()
    by_class, by_teacher = model(images(model))
    assert not torch.allclose(by_class, by_teacher)


def test_drop_path_drops_blocks_in_training_alone(nano_name: str, make: Make, stir: Stir, images: Images) -> None:
    """With a rate near 1 the last blocks vanish for most images; in evaluation the rate has no effect."""
    calm, wild = (stir(make(nano_name, drop_path_rate=rate)) for rate in (0.0, 0.9))
    wild.load_state_dict(calm.state_dict())
    pictures = images(calm)
    with torch.no_grad():
        assert torch.equal(calm.eval()(pictures), wild.eval()(pictures))
        wild.train()
        assert not torch.allclose(wild(pictures), wild(pictures))


def test_drop_path_grows_with_the_depth(make: Make) -> None:
    """Stochastic depth rises linearly from 0 at the first block to the given rate at the last."""
    model = make("deit_nano", drop_path_rate=0.5)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.stages[0].blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_unknown_names_are_refused_with_a_hint(make: Make) -> None:
    with pytest.raises(ValueError, match="use token, avg, all"):
        make("deit_nano", global_pool="max")
    with pytest.raises(ValueError, match="needs a model with auxiliary tokens"):
        make("swin_nano", global_pool="token")
    with pytest.raises(ValueError, match="use NCHW or NLC"):
        make("deit_nano").forward_intermediates(torch.zeros(1, 3, 32, 32), output_fmt="NHWC")


def test_without_pooling_every_position_is_classified_and_their_mean_is_the_prediction(
    make: Make, images: Images
) -> None:
    model = make("swin_nano").eval()
    pictures = images(model, 40, 33)
    answer = model(pictures)
    model.global_pool = ""
    maps = model(pictures)
    assert maps.shape == (*answer.shape, 5, 5)
    torch.testing.assert_close(maps.mean(dim=(2, 3)), answer)
