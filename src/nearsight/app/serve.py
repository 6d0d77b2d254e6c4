"""Put the page on a port of this machine."""

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .guard import LOCAL, Guard

SHORTEST = 8  # characters of a password beyond this machine
MOST_AT_ONCE = 100  # connections


def check_access(host: str, password: str | None) -> None:
    """Refuse to be reached from other machines without a password.

    Example:
        >>> check_access("127.0.0.1", None)
        >>> check_access("0.0.0.0", "a long password")
    """
    if host in LOCAL:
        return
    if password is None:
        raise ValueError(
            f"--host {host} lets other machines in; give --password as well, or leave --host out to stay on this one."
        )
    if len(password) < SHORTEST:
        raise ValueError(f"--password has {len(password)} characters; beyond this machine give {SHORTEST} or more.")


def free_port(host: str, port: int | None) -> int:
    """The port that was asked for, if it is free; or the first free one from 7860 on."""
    for number in [port] if port is not None else range(7860, 7900):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, number))
            except OSError as error:
                reason = error.strerror or str(error)
                if port is not None:
                    raise ValueError(f"Port {port} on {host} can't be used ({reason}); give another --port.") from None
                continue
            return number
    raise ValueError("The ports 7860 to 7899 are all in use; give a free one with --port.")


@contextmanager
def page_server(sources: list[str], host: str, port: int, password: str | None = None) -> Iterator[Any]:
    """A server that is ready to run, with a folder of its own for what passes through; the folder goes with it."""
    check_access(host, password)
    try:
        import gradio
        import uvicorn
        from fastapi import FastAPI
    except ImportError as error:
        raise ValueError(f"The page needs a package ({error.name}); run `pip install nearsight[app]`.") from None
    from .page import look, make_page

    with ending_in_order(), tempfile.TemporaryDirectory(prefix="nearsight-app-") as folder, gradio_settings(folder):
        page = make_page(sources, Path(folder))
        inner = gradio.mount_gradio_app(
            FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
            page,
            path="/",
            server_name=host,
            server_port=port,
            allowed_paths=[],
            blocked_paths=blocked(folder),
            show_error=False,
            ssr_mode=False,
            **look(),
        )
        page.has_launched = True  # else, mounted as it is, Gradio does not check which files it is told to open
        guarded = Guard(inner, password, LOCAL if host in LOCAL else None, Path(folder))
        settings = uvicorn.Config(
            guarded,
            host=host,
            port=port,
            log_level="error",
            timeout_graceful_shutdown=2,
            limit_concurrency=MOST_AT_ONCE,
        )
        yield uvicorn.Server(settings)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM end the program as an exception does, so that the folder of uploads goes; uvicorn raises it again."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread hears signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def gradio_settings(folder: str) -> Iterator[None]:
    """What Gradio is told through the environment: where files pass through, and that nothing is reported."""
    wanted = {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def blocked(folder: str) -> list[str]:
    """Everything at the root of this machine but what the folder of the page lies in."""
    root = Path(folder).anchor
    kept = Path(folder).resolve().parts[1]
    return [str(path) for path in Path(root).iterdir() if path.name != kept]
