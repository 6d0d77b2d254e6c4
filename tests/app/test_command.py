"""`nearsight app`: started, asked and ended as people do it."""

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import nearsight
from nearsight.app.serve import free_port
from nearsight.cli.explain import app as command

from .conftest import any_port

APP = typer.Typer()
APP.command()(command)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "lets other machines in; give --password as well"),
        (["--host", "0.0.0.0", "--password", "short"], "beyond this machine give 8 or more"),
        (["no_such_model"], "Neither Nearsight nor timm has a model 'no_such_model'"),
        (["/no/such/run"], "/no/such/run is not there"),
    ],
)
def test_what_can_not_be_opened_is_told_before_anything_listens(arguments: list[str], words: str) -> None:
    outcome = CliRunner().invoke(APP, arguments)
    assert isinstance(outcome.exception, ValueError) and words in str(outcome.exception)


@pytest.mark.parametrize(
    "ending",
    [signal.SIGINT, *(pytest.param(other, marks=pytest.mark.slow) for other in (signal.SIGTERM, signal.SIGHUP))],
)
def test_it_starts_responds_and_leaves_nothing_behind(tmp_path: Path, ending: signal.Signals) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed")
    port = any_port()
    line = [sys.executable, "-m", "nearsight", "app", "lit_nano", "--port", str(port)]
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            limit, answered = time.monotonic() + 120, False
            while not answered and time.monotonic() < limit and process.poll() is None:
                time.sleep(0.3)
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as page:
                        answered = page.status == 200
                except OSError:
                    continue
            assert answered
            assert [path.name for path in tmp_path.glob("nearsight-app-*")]
        finally:
            process.send_signal(ending)
            _, said = process.communicate(timeout=60)
    assert f"Nearsight is at http://127.0.0.1:{port}" in said and "Traceback" not in said
    assert not list(tmp_path.glob("nearsight-app-*"))


def test_python_serves_the_page_in_a_thread_and_ends_it() -> None:
    pytest.importorskip("gradio", reason="gradio is not installed")
    port = any_port()
    with nearsight.launch_app(["lit_nano"], port=port, block=False) as page:
        assert page is not None and repr(page) == f"RunningApp('http://127.0.0.1:{port}')"
        with urllib.request.urlopen(page.url, timeout=20) as found:
            assert found.status == 200 and b"Nearsight" in found.read()
    with pytest.raises(OSError):
        urllib.request.urlopen(page.url, timeout=5)
    assert free_port("127.0.0.1", port) == port
