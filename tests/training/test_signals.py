"""Reasons to stop: signals, a loss or weights that are no numbers, unreadable images."""

import io
import json
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from nearsight.runs.run import Run
from nearsight.tasks.classify import CrossEntropy
from nearsight.training import loop, resume_training, run_training
from nearsight.training.progress import Display, duration
from nearsight.training.signals import listening

from .conftest import scored


def test_the_first_signal_is_noted_and_the_second_acts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with listening() as flag:
        assert flag.number == 0
        signal.raise_signal(signal.SIGTERM)
        assert flag.number == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.raise_signal(signal.SIGINT)
        assert flag.number == signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.usefixtures("no_page")
def test_a_loss_that_is_no_number_ends_the_run_and_says_where(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CrossEntropy.loss
    steps = iter(range(100))

    def spoiled(self: Any, *arguments: Any) -> Any:
        loss = whole(self, *arguments)
        return loss * float("nan") if next(steps) == 4 else loss

    with monkeypatch.context() as patch:
        patch.setattr(CrossEntropy, "loss", spoiled)
        with pytest.raises(ValueError) as error:
            run_training(colours, tiny({"epochs": 3}), tmp_path, quiet=True)
    last = tmp_path / "checkpoints" / "step-00000003-epoch-0001"
    assert str(error.value) == (
        "The loss is nan and the norm of the gradient nan at step 5 (epoch 2, batch 2). "
        f"The last good checkpoint is {last}; try a lower optimizer.lr, or optimizer.clip=1."
    )
    assert last.is_dir()
    assert resume_training(tmp_path, quiet=True).epochs == 3  # the fault is gone


@pytest.mark.usefixtures("no_page")
def test_a_rate_that_blows_up_leaves_no_checkpoint_of_the_ruins(
    colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = tiny({"optimizer.lr": 1e30, "optimizer.clip": None, "schedule.warmup_epochs": 0.0, "batch": 24})
    with pytest.raises(ValueError, match=r"is nan after step 1 \(epoch 1\)\. No checkpoint was written yet; try a"):
        run_training(colours, recipe, tmp_path, quiet=True)
    assert not list((tmp_path / "checkpoints").glob("step*"))


def test_weights_that_are_no_numbers_are_not_saved(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = loop.save_checkpoint

    def spoil_first(session: Any) -> None:
        if session.progress.epoch == 2:
            with torch.no_grad():
                next(session.built.model.parameters()).fill_(float("inf"))
        save(session)

    monkeypatch.setattr(loop, "save_checkpoint", spoil_first)
    with pytest.raises(
        ValueError, match=r"no longer finite numbers after step 6\. The last good .*-epoch-0001; try a lo"
    ):
        run_training(colours, tiny(), tmp_path, quiet=True)


@pytest.fixture
def photos(tmp_path: Path) -> Callable[[int], str]:
    """Makes a folder of 40 images of which some are cut off."""

    def make(bad: int) -> str:
        for index in range(40):
            path = tmp_path / "photos" / "ab"[index % 2] / f"{index:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((16, 16), 50).save(path)
            if index < bad:
                path.write_bytes(path.read_bytes()[:100])
        return str(tmp_path / "photos")

    return make


@pytest.mark.usefixtures("no_page")
def test_too_many_bad_images_end_the_run(
    photos: Callable[[int], str], tiny: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = tiny({"data.max_bad": 0.05, "data.workers": 0, "epochs": 2})
    with pytest.raises(
        ValueError, match=r"\d of 40 images can't be read, more than 5% \(such as .*\.png: the file is cut"
    ):
        run_training(photos(4), recipe, tmp_path / "run", quiet=True)


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("fraction", "most"), [(0.01, 3), (0.0, 0)])
def test_three_bad_images_end_no_run_unless_none_are_allowed(
    photos: Callable[[int], str], tiny: Callable[..., Any], tmp_path: Path, fraction: float, most: int
) -> None:
    recipe = tiny({"data.max_bad": fraction, "data.workers": 0, "epochs": 2})
    if most:
        assert len(run_training(photos(most), recipe, tmp_path / "run", quiet=True).bad_images) == most
    with pytest.raises(ValueError, match=f"of 40 images can't be read, more than {fraction:.0%}"):
        run_training(photos(most + 1), recipe, tmp_path / "again", quiet=True)


@pytest.mark.usefixtures("no_page")
def test_a_few_bad_images_are_passed_over_and_named(
    photos: Callable[[int], str], tiny: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = tiny({"data.max_bad": 0.05, "data.workers": 0, "epochs": 2})
    outcome = run_training(photos(2), recipe, tmp_path / "run", quiet=True)
    named = json.loads((tmp_path / "run" / "outcome.json").read_text())["bad_images"]
    assert {Path(name).name for name in named} == {"00.png", "01.png"} == {Path(n).name for n in outcome.bad_images}
    assert set(named.values()) == {"the file is cut off"}
    assert Run(tmp_path / "run").outcome() == outcome


@pytest.mark.usefixtures("no_page")
def test_a_killed_reader_of_images_is_named_as_such(
    photos: Callable[[int], str], tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_step = loop.take_step

    def killing(*arguments: Any) -> Any:
        for child in multiprocessing.active_children():
            child.kill()
        return take_step(*arguments)

    monkeypatch.setattr(loop, "take_step", killing)
    with pytest.raises(ValueError, match="A process that reads images ended, often for lack of memory") as error:
        run_training(photos(0), tiny({"data.workers": 1, "epochs": 100}), tmp_path / "run", quiet=True)
    assert str(error.value).endswith(f"; go on with: nearsight train --resume {tmp_path / 'run'}")


@pytest.mark.usefixtures("no_page")
def test_a_run_that_stops_early_says_so(
    colours: str,
    tiny: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(loop, "evaluate", lambda session, split, flag=None: scored(0.5))
    outcome = run_training(colours, tiny({"epochs": 9, "patience": 2}), tmp_path)
    assert (outcome.epochs, outcome.stopped_early) == (3, True)
    assert capsys.readouterr().err.splitlines()[-1] == "stopped early: no better for 2 epochs"
    run_training(colours, tiny({"epochs": 2, "patience": 2}), tmp_path / "whole")
    assert "stopped early" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (425, "7 min 05 s"),
        (3599.7, "1 h 00 min"),
        (12000, "3 h 20 min"),
        (90000, "25 h 00 min"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_live_lines_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    display = Display(epochs=300, steps=300 * 4000, batch=1024, metric="accuracy")
    assert display.live
    display.score = 0.987
    display.begin(0)
    display.started -= 10000
    display.show_step(epoch=99, step=399_999, loss=12.345)
    page = Console(width=width, file=io.StringIO(), color_system=None)
    page.print(display.progress.get_renderable())
    lines = page.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [len(line) <= width for line in lines] == [True, True]
    first, second = lines
    assert first.startswith("epoch 100/300 step 3999/4000 ")
    assert first.split()[-6:] == ["33%", "5", "h", "33", "min", "left"]
    assert second.rstrip() == "40960 images/s · loss 12.345 · accuracy 98.7%"
