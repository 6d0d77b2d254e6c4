"""What several commands have in common: options, how they are read, and a bar that follows batches."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..atomic import is_stream, refuse_unwritable
from ..network import go_offline

if TYPE_CHECKING:
    from ..data.loader import Batch

Groups = Annotated[
    str | None,
    typer.Option(
        metavar="RULE", help="Images that stay together in splits: folder, folder:2, or pattern:REGEX with parentheses."
    ),
]
Task = Annotated[
    str | None,
    typer.Option(help="classify, multilabel, detect or segment.", show_default="what the data are annotated for"),
]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", "-r", help="A recipe by name or a YAML file.", show_default="small-data, small-..."),
]
ImageSize = Annotated[int | None, typer.Option(help="Side of the images in pixels.")]
Limit = Annotated[int | None, typer.Option(help="Train on so many images only.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as augment.mixup=0.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps.", show_default="a GPU if there is one")]
Host = Annotated[str, typer.Option(help="Address to listen at; another than this machine's own needs a password.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Do not use a GPU.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask nothing of other machines, whatever is named.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Shell(typer.Typer):
    """A command line whose commands all take `--offline`: those whose verb has it, and those whose verb has not."""

    def command(self, *args: Any, **kwargs: Any) -> Any:
        """Register a function as a command."""
        register = super().command(*args, **kwargs)
        return lambda function: register(with_offline(function))


def with_offline(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a command, with the option before it."""
    signature = inspect.signature(function)
    if "offline" in signature.parameters:
        return function

    @wraps(function)
    def command(*args: Any, offline: bool = False, **kwargs: Any) -> Any:
        if offline:
            go_offline()
        return function(*args, **kwargs)

    asked = inspect.Parameter("offline", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Offline)
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), asked])  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, "offline": Offline}
    return command


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of a text such as `224` or `224x320`.

    Example:
        >>> parse_size("224x320"), parse_size("96")
        ((224, 320), (96, 96))
    """
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", text.strip().lower())
    if match is None:
        raise ValueError(f"--size {text} is no size; write height and width in pixels like 224x320, or 224 for both.")
    return int(match[1]), int(match[2] or match[1])


def check_folder(option: str, folder: Path | None) -> None:
    """Refuse a file, or a folder in which nothing can be written, where a folder is to be written; before the work."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ValueError(f"{option} {folder} is a file; give the name of a folder.")
    if folder is not None:
        refuse_unwritable(folder)


def refuse_same(**files: Path | None) -> None:
    """Refuse two options that name one file to write: the second would take the place of the first.

    Example:
        >>> refuse_same(json=Path("a.png"), plot=Path("./a.png"))
        Traceback (most recent call last):
        ...
        ValueError: --json and --plot both name a.png; give each a file of its own.
    """
    named: dict[Path, str] = {}
    for name, file in files.items():
        option = f"--{name.replace('_', '-')}"
        if file is not None and not is_stream(file):
            first = named.setdefault(file.resolve(), option)
            if first != option:
                raise ValueError(f"{first} and {option} both name {file}; give each a file of its own.")


def watch(title: str) -> "Callable[[Iterable[Batch]], Iterator[Batch]]":
    """A wrapper of batches that shows a bar on stderr; only its title where that is no terminal."""

    def follow(batches: "Iterable[Batch]") -> "Iterator[Batch]":
        total = len(batches.sampler)  # type: ignore[attr-defined]
        if not sys.stderr.isatty():
            print(f"{title} {total:,} image{'s' * (total != 1)} ...", file=sys.stderr)
            yield from batches
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # stdout is not redirected: it may be a pipe that waits for results.
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
            task = progress.add_task(title, total=total)
            for group in batches:
                yield group
                progress.advance(task, len(group.indices) + len(group.bad))

    return follow
