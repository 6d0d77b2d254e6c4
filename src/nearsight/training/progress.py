"""What people see while a model trains: two live lines in a terminal, one line for each epoch elsewhere."""

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

WORDS = 58  # columns that the words beside the bar take at most


class TwoLines(Progress):
    """A bar with the figures below it: in one line they would not fit into 80 columns."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["figures"], no_wrap=True, overflow="ellipsis")


class Display:
    """Progress of a run, on stderr.

    Args:
        epochs: Epochs in all.
        steps: Steps in all.
        batch: Images in a step.
        metric: Name of the figure that is shown.
        quiet: Show nothing.
    """

    def __init__(self, epochs: int, steps: int, batch: int, metric: str, quiet: bool = False):
        self.epochs, self.steps, self.batch, self.metric, self.quiet = epochs, steps, batch, metric, quiet
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal and not quiet
        self.progress = TwoLines(
            TextColumn("{task.description}"),
            BarColumn(bar_width=max(2, min(40, self.console.width - WORDS))),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            transient=True,
        )
        self.bar = self.progress.add_task("", total=steps, figures="", left="")
        self.score: float | None = None
        self.first_step, self.started = 0, time.monotonic()

    def __enter__(self) -> "Display":
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.progress.stop()

    def plan(self, epochs: int) -> None:
        """Take another number of epochs for the whole, and say so."""
        if epochs != self.epochs:
            pace = "longer" if epochs < self.epochs else "less long"
            self.say(f"epochs take {pace} than planned: {epochs} instead of {self.epochs} fit into the time")
            self.steps = self.steps // self.epochs * epochs
            self.epochs = epochs
            self.progress.update(self.bar, total=self.steps)

    def begin(self, step: int) -> None:
        """Start counting time, from a step on."""
        self.first_step, self.started = step, time.monotonic()

    def show_step(self, epoch: int, step: int, loss: float) -> None:
        """Move the live lines on."""
        if not self.live:
            return
        speed = (step - self.first_step) / max(time.monotonic() - self.started, 1e-9)
        figures = [f"{speed * self.batch:.0f} images/s", f"loss {loss:.3f}"]
        if self.score is not None:
            figures.append(f"{self.metric} {self.score:.1%}")
        per_epoch = self.steps // self.epochs
        self.progress.update(
            self.bar,
            completed=step,
            description=f"epoch {epoch + 1}/{self.epochs} step {step - epoch * per_epoch}/{per_epoch}",
            left=f"{duration((self.steps - step) / speed)} left" if speed else "",
            figures=" · ".join(figures),
        )

    def show_teacher(self, done: int, chunks: int) -> None:
        """Say how far a teacher has come."""
        if self.live:
            self.progress.update(self.bar, figures=f"the teacher predicts: {done / chunks:.0%}")

    def show_evaluation(self) -> None:
        """Say that validation is going on."""
        if self.live:
            self.progress.update(self.bar, figures="validating")

    def show_finish(self) -> None:
        """Say that the best epoch is tested and written."""
        if self.live:
            self.progress.update(self.bar, figures="testing and writing the model")

    def show_epoch(self, figures: dict[str, Any], left: float) -> None:
        """One line for an epoch that is done."""
        self.score = figures.get("val_score", self.score)
        if self.quiet:
            return
        validated = f"val loss {figures['val_loss']:.4f}  " if "val_loss" in figures else ""
        scored = f"{self.metric} {self.score:6.2%}  " if "val_score" in figures else ""
        speed = "" if self.live else f"{figures['images_per_second']:.0f} images/s  "  # 80 columns have no room for it
        self.say(
            f"epoch {figures['epoch']:>{len(str(self.epochs))}}/{self.epochs}  loss {figures['loss']:.4f}  "
            f"{validated}{scored}{speed}{duration(left)} left"
        )

    def say(self, text: str) -> None:
        """Print a line above the live ones."""
        if self.live:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Time for people: `42 s`, `7 min 05 s`, `3 h 20 min`.

    Example:
        >>> duration(425), duration(12000)
        ('7 min 05 s', '3 h 20 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
