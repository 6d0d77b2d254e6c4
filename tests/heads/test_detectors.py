"""Detectors beside torchvision's own classes, and what a cascade and padding must keep."""

from collections import OrderedDict
from functools import partial
from typing import Literal

import pytest
import torch
from small_heads import make_target
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN, RetinaNet
from torchvision.models.detection.image_list import ImageList as TorchImageList
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops import MultiScaleRoIAlign

from nearsight.heads import CascadeMaskRcnn, DenseModel, DenseSpec, MaskRcnn, Retina
from nearsight.heads.anchors import LevelAnchors
from nearsight.heads.image_list import ImageList
from nearsight.heads.rcnn import draw_mask
from nearsight.models import MODELS

SIZE = (64, 96)


class Levels(nn.Module):
    """Stands where torchvision has its backbone: gives out the levels that our network made."""

    def __init__(self, channels: int):
        super().__init__()
        self.out_channels = channels
        self.levels: list[Tensor] = []

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        return OrderedDict((str(index), level) for index, level in enumerate(self.levels))


class AsGiven(nn.Module):
    """Stands where torchvision resizes and normalises images: leaves them as they are."""

    def forward(self, images: list[Tensor], targets: list | None = None) -> tuple[TorchImageList, list | None]:
        return TorchImageList(torch.stack(images), [tuple(image.shape[-2:]) for image in images]), targets

    def postprocess(self, found: list, *_: object) -> list:
        return found


def one_level_of(model: DenseModel, images: Tensor) -> list[Tensor]:
    return model.head.fpn(model.pyramid(images))


def numbered(targets: list, first: int) -> list:
    return [target | {"labels": target["labels"] + first} for target in targets]


@pytest.fixture
def targets() -> list[dict[str, Tensor]]:
    size = SIZE
    return [
        make_target((4, 4, 20, 24), (30, 10, 60, 50), size=size),
        make_target(size=size),
        make_target((1, 1, 9, 12), size=size),
    ]


@pytest.mark.parametrize(("groups", "box_loss"), [(0, "l1"), (4, "giou")])
def test_retinanet_has_torchvision_s_losses_and_detections(
    groups: int, box_loss: Literal["l1", "giou"], targets: list
) -> None:
    settings = Retina(finest=4, levels=3, channels=16, groups=groups, box_loss=box_loss, score_threshold=0.005)
    model = DenseModel(DenseSpec(MODELS["dwnet_nano"], settings), num_classes=2).eval()
    nn.init.normal_(model.head.head.classification_head.cls_logits.bias, mean=-3.0)
    norm = partial(nn.GroupNorm, groups) if groups else None
    head = RetinaNetHead(16, 9, 2, norm_layer=norm)
    head.load_state_dict(model.head.head.state_dict())
    head.regression_head._loss_type = box_loss  # as torchvision's second version does it
    peer = RetinaNet(
        Levels(16), 2, anchor_generator=model.head.anchors, head=head, score_thresh=0.005, detections_per_img=100
    )
    peer.transform = AsGiven()
    images = torch.randn(3, 3, *SIZE)
    with torch.no_grad():
        peer.backbone.levels = one_level_of(model, images)
        theirs = peer.eval()(list(images))
        ours = model(images)
        for mine, other in zip(ours, theirs, strict=True):
            assert len(mine["scores"]) == len(other["scores"]) == 100
            torch.testing.assert_close(mine["boxes"], other["boxes"])
            assert torch.equal(mine["labels"], other["labels"])
        model.training = True  # batch norms stay as they are
        losses, expected = model(images, targets=targets), peer.train()(list(images), numbered(targets, 0))
    # torchvision also counts anchors whose centres lie behind the border; there are none without padding.
    torch.testing.assert_close(losses["classes"], expected["classification"])
    torch.testing.assert_close(losses["boxes"], expected["bbox_regression"])


def test_norms_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="groups=3 does not divide channels=16; give a divisor of it"):
        DenseModel(DenseSpec(MODELS["dwnet_nano"], Retina(channels=16, groups=3)), 2)


@pytest.fixture
def mask_pair() -> tuple[DenseModel, MaskRCNN]:
    """Our Mask R-CNN and torchvision's, with the same weights behind the levels."""
    head = MaskRcnn(finest=2, levels=4, channels=16, hidden=32, rois=64, proposals=(100, 100), score_threshold=0.2)
    model = DenseModel(DenseSpec(MODELS["dwnet_nano"], head), num_classes=2).eval()
    ours = model.head
    pools = {
        f"{name}_roi_pool": MultiScaleRoIAlign(["0", "1", "2"], side, sampling_ratio=2)
        for name, side in (("box", 7), ("mask", 14))
    }
    peer = MaskRCNN(
        Levels(16), 3, rpn_anchor_generator=ours.rpn.anchor_generator, rpn_head=ours.rpn.head, **pools,
        rpn_post_nms_top_n_train=100, rpn_post_nms_top_n_test=100, box_batch_size_per_image=64, box_score_thresh=0.2,
        box_head=ours.stages[0].box_head, mask_head=ours.mask_stages[0].convs,
    )  # fmt: skip
    peer.transform = AsGiven()
    predictor = peer.roi_heads.box_predictor = nn.Module()
    predictor.forward = lambda hidden: with_background(*ours.stages[0].box_predictor(hidden))
    drawn = ours.mask_stages[0].predictor
    peer.roi_heads.mask_predictor = nn.Module()
    peer.roi_heads.mask_predictor.forward = lambda pooled: nn.functional.pad(drawn(pooled), (0, 0, 0, 0, 1, 0))
    nn.init.normal_(ours.stages[0].box_predictor.classes.weight, std=0.5)
    nn.init.normal_(ours.stages[0].box_predictor.boxes.weight, std=0.2)
    return model, peer


def with_background(logits: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """torchvision also has boxes of the background."""
    return logits, nn.functional.pad(codes, (0, 0, 1, 0)).flatten(1)


def test_mask_rcnn_has_torchvision_s_detections(mask_pair: tuple[DenseModel, MaskRCNN]) -> None:
    model, peer = mask_pair
    images = torch.randn(2, 3, *SIZE)
    with torch.no_grad():
        peer.backbone.levels = one_level_of(model, images)
        for mine, other in zip(model(images), peer.eval()(list(images)), strict=True):
            assert len(mine["scores"]) == len(other["scores"]) > 5
            torch.testing.assert_close(mine["boxes"], other["boxes"])
            torch.testing.assert_close(mine["scores"], other["scores"])
            assert torch.equal(mine["labels"], other["labels"] - 1)
            drawn = torch.zeros_like(mine["masks"])
            for mask, whole, box in zip(drawn, other["masks"][:, 0], mine["boxes"].tolist(), strict=True):
                draw_mask(mask, whole, box)
            assert torch.equal(mine["masks"], drawn)


def test_mask_rcnn_has_torchvision_s_losses(mask_pair: tuple[DenseModel, MaskRCNN], targets: list) -> None:
    model, peer = mask_pair
    images = torch.randn(3, 3, *SIZE)
    with torch.no_grad():
        peer.backbone.levels = one_level_of(model, images)
        model.training = model.head.rpn.training = True
        torch.manual_seed(5)
        losses = model(images, targets=targets)
        torch.manual_seed(5)
        expected = peer.train()(list(images), numbered(targets, 1))
    names = {
        "objectness": "loss_objectness", "proposals": "loss_rpn_box_reg", "classes": "loss_classifier",
        "boxes": "loss_box_reg", "masks": "loss_mask",
    }  # fmt: skip
    for ours, theirs in names.items():
        torch.testing.assert_close(losses[ours], expected[theirs])


def test_a_cascade_of_one_stage_is_mask_rcnn(targets: list) -> None:
    fields = {"finest": 4, "levels": 3, "channels": 16, "hidden": 32, "rois": 32, "score_threshold": 0.01}
    plain = MaskRcnn(**fields)
    single = CascadeMaskRcnn(
        **fields, overlaps=(0.5,), codings=((10.0, 5.0),), losses=(1.0,), convs=0, box_loss="smooth_l1"
    )
    models = [DenseModel(DenseSpec(MODELS["dwnet_nano"], head), 2).eval() for head in (plain, single)]
    models[1].load_state_dict(models[0].state_dict())
    images = torch.randn(3, 3, *SIZE)
    with torch.no_grad():
        first, second = (model(images) for model in models)
        assert len(first[0]["scores"]) > 5
        assert all(torch.equal(a[key], b[key]) for a, b in zip(first, second, strict=True) for key in a)
        losses = []
        for model in models:
            model.training = True
            torch.manual_seed(2)
            losses.append(model(images, targets=targets))
    assert all(torch.equal(losses[0][name], losses[1][name]) for name in losses[0])


def test_the_stages_of_a_cascade_ask_for_ever_better_boxes() -> None:
    head = CascadeMaskRcnn(finest=4, levels=3, channels=16, hidden=32)
    stages = DenseModel(DenseSpec(MODELS["dwnet_nano"], head), 2).head.stages
    assert [stage.proposal_matcher.high_threshold for stage in stages] == [0.5, 0.6, 0.7]
    object_, box = torch.tensor([[0.0, 0.0, 20.0, 20.0]]), torch.tensor([[0.0, 0.0, 20.0, 13.0]])  # overlap 0.65
    labels = [stage.assign_targets_to_proposals([box], [object_], [torch.tensor([1])])[1][0].item() for stage in stages]
    assert labels == [1, 1, 0]
    # The same move is a larger number for a later stage, which sees smaller ones.
    codes = [stage.box_coder.encode_single(object_, box)[0].abs().max().item() for stage in stages]
    assert codes == pytest.approx([codes[0], 2 * codes[0], 3 * codes[0]])


def test_cascade_scores_are_the_mean_of_the_stages() -> None:
    head = CascadeMaskRcnn(finest=4, levels=3, channels=16, hidden=32, score_threshold=0.0, nms_threshold=1.0)
    model = DenseModel(DenseSpec(MODELS["dwnet_nano"], head), 1, masks=False).eval()
    for stage, logit in zip(model.head.stages, (2.0, 0.0, -1.0), strict=True):
        nn.init.zeros_(stage.box_predictor.classes.weight)
        stage.box_predictor.classes.bias.data = torch.tensor([0.0, logit])
    with torch.no_grad():
        found = model(torch.randn(1, 3, *SIZE))[0]
    mean = torch.tensor([2.0, 0.0, -1.0]).sigmoid().mean()
    torch.testing.assert_close(found["scores"], mean.expand_as(found["scores"]))


def test_boxes_are_clear_of_padding() -> None:
    """Proposals and detections lie in the image, wherever the network would like to have them."""
    head = MaskRcnn(finest=4, levels=3, channels=16, hidden=32, score_threshold=0.0)
    model = DenseModel(DenseSpec(MODELS["dwnet_nano"], head), 2).eval()
    image_list = ImageList.of(torch.randn(2, 3, *SIZE), [(30, 20), (64, 96)], 32)
    with torch.no_grad():
        levels = model.head.fpn(model.pyramid(image_list.images))
        proposals, _ = model.head.rpn(levels, image_list)
    assert len(proposals[0]) and (proposals[0] <= torch.tensor([20, 30, 20, 30])).all()
    inside = image_list.inside(torch.cat(model.head.rpn.anchor_generator.on(levels)))
    assert 0 < inside[0].sum() < inside[1].sum() == inside.shape[1]


def test_padding_hardly_changes_what_a_local_backbone_finds() -> None:
    """Far from the border, where its kernels do not reach the padding, a map is the same; near it, it is not."""
    model = DenseModel(DenseSpec(MODELS["dwnet_nano"], Retina(finest=4, levels=2, channels=16)), 2).eval()
    image = torch.randn(1, 3, 128, 128)
    padded = nn.functional.pad(image, (0, 64, 0, 0))
    with torch.no_grad():
        alone, beside = model.pyramid(image)[0], model.pyramid(padded)[0][..., :32]
    torch.testing.assert_close(alone[..., :16], beside[..., :16])
    assert not torch.allclose(alone[..., -1], beside[..., -1])


def test_anchors_stand_where_torchvision_puts_them() -> None:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    ours = LevelAnchors((4, 8), scale=8.0)
    theirs = AnchorGenerator(((32,), (64,)), ((0.5, 1.0, 2.0),) * 2)
    maps = [torch.zeros(1, 1, 16, 24), torch.zeros(1, 1, 8, 12)]
    images = TorchImageList(torch.zeros(1, 3, 64, 96), [(64, 96)])
    expected = theirs(images, maps)[0]
    torch.testing.assert_close(ours(images, maps)[0], expected, atol=0.5, rtol=0)  # torchvision rounds


@pytest.mark.parametrize("box", [(3, 2, 11, 9), (0, 0, 1, 1), (2, 2, 3, 40)])
def test_a_full_mask_fills_its_box(box: tuple[int, int, int, int]) -> None:
    mask = torch.zeros(12, 16, dtype=torch.bool)
    draw_mask(mask, torch.ones(28, 28), [float(side) for side in box])
    expected = torch.zeros_like(mask)
    expected[box[1] : box[3], box[0] : box[2]] = True
    assert torch.equal(mask, expected)


def test_anchors_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="scale 1"):
        LevelAnchors((4,), scale=1)
