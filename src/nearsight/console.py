"""What is shown in a terminal: how wide, how far, numbers for people."""

import json
import math
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # it takes a tenth of the time until a bundle's first prediction, and most of these are text
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")
PIPED = 160  # width of a table that goes to a file or a pipe


def make_console() -> "Console":
    """A console as wide as the terminal, or as a wide page when the output goes elsewhere."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def tracked(items: Iterable[T], title: str, total: float | None = None) -> Iterable[T]:
    """The items, with a progress bar on stderr; only its title where that is no terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} ...")
    return track(
        items, description=title, total=total, console=console, transient=True, disable=not console.is_terminal
    )


def titled(first: str, *titles: str) -> "Table":
    """A table whose first column is text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(first)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def explained(*rows: tuple[str, str, str]) -> "Table":
    """A table of a few numbers: the name of each, the number, and what it means."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def percent(value: float) -> str:
    """A fraction for people.

    Example:
        >>> percent(0.98765)
        '98.8 %'
    """
    return f"{100 * value:.1f} %"


def first_line(error: BaseException) -> str:
    """What an error says, in one line without its full stop; its class where it says nothing.

    Example:
        >>> first_line(ValueError("No such size.\\nTry another.")), first_line(KeyError())
        ('No such size', 'KeyError')
    """
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def percent_or_dash(value: float) -> str:
    """A fraction for people; a dash for nan, where there is none.

    Example:
        >>> percent_or_dash(0.5), percent_or_dash(float("nan"))
        ('50.0 %', '–')
    """
    return "–" if math.isnan(value) else percent(value)


def is_memory_error(error: BaseException) -> bool:
    """Whether something failed because there is not enough memory.

    Example:
        >>> is_memory_error(MemoryError()), is_memory_error(RuntimeError("shapes differ"))
        (True, False)
    """
    torch = sys.modules.get("torch")  # a bundle runs without it
    if isinstance(error, (MemoryError, *([torch.OutOfMemoryError] if torch else []))):
        return True
    text = str(error)  # the CPU's allocator has no error of its own
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)
