"""Runs on this machine, each in a process of its own: one for each GPU, or several beside each other on the CPU.

`Board` shows how far they are.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from filelock import FileLock, Timeout
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..atomic import write_whole
from ..config.recipe import MOST_EPOCHS
from ..runs.run import Run
from ..training.progress import duration
from ..training.signals import listening
from .plan import BuiltCandidate, Job, RunPlan, Shared, make_job

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
    """Where one run at a time can be.

    Attributes:
        threads: CPU threads of the run.
        gpu: Number of the GPU; None for the CPU.
    """

    threads: int
    gpu: int | None = None

    def environment(self) -> dict[str, str]:
        """Environment of a process in this slot."""
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
    """Slots for runs: the GPUs, or as many as there are cores, which share them.

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
    waiting = deque((run, 1) for run in runs if not run.is_finished())
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
    command = worker_command("train", make_job(run, shared, slot.threads), run.folder / "job.json")
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # closed by the system when this process ends, however it does
        stdout=log,
        stderr=log,
        env=slot.environment(),
        start_new_session=True,  # Ctrl-C reaches this process, which then asks its runs to stop
    )
    return Child(run, process, log, attempt)


def worker_command(what: str, job: Job, file: Path) -> list[str]:
    """Write a job into a file; returns the command of a process that does it.

    Only what is set is written: what a recipe leaves open is for the data to decide.
    """
    write_whole(file, job.model_dump_json(indent=1, exclude_unset=True).encode())
    return [sys.executable, "-m", "nearsight.comparison.worker", what, str(file)]


def end_of(child: Child) -> str | None:
    """None for a run that finished, `RETRY` for one that was killed, or the sentence with which it failed."""
    child.log.close()
    assert child.process.stdin is not None
    child.process.stdin.close()
    code = child.process.returncode
    if code == 0 or child.run.is_finished():
        return None
    killed = code < 0 or code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    if killed and child.attempt < ATTEMPTS:
        return RETRY
    if killed:
        return f"Its process was killed {ATTEMPTS} times (last with code {code}); is there enough memory?"
    return (
        last_line((child.run.folder / "log.txt").read_text(encoding="utf-8", errors="replace"))
        or f"Its process ended with code {code}."
    )


def last_line(text: str) -> str:
    """The last line of what a process printed, without the name of the program."""
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("nearsight: ") if lines else ""


def stop_all(children: Sequence[Child]) -> None:
    """Ask processes to stop, and wait until their checkpoints are written."""
    for child in children:
        if child.process.poll() is None and sys.platform == "win32":  # where terminating writes no checkpoint
            assert child.process.stdin is not None
            child.process.stdin.close()  # at whose end a run stops in order
        elif child.process.poll() is None:
            child.process.terminate()
    for child in children:
        child.process.wait()
        child.log.close()
        assert child.process.stdin is not None
        child.process.stdin.close()


def epochs_within(budget: float, built: Sequence[BuiltCandidate], source: str, slots: Sequence[Slot]) -> list[int]:
    """The epochs of each model that fit into a budget, from a few real steps in processes like those of the runs.

    Everything that a run does counts, from opening the data to its last prediction; of a frozen host, whose features
    are computed once, it is all there is.

    On a CPU as many models are timed at once as will be trained at once, with as many threads each.

    Args:
        budget: Seconds of one run.
        built: The models.
        source: The data.
        slots: Where the runs will be.

    Raises:
        ValueError: Not even one epoch fits, or not the features of a frozen host.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(1 if slots[0].gpu is not None else len(slots)) as pool,
    ):

        def time_one(number: int) -> tuple[float, float]:
            job = Job(source=source, recipe=built[number].recipe, folder=Path(folder), threads=slots[0].threads)
            command = worker_command("time", job, Path(folder) / f"{number}.json")
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=slots[0].environment(),
            )
            with process:  # closes its standard input at the end, and not before
                assert process.stdout is not None and process.stderr is not None
                printed, complained = process.stdout.read(), process.stderr.read()
            if process.returncode:
                reason = last_line(complained) or f"its process ended with code {process.returncode}"
                raise ValueError(f"An epoch of {built[number].candidate.label} can't be timed: {reason}")
            epoch, around = map(float, last_line(printed).split())
            return epoch, around

        seconds = list(pool.map(time_one, range(len(built))))
    epochs = []
    for one, (epoch, around) in zip(built, seconds, strict=True):
        if epoch + around > budget:
            what = f"A run of {one.candidate.label} with " + ("its features" if one.recipe.frozen else "one epoch")
            less = ", or leave pretrained ones out with --scratch-only" if one.recipe.model.weights else ""
            raise ValueError(
                f"{what} takes about {math.ceil(epoch + around)} s, more than the budget of {budget:g} s; give more "
                f"time, or fewer images with --limit{less}."
            )
        epochs.append(1 if one.recipe.frozen else min(int((budget - around) / epoch), MOST_EPOCHS))
    return epochs


EVERY = 1.0  # seconds between looks at the records


class Board:
    """State of all runs, on stderr.

    Args:
        runs: All of the comparison.
        slots: Runs at a time.
        quiet: Show nothing.
    """

    def __init__(self, runs: Sequence[RunPlan], slots: int, quiet: bool = False):
        self.runs, self.slots, self.quiet = runs, slots, quiet
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.is_live = self.console.is_terminal and not quiet
        self.state = {run.folder: "done" if run.is_finished() else "waits" for run in runs}
        self.latest: dict[Path, dict[str, Any]] = {run.folder: last_epoch(run) for run in runs}
        self.looked = 0.0

    def __enter__(self) -> "Board":
        done = sum(state == "done" for state in self.state.values())
        kept = f"; {done} are finished already" if done else ""
        at_once = f"{self.slots} at a time" if self.slots > 1 else "one after the other"
        self.say(f"Training {len(self.runs)} runs, {at_once}{kept}.")
        if self.is_live:
            self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.is_live:
            self.live.stop()

    def started(self, run: RunPlan) -> None:
        """A run begins, or goes on."""
        self.state[run.folder] = "runs"

    def look(self) -> None:
        """Read the newest records of the active runs, now and then."""
        if time.monotonic() - self.looked < EVERY:
            return
        self.looked = time.monotonic()
        for run in self.runs:
            if self.state[run.folder] == "runs":
                self.notice(run)
        if self.is_live:
            self.live.update(self.table(), refresh=True)

    def notice(self, run: RunPlan) -> None:
        """Take over the newest epoch of a run; in a pipe, print a line for it."""
        values = last_epoch(run)
        if values.get("epoch") != self.latest[run.folder].get("epoch"):
            self.latest[run.folder] = values
            if values and not self.is_live:
                self.say(
                    f"{title(run)}: epoch {values['epoch']}/{run.model.epochs}, "
                    f"validation {values['val_score']:.1%}, {self.left()}"
                )

    def ended(self, run: RunPlan, failure: str | None) -> None:
        """A run finished, or failed with a sentence."""
        self.state[run.folder] = "failed" if failure else "done"
        self.latest[run.folder] = values = last_epoch(run)
        if failure:
            self.say(f"{title(run)} failed: {failure}")
        else:
            self.say(f"{title(run)} finished in {duration(values.get('elapsed', 0))}, {self.left()}")

    def left(self) -> str:
        """Time for all that is left, from what epochs took so far."""
        per_epoch = {
            run.folder: self.latest[run.folder]["elapsed"] / self.latest[run.folder]["epoch"]
            for run in self.runs
            if self.latest[run.folder]
        }
        if not per_epoch:
            return "time left not known yet"
        typical = sum(per_epoch.values()) / len(per_epoch)
        of_model: dict[str, list[float]] = {}
        for run in self.runs:
            if run.folder in per_epoch:
                of_model.setdefault(run.model.label, []).append(per_epoch[run.folder])
        seconds = 0.0
        for run in self.runs:
            if self.state[run.folder] in ("waits", "runs"):
                known = of_model.get(run.model.label, [typical])
                epochs = run.model.epochs - self.latest[run.folder].get("epoch", 0)
                seconds += epochs * sum(known) / len(known)
        return f"about {duration(seconds / self.slots)} left for all"

    def table(self) -> RenderableType:
        """One line for each run; where the terminal is too low, only those that are active or failed."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for name, side in (
            ("run", "left"),
            ("", "left"),
            ("epoch", "right"),
            ("validation", "right"),
            ("time", "right"),
        ):
            table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
        fits = len(self.runs) + 6 <= self.console.height
        for run in self.runs:
            state, values = self.state[run.folder], self.latest[run.folder]
            if not fits and state in ("waits", "done"):
                continue
            epoch = values.get("epoch", 0)
            bar: RenderableType = ProgressBar(run.model.epochs, epoch, width=20)
            style = {"failed": "red", "waits": "dim", "done": "green"}.get(state, "")
            table.add_row(
                Text(title(run), style=style),
                Text("failed", style="red") if state == "failed" else bar,
                f"{epoch}/{run.model.epochs}",
                f"{values['val_score']:.1%}" if values else "–",
                duration(values["elapsed"]) if values else "–",
            )
        done = sum(state == "done" for state in self.state.values())
        return Group(table, Text(f"{done} of {len(self.runs)} runs finished, {self.left()}.", style="dim"))

    def say(self, text: str) -> None:
        """Print a line, above the table if there is one."""
        if self.is_live:
            self.console.print(text, highlight=False, markup=False)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)


def title(run: RunPlan) -> str:
    """What to call a run."""
    return f"{run.model.label} · seed {run.seed}"


def last_epoch(run: RunPlan) -> dict[str, Any]:
    """The newest epoch in a run's records; empty before the first."""
    epochs = [values for values in Run(run.folder).records() if values["kind"] == "epoch"]
    return epochs[-1] if epochs else {}
