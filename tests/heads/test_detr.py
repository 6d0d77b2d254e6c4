"""DETR: pairing, positions, padding, and the three encoders of LIFE's Table 2."""

from itertools import permutations

import pytest
import torch
from small_heads import make_target

from nearsight.heads import DenseModel, DenseSpec, Detr
from nearsight.heads.detr import corners, pair, set_losses, sine_positions
from nearsight.models import MODELS

FIELDS = {"stride": 8, "dim": 24, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "hidden": 32, "queries": 6}


def build(**fields: object) -> DenseModel:
    return DenseModel(DenseSpec(MODELS["dwnet_nano"], Detr(**FIELDS | fields)), 2).eval()  # type: ignore[arg-type]


def test_no_other_pairing_costs_less() -> None:
    from torchvision.ops import generalized_box_iou

    logits, boxes = torch.randn(5, 4), torch.rand(5, 4) * 0.5 + 0.1
    wanted = {"labels": torch.tensor([0, 2, 1]), "boxes": torch.rand(3, 4) * 0.5 + 0.1}
    cost = -logits.softmax(-1)[:, wanted["labels"]] + 5 * torch.cdist(boxes, wanted["boxes"], p=1)
    cost = cost - 2 * generalized_box_iou(corners(boxes), corners(wanted["boxes"]))
    queries, objects = pair(logits, boxes, wanted)
    best = min(sum(cost[q, o].item() for o, q in enumerate(order)) for order in permutations(range(5), 3))
    assert cost[queries, objects].sum().item() == pytest.approx(best)


def test_perfect_predictions_cost_nothing_and_others_do() -> None:
    boxes = torch.tensor([[[0.3, 0.3, 0.2, 0.2], [0.7, 0.6, 0.1, 0.3], [0.5, 0.5, 0.9, 0.9]]])
    wanted = [{"labels": torch.tensor([1, 0]), "boxes": boxes[0, [1, 0]]}]
    logits = 100 * torch.nn.functional.one_hot(torch.tensor([[0, 1, 2]]), 3).float()
    perfect = set_losses(logits, boxes, wanted, 0.1)
    assert all(loss.item() == pytest.approx(0, abs=1e-5) for loss in perfect.values())
    moved = set_losses(logits, boxes + 0.01, wanted, 0.1)
    assert moved["boxes"].item() == pytest.approx(5 * 4 * 0.01, rel=1e-3) and moved["giou"] > 0


def test_more_objects_than_queries_are_paired_as_far_as_they_go() -> None:
    boxes = torch.rand(9, 4) * 0.4 + 0.2
    queries, objects = pair(
        torch.randn(4, 3), torch.rand(4, 4), {"labels": torch.zeros(9, dtype=torch.long), "boxes": boxes}
    )
    assert queries.tolist() == [0, 1, 2, 3] and len(set(objects.tolist())) == 4


def test_numbers_that_are_none_reach_the_loss_and_do_not_stop_the_pairing() -> None:
    wanted = [{"labels": torch.tensor([0]), "boxes": torch.tensor([[0.5, 0.5, 0.1, 0.1]])}]
    losses = set_losses(torch.full((1, 3, 2), torch.nan), torch.rand(1, 3, 4), wanted, 0.1)
    assert losses["classes"].isnan()


def test_positions_count_the_image_alone() -> None:
    """A padded image has the positions that it has alone."""
    valid = torch.zeros(1, 4, 6, dtype=torch.bool)
    valid[:, :3, :4] = True
    padded = sine_positions(valid, 16).unflatten(1, (4, 6))[:, :3, :4].flatten(1, 2)
    torch.testing.assert_close(padded, sine_positions(torch.ones(1, 3, 4, dtype=torch.bool), 16))
    assert len(padded[0].unique(dim=0)) == 12


@pytest.mark.parametrize("encoder", ["plain", "linear", "life"])
def test_the_encoder_does_not_see_the_padding(encoder: str) -> None:
    """What stands behind the border of an image changes nothing that DETR says about it."""
    model = build(encoder=encoder)
    level = torch.randn(1, model.pyramid.channels[-1], 6, 8)
    other = level.clone()
    other[..., 3:, :], other[..., 5:] = 7.0, -7.0
    from nearsight.heads.image_list import ImageList

    image_list = ImageList(torch.zeros(1, 3, 48, 64), ((24, 40),))
    with torch.no_grad():
        first, second = (model.head([one], image_list)[0] for one in (level, other))
    assert len(first["scores"]) == 6
    for key in first:
        torch.testing.assert_close(first[key], second[key])


def test_the_encoders_cost_what_life_s_table_2_says() -> None:
    """EncDec-Linear adds 6 * 3 * 256**2 parameters; LIFE at width 255 adds its scales."""
    with torch.device("meta"):
        sizes = {
            form: sum(
                p.numel() for p in DenseModel(DenseSpec(MODELS["deit_nano"], Detr(encoder=form)), 20).parameters()
            )
            for form in ("plain", "linear", "life")
        }
    assert sizes["linear"] - sizes["plain"] == 6 * 3 * 256**2
    assert sizes["life"] - sizes["plain"] == 6 * (255 * (256 + 1) + 255 * (9 + 255) + 255 * (25 + 255))


def test_all_decoder_layers_learn() -> None:
    model = build().train()
    losses = model(torch.randn(1, 3, 64, 80), targets=[make_target((4, 4, 20, 24))])
    sum(losses.values()).backward()
    assert set(losses) == {"classes", "boxes", "giou"}
    assert all(layer.ffn[0].weight.grad.abs().sum() > 0 for layer in model.head.decoder)


def test_a_width_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="width 30 with 4 heads"):
        build(dim=30, heads=4)
