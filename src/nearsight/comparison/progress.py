"""What people see while a comparison runs: a table that changes in a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..runs.run import Run
from ..training.progress import duration
from .plan import RunPlan
from .runner import is_finished

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
        self.state = {run.folder: "done" if is_finished(run.folder) else "waits" for run in runs}
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
