"""The command line. It starts without torch: what a command needs is imported when it runs."""

import errno
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, TextIO

import typer

from .. import __version__
from ..console import is_memory_error
from .bench import bench
from .compare import compare
from .data import data_app
from .evaluate import calibrate, embed, evaluate, predict
from .explain import app as open_app
from .explain import explain
from .export import export
from .models import doctor, models
from .options import Shell
from .probe import probe
from .reproduce import reproduce
from .search import search
from .serve import serve
from .train import distill, train
from .weights import convert, push, weights_app

app = Shell(
    name="nearsight",
    help="Vision transformers that look close first.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data_app, name="data")
app.add_typer(weights_app, name="weights")
app.command()(train)
app.command()(distill)
app.command("eval")(evaluate)
app.command()(calibrate)
app.command()(predict)
app.command()(embed)
app.command()(explain)
app.command()(probe)
app.command("app")(open_app)
app.command()(export)
app.command()(serve)
app.command()(push)
app.command()(compare)
app.command()(search)
app.command()(bench)
app.command()(models)
app.command()(doctor)
app.command()(convert)
app.command()(reproduce)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def matrix(context: typer.Context) -> None:
    """Say where the measured table of parts and hosts is, and what makes it again."""
    raise ValueError(
        "`nearsight matrix` went to the maintainers' tools: docs/matrix.md has the table, and "
        "`python -m tools.matrix` in a clone of the repository measures it again."
    )


def main() -> None:
    """Run the command line; what the library refuses becomes one sentence and exit code 1."""
    prepare_output()
    os.environ["MPLBACKEND"] = "agg"  # nothing here needs a screen, and one that is not there would end the command
    warnings.showwarning = show_warning
    try:
        refuse_empty(sys.argv[1:])
        with leaving_on_signals():
            try:
                app(prog_name="nearsight")
            finally:
                flush_output()
    except BrokenPipeError:  # whoever read the output (head, less) has seen enough
        pass
    except (ValueError, TypeError, OSError) as error:
        if not is_refusal(error):
            raise
        stop(error)
    except (MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        stop(ValueError("There is not enough memory for this; give a smaller batch, image size or model."))
    except KeyboardInterrupt:
        print("nearsight: interrupted.", file=sys.stderr)
        sys.exit(130)


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the command as an exception does, so that temporary files go with it."""
    own, before = os.getpid(), {}

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # a process that was forked, which has nothing to tidy up
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        print(f"nearsight: ended by {signal.Signals(number).name}.", file=sys.stderr)
        sys.exit(128 + number)

    try:
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) == signal.SIG_DFL:  # else somebody wants it so, such as nohup
                before[number] = signal.signal(number, leave)
    except ValueError:  # another thread: whoever runs the process listens
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def flush_output() -> None:
    """Write what is still held back; what can't be written is an error here, and none once more at the very end."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        error.filename = error.filename or "Standard output"
        raise


def refuse_empty(words: list[str]) -> None:
    """Refuse words that say nothing, as an unset shell variable leaves them: as a path they would mean this folder.

    Example:
        >>> refuse_empty(["predict", "run", "image.png", "--out="])
        Traceback (most recent call last):
        ...
        ValueError: --out is empty, as a shell variable that is not set; give it a value, or leave it out.
    """
    for number, word in enumerate(words):
        name, sign, value = word.partition("=")
        before = words[number - 1] if number else ""
        if name.startswith("--") and sign and not value.strip():
            what = name
        elif not word.strip():
            what = before if before.startswith("-") else f"Word {number + 1} of the command"
        else:
            continue
        raise ValueError(f"{what} is empty, as a shell variable that is not set; give it a value, or leave it out.")


plain_warning = warnings.showwarning


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own hints as a sentence; other warnings as Python shows them."""
    if category is FutureWarning and str(message).endswith("the old name will go."):
        print(message, file=sys.stderr)
    else:
        plain_warning(message, category, filename, lineno, file, line)


class ClosedOutput(io.TextIOBase):
    """A stream that was closed before the program began: writing to it fails with a sentence."""

    def write(self, text: str) -> int:
        """Refuse."""
        raise OSError(errno.EBADF, "Standard output is closed; send it to a file or to /dev/null")


def prepare_output() -> None:
    """Streams that take any name, whatever the terminal's encoding, and fail in a sentence where they are closed."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:  # else the next file would become standard output
        pass
    os.close(handle)
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_refusal(error: Exception) -> bool:
    """Whether the library itself refused, or a file could not be used; anything else is a bug and shows its trace."""
    frames = traceback.extract_tb(error.__traceback__)
    library = Path(__file__).parents[1]
    return isinstance(error, OSError) or (bool(frames) and Path(frames[-1].filename).is_relative_to(library))


def stop(error: Exception) -> NoReturn:
    """Print the error as one sentence and leave with exit code 1."""
    sentence = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        sentence = f"{name}{error.strerror}."
    print(f"nearsight: {sentence}", file=sys.stderr)
    sys.exit(1)


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        print(f"nearsight {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Vision transformers that look close first."""
