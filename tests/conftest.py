"""Settings of all tests, and the command line as a fixture."""

import atexit
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before anything reads them: what a machine holds of weights, and what it could download, must not change a test.
# Workers of pytest-xdist start with this process's environment, and import this file again: they find the folder of
# weights under the second name.
REAL_WEIGHTS = os.environ.pop("NEARSIGHT_WEIGHTS", None) or os.environ.get("NEARSIGHT_TEST_WEIGHTS")
if REAL_WEIGHTS is not None:
    os.environ["NEARSIGHT_TEST_WEIGHTS"] = REAL_WEIGHTS
EMPTY = tempfile.mkdtemp(prefix="nearsight-tests-")
atexit.register(shutil.rmtree, EMPTY, ignore_errors=True)
for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT"):
    os.environ.pop(name, None)
for name in ("HF_HOME", "TORCH_HOME", "NEARSIGHT_CACHE"):
    os.environ[name] = os.path.join(EMPTY, name.lower())
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest  # noqa: E402
import torch  # noqa: E402

from nearsight import network, timing  # noqa: E402
from nearsight.cli import shell as cli  # noqa: E402

# Tests work on tensors so small that threads only wait for each other, all the more in parallel workers;
# tests/cpus.py tries two.
torch.set_num_threads(int(os.environ.get("NEARSIGHT_TEST_THREADS", "1")))

# PyTorch offers a record of every step of an export to whoever listens; pytest does, and an export takes twice as long.
trace = logging.getLogger(f"{torch.__name__}.__trace")
trace.handlers.clear()
trace.propagate = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what this system has not."""
    here = {"posix": os.name == "posix", "linux": sys.platform == "linux"}
    for item in items:
        for name in (name for name, there in here.items() if not there and item.get_closest_marker(name)):
            item.add_marker(pytest.mark.skip(reason=f"needs what {name} has"))


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector of garbage need not look at half a million objects again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let go of it at the end, as every program does."""
    gc.unfreeze()


class Clock:
    """A clock on which nothing takes time but sleeping, which takes exactly as long as was asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What is measured in this test is measured by this clock: no load of the machine moves it."""
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


@pytest.fixture
def real_weights(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real pretrained weights that `NEARSIGHT_WEIGHTS` named, set again for this test."""
    if REAL_WEIGHTS is None or not Path(REAL_WEIGHTS).is_dir():
        pytest.skip("NEARSIGHT_WEIGHTS names no folder with pretrained weights")
    monkeypatch.setenv("NEARSIGHT_WEIGHTS", REAL_WEIGHTS)
    return Path(REAL_WEIGHTS)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this test ask other machines, or what stands for them."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for module in filter(None, map(sys.modules.get, network.READERS)):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium to look at pages with; without one its tests are skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium to look at pages with")
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    arguments += ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]  # a camera without one
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line with these words; gives exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nearsight", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run
