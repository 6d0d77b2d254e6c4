"""Commands that are killed by SIGKILL at moments drawn by chance, also in the middle of a write, and typed again.

`python tests/kills/drills.py [COUNT] [FIRST] [WORD]` runs COUNT drills from FIRST on, of commands whose name has the
word in it, and prints how many ended with the same bits as a command that nobody killed. Every drill follows from its
number and the word. This process imports everything once and forks a child for each command, so that a drill takes
seconds.
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

os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}

import numpy as np
import optuna
import timm
import torch
import torch._dynamo
import torch.onnx
from matplotlib import pyplot  # noqa: F401 (what children would import one after the other)
from PIL import Image
from safetensors.torch import save_file
from torch.utils import tensorboard  # noqa: F401

import nearsight
from nearsight.cli import shell
from nearsight.runs.predictor import FOLDS
from nearsight.runs.run import Run
from nearsight.searching.search import STUDY
from nearsight.training.ladder import is_ladder

LONGEST = 900  # seconds of one command, on however busy a machine
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


def state_of_run(folder: Path, top: Path | None = None) -> dict[str, Any]:
    """Weights, newest checkpoint, predictions and records of a run, whatever the folder is called that all is in."""
    files = ["model.safetensors", "model.json", "recipe.yaml", "data.json", "predictions.npz"]
    for last in sorted((folder / "checkpoints").glob("step-*"))[-1:]:
        files += [str(path.relative_to(folder)) for path in sorted(last.glob("*.safetensors"))]
    named = str(top or folder).encode()
    state: dict[str, Any] = {
        name: (folder / name).read_bytes().replace(named, b"RUN") for name in files if (folder / name).is_file()
    }
    state["metrics"] = [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    state["outcome"] = timeless(json.loads((folder / "outcome.json").read_text()))
    state["files"] = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    return state


def state_of_stages(folder: Path) -> dict[str, Any]:
    """The state of each stage, and of the run that they make."""
    return {name: state_of_run(folder / name, folder) for name in ("", "frozen", "fine-tune")}


def state_of_folds(folder: Path) -> dict[str, Any]:
    """The state of each fold, and what is said of all of them together."""
    files = {name: (folder / name).read_bytes() for name in ("folds.json", "cross_validation.json")}
    together = {name: timeless(json.loads(content)) for name, content in files.items()}
    return {"together": together, **{fold.name: state_of_run(fold, folder) for fold in sorted(folder.glob("fold-*"))}}


def state_of_search(folder: Path) -> dict[str, Any]:
    """What each trial drew and reached, and the best model."""
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{folder / STUDY}")
    trials = [
        [trial.number, trial.state.name, trial.params, trial.intermediate_values, trial.value] for trial in study.trials
    ]
    runs = {run.name: state_of_run(run) for run in sorted((folder / "trials").iterdir())}
    return {"trials": trials, "spec": (folder / "spec.json").read_bytes(), **runs}


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
    """The bytes of all files, hidden ones too, but for times in JSON and arrays."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".npz":
            held = np.load(path)
            found[name] = {key: held[key].tobytes() for key in held.files if key not in TIMES}
        elif path.is_file():
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


def make_weights(place: Path) -> Path:
    """A folder with weights of one of timm's smallest models, as if they were downloaded."""
    place.mkdir()
    torch.manual_seed(3)
    save_file(timm.create_model("test_vit").state_dict(), place / "test_vit.r160_in1k.safetensors")
    return place


def make_subjects(place: Path) -> list[Subject]:
    """Everything that is killed; most of it uses runs that are made here."""
    data = make_data(place / "data")
    os.environ["NEARSIGHT_WEIGHTS"] = str(make_weights(place / "weights"))
    shapes = "shapes?images=16&size=48"
    detector = DENSE | {"model.head": "retinanet", "model.head_options.channels": 16}
    nano = SMALL | {"model.name": "deit_nano"}
    host = ["--model", "timm/test_vit", "--img-size", "32", "--batch", "8", "--set", "data.workers=0"]
    often = ["--set", "saving.every=0.001"]
    of_task = {
        "classify": [data["arrays"], "--cpu", *settings(nano | {"epochs": 1})],
        "multilabel": [data["many"], "--cpu", *settings(nano | {"epochs": 1})],
        "detect": [shapes, "--cpu", *settings(detector | {"epochs": 1})],
        "segment": [shapes, "--task", "segment", "--cpu", *settings(DENSE | HEAD | {"epochs": 1})],
    }
    runs = {task: str(place / task) for task in of_task}
    for task, words in of_task.items():
        code, _ = type_in(["train", *words, "--out", runs[task]], place / task, place / f"{task}.log")
        assert code == 0, (place / f"{task}.log").read_text()
    bundle = place / "bundle"
    words = ["export", runs["classify"], "--out", str(bundle), "--format", "pt2"]
    assert type_in(words, bundle, place / "bundle.log")[0] == 0, (place / "bundle.log").read_text()

    def training(name: str, drills: int, *words: str, state: Any = state_of_run, verb: str = "train") -> Subject:
        return Subject(name, lambda out: [verb, *words, "--cpu", "--out", str(out)], state, True, drills)

    def writing(name: str, drills: int, *words: str) -> Subject:
        return Subject(name, lambda out: [word.format(out=out) for word in words], state_of_files, False, drills)

    def comparing(name: str, drills: int, *words: str) -> Subject:
        few = {key: value for key, value in DENSE.items() if key != "epochs"} | {"schedule.warmup_epochs": 0}
        always = ["--epochs", "2", "--seeds", "1", "--scratch-only", "-q", *settings(few)]
        compared = ["compare", *words, *always]
        return Subject(name, lambda out: [*compared, "--out", str(out)], state_of_comparison, False, drills)

    def calibrating(out: Path) -> list[str]:
        if not out.exists():
            shutil.copytree(runs["classify"], out)
        return ["calibrate", str(out)]

    def searching(out: Path) -> list[str]:
        asked = ["--macs", "2M", "--trials", "3", "--epochs", "3", "--set", "batch=8", "--cpu", "-q", "--out", str(out)]
        return ["search", data["arrays"], *asked]

    judged = ["data", "check", data["zip"], "--frozen"]
    photo, photos = data["photos"] + "/1.png", data["photos"]
    lamb = {"model.name": "localvit_nano", "optimizer.kind": "lamb", "accumulate": 2}
    pretend = ["distill", runs["classify"], data["arrays"], "--into", "localvit_nano", "--views", "2"]
    small = settings({key: value for key, value in SMALL.items() if key != "model.patch_size"})
    return [
        training("train to classify, arrays", 8, data["arrays"], *settings(nano | MIXED)),
        training("train to classify, zip, lamb", 6, data["zip"], *settings(SMALL | lamb)),
        training("train to tell labels", 8, data["many"], *settings(nano | {"ema": 0.9})),
        training("train to detect", 8, shapes, *settings(detector)),
        training("train to segment", 8, shapes, "--task", "segment", *settings(DENSE | HEAD)),
        training("frozen features", 8, data["arrays"], "--recipe", "frozen", *host[:4], "--set", "data.workers=0"),
        training(
            "stages", 10, data["arrays"], *host, *often, "--epochs", "2", "--budget", "9h", state=state_of_stages
        ),
        training(
            "distill", 8, *pretend[1:], "--features", "0.5", "--unlabelled", photos, *small, verb="distill"
        ),
        writing("eval a classifier", 3, "eval", runs["classify"], "--out", "{out}"),
        writing("eval a labeller", 2, "eval", runs["multilabel"], "--out", "{out}"),
        writing("eval a detector", 2, "eval", runs["detect"], "--out", "{out}"),
        writing("eval a segmenter", 2, "eval", runs["segment"], "--out", "{out}"),
        writing("eval a bundle", 1, "eval", str(bundle), data["arrays"], "--out", "{out}"),
        writing("predict to CSV", 3, "predict", runs["classify"], photos, "--csv", "{out}/a.csv"),
        writing("predict to JSON lines", 3, "predict", runs["multilabel"], photos, "--jsonl", "{out}/a.jsonl"),
        writing("predict objects", 3, "predict", runs["detect"], photos, "--out", "{out}", "--workers", "0"),
        writing("predict regions", 3, "predict", runs["segment"], photos, "--out", "{out}", "--workers", "0"),
        writing("predict with a bundle", 2, "predict", str(bundle), photos, "--csv", "{out}/a.csv"),
        writing("explain a class", 3, "explain", runs["classify"], photo, "--out", "{out}"),
        writing("explain a label", 2, "explain", runs["multilabel"], photo, "--out", "{out}"),
        writing("explain an object", 2, "explain", runs["detect"], photo, "--out", "{out}"),
        writing("explain a region", 2, "explain", runs["segment"], photo, "--out", "{out}"),
        writing("export a classifier", 3, "export", runs["classify"], "--out", "{out}/bundle", "--force"),
        writing("export a program", 2, "export", runs["classify"], "--out", "{out}/b", "--format", "pt2", "--force"),
        writing("export a labeller", 1, "export", runs["multilabel"], "--out", "{out}/bundle", "--force"),
        writing("export a detector", 2, "export", runs["detect"], "--out", "{out}/bundle", "--force"),
        writing("export a segmenter", 2, "export", runs["segment"], "--out", "{out}/bundle", "--force"),
        training("folds", 6, data["arrays"], "--folds", "2", *settings(nano | {"epochs": 2}), state=state_of_folds),
        Subject("search", searching, state_of_search, False, 6),
        Subject("calibrate", calibrating, state_of_files, False, 3),
        writing("embed", 4, "embed", photos, "--model", runs["classify"], "--cache", "{out}/c", "--out", "{out}/a.csv"),
        writing("check labels", 4, *judged, "--page", "{out}/a", "--fix-list", "{out}/b"),
        writing("push to a folder", 3, "push", runs["classify"], "--licence", "mit", "--folder", "{out}"),
        comparing("compare classifiers", 3, data["arrays"], "-m", "deit_nano,localvit_nano", "--img-size", "16"),
        comparing("compare segmenters", 1, shapes, "--task", "segment", "-m", "swin_nano", *settings(HEAD)),
    ]  # fmt: skip


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
        is_begun = Run(out).is_begun() or is_ladder(out) or (out / FOLDS).is_file()
        by_flag = subject.resume and chance.random() < 0.5 and is_begun
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


def main(count: int = 100, first: int = 0, word: str = "") -> int:
    """Run drills; the number of those that ended otherwise."""
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(nearsight.__path__, "nearsight."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    subjects = make_subjects(place)
    turns = [subject for subject in subjects if word in subject.name for _ in range(subject.drills)]
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
    sys.exit(bool(main(*map(int, sys.argv[1:3]), *sys.argv[3:])))
