"""Commands that are killed by SIGKILL at moments drawn by chance, also in the middle of a write, and typed again.

`python tests/kills/drills.py [COUNT] [FIRST]` runs COUNT drills from FIRST on and prints how many ended with the same
bits as a command that nobody killed. Every drill follows from its number. This process imports everything once and
forks a child for each command, so that a drill takes seconds.
"""

import builtins
import importlib
import io
import json
import os
import pkgutil
import random
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}

import numpy as np
import torch
import torch._dynamo
import torch.onnx
from matplotlib import pyplot  # noqa: F401 (what children would import one after the other)
from PIL import Image
from torch.utils import tensorboard  # noqa: F401

import nearsight
from nearsight.cli import shell
from nearsight.runs.run import Run

LONGEST = 180  # seconds of one command
TIMES = {"seconds", "eval_seconds", "images_per_second", "elapsed", "command", "begun", "latency", "machine"}
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


@dataclass(frozen=True)
class Kill:
    """When a command dies: `moment`, so many seconds after its start; `event`, before the n-th change of a file or
    folder; `write`, with the n-th file half written."""

    kind: str
    place: float


@dataclass
class Subject:
    """A command that is killed.

    Attributes:
        name: For people.
        words: The command, given the folder that it writes into.
        result: What must be the same at the end, by name.
        resume: Whether it can go on by `train --resume`.
        drills: How many of a hundred are its own.
    """

    name: str
    words: Callable[[Path], list[str]]
    result: Callable[[Path], dict[str, Any]]
    resume: bool = False
    drills: int = 6
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)


# The child


def count_and_die(out: Path, kill: Kill | None, report: int) -> Callable[[], None]:
    """Count changes of files and writes below a folder, and die at the place; returns what reports the counts."""
    counts = {"event": 0, "write": 0}
    inside = str(out.parent)

    def is_ours(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(inside)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not is_ours(arguments[0]):
            return
        if event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
            return
        counts["event"] += 1
        if kill is not None and kill.kind == "event" and counts["event"] == int(kill.place):
            os.kill(os.getpid(), signal.SIGKILL)

    real = io.open

    class Half:
        """A file of which half is written."""

        def __init__(self, file: Any):
            self.file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def __enter__(self) -> "Half":
            return self

        def __exit__(self, *rest: object) -> None:
            self.file.close()

        def write(self, content: Any) -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def opening(path: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        file = real(path, mode, *rest, **more)
        if not set(mode) & set("wax+") or not is_ours(path):
            return file
        counts["write"] += 1
        dies = kill is not None and kill.kind == "write" and counts["write"] == int(kill.place)
        return Half(file) if dies else file

    sys.addaudithook(hook)
    builtins.open = io.open = opening  # type: ignore[assignment]
    return lambda: (os.write(report, json.dumps(counts).encode()), None)[1]


def type_in(words: list[str], out: Path, log: Path, kill: Kill | None = None) -> tuple[int, dict[str, int]]:
    """Run a command in a child, kill it where asked; its exit code (negative: of the signal) and counts."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setsid()
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            tell = count_and_die(out, kill, writing)
            sys.argv = ["nearsight", *words]
            try:
                shell.main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            tell()
        except BaseException as error:
            os.write(2, f"Traceback: {error!r}\n".encode())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    began = time.monotonic()
    end = began + (kill.place if kill is not None and kill.kind == "moment" else LONGEST)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.002)
    counts = os.read(reading, 1000)
    os.close(reading)
    return os.waitstatus_to_exitcode(status), json.loads(counts) if counts else {}


# What is killed


def timeless(value: Any) -> Any:
    """A record without its times."""
    if isinstance(value, dict):
        return {key: timeless(held) for key, held in value.items() if key not in TIMES}
    return [timeless(held) for held in value] if isinstance(value, list) else value


def state_of_run(folder: Path) -> dict[str, Any]:
    """Weights, newest checkpoint, predictions and records of a run."""
    files = ["model.safetensors", "model.json", "recipe.yaml", "data.json", "predictions.npz"]
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    files += [str(path.relative_to(folder)) for path in sorted(last.glob("*.safetensors"))]
    state: dict[str, Any] = {name: (folder / name).read_bytes() for name in files if (folder / name).is_file()}
    state["metrics"] = [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    state["outcome"] = timeless(json.loads((folder / "outcome.json").read_text()))
    state["files"] = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    return state


def state_of_comparison(folder: Path) -> dict[str, Any]:
    """The state of every run, and the results without what was timed."""
    results = timeless(json.loads((folder / "results.json").read_text()))
    for model in results["models"]:
        for run in model["runs"]:
            run.pop("curve", None)  # over seconds
    runs = {run.name: state_of_run(run) for run in sorted((folder / "runs").iterdir())}
    for state in runs.values():
        del state["files"]  # a log, perhaps
    return {"results": results, **runs}


def state_of_files(folder: Path) -> dict[str, Any]:
    """The bytes of all visible files, but for times in JSON."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(part.startswith(".") for part in Path(name).parts):
            found[name] = timeless(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()
    return found


def make_data(place: Path) -> dict[str, str]:
    """Small data of each kind."""
    generator = np.random.default_rng(5)
    place.mkdir()

    def picture() -> Image.Image:
        return Image.fromarray(generator.integers(0, 255, (16, 16, 3), dtype=np.uint8))

    images = generator.integers(0, 255, (32, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(32) % 4
    np.savez(place / "a.npz", x_train=images[:24], y_train=labels[:24], x_val=images[24:], y_val=labels[24:])
    with zipfile.ZipFile(place / "b.zip", "w") as archive:
        for n in range(24):
            stream = io.BytesIO()
            picture().save(stream, "PNG")
            archive.writestr(f"{('train', 'train', 'val')[n % 3]}/{'ab'[n % 2]}/{n}.png", stream.getvalue())
    (place / "many").mkdir()
    rows = ["path,labels,split"]
    for n in range(24):
        picture().save(place / "many" / f"{n}.png")
        names = "|".join(name for bit, name in enumerate("xyz") if (n >> bit) & 1)
        rows.append(f"many/{n}.png,{names},{'val' if n % 3 == 2 else 'train'}")
    (place / "many.csv").write_text("\n".join(rows) + "\n")
    return {
        "arrays": str(place / "a.npz"),
        "zip": str(place / "b.zip"),
        "many": str(place / "many.csv"),
        "photos": str(place / "many"),
    }


SMALL = {"model.img_size": 16, "model.patch_size": 4, "epochs": 3, "batch": 8, "data.workers": 0, "saving.every": 0.001}
DENSE = {"epochs": 2, "batch": 4, "data.workers": 0, "dense.min_size": 48, "saving.every": 0.001}
HEAD = {"model.head_options.channels": 16, "model.head_options.hidden": 16}
MIXED = {"ema": 0.9, "augment.mixup": 0.8, "augment.cutmix": 1.0, "augment.erase": 0.5, "model.drop_path": 0.2}


def settings(values: dict[str, Any]) -> list[str]:
    """Settings as words of the command line."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def make_subjects(place: Path) -> list[Subject]:
    """Everything that is killed; the last ones use a run that is made here."""
    data = make_data(place / "data")
    shapes = "shapes?images=16&size=48"

    def training(name: str, source: str, values: dict[str, Any], drills: int) -> Subject:
        words = [source, "--cpu", *settings(values)]
        return Subject(name, lambda out: ["train", *words, "--out", str(out)], state_of_run, True, drills)

    def writing(name: str, drills: int, *words: str) -> Subject:
        return Subject(name, lambda out: [word.format(out=out) for word in words], state_of_files, False, drills)

    subjects = [
        training("classify, arrays", data["arrays"], SMALL | MIXED | {"model.name": "deit_nano"}, 14),
        training(
            "classify, zip, lamb",
            data["zip"],
            SMALL | {"model.name": "localvit_nano", "optimizer.kind": "lamb", "accumulate": 2},
            10,
        ),
        training("multilabel", data["many"], SMALL | {"model.name": "deit_nano", "ema": 0.9}, 16),
        training("detect", shapes, DENSE | {"model.head": "retinanet", "model.head_options.channels": 16}, 12),
        training("segment", shapes, DENSE | HEAD | {"task": "segment"}, 12),
    ]
    subjects[-1].words = lambda out: [
        "train", shapes, "--task", "segment", "--cpu", *settings(DENSE | HEAD), "--out", str(out)
    ]  # fmt: skip
    run = place / "run"
    quick = SMALL | {"epochs": 1, "model.name": "deit_nano"}
    code, _ = type_in(["train", data["arrays"], "--cpu", *settings(quick), "--out", str(run)], run, place / "run.log")
    assert code == 0, (place / "run.log").read_text()
    few = settings(
        {key: value for key, value in SMALL.items() if key not in ("epochs", "model.img_size")}
        | {"schedule.warmup_epochs": 0}
    )
    compared = [
        "compare",
        data["arrays"],
        "-m",
        "deit_nano,localvit_nano",
        "--epochs",
        "3",
        "--seeds",
        "1",
        "--img-size",
        "16",
        "-q",
        *few,
    ]
    return [
        *subjects,
        Subject("compare", lambda out: [*compared, "--out", str(out)], state_of_comparison, False, 4),
        writing("predict to CSV", 6, "predict", str(run), data["photos"], "--csv", "{out}/a.csv"),
        writing("predict to JSON lines", 6, "predict", str(run), data["photos"], "--jsonl", "{out}/a.jsonl"),
        writing("eval", 8, "eval", str(run), "--out", "{out}"),
        writing("export", 4, "export", str(run), "--out", "{out}/bundle", "--format", "onnx"),
        writing("explain", 8, "explain", str(run), data["photos"] + "/1.png", "--out", "{out}"),
    ]


# The drills


def measure(subject: Subject, place: Path) -> None:
    """Run a command to its end: what must come out, how long it takes, how often it writes."""
    out = place / subject.name.replace(" ", "-").replace(",", "") / "whole"
    out.parent.mkdir()
    began = time.monotonic()
    code, subject.counts = type_in(subject.words(out), out, out.parent / "log.txt")
    subject.seconds = time.monotonic() - began
    assert code == 0, (out.parent / "log.txt").read_text()
    subject.whole = subject.result(out)
    print(f"{subject.name}: {subject.seconds:.1f} s, {subject.counts}", flush=True)


def drill(subject: Subject, number: int, place: Path) -> tuple[bool, str]:
    """Kill a command one to three times, let it end, and compare; whether it ended alike, and what happened."""
    chance = random.Random(number)
    folder = place / subject.name.replace(" ", "-").replace(",", "") / str(number)
    folder.mkdir()
    out, log, told = folder / "out", folder / "log.txt", []

    def words() -> list[str]:
        by_flag = subject.resume and chance.random() < 0.5 and Run(out).is_begun()
        return ["train", "--resume", str(out), "--cpu"] if by_flag else subject.words(out)

    kills = chance.randint(1, 3)
    while kills > 0:
        kills -= 1
        kind = chance.choice(("moment", "event", "write"))
        most = subject.seconds if kind == "moment" else subject.counts[kind]
        kill = Kill(kind, chance.uniform(0, most) if kind == "moment" else chance.randint(1, max(1, int(most))))
        code, _ = type_in(words(), out, log, kill)
        told.append(f"{kind} {kill.place:.3g}" + ("" if code == -signal.SIGKILL else f" (not hit, {code})"))
        if code not in (0, -signal.SIGKILL):
            return False, f"{told}: {log.read_text()[-500:]}"
        if kills == 0 and all("not hit" in text for text in told):  # nothing was drilled: begin anew
            shutil.rmtree(out, ignore_errors=True)
            kills = 1
    code, _ = type_in(words(), out, log)
    if code != 0 or "Traceback" in log.read_text():
        return False, f"{told}, then exit code {code}: {log.read_text()[-800:]}"
    state = subject.result(out)
    other = [name for name in subject.whole.keys() | state.keys() if subject.whole.get(name) != state.get(name)]
    if not other:
        shutil.rmtree(folder)
    return not other, f"{', '.join(told)}" + (f"; {other} differ" if other else "")


def main(count: int, first: int) -> int:
    """Run drills; the number of those that ended otherwise."""
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(nearsight.__path__, "nearsight."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    subjects = make_subjects(place)
    turns = [subject for subject in subjects for _ in range(subject.drills)]
    random.Random(0).shuffle(turns)
    results: dict[str, list[bool]] = {}
    began = time.monotonic()
    for number in range(first, first + count):
        subject = turns[number % len(turns)]
        if not subject.whole:
            measure(subject, place)
        alike, told = drill(subject, number, place)
        results.setdefault(subject.name, []).append(alike)
        print(f"drill {number}, {subject.name}: {'same bits' if alike else 'OTHER'} after {told}", flush=True)
    for name, ends in sorted(results.items()):
        print(f"{name}: {sum(ends)} of {len(ends)}")
    alike = sum(map(sum, results.values()))
    print(f"{alike} of {count} drills ended with the same bits, in {time.monotonic() - began:.0f} s.")
    if alike == count:
        shutil.rmtree(place)
    return count - alike


if __name__ == "__main__":
    assert nearsight.__version__
    sys.exit(bool(main(*map(int, [*sys.argv[1:], *("100", "0")[len(sys.argv) - 1 :]]))))
