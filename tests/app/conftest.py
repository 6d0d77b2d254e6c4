"""A page on a port of this machine, and a browser to look at it with."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nearsight.app.serve import page_server
from nearsight.config.recipe import ModelChoice
from nearsight.runs.predictor import save_trained
from nearsight.tasks.build import build

SOURCES = ["swin_nano", "iddwnet_nano", "lit_nano"]


def any_port() -> int:
    """A port that the system picks, so that tests beside this one do not get the same."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@contextmanager
def running(sources: list[str], password: str | None = None, corrections: Path | None = None) -> Iterator[str]:
    """The address of a page that runs."""
    port = any_port()
    with page_server(sources, "127.0.0.1", port, password, corrections) as server:
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        limit = time.monotonic() + 60
        while not server.started and time.monotonic() < limit:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="session")
def called() -> list[Any]:
    """Where this process connected to while the page ran, filled by `address`."""
    return []


@pytest.fixture(scope="session")
def address(called: list[Any]) -> Iterator[str]:
    """The page with three models."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    connect = socket.socket.connect

    def watched(self: socket.socket, where: Any) -> Any:
        called.append(where)
        return connect(self, where)

    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(socket.socket, "connect", watched)
        yield stack.enter_context(running(SOURCES))


@pytest.fixture
def guarded() -> Iterator[str]:
    """The page behind a password."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    with running(["lit_nano"], "correct horse battery") as url:
        yield url


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; one of its classes has a name that would be HTML."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    torch.manual_seed(0)
    built = build(ModelChoice(name="localvit_nano"), classes=3)
    save_trained(built, "classify", ("one", "two", "<b>seven"), folder / "model.safetensors")
    return folder


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page at a width; whatever it complains about or asks for elsewhere fails the test."""
    pages: list[tuple[Any, list[str], list[str]]] = []

    def make(width: int = 1400, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("#ns-model-1 .ns-panel img", timeout=60_000)
        page.wait_for_selector("#ns-image img")
        pages.append((page, said, asked))
        return page

    yield make
    for page, said, asked in pages:
        page.close()
        assert said == []
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
