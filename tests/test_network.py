"""No command talks to anybody unless it was asked to: each runs under strace, which sees every connection."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

LOOPBACK = re.compile(r"127\.0\.0\.\d+|\"::1\"|::ffff:127\.")
ASKS_FOR_NAMES = re.compile(r"htons\(53\)|htons\(5353\)")  # also on this machine: a resolver passes questions on
TRACE = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,bind,sendto,sendmmsg,sendmsg"]
TINY = ["--cpu", "--epochs", "1", "--limit", "32", "--set", "batch=16", "--set", "schedule.warmup_epochs=0"]
DENSE = ["--set", "dense.min_size=48", "--set", "batch=4", "--set", "epochs=1", "--set", "data.workers=0", "--cpu"]
TRAIN = ["train", "digits", "--model", "deit_nano", *TINY]


def surroundings() -> dict[str, str]:
    """The environment without what may switch reports off."""
    loud = ("ORT_", "GRADIO_", "HF_", "DO_NOT_TRACK", "NEARSIGHT_")
    return {key: value for key, value in os.environ.items() if not key.startswith(loud)} | {"OMP_NUM_THREADS": "1"}


def reached(trace: Path) -> list[str]:
    """Lines of a trace in which somebody beyond this machine was reached, or asked for, or could reach in."""
    lines = trace.read_text(errors="replace").splitlines()
    inet = [line for line in lines if "sa_family=AF_INET" in line]
    return [line for line in inet if ASKS_FOR_NAMES.search(line) or not LOOPBACK.search(line)]


def connections(folder: Path, *arguments: str, code: int = 0) -> list[str]:
    """Lines of the trace in which the command reached out."""
    trace = folder / "trace"
    command = [*TRACE, "-o", str(trace), sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=surroundings(), capture_output=True)
    assert done.returncode == code, done.stderr.decode()
    return reached(trace)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, images and a released checkpoint to use."""
    folder = tmp_path_factory.mktemp("place")
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), dtype=np.uint8)
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
    torch.save({"model": timm.create_model("deit_tiny_patch16_224").state_dict()}, folder / "released.pth")
    assert connections(folder, "-m", "nearsight", *TRAIN, "--out", "run") == []
    return folder


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(TRAIN, id="train"),
        pytest.param(
            ["bench", "deit_nano", "--runtimes", "onnx", "--batch", "1", "--rounds", "2", "--device", "cpu"],
            id="bench",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_commands_talk_to_nobody(words: list[str], tmp_path: Path) -> None:
    assert connections(tmp_path, "-m", "nearsight", *words) == []


@pytest.mark.parametrize(
    "words",
    [
        ["train", "cifar10"],
        ["predict", "hf:anna/flowers", "images"],
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ["train", "https://192.0.2.1/part-{000..001}.tar"],
                ["train", "digits", "--model", "test_vit", "--weights", "pretrained"],
                ["data", "check", "hf:owner/name"],
                ["weights", "get", "test_vit"],
            )
        ),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_what_is_named_is_not_asked_for_offline(words: list[str], tmp_path: Path) -> None:
    assert connections(tmp_path, "-m", "nearsight", *words, "--offline", code=1) == []


@pytest.mark.parametrize("package", ["onnxruntime", "openvino"])
def test_a_runtime_reports_to_nobody(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    code = f"import time; from nearsight.runs.runtime import need; need('{package}', 'This'); time.sleep(3)"
    assert connections(tmp_path, "-c", code) == []


COMMANDS: dict[str, list[str]] = {
    "train with workers": ["train", "images.zip", "--model", "deit_nano", *TINY, "--workers", "2"],
    "train a detector": ["train", "shapes?images=12&size=48", *DENSE],
    "train a segmenter": ["train", "shapes?images=12&size=48", "--task", "segment", *DENSE, "--out", "segmenter"],
    "train on frozen features": ["train", "digits", "--weights", "run", "--recipe", "frozen", "--limit", "32", "--cpu"],
    "distill": ["distill", "run", "digits", "--into", "localvit_nano", *TINY, "--out", "student"],
    "train on": ["train", "--resume", "run", "--cpu"],
    "eval": ["eval", "run"],
    "predict": ["predict", "run", "images", "--csv", "out.csv"],
    "explain": ["explain", "run", "images/0.png", "--out", "explained"],
    "explain --score": [
        "explain",
        "segmenter",
        "shapes?images=4&size=48",
        "--score",
        "--limit",
        "2",
        "--out",
        "scored",
    ],
    "probe": ["probe", "window", "depthwise:kernel=5"],
    "export to onnx": ["export", "run", "--out", "bundle"],
    "export to pt2": ["export", "run", "--out", "program", "--format", "pt2"],
    "export to openvino": ["export", "run", "--out", "vino", "--format", "openvino"],
    "predict with onnx": ["predict", "bundle", "images"],
    "predict with openvino": ["predict", "vino", "images"],
    "eval with onnx": ["eval", "bundle", "digits", "--out", "evaluated"],
    "export in 8 bits": ["export", "run", "--out", "small", "--int8"],
    "bench": ["bench", "deit_nano", "resnet18", "--runtimes", "eager,onnx", "--batch", "1", "--rounds", "2"],
    "compare": ["compare", "digits", "-m", "deit_nano", "--baseline", "lcnet_050", *TINY[1:5], "--set", "batch=16"],
    "search": [
        "search",
        "digits",
        "--macs",
        "2M",
        "--trials",
        "1",
        *TINY[:5],
        "--set",
        "batch=16",
        "--out",
        "searched",
    ],
    "push to a folder": ["push", "run", "--licence", "mit", "--folder", "shared"],
    "models": ["models", "nano"],
    "weights": ["weights"],
    "data check": ["data", "check", "digits"],
    "data make": ["data", "make", "shapes", "shapes", "--images", "8"],
    "convert": ["convert", "released.pth", "ours.safetensors"],
    "reproduce": ["reproduce", "lit"],
}
REFUSED: dict[str, list[str]] = {
    "matrix": ["matrix"],
    "data that are not there": ["train", "nothing_of_this_name.csv"],
    "a model that is not there": ["predict", "no_such_model", "images"],
}


@pytest.mark.drill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*COMMANDS, *REFUSED])
def test_no_command_talks_to_anybody(name: str, place: Path) -> None:
    if name == "train with workers":
        with zipfile.ZipFile(place / "images.zip", "w") as archive:
            for number in range(40):
                archive.write(place / "images" / f"{number % 3}.png", f"{'ab'[number % 2]}/{number}.png")
    words = COMMANDS.get(name) or REFUSED[name]
    assert connections(place, "-m", "nearsight", *words, code=int(name in REFUSED)) == []


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_the_page_talks_to_this_machine_alone(place: Path) -> None:
    trace = place / "page"
    command = [*TRACE, "-o", str(trace), sys.executable, "-m", "nearsight", "app", "run"]
    with subprocess.Popen(command, cwd=place, env=surroundings(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "Nearsight is at" in line)
        address = re.search(r"http://\S+", said)
        assert address is not None
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(address.group(), timeout=30) as page:
                    assert b"<html" in page.read()
                break
            except OSError:
                time.sleep(0.5)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        process.stderr.read()
    assert reached(trace) == []
    assert "127.0.0.1" in trace.read_text()  # where it listened


@pytest.mark.parametrize("host", ["192.0.2.1", "127.0.0.53"])
def test_a_connection_would_be_seen(host: str, tmp_path: Path) -> None:
    """Nothing answers at the first, and at the second a resolver may, which asks others."""
    code = f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('{host}', 53))"
    assert len(connections(tmp_path, "-c", code)) == 1
