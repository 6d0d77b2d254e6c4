"""The training loop: one for all models, on one process or many.

Every random draw follows from the seed and from what is drawn (`data.loader`), so a run that is resumed ends with the
same bits as one that never stopped, and several processes learn what one would.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from torch import nn

from ..arguments import checked
from ..config.recipe import Recipe
from ..data import Split
from ..data.samples import scramble
from ..runs.run import Outcome, Run, check_output_folder, resume_flags
from ..tasks.base import PROJECTION
from ..tasks.evaluator import Meter
from .distributed import Step, agree, agree_on_bad
from .frozen import fit_frozen
from .optim import clip_gradients, learning_rate
from .progress import Display
from .session import (
    Limits,
    Prepared,
    Session,
    check_same,
    check_weights_file,
    make_accelerator,
    open_session,
    prepare,
    prepare_again,
    training_batches,
)
from .signals import (
    Interrupted,
    StopFlag,
    check_validation,
    check_weights,
    describe_failure,
    describe_last,
    listening,
    note_bad,
    refuse_to_go_on,
)
from .summary import finish_run, write_summary
from .teacher import keep_predictions

RECORDS = 20  # of steps in an epoch


@checked
def run_training(
    source: str,
    recipe: Recipe,
    folder: str | Path,
    *,
    track: Sequence[str] = (),
    quiet: bool = False,
    cpu: bool = False,
    notes: Sequence[str] = (),
    limits: Limits | None = None,
) -> Outcome:
    """Train a model, or go on with a run of the same settings in this folder.

    Args:
        source: The data; see `nearsight.data.open_data`.
        recipe: How to train; what it leaves open follows the data.
        folder: Of the run. It is made if it does not exist.
        track: Trackers of accelerate beside TensorBoard: `wandb`, `mlflow`, ...
        quiet: Show no progress.
        cpu: Do not use a GPU.
        notes: What to say before the first step.
        limits: What it obeys beside the recipe, such as a time.

    Returns:
        What came of it; the same is in `outcome.json`.

    Raises:
        ValueError: The data, the recipe or the folder can't be used, or the loss is no longer a number.
        Interrupted: A signal ended the run; its checkpoint is written.

    Example:
        >>> import tempfile
        >>> from nearsight.training import load_recipe, run_training
        >>> recipe = load_recipe("small-data", {"model.name": "deit_nano", "epochs": 1, "data.limit": 64, "batch": 32})
        >>> outcome = run_training("digits", recipe, tempfile.mkdtemp(), quiet=True)
        >>> outcome.steps
        2
    """
    run = Run(folder, resume_flags(track, cpu))
    check_output_folder(run, source)
    accelerator = make_accelerator(run, recipe, track, cpu)
    with run.locked() if accelerator.is_main_process else nullcontext():
        prepared = prepare(source, recipe, run)
        if run.is_begun():
            check_same(run, prepared)
            check_weights_file(run)
        return finished(run, accelerator) or learn(run, prepared, accelerator, quiet, notes, limits or Limits())


def resume_training(
    folder: str | Path, *, track: Sequence[str] = (), quiet: bool = False, cpu: bool = False
) -> Outcome:
    """Go on with the run in a folder, from its last checkpoint."""
    run = Run(folder, resume_flags(track, cpu))
    recipe = run.recipe()
    accelerator = make_accelerator(run, recipe, track, cpu)
    with run.locked() if accelerator.is_main_process else nullcontext():
        return finished(run, accelerator) or learn(run, prepare_again(run), accelerator, quiet, (), Limits())


def learn(
    run: Run,
    prepared: Prepared,
    accelerator: Accelerator,
    quiet: bool,
    notes: Sequence[str],
    limits: Limits,
) -> Outcome:
    """Fit a head to frozen features, or train, as the recipe says."""
    if prepared.recipe.frozen:
        return fit_frozen(run, prepared, accelerator, quiet, notes)
    return train(run, prepared, accelerator, quiet, notes, limits)


def finished(run: Run, accelerator: Accelerator) -> Outcome | None:
    """The outcome of a run that is finished; its page is written if a kill came in between."""
    outcome = run.outcome()
    if outcome is not None and accelerator.is_main_process and not (run.folder / "summary.md").is_file():
        write_summary(run.folder)
    return outcome


def train(
    run: Run, prepared: Prepared, accelerator: Accelerator, quiet: bool, notes: Sequence[str], limits: Limits
) -> Outcome:
    """Train to the end, write the model of the best epoch, and say what came of it."""
    session = open_session(run, prepared, accelerator, limits)
    if accelerator.is_main_process and not run.is_begun():  # not before: a refused start leaves the folder free
        run.begin(session.recipe, prepared.record, limits.compared or session.compared)
    accelerator.init_trackers(run.folder.absolute().name)
    recipe, progress = session.recipe, session.progress
    display = Display(
        session.epochs,
        session.epochs * session.steps_per_epoch,
        recipe.batch,
        session.task.metric.title,
        quiet or not accelerator.is_main_process,
    )
    try:
        for remark in prepared.data.remarks if accelerator.is_main_process else ():
            print(f"nearsight: {remark}", file=sys.stderr)  # also to whom wants it quiet
        with listening() as flag, display:
            for note in notes:
                display.say(note)
            for name, count in prepared.data.left_out.items():
                display.say(f"{name}: {count:,} images are passed over, since they are in no class folder of a split.")
            keep_predictions(session, prepared.train, flag, display)
            display.begin(progress.step)
            batches = iter(training_batches(session, prepared.train))
            if limits.on_best is not None and progress.best is not None:
                limits.on_best(session)
            while not session.is_done and train_epoch(session, batches, flag, display):
                finish_epoch(session, prepared.val, flag, display)
            if progress.epoch < recipe.epochs:
                is_late = session.waited < (recipe.patience or math.inf)
                display.say(
                    f"stopped early: {'the time is up' if is_late else f'no better for {recipe.patience} epochs'}"
                )
            display.show_finish()
            outcome = finish(session, prepared, flag)
    except (OSError, EOFError, RuntimeError) as error:
        if (reason := describe_failure(session, error)) is None:
            raise
        raise ValueError(f"{reason}. {describe_last(session)}; go on with: {run.resume_command}") from None
    accelerator.end_training()
    return outcome


def train_epoch(session: Session, batches: Iterator[Any], flag: StopFlag, display: Display) -> bool:
    """Train to the end of the epoch in progress; False where the time was up before, and there is a better end.

    An epoch that was cut short is validated where none was before.
    """
    progress, every = session.progress, session.recipe.saving.every * 60
    record_every = max(1, session.steps_per_epoch // RECORDS)
    end = (progress.epoch + 1) * session.steps_per_epoch
    saved = mark = time.monotonic()
    while progress.step < end:
        rate = set_rates(session)
        loss, norm, signal_number, is_save_due = take_step(session, batches, flag, mark - saved > every)
        now = time.monotonic()
        progress.step += 1
        progress.elapsed += now - mark
        for name, value in {"loss": loss, "grad_norm": norm, "seconds": now - mark}.items():
            progress.sums[name] += value
        mark = now
        if progress.step % record_every == 0:
            record(session, {"kind": "step", "epoch": progress.epoch, "step": progress.step, "loss": loss, "lr": rate})
        display.show_step(progress.epoch, progress.step, loss)
        if signal_number:
            leave(session, signal_number)
        if session.limits.seconds is not None and progress.elapsed > session.limits.seconds:
            return progress.best is None
        if is_save_due and progress.step < end:
            save_checkpoint(session)
            saved = time.monotonic()
    return True


def leave(session: Session, signal_number: int) -> NoReturn:
    """End the run after a checkpoint, because a signal asked for it."""
    save_checkpoint(session)
    session.accelerator.end_training()  # trackers write what they hold back
    raise Interrupted(signal_number, session.progress.step, session.run.resume_command)


def take_step(session: Session, batches: Iterator[Any], flag: StopFlag, is_save_due: bool = False) -> Step:
    """One step of the optimizer."""
    accelerator, recipe, progress = session.accelerator, session.recipe, session.progress
    first_part = accelerator.process_index * recipe.accumulate
    total = torch.zeros((), device=accelerator.device)
    for part in range(recipe.accumulate):
        batch = next(batches)
        note_bad(session, batch.bad)
        prepared = session.objective.prepare(batch, progress.epoch, progress.step)
        torch.manual_seed(scramble(recipe.seed, progress.step, first_part + part) >> 1)  # dropout, stochastic depth
        last = part == recipe.accumulate - 1
        with nullcontext() if last else accelerator.no_sync(session.model):
            with session.autocast():
                loss = session.objective.loss(session.model, *prepared) / recipe.accumulate
            accelerator.backward(loss)
        total += loss.detach()
    norm = nn.utils.get_total_norm([p.grad for p in session.model.parameters() if p.grad is not None])
    step = agree(session, total, norm, flag.number, is_save_due)
    if not (math.isfinite(step.loss) and math.isfinite(step.norm)):
        refuse_to_go_on(session, step.loss, step.norm)
    clip_gradients(session.built.model, recipe.optimizer, norm)
    session.optimizer.step()
    session.optimizer.zero_grad()
    if session.ema is not None:
        session.ema.update(session.built.model, progress.step)
    return step


def set_rates(session: Session) -> float:
    """Set the learning rates for the next step; returns the fraction of the full rate."""
    recipe, epoch = session.recipe, session.progress.step / session.steps_per_epoch
    fraction = learning_rate(recipe.schedule, session.epochs, epoch)
    flat = learning_rate(recipe.schedule.model_copy(update={"kind": "constant"}), session.epochs, epoch)
    for group, base in zip(session.optimizer.param_groups, session.base_rates, strict=True):
        group["lr"] = base * (flat if group["flat"] else fraction)
    return max(session.base_rates) * fraction


def finish_epoch(session: Session, val: Split, flag: StopFlag, display: Display) -> None:
    """Validate if that is due, record the epoch's metrics, and write a checkpoint."""
    progress, recipe, began = session.progress, session.recipe, time.monotonic()
    number, steps = progress.epoch + 1, progress.step - progress.epoch * session.steps_per_epoch
    trained = {
        "epoch": number,
        "step": progress.step,
        "loss": progress.sums["loss"] / steps,
        "grad_norm": progress.sums["grad_norm"] / steps,
        "lr": max(group["lr"] for group in session.optimizer.param_groups),
        "seconds": progress.sums["seconds"],
        "images_per_second": steps * recipe.batch / progress.sums["seconds"],
    }
    session.plan_epochs(number)
    display.plan(session.epochs)
    if number % recipe.validate_every and not session.is_done_after(number):
        progress.epoch, progress.sums = number, dict.fromkeys(progress.sums, 0.0)
        record(session, {"kind": "unvalidated", **trained, "elapsed": progress.elapsed})
        save_checkpoint(session)
        display.show_epoch(trained, progress.elapsed / number * (session.epochs - number))
        return
    display.show_evaluation()
    meter = evaluate(session, val, flag)
    metrics = meter.metrics()
    validated = metrics.values() | metrics.settings()
    check_validation(session, metrics.values())
    seconds = time.monotonic() - began
    progress.elapsed += seconds
    progress.epoch, progress.sums = number, dict.fromkeys(progress.sums, 0.0)
    score = validated[session.task.metric.key]
    if progress.best is None or score > progress.best:
        progress.best, progress.best_epoch = score, progress.epoch
        progress.best_name = progress.name(session.steps_per_epoch)
        session.best = meter
    values = {
        "kind": "epoch",
        **trained,
        **{f"val_{name}": value for name, value in validated.items()},
        "val_score": score,
        "eval_seconds": seconds,
        "elapsed": progress.elapsed,
    }
    record(session, values)
    save_checkpoint(session)
    if session.limits.on_best is not None and progress.best_epoch == progress.epoch:
        session.limits.on_best(session)
    display.show_epoch(values, progress.elapsed / number * (session.epochs - number))


def evaluate(
    session: Session, split: Split, flag: StopFlag | None = None, settings: Mapping[str, Any] | None = None
) -> Meter:
    """Predictions of the model for a split with their ground truth; the processes share the images.

    They are in float32 however the model is trained: what is judged is what the written model predicts.
    """
    accelerator, model, task = session.accelerator, session.eval_model, session.task
    mine = range(accelerator.process_index, len(split), accelerator.num_processes)
    batch = max(1, session.recipe.batch // session.recipe.accumulate)
    preprocessing, meter = session.built.preprocessing, task.meter(len(session.classes), settings)
    training = model.training
    model.eval()
    for images in task.eval_loader(split, preprocessing, batch, session.workers, mine):
        note_bad(session, images.bad)
        predictions = task.predict(model, images, preprocessing, accelerator.device, session.classes)
        meter.add(images, predictions)
        if flag is not None and flag.number and accelerator.num_processes == 1:
            leave(session, flag.number)
    if accelerator.num_processes > 1:
        meter.gather()
    model.train(training)
    return meter


def finish(session: Session, prepared: Prepared, flag: StopFlag) -> Outcome:
    """Write the model of the best epoch, its predictions and metrics on the test images, and the pages of the run.

    This is the only time that a model sees the test images. Without any, the validation images decide a comparison, and
    what the best epoch predicted for them is written.
    """
    progress, built, run, task = session.progress, session.built, session.run, session.task
    test = prepared.data.test if session.recipe.data.test else None
    session.ema = None
    built.model.load_state_dict(session.checkpoints.weights(progress.best_name))
    if hasattr(built.model, PROJECTION):  # it has served its purpose
        delattr(built.model, PROJECTION)
    built.model.eval()
    best = next(r for r in run.records() if r["kind"] == "epoch" and r["epoch"] == progress.best_epoch)
    settings = {name: best[f"val_{name}"] for name in task.settings}
    if test is not None:
        meter = evaluate(session, test, flag, settings)
        metrics = meter.metrics()
        tested = metrics.values() | {name: v for name, v in metrics.settings().items() if isinstance(v, float)}
    else:
        meter, tested = session.best or evaluate(session, prepared.val, flag), None
    agree_on_bad(session)
    outcome = Outcome(
        model=built.name,
        parameters=sum(p.numel() for p in built.model.parameters()),
        epoch=progress.best_epoch,
        epochs=progress.epoch,
        steps=progress.step,
        task=task.name,
        metric=task.metric.title,
        val_score=progress.best or 0.0,
        test_score=tested[task.metric.key] if tested else None,
        test=tested,
        elapsed=progress.elapsed,
        stopped_early=progress.epoch < session.recipe.epochs,
        bad_images=progress.bad,
        folder=run.folder,
    )
    if session.accelerator.is_main_process:
        finish_run(run, outcome, built, session.classes, settings, meter)
    session.accelerator.wait_for_everyone()
    return outcome


def save_checkpoint(session: Session) -> None:
    """Write a checkpoint; the first process does it for all."""
    check_weights(session)
    agree_on_bad(session)
    if session.accelerator.is_main_process:
        ema = session.ema.module if session.ema else None
        session.checkpoints.write(session.progress, session.built.model, session.optimizer, ema)
    session.accelerator.wait_for_everyone()


def record(session: Session, values: dict[str, object]) -> None:
    """Write figures to `metrics.jsonl` and to the trackers."""
    if not session.accelerator.is_main_process:
        return
    session.run.record(values)
    numbers = {name: value for name, value in values.items() if isinstance(value, float)}
    prefix = "train" if values["kind"] == "step" else "epoch"
    session.accelerator.log({f"{prefix}/{name}": value for name, value in numbers.items()}, step=session.progress.step)
