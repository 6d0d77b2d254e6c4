"""Segmenters: their losses, their parts, and images window by window."""

import pytest
import torch
import torch.nn.functional as F
from small_heads import SEGMENTERS, SMALL

from nearsight.heads import DenseModel, DenseSpec, LinearHead, UperNet, slide
from nearsight.models import MODELS


def build(head: str) -> DenseModel:
    return DenseModel(DenseSpec(MODELS["dwnet_nano"], SMALL[head]), 3).eval()


@pytest.mark.parametrize("head", SEGMENTERS)
def test_the_loss_is_the_cross_entropy_of_the_logits(head: str) -> None:
    model = build(head)
    images, sizes = torch.randn(2, 3, 48, 64), torch.tensor([[48, 64], [30, 50]])
    truth = [torch.randint(0, 3, size.tolist()) for size in sizes]
    truth[0][:5] = 255
    with torch.no_grad():
        logits = model(images, sizes)
        model.training = True  # batch norm and dropout stay as in evaluation
        loss = model(images, sizes, truth)["pixels"]
    pixels = [F.cross_entropy(one[None, :, :h, :w], t[None], ignore_index=255, reduction="sum")
              for one, t, (h, w) in zip(logits, truth, sizes.tolist(), strict=True)]  # fmt: skip
    counted = sum(int((t != 255).sum()) for t in truth)
    torch.testing.assert_close(loss, sum(pixels) / counted)


@pytest.mark.parametrize("head", SEGMENTERS)
def test_weights_of_classes_multiply_the_loss_of_their_pixels(head: str) -> None:
    model = build(head)
    images, truth, weights = torch.randn(1, 3, 32, 32), torch.randint(0, 3, (32, 32)), torch.tensor([0.5, 1.0, 3.0])
    truth[:4] = 255
    with torch.no_grad():
        logits = model(images)
        model.training = True
        model.head.class_weights = weights
        loss = model(images, targets=[truth])["pixels"]
    log_p = logits[0].log_softmax(dim=0)
    pixels = [(row, column) for row in range(4, 32) for column in range(32)]
    total = sum(-weights[truth[at]] * log_p[(truth[at], *at)] for at in pixels)
    torch.testing.assert_close(loss, total / len(pixels))


def test_the_helper_of_upernet_weighs_what_is_asked() -> None:
    losses = []
    for weight in (0.4, 0.8):
        torch.manual_seed(0)
        head = UperNet(channels=8, helper_channels=8, helper_weight=weight, dropout=0.0)
        model = DenseModel(DenseSpec(MODELS["dwnet_nano"], head), 3).eval()
        model.training = True
        with torch.no_grad():
            losses.append(model(torch.ones(1, 3, 32, 32), targets=[torch.zeros(32, 32)]))
    assert losses[1]["helper"] == pytest.approx(2 * losses[0]["helper"].item())
    assert losses[1]["pixels"] == losses[0]["pixels"]
    plain = DenseModel(DenseSpec(MODELS["dwnet_nano"], UperNet(channels=8, helper_weight=0.0)), 3)
    assert plain.head.helper is None


def test_the_linear_head_is_one_layer_on_the_last_tokens() -> None:
    model = DenseModel(DenseSpec(MODELS["deit_nano"], LinearHead()), 3).eval()
    assert sum(p.numel() for p in model.head.parameters()) == 96 * 3 + 3
    images = torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        tokens = model.pyramid.backbone.forward_features(images)[:, 1:]
        layer = model.head.classifier
        small = F.linear(tokens, layer.weight.flatten(1), layer.bias).transpose(1, 2).unflatten(2, (8, 12))
        expected = F.interpolate(small, size=(32, 48), mode="bilinear")
        torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize("window", [48, (48, 64), 100])
def test_one_window_is_the_whole_image(window: int | tuple[int, int]) -> None:
    model, images = build("semantic-fpn"), torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        assert torch.equal(slide(model, images, window), model(images))


@pytest.mark.parametrize(
    ("size", "window", "step"), [((40, 60), 32, 16), ((65, 33), (32, 33), 7), ((64, 64), 32, None)]
)
def test_windows_average_what_they_see(size: tuple[int, int], window: int | tuple[int, int], step: int | None) -> None:
    """A classifier of single pixels gives the same answer in every window."""
    layer = torch.nn.Conv2d(3, 4, 1)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        answers = slide(layer, images, window, step)
        torch.testing.assert_close(answers.softmax(1), layer(images).softmax(1))


def test_windows_see_every_pixel_as_often_as_they_overlap_there() -> None:
    corners: list[tuple[int, int]] = []

    def classify(crop: torch.Tensor) -> torch.Tensor:
        corners.append((int(crop[0, 0, 0, 0]), int(crop[0, 1, 0, 0])))
        return crop

    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(20.0), indexing="ij")
    slide(classify, torch.stack((rows, columns))[None], 16, 12)
    assert corners == [(0, 0), (0, 4), (12, 0), (12, 4), (24, 0), (24, 4)]


def test_windows_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="leave gaps"):
        slide(lambda crop: crop, torch.zeros(1, 3, 64, 64), 16, 17)
