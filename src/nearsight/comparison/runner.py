"""Runs on this machine, each in a process of its own: one for each GPU, or several beside each other on the CPU."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from filelock import FileLock, Timeout

from ..training.signals import listening
from .answering import ANSWERS
from .plan import RunPlan, Shared, train_arguments

ATTEMPTS = 3  # of a run whose process is killed
PAUSE = 0.3  # seconds between looks at the processes
PATIENCE = 60.0  # seconds that processes of a comparison which was killed get to write their checkpoints


class Stopped(Exception):
    """A signal ended the comparison; all runs have written their checkpoints."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.number = number


class Watcher(Protocol):
    """Somebody who is told what happens to the runs."""

    def started(self, run: RunPlan) -> None:
        """A run begins, or goes on."""

    def look(self) -> None:
        """Called a few times in a second."""

    def ended(self, run: RunPlan, failure: str | None) -> None:
        """A run finished, or failed with a sentence."""


@dataclass(frozen=True)
class Slot:
    """A place where one run at a time can be.

    Attributes:
        threads: CPU threads of the run.
        gpu: Number of the GPU; None for the CPU.
    """

    threads: int
    gpu: int | None = None

    def environment(self) -> dict[str, str]:
        """Environment of a process in this place."""
        chosen = {"OMP_NUM_THREADS": str(self.threads)}
        if self.gpu is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            names = visible.split(",") if visible else None
            chosen["CUDA_VISIBLE_DEVICES"] = names[self.gpu] if names else str(self.gpu)
        return {**os.environ, **chosen}


@dataclass
class Child:
    """A process that works on a run."""

    run: RunPlan
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    attempt: int


def find_slots(runs: int, jobs: int | None) -> list[Slot]:
    """Places for runs: the GPUs, or as many as there are cores, which share them.

    Args:
        runs: Runs that wait.
        jobs: Runs at a time on the CPU; None chooses.
    """
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = torch.cuda.device_count()
    if gpus:
        return [Slot(max(1, cores // gpus), gpu) for gpu in range(gpus)]
    count = max(1, min(runs, jobs or cores))  # small models gain more from a neighbour than from a second thread
    return [Slot(max(1, cores // count)) for _ in range(count)]


def is_finished(folder: Path) -> bool:
    """Whether a run is done: trained, and its answers written."""
    return (folder / "outcome.json").is_file() and (folder / ANSWERS).is_file()


def wait_until_free(runs: Sequence[RunPlan]) -> None:
    """Wait for processes of a comparison that was killed; they are writing their checkpoints."""
    end = time.monotonic() + PATIENCE
    for run in runs:
        if not run.folder.is_dir():
            continue
        try:
            FileLock(run.folder / ".lock").acquire(timeout=max(0.0, end - time.monotonic())).lock.release()
        except Timeout:
            raise ValueError(f"{run.folder} is in use by another process; wait for it, or end it.") from None


def run_here(runs: Sequence[RunPlan], shared: Shared, slots: Sequence[Slot], watcher: Watcher) -> dict[Path, str]:
    """Do all runs that are not finished yet.

    Returns:
        For each run that failed, its folder and the sentence.

    Raises:
        Stopped: A signal came.
    """
    waiting = deque((run, 1) for run in runs if not is_finished(run.folder))
    wait_until_free([run for run, _ in waiting])
    free = list(slots)
    active: dict[tuple[Slot, Path], Child] = {}
    failures: dict[Path, str] = {}
    with listening() as flag:
        try:
            while (waiting or active) and not flag.number:
                while waiting and free:
                    run, attempt = waiting.popleft()
                    slot = free.pop(0)
                    active[slot, run.folder] = start(run, shared, slot, attempt)
                    watcher.started(run)
                for key, child in [item for item in active.items() if item[1].process.poll() is not None]:
                    del active[key]
                    free.append(key[0])
                    failure = end_of(child)
                    if failure is RETRY:
                        waiting.appendleft((child.run, child.attempt + 1))
                        continue
                    if failure is not None:
                        failures[child.run.folder] = failure
                    watcher.ended(child.run, failure)
                watcher.look()
                time.sleep(PAUSE)
        finally:
            stop_all(list(active.values()))
        if flag.number:
            raise Stopped(flag.number)
    return failures


RETRY = "again"


def start(run: RunPlan, shared: Shared, slot: Slot, attempt: int) -> Child:
    """Start the process of a run; its words go to `log.txt` beside its records."""
    run.folder.mkdir(parents=True, exist_ok=True)
    log = (run.folder / "log.txt").open("ab")
    command = [sys.executable, "-m", "nearsight.cli.shell.worker", *train_arguments(shared, run)]
    process = subprocess.Popen(
        [*command, "--threads", str(slot.threads)],
        stdin=subprocess.PIPE,  # closed by the system when this process ends, however it does
        stdout=log,
        stderr=log,
        env=slot.environment(),
        start_new_session=True,  # Ctrl-C reaches this process, which then asks its runs to stop
    )
    return Child(run, process, log, attempt)


def end_of(child: Child) -> str | None:
    """None for a run that finished, `RETRY` for one that was killed, or the sentence with which it failed."""
    child.log.close()
    assert child.process.stdin is not None
    child.process.stdin.close()
    code = child.process.returncode
    if code == 0 or is_finished(child.run.folder):
        return None
    killed = code < 0 or code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    if killed and child.attempt < ATTEMPTS:
        return RETRY
    if killed:
        return f"Its process was killed {ATTEMPTS} times (last with code {code}); is there enough memory?"
    return last_words(child.run.folder / "log.txt") or f"Its process ended with code {code}."


def last_words(log: Path) -> str:
    """The last line of a log, without the name of the program."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("nearsight: ") if lines else ""


def stop_all(children: Sequence[Child]) -> None:
    """Ask processes to stop, and wait until their checkpoints are written."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    for child in children:
        child.process.wait()
        child.log.close()
        assert child.process.stdin is not None
        child.process.stdin.close()
