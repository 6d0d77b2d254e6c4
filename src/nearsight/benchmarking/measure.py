"""One run of the benchmark: every model in every runtime at every batch size, in rounds that take turns."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from ..arguments import checked
from ..models.backbone import free_bytes
from ..models.fold import fold
from ..runs.predictor import pick_device
from ..tasks.build import channels_seen
from ..timing import TimedCall, check_threads, make_task, take_turns, with_threads
from .models import (
    KNOWN,
    RUNTIMES,
    BenchModel,
    NotMeasured,
    Runner,
    make_runner,
    many_compilations,
    open_model,
    reason_of,
)
from .results import Bench, Key, Missing, Setting
from .stages import StageTime, time_stages

T = TypeVar("T")
Follow = Callable[[Sequence[Any], str], Iterable[Any]]
BATCHES = {False: (1, 8, 32), True: (1,)}  # images at a time; over sizes
LEAST = 0.1  # seconds that one measurement lasts
SIDE = {"cpu": 2048}  # of the square matrices whose product is the peak
SIDE_ON_GPU = 8192


MOST_ROUNDS = 100_000
WITH_STAGES = ("eager", "folded")


def without_progress(items: Sequence[T], title: str) -> Iterable[T]:
    """Show nothing."""
    return items


@checked
def bench(
    models: str | Sequence[str],
    *,
    against: str | Sequence[str] = (),
    batch: int | Sequence[int] | None = None,
    size: int | None = None,
    runtimes: str | Sequence[str] | None = None,
    scaling: Sequence[int] | None = None,
    rounds: int = 10,
    threads: int | None = None,
    device: torch.device | str | None = None,
    memory: bool = True,
    stages: bool = False,
    follow: Follow = without_progress,
    stopped: Callable[[], int] = lambda: 0,
) -> Bench:
    """Measure models beside each other: latency, images in a second, memory, fraction of the machine's peak.

    Args:
        models: Names of models, ours or timm's, with options `NAME:KEY=VALUE:...` and a label `LABEL=NAME`; folders of
            runs, weight files.
        against: More models; times are divided by those of the first of them, else of the first model.
        batch: Images at a time; None for 1, 8 and 32, with `scaling` 1.
        size: Side of the images; None takes each model's own.
        runtimes: Some of `eager`, `folded`, `compiled`, `onnx` and `openvino`; with `-bfloat16` or `-int8` behind them
            in fewer bits, where the CPU has instructions for it; `all` for each of these. None for the first four, with
            `scaling` for `eager`.
        scaling: Sides of images over which growth is measured.
        rounds: Each measures everything once.
        threads: Of the CPU; None as PyTorch does.
        device: `cpu`, `cuda` or `mps`; None takes a GPU if there is one.
        memory: Whether to measure memory, too.
        stages: Whether to time embedding, stages and head, too; in the runtimes `eager` and `folded`.
        follow: Wraps a list to show progress.
        stopped: Number of a signal that has come; rounds that are whole are kept.

    Raises:
        ValueError: There is no such model, or nothing can be measured.
        KeyboardInterrupt: Stopped before the first round was over.

    Example:
        >>> found = bench(["deit_nano", "lit_nano"], batch=1, runtimes="eager", rounds=3, device="cpu")
        >>> [key.label for key in found.seconds], found.reference
        (['deit_nano', 'lit_nano'], 'deit_nano')
    """
    texts, others = ([given] if isinstance(given, str) else list(given) for given in (models, against))
    texts = list(dict.fromkeys([*texts, *others]))
    if not texts:
        raise ValueError("No model was given; name one or more.")
    if size and scaling:
        raise ValueError("Give either --size or --scaling, not both.")
    sides = whole_numbers("--scaling", scaling, 16, 2048) if scaling else [size]
    if scaling and len(sides) < 2:
        raise ValueError(f"--scaling {sides[0]} is a single size; give two or more, such as 224,320,448,640,896.")
    batches = whole_numbers("--batch", [batch] if isinstance(batch, int) else batch or BATCHES[bool(scaling)], 1, 4096)
    if scaling and len(batches) > 1:
        raise ValueError("--scaling measures one batch size; give one with --batch, or none for 1.")
    chosen = [runtimes] if isinstance(runtimes, str) else runtimes or (["eager"] if scaling else RUNTIMES)
    chosen = KNOWN if list(chosen) == ["all"] else chosen
    if unknown := [name for name in chosen if name not in KNOWN]:
        raise ValueError(f"--runtimes {unknown[0]} is not known; use all, or some of {', '.join(KNOWN)}.")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise ValueError(f"--rounds {rounds} won't do; give a whole number from 1 to {MOST_ROUNDS:,}.")
    if stages and not set(chosen) & set(WITH_STAGES):
        raise ValueError(f"--stages times {' and '.join(WITH_STAGES)} models; add one of these to --runtimes.")
    threads = torch.get_num_threads() if threads is None else threads
    check_threads(threads)
    setting = Setting(
        tuple(batches), tuple(dict.fromkeys(chosen)), rounds, threads, pick_device(device), memory, stages
    )
    wanted = [(text, side) for text in texts for side in sides]
    opened = [open_model(text, side) for text, side in follow(wanted, "Building and counting models")]
    keys = [(model.label, model.size) for model in opened]
    for key in keys:
        if keys.count(key) > 1:
            label = key[0]
            raise ValueError(f"Two models are called {label!r}; give one of them another name: LABEL=NAME.")
    reference = opened[texts.index(others[0]) * len(sides)].label if others else None
    found = measure(opened, setting, reference, follow=follow, stopped=stopped)
    return replace(found, scaling=bool(scaling))


def whole_numbers(option: str, given: Sequence[int], low: int, high: int) -> list[int]:
    """Numbers within limits, each once, smallest first."""
    if not all(low <= value <= high for value in given):
        text = ",".join(map(str, given))
        raise ValueError(f"{option} {text} is not a list of numbers from {low} to {high}; write it like 224,320.")
    return sorted(set(given))


@torch.inference_mode()
def measure(
    models: Sequence[BenchModel | NotMeasured],
    setting: Setting,
    reference: str | None = None,
    *,
    follow: Follow = without_progress,
    stopped: Callable[[], int] = lambda: 0,
) -> Bench:
    """Measure models beside each other.

    Args:
        models: The models; labels may come again at other sizes.
        setting: How to measure.
        reference: Label of the model that the others are divided by; None takes the first.
        follow: Wraps a list to show progress.
        stopped: Number of a signal that has come; rounds that are whole are kept.

    Raises:
        KeyboardInterrupt: Stopped before the first round was over.
        ValueError: Nothing can be measured.

    Example:
        >>> found = measure([open_model("deit_nano")], Setting((1,), ("eager", "folded"), rounds=3))
        >>> [key.runtime for key in found.seconds], len(found.peak)
        (['eager', 'folded'], 3)
    """
    ready = WarmUp(setting)
    with with_threads(setting.threads), many_compilations():
        ready.prepare(models, follow, stopped)
        if not ready.tasks:
            raise ValueError(f"Nothing can be measured: {ready.missing[0].reason}")
        side = SIDE.get(setting.device.type, SIDE_ON_GPU)
        tasks: dict[Key | None, TimedCall] = {None: matrix_product(side, setting.device)}
        tasks.update(ready.tasks.items())
        order = follow(list(tasks) * setting.rounds, "Measuring in rounds")
        seconds = take_turns(tasks, until(stopped, order))
        stages = ready.time_stages(models, until(stopped, list(ready.tasks))) if setting.stages else {}
    whole = min(len(values) for values in seconds.values())
    if not whole:
        raise KeyboardInterrupt
    return Bench(
        models=tuple(model for model in models if isinstance(model, BenchModel)),
        setting=setting,
        seconds={key: values[:whole] for key, values in seconds.items() if key is not None},
        memory=ready.memory,
        making=ready.making,
        missing=tuple(ready.missing),
        peak=seconds[None][:whole],
        side=side,
        reference=reference or models[0].label,
        interrupted=stopped() if whole < setting.rounds else 0,
        stages=stages,
    )


class WarmUp:
    """Models in their runtimes, warmed up.

    Attributes:
        tasks: What to measure.
        memory: Bytes of one call.
        making: Seconds until the first output was there.
        missing: What does not run.
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        self.tasks: dict[Key, TimedCall] = {}
        self.memory: dict[Key, int] = {}
        self.making: dict[Key, float] = {}
        self.missing: list[Missing] = []

    def prepare(self, models: Sequence[BenchModel | NotMeasured], follow: Follow, stopped: Callable[[], int]) -> None:
        """Bring every model into every runtime."""
        pairs = [(model, runtime) for model in models for runtime in self.setting.runtimes]
        for model, runtime in follow(pairs, "Folding, compiling and warming up"):
            if stopped():
                raise KeyboardInterrupt
            if isinstance(model, NotMeasured):
                self.missing.append(Missing(model.label, model.size, runtime, 0, model.reason))
                continue
            reasons = [beyond_memory(model, batch, self.setting.device) for batch in self.setting.batches]
            if all(reasons):  # before anything is compiled or written
                for batch, reason in zip(self.setting.batches, reasons, strict=True):
                    self.missing.append(Missing(model.label, model.size, runtime, batch, str(reason)))
                continue
            try:
                runner = make_runner(model, runtime, self.setting.device, self.setting.threads)
            except Exception as error:  # compilers and exporters raise anything; the others are still measured
                self.missing.append(Missing(model.label, model.size, runtime, 0, reason_of(error)))
                continue
            for batch in self.setting.batches:
                key = Key(model.label, model.size, runtime, batch)
                if (reason := beyond_memory(model, batch, self.setting.device)) is not None:
                    self.missing.append(Missing(model.label, model.size, runtime, batch, reason))
                else:
                    self.warm_up(runner, key)

    def warm_up(self, runner: Runner, key: Key) -> None:
        """Call a model until it is fast, and measure its memory."""
        setting = self.setting
        images = torch.randn(key.batch, runner.channels, *key.size, device=setting.device)
        call = partial(runner.call, images)
        try:
            first = TimedCall(call, 1, setting.device).seconds()
            self.tasks[key] = make_task(call, setting.device, LEAST)
            self.making[key] = runner.seconds + first
            if setting.memory and runner.visible and (bytes_ := peak_memory(call, setting.device)) is not None:
                self.memory[key] = bytes_
        except Exception as error:
            self.missing.append(Missing(key.label, key.size, key.runtime, key.batch, reason_of(error)))

    def time_stages(
        self, models: Sequence[BenchModel | NotMeasured], keys: Iterable[Key]
    ) -> dict[Key, list[StageTime]]:
        """Time embedding, stages and head of what is measured."""
        opened = {(model.label, model.size): model for model in models if isinstance(model, BenchModel)}
        found: dict[Key, list[StageTime]] = {}
        for key in keys:
            if key.runtime not in WITH_STAGES:
                continue
            model = opened[key.label, key.size]
            module = (model.model if key.runtime == "eager" else fold(model.model)).to(self.setting.device)
            images = torch.randn(key.batch, channels_seen(model.model), *key.size, device=self.setting.device)
            try:
                found[key] = time_stages(model, module, images, self.setting.rounds)
            except ValueError as error:
                self.missing.append(Missing(key.label, key.size, key.runtime, key.batch, str(error)))
        return found


def beyond_memory(model: BenchModel, batch: int, device: torch.device) -> str | None:
    """Why a batch can't be measured, if it needs more memory than there is."""
    wanted, free = batch * model.bytes_held, free_bytes(device)
    if free is None or wanted <= free:
        return None
    height, width = model.size
    return (
        f"{batch} images of {height}x{width} pixels take about {wanted / 1e9:,.0f} GB of memory, and "
        f"{free / 1e9:,.1f} GB are free; give a smaller --batch or --size."
    )


def matrix_product(side: int, device: torch.device) -> TimedCall:
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
