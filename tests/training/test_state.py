"""Checkpoints: complete or absent, and bit by bit what was written."""

import os
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nearsight.config.recipe import Optimizer
from nearsight.runs.checkpoint import Checkpoints, Progress
from nearsight.training.optim import make_optimizer


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def take_steps(net: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    for _ in range(count):
        net(torch.randn(5, 3, 4, 4, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def assert_same(first: Any, second: Any) -> None:
    """Equal bit by bit, down to the counters."""
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second[key])), key


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lamb", "muon"])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_what_is_read_goes_on_like_what_was_written(kind: str, momentum: float, tmp_path: Path) -> None:
    settings = Optimizer(kind=kind, momentum=momentum, lr=0.01)  # type: ignore[arg-type]
    net = make_net()
    optimizer = make_optimizer(net, settings, batch=8)
    take_steps(net, optimizer, 3)
    average = deepcopy(net)
    checkpoints = Checkpoints(tmp_path / "c", keep=1, steps_per_epoch=10)
    progress = Progress(step=3, best=0.5, best_epoch=0, elapsed=1.5, bad={"a\udcff.png": "cut off"})
    progress.sums["loss"] = 0.1 + 0.2
    optimizer.param_groups[0]["lr"] = 1 / 3
    checkpoints.write(progress, net, optimizer, average)

    other, mean = make_net(), make_net()
    restored = make_optimizer(other, settings, batch=8)
    last = checkpoints.last()
    assert last is not None and last.name == "step-00000003"
    assert checkpoints.read(last, other, restored, mean) == progress
    assert restored.param_groups[0]["lr"] == 1 / 3
    assert_same(mean.state_dict(), average.state_dict())
    assert_same(checkpoints.weights(last.name), average.state_dict())
    for model, moving in ((net, optimizer), (other, restored)):
        take_steps(model, moving, 4)
    assert_same(net.state_dict(), other.state_dict())
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        before, after = (
            {key: value for key, value in states[parameter].items() if value is not None}
            for states, parameter in ((optimizer.state, one), (restored.state, two))
        )
        assert_same(before, after)


@pytest.fixture
def writer(tmp_path: Path) -> Callable[..., Checkpoints]:
    """Writes a checkpoint for each step of a run with two steps in an epoch."""
    net = make_net()
    optimizer = make_optimizer(net, Optimizer(), batch=8)

    def write(*steps: int, keep: int = 1, best: int = 0) -> Checkpoints:
        checkpoints = Checkpoints(tmp_path / "c", keep, steps_per_epoch=2)
        for step in steps:
            name = Progress(step=best * 2, epoch=best).name(2) if best else ""
            with torch.no_grad():
                net[0].bias.fill_(step)  # type: ignore[union-attr]
            checkpoints.write(Progress(step=step, epoch=step // 2, best_name=name), net, optimizer, None)
        return checkpoints

    return write


def test_the_newest_and_the_best_are_kept(writer: Callable[..., Checkpoints]) -> None:
    names = writer(2, 4, 5, 6, 8, keep=2, best=1).names()
    assert names == ["step-00000002-epoch-0001", "step-00000006-epoch-0003", "step-00000008-epoch-0004"]
    assert writer(9, keep=1, best=4).names() == ["step-00000008-epoch-0004", "step-00000009"]


def test_a_checkpoint_that_is_there_is_not_written_again(writer: Callable[..., Checkpoints]) -> None:
    last = writer(4).last()
    assert last is not None
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in last.iterdir()}
    writer(4)
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in last.iterdir()} == before


def test_what_a_killed_process_had_begun_is_no_checkpoint_and_is_removed(writer: Callable[..., Checkpoints]) -> None:
    checkpoints = writer(4)
    half = checkpoints.folder / ".step-00000006-epoch-0003.part"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert checkpoints.names() == ["step-00000004-epoch-0002"]
    checkpoints.remove_unfinished()
    assert not half.exists()


def read_last(checkpoints: Checkpoints) -> Progress:
    net = make_net()
    return checkpoints.read_last(net, make_optimizer(net, Optimizer(), batch=8), None)


@pytest.mark.parametrize("file", ["state.json", "model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("fraction", [0, 2, None], ids=["emptied", "halved", "removed"])
def test_a_damaged_checkpoint_is_named_with_the_one_before(
    file: str, fraction: int | None, writer: Callable[..., Checkpoints]
) -> None:
    checkpoints = writer(2, 4, keep=2)
    before, last = (checkpoints.folder / name for name in checkpoints.names())
    for folder, start in ((last, str(before)), (before, "the start")):
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        if fraction is not None:
            (folder / file).write_bytes(content[: len(content) // fraction if fraction else 0])
        with pytest.raises(ValueError) as error:
            read_last(checkpoints)
        assert str(error.value).startswith(f"The checkpoint {folder} is damaged (")
        assert str(error.value).endswith(f"; delete this folder, and the run goes on from {start}.")
        shutil.rmtree(folder)
    assert read_last(checkpoints) == Progress()


class Crash(BaseException):
    """What a power cut would be, as far as a test can have one."""


def test_a_crash_at_any_moment_leaves_a_complete_checkpoint(
    writer: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends the writing at each call that reaches the disk, one after the other, as a kill would: nothing cleans up."""
    moments = ["fsync", "rename", "unlink", "rmdir", "mkdir"]
    reached = 0
    for crash_at in range(1, 100):
        checkpoints = writer(2, keep=1)
        calls = count(1)
        with monkeypatch.context() as patch:
            for name in moments:
                patch.setattr(os, name, crashing(getattr(os, name), calls, crash_at))
            try:
                writer(4, keep=1)
            except Crash:
                reached += 1
            else:
                assert checkpoints.names() == ["step-00000004-epoch-0002"]
                break
        check_all_complete(checkpoints)
        for path in checkpoints.folder.iterdir():  # start afresh
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    assert reached > 8


def crashing(function: Callable[..., Any], calls: Iterator[int], crash_at: int) -> Callable[..., Any]:
    """The function until so many calls were made, of this and others; then nothing works any more."""

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if next(calls) >= crash_at:
            raise Crash
        return function(*arguments, **keywords)

    return wrapped


def check_all_complete(checkpoints: Checkpoints) -> None:
    """Every checkpoint of a valid name can be read; at least one is there."""
    assert checkpoints.names()
    for name in checkpoints.names():
        net = make_net()
        progress = checkpoints.read(checkpoints.folder / name, net, make_optimizer(net, Optimizer(), batch=8), ema=None)
        assert net[0].bias[0].item() == progress.step  # type: ignore[index]
    checkpoints.remove_unfinished()
    assert not list(checkpoints.folder.glob(".*"))
