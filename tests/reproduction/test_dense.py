"""Detectors and segmenters of the papers' tables: what is built, what is counted, what explains the rest."""

from dataclasses import replace

import pytest
import torch

from nearsight.heads import CascadeMaskRcnn, DenseModel, DenseSpec, MaskRcnn, UperNet
from nearsight.models import MODELS
from nearsight.models.counting import count
from nearsight.reproduction import judge, rows_of
from nearsight.reproduction.published import PublishedRow
from nearsight.reproduction.recipes import DenseRecipe, plan_dense, survey


def find(paper: str, table: str, name: str, head: str) -> PublishedRow:
    rows = (row for row in rows_of(paper) if (row.table, row.name) == (table, name))
    return next(row for row in rows if row.setting["head"] == head)


def test_every_dense_row_has_a_recipe() -> None:
    rows = [row for row in rows_of(None) if row.dense]
    assert len(rows) == 85 and all(isinstance(plan_dense(row), DenseRecipe) for row in rows)


@pytest.mark.parametrize(
    ("name", "parameters", "multiply_adds"), [("LightViT-T", "28", "187"), ("ResNet-18", "31", "207")]
)
def test_lightvit_s_table_4_comes_out(name: str, parameters: str, multiply_adds: str) -> None:
    verdict = judge(find("lightvit", "Table 4", name, "Mask R-CNN"))
    assert verdict.status == "match"
    assert [figure.printed for figure in verdict.figures] == [parameters, multiply_adds]


def test_the_count_is_that_of_the_parts() -> None:
    """Backbone and levels once, 1000 boxes, 100 masks: each counted by itself."""
    what = DenseRecipe("dwnet_nano", MaskRcnn(channels=16, hidden=32), (64, 96), 3)
    with torch.device("meta"):
        model = DenseModel(DenseSpec(MODELS["dwnet_nano"], what.head), 3)
    head = model.head
    maps = [(64 // stride, 96 // stride) for stride in (2, 4, 8)]
    levels = [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]  # strides 4 to 64; the backbone has 4 and 8
    cells = [height * width for height, width in levels]
    laterals = sum(h * w * c * 16 for (h, w), c in zip(maps[1:], (64, 128), strict=True))
    outputs = sum(cells[:2]) * 16 * 16 * 9
    proposals = sum(cells) * (16 * 16 * 9 + 16 * 3 * 5)
    boxes = 1000 * (16 * 49 * 32 + 32 * 32 + 32 * (4 + 12))
    masks = 100 * (14 * 14 * 16 * 16 * 9 * 4 + 28 * 28 * 16 * 16 + 28 * 28 * 16 * 3)
    backbone = count(model.pyramid, (64, 96)).macs
    assert survey(what).cost.macs == backbone + laterals + outputs + proposals + boxes + masks
    assert survey(what).cost.parameters == sum(p.numel() for p in model.parameters())
    assert len(head.stages) == 1


def test_the_auxiliary_head_is_counted_only_when_asked_for() -> None:
    what = DenseRecipe("dwnet_nano", UperNet(channels=16, helper_channels=8), (64, 64), 5)
    extra = survey(replace(what, auxiliary=True)).cost.macs - survey(what).cost.macs
    assert extra == 16 * 16 * (64 * 8 * 9 + 8 * 5)  # on the last map but one, of stride 4


def test_another_class_of_detector_is_not_explained_away() -> None:
    row = find("dwconv", "Table 3", "DW Conv.-T", "Cascade Mask R-CNN")
    assert judge(row).status == "explained"
    for key, printed in (("flops_g", "737"), ("params_m", "81"), ("flops_g", "724")):
        assert judge(replace(row, printed={**row.printed, key: printed})).status == "differs"


def test_resnet_101_of_lightvit_is_a_resnext() -> None:
    row = find("lightvit", "Table 4", "ResNet-101", "Mask R-CNN")
    assert [entry.number for entry in judge(row).entries if entry] == [9, 9]
    assert judge(replace(row, printed={**row.printed, "params_m": "102"})).status == "differs"


def test_boxes_of_each_class_are_needed_for_the_parameters_of_the_cascade() -> None:
    """82 M are printed; with boxes that all classes share it would be 81."""
    what = plan_dense(find("dwconv", "Table 3", "DW Conv.-T", "Cascade Mask R-CNN"))
    shared = replace(what, head=CascadeMaskRcnn(per_class=False))
    millions = [round(sum(p.numel() for p in one.build().parameters()) / 1e6) for one in (what, shared)]
    assert millions == [82, 81]
