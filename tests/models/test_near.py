"""The family of our own: what stands where, and what it may cost; `tests/models/test_contract.py` has its contract."""

import pytest
import torch

import nearsight
from nearsight.models import MODELS, near
from nearsight.models.counting import count


def macs(name: str) -> int:
    return count(nearsight.create_model(name, num_classes=10), MODELS[name].img_size).macs


def test_micro_costs_a_third_of_nano_and_tiny_less_than_half_of_small() -> None:
    assert macs("near_micro") <= macs("near_nano") / 3 and macs("near_tiny") < macs("near_small") / 2


@pytest.mark.parametrize("name", near.SPECS)
def test_only_late_stages_attend_and_life_feeds_them(name: str) -> None:
    attends = [layer.mixer is not None for stage in MODELS[name].stages for layer in stage.layers()]
    assert attends == sorted(attends) and attends[-1] and not attends[0]
    for stage in MODELS[name].stages:
        for layer in stage.layers():
            families = (layer.mixer and layer.qkv.family, layer.ffn.family)
            assert families == (("life", "localvit") if layer.mixer else (None, "near"))


def test_attention_sees_all_of_a_small_map() -> None:
    model = nearsight.create_model("near_nano", num_classes=3)
    assert model.feature_info[-1]["reduction"] == 8
    maps = nearsight.explanation.rollout(model.eval(), torch.randn(2, 3, 32, 32)).values
    assert maps.shape[0] == 2 and (maps > 0).all()
