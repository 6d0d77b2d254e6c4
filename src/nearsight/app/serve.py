"""Put the page on a port of this machine."""

import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..arguments import checked
from .guard import HEAD_PATIENCE, LOCAL, Guard, check_access, ending_at_hangup, prompt_protocol
from .session import offered
from .similar import SimilarImages

if TYPE_CHECKING:
    import uvicorn

MOST_AT_ONCE = 100  # connections


@checked
def launch_app(
    runs: Sequence[str | os.PathLike[str]] = (),
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    password: str | None = None,
    corrections: str | os.PathLike[str] | None = None,
    tta: str | None = None,
    error_rate: float | None = None,
    similar: str | os.PathLike[str] | None = None,
    block: bool = True,
) -> "RunningApp | None":
    """Serve a page on which images are dropped and clicked on, to see what models do there.

    Args:
        runs: Runs, weight files or names of models to offer first; the nano models follow.
        port: Of the page; None takes the first free one from 7860 on.
        host: Address to listen at; another than this machine's own needs a password.
        password: Visitors are asked for it, under any name.
        corrections: Folder in which labels that visitors correct are kept, with their images, as a table that `train`
            takes; None: labels can't be corrected.
        tta: Views whose predictions are merged (test-time augmentation), such as `flip`.
        error_rate: Of calibrated classifiers: how often the true class may be none of the possible ones.
        similar: Data, or a folder of images, among which those most like the chosen image are shown.
        block: Serve until the program is interrupted, and return None; otherwise serve in a thread.

    Raises:
        ValueError: A model, the port or the host can't be used, or the packages of `nearsight[app]` are missing.

    Example:
        >>> with launch_app(["lit_nano"], block=False) as page:  # doctest: +SKIP
        ...     print(page)  # needs nearsight[app]
        RunningApp('http://127.0.0.1:7860')
        >>> launch_app(host="0.0.0.0")
        Traceback (most recent call last):
        ValueError: --host 0.0.0.0 lets other machines in; give --password as well, or leave --host out to stay on...
    """
    check_access(host, password)
    given = [os.fspath(run) for run in runs]
    sources = offered(given, tta, error_rate)
    number = free_port(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{number}"
    with ExitStack() as stack:
        kept = None if corrections is None else Path(corrections)
        near = None if similar is None else SimilarImages(similar, given[0] if given else None)
        server = stack.enter_context(page_server(sources, host, number, password, kept, tta, error_rate, near))
        print(f"Nearsight is at {url}{' (Ctrl+C ends it)' * block}.", file=sys.stderr)
        if block:
            with ending_at_hangup(server):
                server.run()
            return None
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        return RunningApp(url, server, thread, stack.pop_all())


class RunningApp:
    """A page that a thread serves until `close`, or until a `with` ends.

    Attributes:
        url: Where it is.
    """

    def __init__(self, url: str, server: "uvicorn.Server", thread: threading.Thread, resources: ExitStack) -> None:
        self.url = url
        self._server, self._thread, self._resources = server, thread, resources

    def close(self) -> None:
        """Stop serving, and remove what was uploaded."""
        self._server.should_exit = True
        self._thread.join()
        self._resources.close()

    def __enter__(self) -> "RunningApp":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunningApp({self.url!r})"


def free_port(host: str, port: int | None) -> int:
    """The port that was asked for, if it is free; or the first free one from 7860 on."""
    for number in [port] if port is not None else range(7860, 7900):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            if sys.platform != "win32":  # where it would take a port that is in use
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, number))
            except (OSError, UnicodeError) as error:  # the second of a name that is too long for one
                if port is None and getattr(error, "errno", None) == errno.EADDRINUSE:
                    continue
                reason = getattr(error, "strerror", None) or str(error)
                wanted = "--port" if port is not None else "--host"
                raise ValueError(f"Port {number} on {host} can't be used ({reason}); give another {wanted}.") from None
            return number
    raise ValueError("The ports 7860 to 7899 are all in use; give a free one with --port.")


@contextmanager
def page_server(
    sources: list[str],
    host: str,
    port: int,
    password: str | None = None,
    corrections: Path | None = None,
    tta: str | None = None,
    error_rate: float | None = None,
    similar: SimilarImages | None = None,
) -> "Iterator[uvicorn.Server]":
    """A server that is ready to run, with a folder of its own for what passes through; the folder goes with it."""
    check_access(host, password)
    try:
        import gradio
        import uvicorn
        from fastapi import FastAPI
    except ImportError as error:
        raise ValueError(f"The page needs a package ({error.name}); run `pip install 'nearsight[app]'`.") from None
    from .page import look, make_page

    with ending_in_order(), tempfile.TemporaryDirectory(prefix="nearsight-app-") as folder, gradio_settings(folder):
        page = make_page(sources, Path(folder), corrections, tta, error_rate, similar)
        inside = Path(folder).resolve().parts[1]
        inner = gradio.mount_gradio_app(
            FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
            page,
            path="/",
            server_name=host,
            server_port=port,
            allowed_paths=[],
            # everything at the root of this machine but what the folder lies in
            blocked_paths=[str(path) for path in Path(Path(folder).anchor).iterdir() if path.name != inside],
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
            http=prompt_protocol(HEAD_PATIENCE),
            proxy_headers=False,  # anybody can write there that a request comes from elsewhere
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
