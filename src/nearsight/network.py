"""Whether the network may be used: `--offline` of every command, and the variable of the Hugging Face hub."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar
from urllib.parse import urlsplit

P = ParamSpec("P")
R = TypeVar("R")
VARIABLE = "HF_HUB_OFFLINE"
READERS = ("huggingface_hub.constants", "datasets.config")  # which look at the variable when they are imported
LOCAL = ("file", "local", "memory")  # protocols that leave this machine alone


def is_offline() -> bool:
    """Whether nothing may be asked of other machines."""
    hub = sys.modules.get(READERS[0])
    return flag_is_set() or bool(getattr(hub, VARIABLE, False))


def flag_is_set() -> bool:
    """Whether the variable says so, as the hub reads it."""
    return os.environ.get(VARIABLE, "").strip().upper() in ("1", "ON", "YES", "TRUE")


def go_offline() -> None:
    """Ask nothing of other machines from now on, nor let processes that are started from here."""
    os.environ[VARIABLE] = "1"
    for module in filter(None, map(sys.modules.get, READERS)):
        setattr(module, VARIABLE, True)


@contextmanager
def staying_offline(wanted: bool = True) -> Iterator[None]:
    """Ask nothing of other machines within.

    Example:
        >>> before = is_offline()
        >>> with staying_offline():
        ...     is_offline()
        True
        >>> is_offline() == before
        True
    """
    if not wanted or flag_is_set():
        yield
        return
    before = os.environ.get(VARIABLE)
    flags = {name: getattr(sys.modules[name], VARIABLE, False) for name in READERS if name in sys.modules}
    go_offline()
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
        for name in READERS:  # also those that were imported meanwhile
            if name in sys.modules:
                setattr(sys.modules[name], VARIABLE, flags.get(name, False))


def obeys_offline(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb, which with its argument `offline=True` asks nothing of other machines."""

    @wraps(verb)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        with staying_offline(bool(kwargs.get("offline"))):
            return verb(*args, **kwargs)

    return kept


def refuse_offline(what: str, otherwise: str, where: str = "") -> None:
    """Refuse to fetch something while the network may not be used; this machine may always be asked.

    Args:
        what: Is fetched.
        otherwise: What to do instead.
        where: Its URL, if it has one.

    Raises:
        ValueError: It would be fetched from another machine.

    Example:
        >>> with staying_offline():
        ...     refuse_offline("a.tar", "copy it here", "http://127.0.0.1:8000/a.tar")
        ...     refuse_offline("b.tar", "copy it here", "https://host/b.tar")
        Traceback (most recent call last):
        ...
        ValueError: --offline or HF_HUB_OFFLINE forbids to fetch b.tar; copy it here.
    """
    parts = urlsplit(where)
    host = parts.hostname or ""
    here = parts.scheme in LOCAL or host in ("localhost", "::1") or host.startswith("127.")
    if is_offline() and not here:
        raise ValueError(f"--offline or {VARIABLE} forbids to fetch {what}; {otherwise}.")
