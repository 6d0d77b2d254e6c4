"""Grad-CAM and gradient-weighted roll-out are what their formulas say."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from explained_models import MIXERS, build, pictures
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import nearsight
from nearsight.explanation import capture, grad_cam, grad_rollout
from nearsight.explanation.gradients import GradientRun
from nearsight.lattice import Grid
from nearsight.ops.attention_matrix import KernelMatrix
from tests.rounding import assert_rounded


def by_formula(model, target_module, images: Tensor, classes: list[int], aux: int, size: tuple[int, int]) -> Tensor:
    """Channels weighted by the mean of their gradients, added up, what is negative left out."""
    kept: list[Tensor] = []
    handle = target_module.register_forward_hook(lambda m, i, o: kept.append(o))
    logits = model(images)
    handle.remove()
    (slope,) = torch.autograd.grad(sum(row[number] for row, number in zip(logits, classes, strict=True)), kept[0])
    weights = slope[:, aux:].mean(dim=1, keepdim=True)
    return (weights * kept[0][:, aux:]).sum(dim=-1).relu().unflatten(1, size)


@pytest.mark.parametrize(("name", "aux", "size"), [("swin_nano", 0, (5, 4)), ("deit_nano", 1, (10, 8))])
def test_it_is_the_formula(name: str, aux: int, size: tuple[int, int]) -> None:
    model, images, classes = build(name), pictures(40, 32), [3, 1]
    block = model.stages[-1].blocks[-1]
    expected = by_formula(model, block.norm1 if aux else block, images, classes, aux, size).detach().numpy()
    maps = grad_cam(model, images, classes=classes)
    assert_rounded(maps.values[:, 0], expected, model)
    assert expected.max() > 0 and maps.raw["classes"].tolist() == classes


def test_gradients_of_a_training_are_left_alone() -> None:
    model = build("localvit_nano")
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    grad_cam(model, pictures())
    assert torch.equal(first.grad, torch.ones_like(first))
    assert sum(parameter.grad is not None for parameter in model.parameters()) == 1


def test_a_class_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="There is no class 9; the model has 5, counted from 0"):
        grad_cam(build("deit_nano"), pictures(count=1), classes=[9])
    with pytest.raises(ValueError, match="give a classifier with a head"):
        grad_cam(headless(), pictures(count=1))


def headless():
    model = build("deit_nano")
    model.reset_classifier(0)
    return model


def test_grad_cam_is_that_of_the_package() -> None:
    package = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    model, images, classes = build("swin_nano"), pictures(40, 32), [3, 1]
    block = model.stages[-1].blocks[-1]
    maps = grad_cam(model, images, classes=classes)
    assert all(parameter.grad is None for parameter in model.parameters())
    camera = package.GradCAM(model, [block], reshape_transform=lambda t: t.transpose(1, 2).unflatten(2, (5, 4)))
    with camera as cam:
        cam(images, [targets.ClassifierOutputTarget(number) for number in classes])
        kept = cam.activations_and_grads
        own = cam.get_cam_image(images, block, None, kept.activations[0].numpy(), kept.gradients[0].numpy())
    expected = np.maximum(own, 0)
    np.testing.assert_allclose(maps.values[:, 0], expected, rtol=1e-3, atol=1e-5 * expected.max())


def chefer_by_hooks(model: Any, images: Tensor, number: int) -> Tensor:
    """Chefer et al.'s rule on the attention that timm computes with fused attention off `[B, N, N]`."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, attention: Tensor) -> None:
        attention.retain_grad()
        kept.append(attention)

    handles = []
    for block in model.blocks:
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_hook(keep))
    model(images)[:, number].sum().backward()
    for handle in handles:
        handle.remove()
    relevance = torch.eye(kept[0].shape[-1]).expand(len(images), -1, -1)
    for attention in kept:
        relevance = relevance + (attention.grad * attention).clamp(min=0).mean(dim=1).detach() @ relevance
    return relevance


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 3, "qk_norm": True}, {"scale_attn_norm": True}], ids=str)
def test_roll_out_of_gradients_is_chefers_rule_on_timms_own_attention(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    size = {"img_size": (64, 48), "embed_dim": 32, "depth": 3, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **size, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    images = torch.randn(2, 3, 64, 48)
    maps = grad_rollout(model, images, classes=[2, 0])
    assert all(block.attn.fused_attn for block in model.blocks), "the model keeps its fused attention"
    assert maps.values.shape == (2, 2, 4, 3)
    for index, number in enumerate((2, 0)):
        expected = chefer_by_hooks(model, images, number)[:, 0, model.num_prefix_tokens :].unflatten(1, (4, 3))
        assert_rounded(maps.values[:, index], expected, model)
    assert not np.allclose(maps.values[:, 0], maps.values[:, 1], rtol=0.05), "classes have maps of their own"


class Explicit(TorchFunctionMode):
    """Fused attention written out, its weights kept with their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **options)
        queries, keys, values = args
        scale, mask = options.get("scale") or queries.shape[-1] ** -0.5, options.get("attn_mask")
        logits = scale * (queries @ keys.mT)
        weights = (logits if mask is None else logits + mask).softmax(dim=-1)
        weights.retain_grad()
        self.kept.append(weights)
        return weights @ values


ATTENTION = ("global relative", "locality attention", "life", "shifted windows", "cosine windows", "life in windows")


@pytest.mark.parametrize("kind", [*ATTENTION, "spatial reduction"])
def test_what_weights_add_to_a_class_follows_from_written_out_attention(kind: str) -> None:
    name, options = MIXERS[kind]
    model, images = build(name, **options).double(), pictures(32, 48).double()
    run = GradientRun(seen := capture(model, images))
    layers = list(run.mixed)
    gradients = torch.autograd.grad(run.output[:, 1].sum(), [run.mixed[layer] for layer in layers])
    with Explicit() as explicit:
        model(images)[:, 1].sum().backward()
    assert len(explicit.kept) == len(layers) > 0
    for layer, gradient, weights in zip(layers, gradients, explicit.kept, strict=True):
        matrix = layer.attention_matrix
        split = matrix.on_map(gradient).unflatten(-1, (matrix.heads, -1)).transpose(1, 2)
        added, _ = matrix.positive(torch.arange(layer.grid.tokens), split)
        own = (weights * weights.grad).clamp(min=0).sum(dim=-1).transpose(1, 2)  # [B * windows, slots, h]
        expected = matrix.on_map(own.detach()).transpose(1, 2)  # of each token: what all its weights add
        torch.testing.assert_close(added.sum(dim=-1), expected, rtol=1e-6, atol=1e-9 * float(expected.max()))
    assert seen.layers[-1] in run.mixed


def test_kernels_add_their_weight_times_what_lies_there() -> None:
    tokens, gradient = torch.randn(1, 12, 4), torch.randn(1, 12, 4)
    kernels = torch.randn(4, 9)
    about = {"images": 1, "heads": 4, "signed": True, "values": tokens}
    matrix = KernelMatrix(lambda rows, _: kernels[None, :, None].expand(1, 4, len(rows), 9), 3, Grid(3, 4), **about)
    around = F.unfold(tokens.transpose(1, 2).view(1, 4, 3, 4), 3, padding=1).view(4, 9, 12).permute(0, 2, 1)
    expected = (kernels[:, None] * gradient[0].T[..., None] * around).relu()  # [channel, query, offset]
    added, _ = matrix.positive(torch.arange(12), gradient.transpose(1, 2)[..., None])
    torch.testing.assert_close(added[0], expected)


@pytest.mark.parametrize("kind", ["gather and broadcast", "depth-wise", "inhomogeneous", "local mlp", "sliding"])
def test_every_mixer_gives_maps_of_classes(kind: str) -> None:
    name, options = MIXERS[kind]
    model, images = build(name, **options), pictures(40, 36)
    maps = grad_rollout(model, images, classes=[0, 1])
    assert maps.values.shape[:2] == (2, 2) and (maps.values >= 0).all() and np.isfinite(maps.values).all()
    assert abs(maps.values[:, 0] - maps.values[:, 1]).max() > 1e-4
    predicted = model(images).argmax(dim=1)
    own = grad_rollout(model, images).values[:, 0]
    for index, number in enumerate(predicted.tolist()):
        alone = grad_rollout(model, images[[index]], classes=[number]).values[0, 0]
        assert_rounded(own[index], alone, model)


def test_what_has_no_gradient_or_class_is_refused() -> None:
    model = nearsight.create_model("deit_nano", num_classes=3)
    with pytest.raises(ValueError, match="There is no class 3; the model has 3"):
        grad_rollout(model, pictures(), classes=[3])
    with pytest.raises(ValueError, match="A folded model has no gradients"):
        grad_rollout(model.eval().fold(), pictures())
