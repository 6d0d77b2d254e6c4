"""The provisional family keeps every contract of a model; what it costs is measured by `benchmarks/near_latency.py`."""

import pytest
import torch

import nearsight
from nearsight.models import MODELS, near
from nearsight.models.spec import from_json, to_json


def test_micro_costs_less_than_nano_and_tiny_less_than_small() -> None:
    from nearsight.models.counting import count

    macs = {name: count(nearsight.create_model(spec=spec), 32).macs for name, spec in near.SPECS.items()}
    assert macs["near_micro"] < macs["near_nano"] / 2 and macs["near_tiny"] < macs["near_small"] / 2


def test_nothing_is_claimed_for_them_yet() -> None:
    assert not near.SPECS.keys() & MODELS.keys()


@pytest.mark.parametrize("name", near.SPECS)
def test_they_keep_the_contract(name: str) -> None:
    torch.manual_seed(0)
    spec = near.SPECS[name]
    assert from_json(to_json(spec)) == spec
    model = nearsight.create_model(spec=spec, num_classes=3, img_size=32, drop_path_rate=0.0)
    model(torch.randn(4, 3, 33, 50)).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
    model.eval()
    images = torch.randn(2, 3, 40, 32)
    torch.testing.assert_close(nearsight.fold(model)(images), model(images), atol=1e-4, rtol=1e-3)
    model.set_input_size(48)
    assert model(images).shape == (2, 3)
    assert len(nearsight.explanation.rollout(model, images).values) == 2
