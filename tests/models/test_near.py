"""The provisional family keeps its limits of time, and every contract of a model."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import nearsight
from nearsight.config.recipe import ModelChoice
from nearsight.models import MODELS, near
from nearsight.models.spec import from_json, to_json
from nearsight.tasks.build import build

SMALL = [("near_micro", "test_resnet"), ("near_nano", "localvit_nano")]


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def processor_seconds(models: list[nn.Module], batch: int) -> list[float]:
    """Of one call of each, taking turns; time in which other processes ran is not counted."""
    images = torch.randn(batch, 3, 32, 32)
    seconds: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for _ in range(9):
            for model, noted in zip(models, seconds, strict=True):
                began = time.thread_time()
                for _ in range(32 // batch // 4 or 1):
                    model(images)
                noted.append(time.thread_time() - began)
    return [float(np.median(noted)) for noted in seconds]


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize(("name", "reference"), SMALL)
def test_the_small_ones_take_no_more_time_than_their_reference(
    name: str, reference: str, batch: int, one_thread: None
) -> None:
    patch = 4 if reference in MODELS else None
    other = build(ModelChoice(name=reference, img_size=32, patch_size=patch), 10).model.eval()
    own = nearsight.create_model(spec=near.SPECS[name], num_classes=10).eval()
    mine, its = processor_seconds([own, other], batch)
    assert mine <= its


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
