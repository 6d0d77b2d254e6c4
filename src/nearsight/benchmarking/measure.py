"""One run of the benchmark: every model in every runtime at every batch size, in rounds that take turns."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from ..timing import Task, make_task, take_turns, with_threads
from .models import Refused, Subject, reason_of
from .results import Bench, Key, Missing, Setting
from .runtimes import Runner, make_runner, many_compilations

T = TypeVar("T")
Follow = Callable[[Sequence[Any], str], Iterable[Any]]
LEAST = 0.1  # seconds that one measurement lasts
SIDE = {"cpu": 2048}  # of the square matrices whose product is the peak
SIDE_ON_GPU = 8192


def without_progress(items: Sequence[T], title: str) -> Iterable[T]:
    """Show nothing."""
    return items


@torch.inference_mode()
def bench(
    subjects: Sequence[Subject | Refused],
    setting: Setting,
    reference: str | None = None,
    *,
    follow: Follow = without_progress,
    stopped: Callable[[], int] = lambda: 0,
) -> Bench:
    """Measure models beside each other.

    Args:
        subjects: The models; labels may come again at other sizes.
        setting: How to measure.
        reference: Label of the model that the others are divided by; None takes the first.
        follow: Wraps a list to show progress.
        stopped: Number of a signal that has come; rounds that are whole are kept.

    Raises:
        KeyboardInterrupt: Stopped before the first round was over.
        ValueError: Nothing can be measured.

    Example:
        >>> from nearsight.benchmarking import open_subject
        >>> found = bench([open_subject("deit_nano")], Setting((1,), ("eager", "folded"), rounds=3))
        >>> [key.runtime for key in found.seconds], len(found.peak)
        (['eager', 'folded'], 3)
    """
    ready = Preparation(setting)
    with with_threads(setting.threads), many_compilations():
        ready.prepare(subjects, follow, stopped)
        if not ready.tasks:
            raise ValueError(f"Nothing can be measured: {ready.missing[0].reason}")
        side = SIDE.get(setting.device.type, SIDE_ON_GPU)
        tasks: dict[Key | None, Task] = {None: matrix_product(side, setting.device)}
        tasks.update(ready.tasks.items())
        order = follow(list(tasks) * setting.rounds, "Measuring in rounds")
        seconds = take_turns(tasks, until(stopped, order))
    whole = min(len(values) for values in seconds.values())
    if not whole:
        raise KeyboardInterrupt
    return Bench(
        subjects=tuple(subject for subject in subjects if isinstance(subject, Subject)),
        setting=setting,
        seconds={key: values[:whole] for key, values in seconds.items() if key is not None},
        memory=ready.memory,
        making=ready.making,
        missing=tuple(ready.missing),
        peak=seconds[None][:whole],
        side=side,
        reference=reference or subjects[0].label,
        interrupted=stopped() if whole < setting.rounds else 0,
    )


class Preparation:
    """Models in their runtimes, warmed up.

    Attributes:
        tasks: What to measure.
        memory: Bytes of one call.
        making: Seconds until the first answer was there.
        missing: What does not run.
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        self.tasks: dict[Key, Task] = {}
        self.memory: dict[Key, int] = {}
        self.making: dict[Key, float] = {}
        self.missing: list[Missing] = []

    def prepare(self, subjects: Sequence[Subject | Refused], follow: Follow, stopped: Callable[[], int]) -> None:
        """Bring every model into every runtime."""
        pairs = [(subject, runtime) for subject in subjects for runtime in self.setting.runtimes]
        for subject, runtime in follow(pairs, "Folding, compiling and warming up"):
            if stopped():
                raise KeyboardInterrupt
            if isinstance(subject, Refused):
                self.missing.append(Missing(subject.label, subject.size, runtime, 0, subject.reason))
                continue
            try:
                runner = make_runner(subject, runtime, self.setting.device, self.setting.threads)
            except Exception as error:  # compilers and exporters raise anything; the others are still measured
                self.missing.append(Missing(subject.label, subject.size, runtime, 0, reason_of(error)))
                continue
            for batch in self.setting.batches:
                self.warm_up(runner, Key(subject.label, subject.size, runtime, batch))

    def warm_up(self, runner: Runner, key: Key) -> None:
        """Call a model until it is fast, and measure its memory."""
        setting = self.setting
        images = torch.randn(key.batch, 3, *key.size, device=setting.device)
        call = partial(runner.call, images)
        try:
            first = Task(call, 1, setting.device).seconds()
            self.tasks[key] = make_task(call, setting.device, LEAST)
            self.making[key] = runner.seconds + first
            if setting.memory and runner.visible and (bytes_ := peak_memory(call, setting.device)) is not None:
                self.memory[key] = bytes_
        except Exception as error:
            self.missing.append(Missing(key.label, key.size, key.runtime, key.batch, reason_of(error)))


def matrix_product(side: int, device: torch.device) -> Task:
    """The product of two square matrices in float32: the fastest arithmetic that the machine has."""
    one, other, out = (torch.randn(side, side, device=device) for _ in range(3))
    return make_task(partial(torch.mm, one, other, out=out), device, LEAST)


def until(stopped: Callable[[], int], items: Iterable[T]) -> Iterable[T]:
    """The items, as long as no signal has come."""
    for item in items:
        if stopped():
            return
        yield item


def peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Largest number of bytes that one call holds at a time, its result included; weights and inputs are not.

    On the CPU every allocation of PyTorch is followed, also those inside kernels, compiled code and backward passes,
    so that the number is the same from call to call. What a library takes past PyTorch's allocator is not seen.

    Args:
        call: What is measured. Call it once before: the first call may fill tables that stay.
        device: Where it runs.

    Returns:
        Bytes; None on a device that does not tell.

    Example:
        >>> peak_memory(lambda: torch.ones(1000) + torch.ones(1000), torch.device("cpu"))
        12000
    """
    if device.type == "cuda":
        return peak_on_gpu(call, device)
    return peak_on_cpu(call) if device.type == "cpu" else None


def peak_on_gpu(call: Callable[[], object], device: torch.device) -> int:
    """By the statistics of the GPU's allocator."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_on_cpu(call: Callable[[], object]) -> int:
    """By the sum of what was allocated and not yet freed, over time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports on stderr that it began and ended
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = call()
    del result
    events = watched.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak
