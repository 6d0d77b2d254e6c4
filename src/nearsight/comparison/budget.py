"""A budget in training time: how many epochs of each model fit into it, from a few real steps on this machine."""

import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from ..config.recipe import Recipe
from .candidates import Contender

WARM_UP = 2  # steps that are not timed
LEAST_STEPS, LEAST_SECONDS = 5, 4.0
VALIDATED = 256  # images that stand for all


def epochs_within(budget: float, contenders: Sequence[Contender], source: str, slots: int, threads: int) -> list[int]:
    """The epochs of each model that fit into a budget.

    On a CPU as many models are timed at once as will be trained at once, with as many threads each.

    Args:
        budget: Seconds of training and validation for one run.
        contenders: The models.
        source: The data.
        slots: Runs at a time.
        threads: Of each run.

    Raises:
        ValueError: Not even one epoch fits.
    """
    workers = 1 if torch.cuda.is_available() else min(slots, len(contenders))
    # A fresh interpreter: one that was forked from a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with one_thread_each(threads), ProcessPoolExecutor(workers, mp_context=context) as pool:
        timings = [pool.submit(time_epoch, source, contender.recipe, threads) for contender in contenders]
        seconds = [timing.result() for timing in timings]
    epochs = []
    for contender, needed in zip(contenders, seconds, strict=True):
        if needed > budget:
            raise ValueError(
                f"One epoch of {contender.entry.label} takes about {math.ceil(needed)} s, more than the budget of "
                f"{budget:g} s; give more time, or fewer images with --limit."
            )
        epochs.append(int(budget / needed))
    return epochs


@contextmanager
def one_thread_each(threads: int) -> Iterator[None]:
    """Let processes that are started meanwhile use so many threads."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def time_epoch(source: str, recipe: Recipe, threads: int) -> float:
    """Seconds of one epoch with its validation, from some steps of the training loop itself."""
    from ..data.samples import Subset
    from ..runs.run import Run
    from ..training.loop import evaluate, set_rates, take_step
    from ..training.session import make_accelerator, open_session, prepare, training_batches
    from ..training.signals import StopFlag

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        prepared = prepare(source, recipe)
        session = open_session(run, prepared, make_accelerator(run, prepared.recipe, (), cpu=False))
        batches = iter(training_batches(session, prepared.train))
        flag = StopFlag()

        def step() -> None:
            set_rates(session)
            take_step(session, batches, flag)
            session.progress.step += 1

        total = prepared.recipe.epochs * session.steps_per_epoch
        for _ in range(min(WARM_UP, total - 1)):
            step()
        first, began = session.progress.step, time.perf_counter()
        while session.progress.step < total and (
            session.progress.step - first < LEAST_STEPS or time.perf_counter() - began < LEAST_SECONDS
        ):
            step()
        per_step = (time.perf_counter() - began) / (session.progress.step - first)
        training = per_step * session.steps_per_epoch
        some = Subset(prepared.val, torch.arange(min(VALIDATED, len(prepared.val))).numpy())
        began = time.perf_counter()
        evaluate(session, some)
        validation = (time.perf_counter() - began) / len(some) * len(prepared.val)
    return training + validation
