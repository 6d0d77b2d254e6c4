"""Grad-CAM through the package is Grad-CAM by its formula, on maps of tokens."""

import numpy as np
import pytest
import torch
from explained_models import build, pictures
from torch import Tensor

from nearsight.explanation import grad_cam


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
    np.testing.assert_allclose(maps.values[:, 0], expected, rtol=1e-3, atol=1e-5 * expected.max())
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
