"""No command talks to anybody unless it was asked to."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.drill, pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")]

ALLOWED = re.compile(r"sa_family=AF_(UNIX|NETLINK)|127\.0\.0\.1|\"::1\"")


def connections(folder: Path, *arguments: str) -> list[str]:
    """Lines of the trace in which the command reached out, or looked up who to reach."""
    trace = folder / "trace"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ORT_")}
    command = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmmsg,sendmsg", "-o", str(trace)]
    done = subprocess.run([*command, sys.executable, *arguments], cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    lines = trace.read_text(errors="replace").splitlines()
    return [line for line in lines if "sa_family=AF_INET" in line and not ALLOWED.search(line)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "deit_nano", "--out", "bundle"),
        ("bench", "deit_nano", "--runtimes", "onnx", "--batch", "1", "--rounds", "2", "--device", "cpu"),
    ],
    ids=["export", "bench"],
)
def test_onnxruntime_reports_to_nobody(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert connections(tmp_path, "-m", "nearsight", *arguments) == []


def test_a_connection_would_be_seen(tmp_path: Path) -> None:
    """Reports of onnxruntime go out where nobody tells it not to, or the test above could not fail."""
    code = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('192.0.2.1', 53))"
    assert connections(tmp_path, "-c", code)
