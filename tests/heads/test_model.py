"""What holds for every detector and segmenter."""

import pytest
import torch
from small_heads import DETECTORS, SEGMENTERS, SMALL, make_target

from nearsight import fold
from nearsight.heads import HEADS, DenseModel, DenseSpec, TimmBackbone, from_json, to_json
from nearsight.models import MODELS
from tests.rounding import assert_rounded


def build(head: str, backbone: str = "lit_nano", classes: int = 2) -> DenseModel:
    return DenseModel(DenseSpec(MODELS[backbone], SMALL[head]), classes)


def targets_for(head: str, count: int = 2) -> list:
    if head in SEGMENTERS:
        return [torch.randint(0, 2, (64, 80)) for _ in range(count)]
    return [make_target((4, 4, 20, 24), (30, 10, 60, 50)), make_target((1, 1, 9, 12))][:count]


def test_every_head_has_a_name_and_is_tested() -> None:
    assert {name: type(head) for name, head in SMALL.items()} == HEADS


@pytest.mark.parametrize("head", SMALL)
def test_every_parameter_learns(head: str) -> None:
    model = build(head).train()
    losses = model(torch.randn(2, 3, 64, 80), targets=targets_for(head))
    assert all(loss.ndim == 0 and loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("head", SMALL)
def test_half_the_bits_train_and_predict(head: str) -> None:
    model = build(head, "dwnet_nano")
    with torch.autocast("cpu", torch.bfloat16):
        losses = model.train()(torch.randn(2, 3, 64, 80), targets=targets_for(head))
        assert all(loss.isfinite() and loss.dtype == torch.float32 for loss in losses.values())
        found = model.eval()(torch.randn(1, 3, 64, 80))
    if head in DETECTORS:
        assert found[0]["boxes"].dtype == torch.float32


@pytest.mark.parametrize("head", DETECTORS)
@pytest.mark.parametrize("size", [(64, 80), (33, 47), (7, 5)])
def test_detections_lie_inside_of_their_images(head: str, size: tuple[int, int]) -> None:
    model = build(head).eval()
    sizes = torch.tensor([size, (max(size[0] - 3, 1), max(size[1] // 2, 1))])
    found = model(torch.randn(2, 3, *size), sizes)
    for one, (height, width) in zip(found, sizes.tolist(), strict=True):
        count = len(one["scores"])
        assert one["boxes"].shape == (count, 4) and one["labels"].shape == (count,)
        assert ("masks" in one) == model.masks
        if model.masks:
            assert one["masks"].shape == (count, height, width) and one["masks"].dtype == torch.bool
        assert (one["boxes"] >= 0).all() and (one["boxes"][:, 2:] <= torch.tensor([width, height])).all()
        assert (one["scores"].diff() <= 0).all()
        assert set(one["labels"].tolist()) <= {0, 1}


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize("size", [(64, 80), (33, 47), (7, 5)])
def test_logits_cover_images_of_any_size(head: str, size: tuple[int, int]) -> None:
    assert build(head).eval()(torch.randn(2, 3, *size)).shape == (2, 2, *size)


@pytest.mark.parametrize("head", DETECTORS)
def test_hard_targets_give_finite_losses(head: str) -> None:
    """No objects at all, one of one pixel, one outside, one without area, a crowd; and one class."""
    model = build(head, classes=1).train()
    hard = make_target((10, 10, 11, 11), (70, 60, 95, 99), (5, 5, 5, 9), (20, 20, 40, 40))
    hard["labels"].zero_()
    hard["crowd"][3] = True
    for targets in ([make_target(), make_target()], [hard, make_target()], [make_target((0, 0, 80, 64)), hard]):
        losses = model(torch.randn(2, 3, 64, 80), torch.tensor([[64, 80], [40, 30]]), targets)
        assert all(loss.isfinite() for loss in losses.values()), losses
        sum(losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("head", DETECTORS)
def test_a_crowd_is_no_object(head: str) -> None:
    model = build(head).eval()
    model.head.train()  # batch norm and dropout of the backbone as in evaluation
    model.training = True
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    images = torch.randn(1, 3, 64, 80)
    one, crowd = make_target((4, 4, 20, 24)), make_target((4, 4, 20, 24), (30, 10, 60, 50))
    crowd["crowd"][1] = True
    losses = []
    for target in (one, crowd):
        torch.manual_seed(1)
        losses.append(model(images, targets=[target]))
    assert losses[0].keys() == losses[1].keys()
    assert all(torch.equal(losses[0][name], losses[1][name]) for name in losses[0])


@pytest.mark.parametrize("head", SEGMENTERS)
def test_pixels_that_do_not_count_have_no_part_in_the_loss(head: str) -> None:
    model = build(head).train()
    unseen = [torch.full((64, 80), 255), torch.full((64, 80), 255, dtype=torch.uint8)]
    losses = model(torch.randn(2, 3, 64, 80), targets=unseen)
    assert all(loss.item() == 0 for loss in losses.values())
    sum(losses.values()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("head", SEGMENTERS)
def test_a_batch_of_one_image_trains(head: str) -> None:
    losses = build(head).train()(torch.randn(1, 3, 16, 16), targets=[torch.zeros(16, 16, dtype=torch.long)])
    assert all(loss.isfinite() for loss in losses.values())


@pytest.mark.parametrize("head", SMALL)
def test_a_spec_goes_to_json_and_back(head: str) -> None:
    for backbone in (MODELS["dwnet_nano"], TimmBackbone("resnet18", (("in_chans", 3),))):
        spec = DenseSpec(backbone, SMALL[head])
        assert from_json(to_json(spec)) == spec


@pytest.mark.parametrize("head", SMALL)
def test_a_folded_model_gives_the_same_predictions(head: str) -> None:
    model = build(head, "dwnet_nano").eval()
    for module in model.modules():  # statistics that folding must not lose
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.5, 2)
    images = torch.randn(1, 3, 48, 64)
    with torch.no_grad():
        ours, folded = model(images), fold(model)(images)
    if head in SEGMENTERS:
        assert_rounded(folded, ours, model)
    else:
        assert len(ours[0]["scores"]) == len(folded[0]["scores"]) > 0
        assert_rounded(folded[0]["scores"], ours[0]["scores"], model)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (None, "needs targets"),
        ([make_target()], "a target for each of its 2 images, not 1"),
        ([{"boxes": torch.zeros(0, 4)}] * 2, "no 'labels'"),
        ([make_target((1, 1, 5, 5)) | {"labels": torch.tensor([7])}] * 2, "class number 7; this model's are 0 to 1"),
    ],
)
def test_wrong_targets_are_refused_in_one_sentence(targets: list | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("retinanet").train()(torch.randn(2, 3, 64, 80), targets=targets)


def test_wrong_class_maps_are_refused_in_one_sentence() -> None:
    model = build("linear").train()
    with pytest.raises(ValueError, match="holds the value 9; this model's classes are 0 to 1, and 255 is not counted"):
        model(torch.randn(1, 3, 64, 80), targets=[torch.full((64, 80), 9)])
    with pytest.raises(ValueError, match="they must be equal"):
        model(torch.randn(1, 3, 64, 80), targets=[torch.zeros(10, 80)])


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit 1 images of 64x80 pixels"):
        build("linear").eval()(torch.randn(1, 3, 64, 80), torch.tensor([[65, 80]]))
