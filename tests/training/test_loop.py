"""The loop: what it learns, records and leaves behind, and each setting where it acts."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import nearsight
from nearsight.runs.run import Run
from nearsight.training import loop, resume_training, run_training
from nearsight.training.optim import learning_rate
from nearsight.training.session import Session
from nearsight.training.signals import StopFlag

from .conftest import scored


@pytest.fixture
def opened(colours: str, tmp_path: Path) -> Callable[..., tuple[Session, Any]]:
    """Opens a session with its batches, without running it."""

    def make(recipe: Any) -> tuple[Session, Any]:
        run = Run(tmp_path / "run")
        prepared = loop.prepare(colours, recipe)
        session = loop.open_session(
            run, prepared, loop.make_accelerator(run, prepared.recipe, (), cpu=True), loop.Limits()
        )
        return session, iter(loop.training_batches(session, prepared.train))

    return make


def step_on(session: Session, batches: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loop.set_rates(session)
        losses.append(loop.take_step(session, batches, StopFlag()).loss)
        session.progress.step += 1
    return losses


def test_a_run_learns_and_leaves_everything_behind(colours: str, tiny: Callable[..., Any], tmp_path: Path) -> None:
    outcome = run_training(colours, tiny({"epochs": 6, "augment.flip": 0.0}), tmp_path, quiet=True)
    assert outcome.val_score == 1.0  # four plain colours
    assert (outcome.steps, outcome.epochs, outcome.test_score, outcome.bad_images) == (18, 6, None, {})
    names = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert names == {
        *("recipe.yaml", "data.json", "environment.json", "metrics.jsonl", "outcome.json", "summary.md", "curves.png"),
        *("model.safetensors", "model.json", "predictions.npz", "checkpoints", "tensorboard"),
    }
    assert list((tmp_path / "tensorboard").rglob("events.*"))
    records = Run(tmp_path).records()
    epochs = [values for values in records if values["kind"] == "epoch"]
    steps = [values for values in records if values["kind"] == "step"]
    assert [values["epoch"] for values in epochs] == [1, 2, 3, 4, 5, 6]
    assert [values["step"] for values in steps] == list(range(1, 19))
    for epoch in epochs:  # an epoch's loss is the mean over its steps
        own = [values["loss"] for values in steps if values["epoch"] == epoch["epoch"] - 1]
        assert epoch["loss"] == pytest.approx(sum(own) / 3)
    best = max(epochs, key=lambda values: values["val_accuracy"])
    assert (outcome.epoch, outcome.val_score) == (best["epoch"], best["val_accuracy"])
    assert outcome.elapsed == epochs[-1]["elapsed"]

    model = nearsight.load(tmp_path).model
    assert outcome.parameters == sum(p.numel() for p in model.parameters())
    assert model.num_classes == 4
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    assert run_training(colours, tiny({"epochs": 6, "augment.flip": 0.0}), tmp_path, quiet=True) == outcome
    assert resume_training(tmp_path, quiet=True) == outcome
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"} == before
    (tmp_path / "summary.md").unlink()  # as if a kill had come just before it
    resume_training(tmp_path, quiet=True)
    assert (tmp_path / "summary.md").is_file()


@pytest.mark.usefixtures("no_page")
def test_the_model_is_that_of_the_best_epoch(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.25, 0.75, 0.5, 0.75])
    monkeypatch.setattr(loop, "evaluate", lambda *a: scored(next(scores)))
    outcome = run_training(colours, tiny({"epochs": 4, "saving.keep": 1}), tmp_path, quiet=True)
    assert outcome.epoch == 2  # the first of equals
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000006-epoch-0002", "step-00000012-epoch-0004"]
    best = load_file(tmp_path / "checkpoints" / kept[0] / "model.safetensors")
    written = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(best[key], written[key]) for key in best)


@pytest.mark.usefixtures("no_page")
def test_some_epochs_are_not_validated_where_asked_for_but_the_last_one_is(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.5, 0.75, 0.25])
    monkeypatch.setattr(loop, "evaluate", lambda *a: scored(next(scores)))
    settings = {"epochs": 7, "validate_every": 3, "saving.keep": 9}
    outcome = run_training(colours, tiny(settings), tmp_path, quiet=True)
    assert (outcome.epochs, outcome.epoch, outcome.val_score) == (7, 6, 0.75)
    kinds = {record["epoch"]: record["kind"] for record in Run(tmp_path).records() if record["kind"] != "step"}
    assert [number for number, kind in kinds.items() if kind == "epoch"] == [3, 6, 7]
    assert [number for number, kind in kinds.items() if kind == "unvalidated"] == [1, 2, 4, 5]


@pytest.mark.usefixtures("no_page")
def test_patience_is_not_lost_before_a_validation(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.25, 0.5, 0.5])
    monkeypatch.setattr(loop, "evaluate", lambda *a: scored(next(scores)))
    settings = {"epochs": 9, "patience": 2, "validate_every": 9}
    outcome = run_training(colours, tiny(settings), tmp_path, quiet=True)
    assert (outcome.epochs, outcome.epoch, outcome.stopped_early) == (6, 4, True)  # validated 2, 4 and 6


@pytest.mark.usefixtures("no_page")
def test_patience_ends_a_run_that_does_not_improve(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.25, 0.5, 0.5, 0.25, 1.0])
    monkeypatch.setattr(loop, "evaluate", lambda *a: scored(next(scores)))
    outcome = run_training(colours, tiny({"epochs": 9, "patience": 2}), tmp_path, quiet=True)
    assert (outcome.epochs, outcome.epoch, outcome.stopped_early) == (4, 2, True)


@pytest.mark.usefixtures("no_page")
def test_the_running_mean_of_the_weights_follows_its_formula(
    opened: Callable[..., Any], tiny: Callable[..., Any]
) -> None:
    session, batches = opened(tiny({"ema": 0.9}))
    weight = dict(session.built.model.named_parameters())["head.weight"]
    mean = weight.detach().clone()
    for step in range(6):
        step_on(session, batches, 1)
        # timm: 1 - (1 + n) ** (-2/3) for the n-th step behind the first, at most the decay
        decay = min(0.9, 1 - (1 + max(step - 1, 0)) ** (-2 / 3)) if step > 1 else 0.0
        mean = decay * mean + (1 - decay) * weight.detach()
    assert session.ema is not None
    torch.testing.assert_close(dict(session.ema.module.named_parameters())["head.weight"], mean)
    assert session.eval_model is session.ema.module


def test_the_rates_follow_schedule_layers_and_offsets(opened: Callable[..., Any], tiny: Callable[..., Any]) -> None:
    recipe = tiny(
        {"model.name": "lit_nano", "model.patch_size": 2, "optimizer.layer_decay": 0.5, "schedule.warmup_epochs": 1}
    )
    session, batches = opened(recipe)
    step_on(session, batches, 2)
    loop.set_rates(session)
    fraction = learning_rate(recipe.schedule, 2, 2 / 3)
    rates = {name: group["lr"] for group in session.optimizer.param_groups for name in group["names"]}
    assert rates["head.weight"] == pytest.approx(recipe.optimizer.lr * fraction)
    offsets = {name: rate for name, rate in rates.items() if ".offsets." in name}
    assert offsets
    beside = {name.split(".offsets.")[0] for name in offsets}
    for name, rate in offsets.items():
        module = name.split(".offsets.")[0]
        others = {r for n, r in rates.items() if n.startswith(module) and ".offsets." not in n}
        assert beside and others and rate == pytest.approx(0.01 * max(others))
    assert min(rates.values()) < 0.01 * rates["head.weight"]


def test_flat_rates_of_offsets_stay_where_the_warm_up_has_led_them(
    opened: Callable[..., Any], tiny: Callable[..., Any]
) -> None:
    recipe = tiny(
        {
            **{
                "model.name": "lit_nano",
                "model.patch_size": 2,
                "optimizer.offsets": 0.01,
                "optimizer.offsets_flat": True,
            },
            **{"schedule.kind": "cosine", "schedule.min_lr": 0.01, "schedule.warmup_epochs": 0.5},
        }
    )
    session, _ = opened(recipe)
    lowest = recipe.optimizer.lr * recipe.schedule.min_lr

    def at(epoch: float) -> dict[str, float]:
        session.progress.step = round(epoch * session.steps_per_epoch)
        loop.set_rates(session)
        return {name: group["lr"] for group in session.optimizer.param_groups for name in group["names"]}

    start, middle, end = (at(epoch) for epoch in (0, 1, recipe.epochs))
    offset, other = "stages.1.merge.offsets.weight", "stages.1.merge.conv.weight"
    assert start[offset] < middle[offset] == end[offset] == pytest.approx(lowest)
    assert middle[other] > end[other] == pytest.approx(lowest)


def test_the_gradient_is_clipped_to_its_norm(
    opened: Callable[..., Any], tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, batches = opened(tiny({"optimizer.clip": 0.01}))
    norms = []
    step = session.optimizer.step

    def noting() -> None:
        grads = [p.grad for p in session.model.parameters() if p.grad is not None]
        norms.append(math.sqrt(sum(float(grad.square().sum()) for grad in grads)))
        step()

    monkeypatch.setattr(session.optimizer, "step", noting)
    taken = loop.take_step(session, batches, StopFlag())
    assert taken.norm > 0.1
    assert norms == [pytest.approx(0.01, rel=1e-3)]


@pytest.mark.parametrize("mixing", [{}, {"augment.mixup": 0.8, "augment.cutmix": 1.0, "augment.erase": 0.5}])
def test_a_batch_in_parts_teaches_what_the_whole_teaches(
    mixing: dict[str, Any], opened: Callable[..., Any], tiny: Callable[..., Any]
) -> None:
    weighted = {"batch": 24, "epochs": 4, "model.drop_path": 0.0, "loss.class_weights": [1.0, 2.0, 0.5, 1.5]} | mixing
    curves = []
    for parts in (1, 2, 4):
        curves.append(step_on(*opened(tiny(weighted | {"accumulate": parts})), 4))
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    assert curves[2] == pytest.approx(curves[0], rel=1e-5)


@pytest.mark.usefixtures("no_page")
def test_half_the_bits_train_and_leave_whole_weights(colours: str, tiny: Callable[..., Any], tmp_path: Path) -> None:
    whole = run_training(colours, tiny({"epochs": 1}), tmp_path / "32", quiet=True)
    outcome = run_training(
        colours, tiny({"epochs": 1, "precision": "bfloat16", "ema": 0.9}), tmp_path / "16", quiet=True
    )
    assert outcome.steps == whole.steps
    tensors = load_file(tmp_path / "16" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    losses = [Run(tmp_path / folder).records()[0]["loss"] for folder in ("32", "16")]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
@pytest.mark.usefixtures("no_page")
def test_models_of_timm_train(name: str, colours: str, tiny: Callable[..., Any], tmp_path: Path) -> None:
    recipe = tiny({"model.name": name, "model.patch_size": None, "epochs": 1, "batch": 12})
    outcome = run_training(colours, recipe, tmp_path, quiet=True)
    assert outcome.model == name
    assert nearsight.load(tmp_path).model(torch.zeros(1, 3, 16, 16)).shape == (1, 4)


@pytest.mark.usefixtures("no_page")
def test_fine_tuning_starts_from_a_former_run(colours: str, tiny: Callable[..., Any], tmp_path: Path) -> None:
    run_training(colours, tiny({"epochs": 1}), tmp_path / "first", quiet=True)
    recipe = nearsight.training.load_recipe(
        "fine-tune", {"model.weights": str(tmp_path / "first"), "epochs": 3, "batch": 64, "data.limit": 64}
    )
    outcome = run_training("digits", recipe, tmp_path / "second", quiet=True)
    assert outcome.model == "deit_nano"
    old, new = (load_file(tmp_path / run / "model.safetensors") for run in ("first", "second"))
    assert new["head.weight"].shape[0] == 10 and old["head.weight"].shape[0] == 4
    assert Run(tmp_path / "second").recipe().model.img_size in (None, 16)
    moved = [float((old[key] - new[key]).norm() / old[key].norm()) for key in old if key.endswith("qkv.weight")]
    assert all(fraction < 0.05 for fraction in moved)  # a few small steps from where it was


def test_wrong_settings_are_refused_before_anything_is_trained(
    colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    cases = {
        "A batch of 64 is more than the 24 training images; give --batch 24.": {"batch": 64},
        "need two images or more at a time; give a larger --batch": {"model.name": "lit_nano", "batch": 1},
        "has 2 numbers, but there are 4 classes": {"loss.class_weights": [1.0, 2.0]},
        "Neither Nearsight nor timm has a model 'deit_nan'": {"model.name": "deit_nan", "model.patch_size": None},
    }
    for index, (sentence, changes) in enumerate(cases.items()):
        with pytest.raises(ValueError, match=sentence):
            run_training(colours, tiny(changes), tmp_path / str(index), quiet=True)
        assert not (tmp_path / str(index) / "checkpoints").exists()
    with pytest.raises(ValueError, match=r"The tracker 'wandbb' is not installed; there are .*tensorboard"):
        run_training(colours, tiny(), tmp_path / "t", track=("wandbb",), quiet=True)
    assert not (tmp_path / "t").exists()


@pytest.mark.usefixtures("no_page")
def test_checkpoints_within_an_epoch_follow_the_clock(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    save = loop.save_checkpoint
    monkeypatch.setattr(loop, "save_checkpoint", lambda s: (written.append(s.progress.step), save(s)))
    run_training(colours, tiny({"epochs": 1, "batch": 4, "saving.every": 1e-6}), tmp_path / "often", quiet=True)
    assert written == [2, 4, 6]  # the clock is read in front of a step, and starts again behind a checkpoint
    written.clear()
    run_training(colours, tiny({"epochs": 1, "batch": 4}), tmp_path / "seldom", quiet=True)
    assert written == [6]


@pytest.mark.usefixtures("no_page")
def test_piped_output_has_one_line_for_each_epoch(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_training(colours, tiny(), tmp_path / "a")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    last = json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"loss {last['loss']:.4f}" in lines[1] and f"accuracy {last['val_accuracy']:6.2%}" in lines[1]
    assert max(map(len, lines)) <= 100
    run_training(colours, tiny(), tmp_path / "b", quiet=True)
    assert capsys.readouterr().err == ""
