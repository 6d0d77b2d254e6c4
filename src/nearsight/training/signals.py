"""Reasons to stop: a signal, a loss that is no number, too many unreadable images."""

import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from .session import Session


class Interrupted(Exception):
    """A signal ended the run after its checkpoint was written.

    Attributes:
        number: Of the signal.
        step: Steps that were done.
        command: What to type to go on.
    """

    def __init__(self, number: int, step: int, command: str):
        super().__init__(f"Stopped at step {step}; go on with: {command}")
        self.number, self.step = number, step
        self.command = command


def end_in_order() -> None:
    """Send this process SIGTERM, from any thread; on Windows `os.kill` would end it before its handlers are called."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


class StopFlag:
    """Whether a signal has come.

    Attributes:
        number: Of the signal; 0 before one has come.
    """

    number = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; the next one of its kind acts at once."""
        self.number = number
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def listening() -> Iterator[StopFlag]:
    """Listen for Ctrl-C and SIGTERM while the block runs; only the main thread of a process can."""
    flag = StopFlag()
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, flag)
    except ValueError:  # another thread: whoever runs the process listens
        before = {}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


FEW_BAD = 3  # unreadable images that end no run, however small the data, unless none are allowed


def note_bad(session: "Session", bad: dict[str, str]) -> None:
    """Count unreadable images; more than the recipe allows end the run."""
    session.progress.bad |= bad
    refuse_many_bad(session.progress.bad, bad, session.images, session.recipe.data.max_bad)


def refuse_many_bad(found: dict[str, str], bad: dict[str, str], images: int, allowed: float) -> None:
    """End a run with more unreadable images than the recipe allows.

    Args:
        found: All of them so far.
        bad: The newest.
        images: Number of all images.
        allowed: Fraction of them that may be unreadable.
    """
    if bad and len(found) > max(allowed * images, FEW_BAD if allowed else 0):
        name, reason = next(iter(bad.items()))
        raise ValueError(
            f"{len(found)} of {images} images can't be read, more than {allowed:.0%} (such as {name}: "
            f"{reason}); `nearsight data check DATA --fix-list FILE` names them, --set data.max_bad=SHARE allows more."
        )


def check_weights(session: "Session") -> None:
    """End a run whose weights are no longer numbers, so that no checkpoint takes the place of the last good one."""
    values = [value for value in session.built.model.state_dict().values() if value.is_floating_point()]
    if not all(bool(value.isfinite().all()) for value in values):
        raise ValueError(
            f"The weights are no longer finite numbers after step {session.progress.step}. {describe_last(session)}; "
            "try a lower optimizer.lr, or optimizer.clip=1."
        )


def check_validation(session: "Session", values: dict[str, float]) -> None:
    """End a run of whose validation metrics one is no longer a number."""
    for name, value in values.items():
        if math.isfinite(value):
            continue
        raise ValueError(
            f"The validation {name.replace('_', ' ')} is {value} after step {session.progress.step} "
            f"(epoch {session.progress.epoch + 1}). "
            f"{describe_last(session)}; try a lower optimizer.lr, or optimizer.clip=1."
        )


def describe_last(session: "Session") -> str:
    """Where the last good checkpoint is, as a part of a sentence."""
    last = session.checkpoints.last()
    return f"The last good checkpoint is {last}" if last else "No checkpoint was written yet"


def describe_failure(session: "Session", error: Exception) -> str | None:
    """What the system did to the run, as the beginning of a sentence; None for an error that is a bug."""
    ended = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")
    if ended or (isinstance(error, ConnectionError | EOFError) and session.workers):
        return "A process that reads images ended, often for lack of memory"
    if isinstance(error, OSError):
        return f"{error.filename or session.run.folder}: {error.strerror or error}"
    return None


def refuse_to_go_on(session: "Session", loss: float, norm: float) -> NoReturn:
    """End a run whose loss or gradient is no longer a number."""
    progress = session.progress
    epoch, batch = divmod(progress.step, session.steps_per_epoch)
    raise ValueError(
        f"The loss is {loss} and the norm of the gradient {norm} at step {progress.step + 1} "
        f"(epoch {epoch + 1}, batch {batch + 1}). {describe_last(session)}; try a lower optimizer.lr, or "
        "optimizer.clip=1."
    )
