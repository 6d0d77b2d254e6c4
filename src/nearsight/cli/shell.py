"""The command line. It starts without torch: what a command needs is imported when it runs."""

import errno
import io
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated, NoReturn

import typer

from .. import __version__
from .app import app as open_app
from .bench import bench
from .compare import compare
from .data import data_app
from .evaluate import evaluate, predict
from .explain import explain
from .export import export
from .matrix import matrix
from .probe import probe
from .train import train

app = typer.Typer(
    name="nearsight",
    help="Vision transformers that look close first.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data_app, name="data")
app.command()(train)
app.command("eval")(evaluate)
app.command()(predict)
app.command()(explain)
app.command()(probe)
app.command("app")(open_app)
app.command()(export)
app.command()(compare)
app.command()(bench)
app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(matrix)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Run the command line; what the library refuses becomes one sentence and exit code 1."""
    prepare_output()
    try:
        app(prog_name="nearsight")
    except BrokenPipeError:  # whoever read the output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, OSError) as error:
        if not is_refusal(error):
            raise
        stop(error)
    except KeyboardInterrupt:
        print("nearsight: interrupted.", file=sys.stderr)
        sys.exit(130)


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
    """Whether the library itself said no, or a file could not be used; anything else is a bug and shows its trace."""
    if isinstance(error, OSError):
        return True
    return Path(last_file(error.__traceback__)).is_relative_to(Path(__file__).parents[1])


def last_file(trace: TracebackType | None) -> str:
    """The source file in which an error was raised."""
    frames = traceback.extract_tb(trace)
    return frames[-1].filename if frames else ""


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


@app.command()
def models(
    pattern: Annotated[
        str | None, typer.Argument(help="A piece of a name, a pattern like 'lit_*', or a family.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models: what fills their slots, their size and their cost."""
    from ..models.catalogue import read_catalogue

    rows = read_catalogue(pattern)
    if as_json:
        from ..console import print_json

        print_json([row.as_dict() for row in rows])
        return
    from ..console import make_console, models_table

    console = make_console()
    console.print(models_table(rows, console.width))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Released checkpoint (.pth, .pt, .bin, .safetensors).")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write (.safetensors).")],
    behaviour: Annotated[str, typer.Option(help="Where release and paper differ: released or paper.")] = "released",
    act: Annotated[str, typer.Option(help="LocalViT's activation: hswish or relu6.")] = "hswish",
    channel_attention: Annotated[str, typer.Option(help="LocalViT's ECA: eca or eca_hsigmoid.")] = "eca",
    heads: Annotated[int | None, typer.Option(help="Attention heads, where the file can't tell.")] = None,
    trained_window: Annotated[
        int | None, typer.Option(help="Swin v2: window before fine-tuning with a larger.")
    ] = None,
) -> None:
    """Convert a released checkpoint to a safetensors file that knows its model."""
    from ..checkpoints import convert as convert_file
    from ..checkpoints.format import read_description

    written = convert_file(
        source,
        target,
        behaviour=behaviour,
        act=act,
        channel_attention=channel_attention,
        heads=heads,
        trained_window=trained_window,
    )
    about = read_description(written)
    print(
        f"{source.name} is {about['name'] or 'a model without a registered name'} (family {about['origin']['family']})."
    )
    print(f"Wrote {written} and {written.with_suffix('.json').name}.")


@app.command()
def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="localvit, lightvit, lit, dwconv or life; all five without.")
    ] = None,
    as_json: AsJson = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all five papers' rows to a page.")
    ] = None,
) -> None:
    """Count the papers' models and put the numbers beside the printed ones."""
    from ..console import make_console, reproduction_summary, tracked
    from ..reproduce.compare import judge
    from ..reproduce.published import rows_of
    from ..reproduce.report import print_table, to_json, to_markdown

    rows_of(paper)  # refuse an unknown paper, or a page without a folder, before the work
    if markdown and not markdown.absolute().parent.is_dir():
        raise ValueError(f"{markdown} can't be written: there is no folder {markdown.parent}; make it first.")
    rows = rows_of(None if markdown else paper)
    verdicts = [judge(row) for row in tracked(rows, "Counting the models of the papers")]
    if markdown:
        markdown.write_text(to_markdown(verdicts), encoding="utf-8")
        print(f"Wrote {markdown}.", file=sys.stderr)
    wanted = [verdict for verdict in verdicts if paper in (None, verdict.row.paper)]
    if as_json:
        print(to_json(wanted))
    elif paper:
        print_table(wanted, make_console())
    else:
        make_console().print(reproduction_summary(wanted))


if __name__ == "__main__":
    main()
