"""A queue of long experiments, worked off beside other work; what is measured goes into the repository at once.

    python -m tools.evidence work [--only PREFIX]   # run what is open, one run at a time; stopped, it goes on
    python -m tools.evidence status                 # what is done, what is open, and the hours that are left
    python -m tools.evidence page                   # write docs/results/evidence.md from all that is measured

`benchmarks/experiments.yaml` lists the experiments by question, as commands of `nearsight`. A finished run is a line of
`benchmarks/results/QUESTION.jsonl`: what has a line is done, on any machine; a run that was stopped goes on in its
folder. A run has one thread and the lowest priority, and rests while a test suite or a benchmark runs. Where a question
is there to choose settings (`test: false`), its runs get data without test images, so that no choice can see one.
Cheap runs come before dear ones, and of these the first two seeds of all questions before the third of any; a third is
left out once every claim that its run takes part in is settled (`tools/claims.py`).
Several workers may share a queue.
"""

import base64
import ctypes
import fcntl
import hashlib
import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import typer
import yaml
from numpy.typing import NDArray

from nearsight.atomic import write_whole
from nearsight.interval import Interval

ROOT = Path(__file__).parent.parent
RUN = re.compile(r"\{run:([^}]+)\}")  # in a command: the folder of another run
# `make test` and the like, tests in several processes (a few tests alone may have company), and benchmarks.
PAUSE_FOR = r"\bmake\b.* (test|pytest|drills)|\bpytest\b.* -n *(auto|[1-9])|\bnearsight bench\b"
POLL = 1.0  # seconds between two looks at what else runs
NOTE_EVERY = 10.0  # seconds of a core that a kill may leave uncounted
DIE_WITH_PARENT = 1  # of prctl
SPLITS = ("train", "val", "test")
ENOUGH = 2  # seeds that a claim may be settled by
CHEAP = 0.2  # hours of a run; runs up to this come before the others


@dataclass(frozen=True)
class Experiment:
    """One run.

    Attributes:
        question: What it helps to answer; names the file of its results.
        label: What is tried; with the question, the seed and the fold it makes up the id.
        command: What follows `nearsight` on the command line, with `{data}` and `{run:ID}` for paths.
        data: File in the folder of the data.
        seed: Of the run.
        fold: Part of the images that tests it; None for the data's own splits.
        folds: Parts that the images are divided into.
        tests: Whether it looks at test images; without, it is there to choose settings by validation images.
        hours: Expected, of one core.
        shares: Folder in a run that another of the question may take over, such as a teacher's predictions.
    """

    question: str
    label: str
    command: str
    data: str
    seed: int
    fold: int | None = None
    folds: int = 0
    tests: bool = True
    hours: float = 0.0
    shares: str | None = None

    @property
    def id(self) -> str:
        """Names the run, and its folder."""
        part = "" if self.fold is None else f"-fold{self.fold}"
        return f"{self.question}/{self.label}-seed{self.seed}{part}"

    @property
    def needs(self) -> list[str]:
        """Ids of the runs whose folders the command names."""
        return RUN.findall(self.command)


@dataclass(frozen=True)
class Question:
    """What a group of runs is there to answer.

    Attributes:
        name: Short, for files.
        about: In words.
        baseline: Label that the others are compared with.
        experiments: Its runs.
    """

    name: str
    about: str
    baseline: str | None
    experiments: tuple[Experiment, ...]


KEYS = {"about", "data", "command", "test", "seeds", "folds", "hours", "baseline", "shares", "runs"}


def read_questions(path: Path) -> list[Question]:
    """The questions of a file, in its order.

    Raises:
        ValueError: A question has other keys than those that are known, or two runs have one id.
    """
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    questions = [read_question(name, values, path) for name, values in listed.items()]
    ids = [one.id for question in questions for one in question.experiments]
    for one in (one for question in questions for one in question.experiments):
        if lost := [need for need in one.needs if need not in ids]:
            raise ValueError(f"{path}: {one.id} needs the run {lost[0]}, which is not listed; add it.")
    return questions


def read_question(name: str, values: dict[str, Any], path: Path) -> Question:
    """One question with a run for each of its labels, seeds and folds."""
    if unknown := sorted(set(values) - KEYS):
        raise ValueError(f"{path}: {name} has the unknown key {unknown[0]}; known are {', '.join(sorted(KEYS))}.")
    if missing := sorted({"about", "data", "command", "runs", "hours"} - set(values)):
        raise ValueError(f"{path}: {name} lacks the key {missing[0]}; add it.")
    folds = values.get("folds", 0)
    runs = tuple(
        Experiment(
            question=name,
            label=label,
            command=f"{values['command']} {more or ''}".strip(),
            data=values["data"],
            seed=seed,
            fold=fold,
            folds=folds,
            tests=values.get("test", True),
            hours=float(values["hours"]),
            shares=values.get("shares"),
        )
        for seed in values.get("seeds", [0])
        for fold in (range(folds) if folds else [None])
        for label, more in values["runs"].items()
    )
    return Question(name, values["about"], values.get("baseline"), runs)


@dataclass
class Queue:
    """The experiments, where their runs stand, and where their results go.

    Attributes:
        listed: File of the experiments; it is read anew for every run, so that more can be added.
        results: Folder of the lines.
        runs: Folder of the runs, and of data that are made for them.
        data: Folder of the data.
        source: Folder with the package `nearsight` that the runs use, such as `src` of a fixed working tree.
        pause_for: Pattern of the command lines under which runs rest.
        claims: File of the claims, which say when a question needs no more seeds; None to make all runs.
    """

    listed: Path
    results: Path
    runs: Path
    data: Path
    source: Path = ROOT / "src"
    pause_for: str = PAUSE_FOR
    claims: Path | None = None
    failed: set[str] = field(default_factory=set)

    def experiments(self, only: str = "") -> list[Experiment]:
        """The listed runs whose id begins with a text, in their order."""
        listed = (one for question in read_questions(self.listed) for one in question.experiments)
        return [one for one in listed if one.id.startswith(only)]

    def lines(self, question: str) -> list[dict[str, Any]]:
        """What was measured for a question."""
        path = self.results / f"{question}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def line(self, experiment: Experiment) -> dict[str, Any] | None:
        """What was measured in a run; None while it is open.

        Raises:
            ValueError: It was made with another command than the one that is listed.
        """
        found = next((line for line in self.lines(experiment.question) if line["id"] == experiment.id), None)
        if found is not None and (found["command"], found["data"]["file"]) != (experiment.command, experiment.data):
            raise ValueError(
                f"{experiment.id} was run as `{found['command']}` and is listed as `{experiment.command}`; "
                "give what is new another label."
            )
        return found

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to the results of its question; the file is whole at any time, and no id is in it twice."""
        self.results.mkdir(parents=True, exist_ok=True)
        path = self.results / f"{line['id'].partition('/')[0]}.jsonl"
        with locked(self.results, wait=True):
            held = path.read_text() if path.is_file() else ""
            if not any(json.loads(one)["id"] == line["id"] for one in held.splitlines()):
                write_whole(path, (held + json.dumps(line) + "\n").encode())

    def folder(self, run_id: str) -> Path:
        """Folder of a run."""
        return self.runs / run_id

    def settled(self) -> set[tuple[str, str]]:
        """Questions and labels whose claims need no more seeds."""
        if self.claims is None:
            return set()
        from .claims import read_claims, settled  # which reads the lines of a queue

        return settled(read_claims(self.claims), self)

    def state(self, experiment: Experiment, settled: Container[tuple[str, str]] = ()) -> str:
        """`done`, `settled` (needed no more), `running`, `begun` or `open`."""
        if self.line(experiment) is not None:
            return "done"
        if experiment.seed >= ENOUGH and (experiment.question, experiment.label) in settled:
            return "settled"
        claim = self.noted(experiment, "lock")
        holder = claim.read_text() if claim.is_file() else ""  # looked at and not tried, which would turn a worker away
        if holder and "tools.evidence" in command_line(holder):
            return "running"
        return "begun" if (self.folder(experiment.id) / "data.json").is_file() else "open"

    @contextmanager
    def claimed(self, experiment: Experiment) -> Iterator[bool]:
        """Whether this process may work on a run; the claim ends with the block, or with the process."""
        path = self.noted(experiment, "lock")
        with locked(path, wait=False) as is_mine:
            if is_mine:
                path.write_text(str(os.getpid()))
            yield is_mine

    def noted(self, experiment: Experiment, what: str) -> Path:
        """File with something about a run, beside the folders of the runs."""
        return self.runs / ".queue" / f"{experiment.id.replace('/', '-')}.{what}"

    def work(self, only: str = "") -> None:
        """Run what is open and nobody else works on, until there is nothing left."""
        while (experiment := self.take_next(only)) is not None:
            print(f"{time.strftime('%H:%M:%S')} {experiment.id}", flush=True)

    def take_next(self, only: str) -> Experiment | None:
        """Make the next run; None where there is nothing to do."""
        listed, settled = {one.id: one for one in self.experiments()}, self.settled()
        for experiment in sorted(listed.values(), key=turn):
            if not experiment.id.startswith(only) or experiment.id in self.failed:
                continue
            if self.state(experiment, settled) in ("done", "settled"):
                continue
            if self.make(experiment, listed):
                return experiment
        return None

    def make(self, experiment: Experiment, listed: dict[str, Experiment]) -> bool:
        """Make a run and those that it needs; False where another worker is at one of them, or it failed.

        A run that has a line but no folder, as on a new machine, is made again for those that need it.
        """
        with self.claimed(experiment) as is_mine:
            if not is_mine or experiment.id in self.failed:
                return False
            folder = self.folder(experiment.id)
            if (folder / "outcome.json").is_file() and self.line(experiment) is not None:
                return True
            if not all(self.make(listed[need], listed) for need in experiment.needs):
                return False
            if not self.execute(experiment):
                self.failed.add(experiment.id)
                return False
            self.append(describe(self, experiment))
            return True

    def execute(self, experiment: Experiment) -> bool:
        """Run the command to its end; it rests while something runs that should be alone."""
        folder, spent = self.folder(experiment.id), self.noted(experiment, "seconds")
        folder.mkdir(parents=True, exist_ok=True)
        before = float(spent.read_text()) if spent.is_file() else 0.0
        with (folder / "log.txt").open("ab") as log:
            self.take_over(experiment)
            child = subprocess.Popen(
                [sys.executable, "-m", "nearsight", *self.arguments(experiment)],
                env=os.environ | {"PYTHONPATH": str(self.source.absolute()), "OMP_NUM_THREADS": "1"},
                cwd=self.runs,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=follow_parent,
            )
        is_resting, noted, began = False, 0.0, seconds_of_children()
        try:
            while child.poll() is None:
                if is_resting != someone_measures(self.pause_for):
                    is_resting = not is_resting
                    child.send_signal(signal.SIGSTOP if is_resting else signal.SIGCONT)
                if (now := processor_seconds(child.pid)) > noted + NOTE_EVERY:
                    noted = now
                    write_whole(spent, f"{before + now:.1f}".encode())
                with suppress(subprocess.TimeoutExpired):
                    child.wait(POLL)
        finally:
            if child.poll() is None:  # this process is to end: the run writes its checkpoint and ends, too
                child.send_signal(signal.SIGCONT)
                child.terminate()
                child.wait()
            write_whole(spent, f"{before + seconds_of_children() - began:.1f}".encode())
        if child.returncode:
            last = (folder / "log.txt").read_text(errors="replace").strip().splitlines()[-1:]
            print(f"{experiment.id} failed ({child.returncode}): {' '.join(last)}", file=sys.stderr, flush=True)
        return child.returncode == 0

    def arguments(self, experiment: Experiment) -> list[str]:
        """The command line behind `nearsight`, with paths."""
        paths = {need: str(self.folder(need).absolute()) for need in experiment.needs}
        command = RUN.sub(lambda found: shlex.quote(paths[found[1]]), experiment.command)
        command = command.replace("{data}", shlex.quote(str(make_data(self, experiment).absolute())))
        out = ["--seed", str(experiment.seed), "--out", str(self.folder(experiment.id).absolute())]
        return [*shlex.split(command), *out, "--threads", "1", "--workers", "0", "--cpu", "--quiet"]

    def take_over(self, experiment: Experiment) -> None:
        """Link what another run of the question has and this one may use; `nearsight` tells what fits."""
        if experiment.shares is None or (mine := self.folder(experiment.id) / experiment.shares).is_dir():
            return
        for line in reversed(self.lines(experiment.question)):
            theirs = self.folder(line["id"]) / experiment.shares
            if line["seed"] == experiment.seed and theirs.is_dir():
                mine.mkdir()
                for file in theirs.iterdir():
                    os.link(file, mine / file.name)
                return


def turn(experiment: Experiment) -> tuple[bool, bool]:
    """What comes first, beside the order of the list: cheap runs, and of these the seeds that may be enough."""
    is_dear = experiment.hours > CHEAP
    return is_dear, not is_dear and experiment.seed >= ENOUGH


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of a folder or a file, which is made if need be; it goes with the process, even if it is killed."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            is_mine = False
        else:
            is_mine = True
        yield is_mine
    finally:
        os.close(handle)


def follow_parent() -> None:
    """Be of the lowest priority, and be killed with the worker, even if that is killed itself."""
    os.nice(19)
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def someone_measures(pattern: str) -> bool:
    """Whether a process runs whose command line has the pattern."""
    commands = (command_line(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    # Workers have the pattern in their own command lines.
    return any("tools.evidence" not in command and re.search(pattern, command) for command in commands)


def command_line(process: str) -> str:
    """How a process was started; nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def processor_seconds(process: int) -> float:
    """Seconds that a process has had a core for."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_of_children() -> float:
    """Seconds that child processes have had a core for which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_data(queue: Queue, experiment: Experiment) -> Path:
    """The data of a run: as they are, without their test images, or divided into folds."""
    source = queue.data / experiment.data
    if not source.is_file():
        raise ValueError(f"There is no {source}; give the folder of the data with --data.")
    if experiment.tests and experiment.fold is None:
        return source
    made = queue.runs / "data"
    if source.suffix == ".npz":
        if experiment.fold is not None:
            raise ValueError(f"{experiment.id} asks for folds of {experiment.data}; only a .zip of photos has them.")
        return without_test(source, made / "without-test" / source.name)
    return table_of_photos(source, made / source.stem, experiment)


def without_test(source: Path, target: Path) -> Path:
    """A copy of arrays without those of the test images."""
    if not target.is_file():
        with np.load(source, allow_pickle=False) as held:
            kept = {name: held[name] for name in held.files if "test" not in name}
        file = io.BytesIO()
        np.savez(file, **kept)
        write_whole(target, file.getvalue())
    return target


def table_of_photos(source: Path, folder: Path, experiment: Experiment) -> Path:
    """A table of the photos of an archive with folders of splits and classes, one part of them or none for tests."""
    with locked(folder.parent / f".{folder.name}.lock", wait=True), zipfile.ZipFile(source) as archive:
        names = sorted(name for name in archive.namelist() if name.split("/")[0] in SPLITS and not name.endswith("/"))
        if not folder.is_dir():
            part = folder.with_name(f".{folder.name}.part")
            archive.extractall(part, names)
            part.replace(folder)
    if experiment.fold is None:
        file = folder / "without-test.csv"
        chosen = {name: name.split("/")[0] for name in names if not name.startswith("test/")}
    else:
        file = folder / f"fold{experiment.fold}of{experiment.folds}.csv"
        parts = fold_of_each(names, experiment.folds)
        chosen = {name: "test" if parts[name] == experiment.fold else "train" for name in names}
    rows = [f"{name},{name.split('/')[1]},{split}" for name, split in chosen.items()]
    write_whole(file, "\n".join(["path,label,split", *rows, ""]).encode())
    return file


def fold_of_each(names: Sequence[str], folds: int) -> dict[str, int]:
    """The part that each image `SPLIT/CLASS/FILE` belongs to; the classes are divided evenly.

    Example:
        >>> parts = fold_of_each([f"train/{label}/{number}.jpg" for label in "ab" for number in range(10)], 5)
        >>> [sum(part == fold for part in parts.values()) for fold in range(5)]
        [4, 4, 4, 4, 4]
    """
    ordered = sorted(names, key=lambda name: (name.split("/")[1], hashlib.sha256(name.encode()).digest()))
    found: dict[str, int] = {}
    for _, group in groupby(ordered, key=lambda name: name.split("/")[1]):
        found |= {name: number % folds for number, name in enumerate(group)}
    return found


def describe(queue: Queue, experiment: Experiment) -> dict[str, Any]:
    """The line of a finished run: what was run on what, and what came of it."""
    folder = queue.folder(experiment.id)
    outcome = json.loads((folder / "outcome.json").read_text())
    about = json.loads((folder / "environment.json").read_text())
    text = (folder / "recipe.yaml").read_text()
    recipe = yaml.safe_load(text)
    with np.load(folder / "predictions.npz", allow_pickle=False) as file:
        split, right, indices = str(file["split"]), file["scores"].astype(bool), file["indices"]
    if experiment.tests != (split == "test"):
        raise ValueError(f"{experiment.id} was judged by its {split} images, which it should not have been.")
    return {
        "id": experiment.id,
        "label": experiment.label,
        "seed": experiment.seed,
        "fold": experiment.fold,
        "command": experiment.command,
        "commit": commit_of(queue.source),
        "recipe": hashlib.sha256(without_paths(text).encode()).hexdigest()[:16],
        "data": {"file": experiment.data, "sha256": hash_of(queue.data / experiment.data)},
        "weights": (about.get("weights") or {}).get("sha256"),
        "val": outcome["val_score"],
        "test": outcome["test_score"],
        "judged": {"split": split, "images": len(right), "indices": hash_indices(indices), "right": pack(right)},
        "model": outcome["model"],
        "parameters": outcome["parameters"],
        "best_epoch": outcome["epoch"],
        "epochs": outcome["epochs"],
        "steps": outcome["steps"],
        "images_seen": outcome["steps"] * recipe["batch"],
        "curve": curve(folder, "val_score"),
        "train_loss": curve(folder, "loss")[-1],  # of the last epoch, as augmented
        "seconds": round(outcome["elapsed"], 1),  # by the clock, with rests and whatever else ran
        "core_seconds": float(queue.noted(experiment, "seconds").read_text()),
        "precision": recipe["precision"],
        "instructions": instructions(),
        "device": about["device"],
        "torch": about["versions"]["torch"],
        "ended": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
    }


def curve(folder: Path, key: str) -> list[float]:
    """What was recorded of each epoch that was validated; with the time of the run, how fast it learned."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [round(one[key], 4) for one in records if one["kind"] == "epoch"]


def without_paths(text: str) -> str:
    """A recipe whose files are named without the folders that they lie in, which differ from machine to machine."""
    return re.sub(r"/\S*/", "", text)


def pack(right: NDArray[np.bool_]) -> str:
    """A truth for each image, eight in a byte, as text.

    Example:
        >>> unpack(pack(np.array([True, False, True])), 3).tolist()
        [True, False, True]
    """
    return base64.b64encode(np.packbits(right).tobytes()).decode()


def unpack(text: str, images: int) -> NDArray[np.bool_]:
    """What `pack` was given."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8), count=images).astype(bool)


def hash_indices(indices: NDArray[Any]) -> str:
    """Tells whether two runs were judged by the same images in the same order."""
    return hashlib.sha256(indices.astype(np.int64).tobytes()).hexdigest()[:16]


@lru_cache
def hash_of(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache
def instructions() -> str:
    """The instruction set that PyTorch uses here; asked in another process, since this one needs no PyTorch."""
    asked = [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def commit_of(source: Path) -> str:
    """Commit of a working tree; with a + where its files were changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", source, *words], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "HEAD")[:12] + ("+" if git("status", "--porcelain", ".") else "")


Judged = dict[tuple[int, int | None], dict[str, Any]]  # by seed and fold, what a run was judged by


def scores_of(lines: Iterable[dict[str, Any]], label: str) -> Judged:
    """What a label's runs were judged by."""
    return {(line["seed"], line["fold"]): line["judged"] for line in lines if line["label"] == label}


def pool(*sides: Judged) -> list[NDArray[np.float64]] | None:
    """The values of each side, `[seeds, images]`, over the folds that all common seeds have; None without any.

    Raises:
        ValueError: Runs of one seed and fold were judged by different images.
    """
    common = sorted(set.intersection(*(set(side) for side in sides)), key=str)
    if not common:
        return None
    for place in common:
        if len({(side[place]["indices"], side[place]["images"]) for side in sides}) > 1:
            raise ValueError(f"Runs of seed {place[0]}, fold {place[1]} were judged by different images.")
    seeds = sorted({seed for seed, _ in common})
    folds = [fold for fold in {fold: None for _, fold in common} if all((seed, fold) in common for seed in seeds)]
    if not folds:
        seeds, folds = seeds[:1], [fold for seed, fold in common if seed == seeds[0]]
    return [
        np.stack([np.concatenate([values_of(side[seed, fold]) for fold in folds]) for seed in seeds]) for side in sides
    ]


def values_of(judged: Mapping[str, Any]) -> NDArray[np.float64]:
    """Whether each image was predicted right, or other values of a run."""
    if "right" in judged:
        return unpack(judged["right"], judged["images"]).astype(np.float64)
    return np.asarray(judged["values"], np.float64)


def table(question: Question, lines: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a page about a question."""
    from nearsight.comparison.report import signed
    from nearsight.comparison.statistics import estimate_difference, estimate_score
    from nearsight.console import percent

    labels = list(dict.fromkeys(line["label"] for line in lines))
    split = lines[0]["judged"]["split"]
    beside = f" difference to {question.baseline} |" if question.baseline in labels else ""
    yield f"| | runs | {'test' if split == 'test' else 'validation'} images right |{beside} images seen | core time |"
    yield "| --- | --- | --- |" + (" --- |" if beside else "") + " --- | --- |"
    for label in labels:
        own = scores_of(lines, label)
        scores = pool(own)
        assert scores is not None
        found = estimate_score(scores[0])
        row = f"| {label} | {len(own)} | {interval_text(Interval(found.mean, found.low, found.high), percent)} |"
        if beside:
            paired = pool(own, scores_of(lines, question.baseline or "")) if label != question.baseline else None
            gap = None if paired is None else estimate_difference(paired[0], paired[1])
            row += f" {'–' if gap is None else interval_text(Interval(gap.mean, gap.low, gap.high), signed)} |"
        mine = [line for line in lines if line["label"] == label]
        seen, minutes = (mean(line[key] for line in mine) for key in ("images_seen", "core_seconds"))
        yield f"{row} {seen:,.0f} | {minutes / 60:.0f} min |"


def interval_text(found: Interval, shown: Any) -> str:
    """A number with its interval."""
    return f"{shown(found.value)} ({shown(found.low)} to {shown(found.high)})"


def page(queue: Queue) -> str:
    """The page of all questions of which something is measured."""
    blocks, settled = [HEAD], queue.settled()
    for question in read_questions(queue.listed):
        if not (lines := queue.lines(question.name)):
            continue
        runs = question.experiments
        states = [queue.state(one, settled) for one in runs]
        left = len(runs) - states.count("done") - states.count("settled")
        blocks.append(f"\n## {question.name}\n\n{question.about} Data: `{runs[0].data}`.\n")
        commands = dict.fromkeys(f"# {line['label']}\nnearsight {line['command']}" for line in lines)
        blocks += table(question, lines)
        if left:
            blocks.append(f"\n{left} of {len(runs)} runs are still to be made.")
        blocks.append("\n```sh\n" + "\n".join(commands) + "\n```")
    return "\n".join(blocks) + "\n"


HEAD = """# What the evidence queue has measured

Written by `python -m tools.evidence page` from the lines in `benchmarks/results`; `benchmarks/experiments.yaml` lists
what is run. Each run has one thread and the lowest priority. Intervals (95 %) hold the choice of images and, with more
than one seed, the training; differences are paired over images and seeds, over all folds where there are some. Tables
of validation images are there to choose settings; their runs have seen no test image."""

app = typer.Typer(add_completion=False, help="A queue of long experiments.", pretty_exceptions_enable=False)
Listed = Annotated[Path, typer.Option(help="File of the experiments.")]
Results = Annotated[Path, typer.Option(help="Folder of the results.")]
Runs = Annotated[Path, typer.Option(help="Folder of the runs.")]
LISTED, RESULTS = ROOT / "benchmarks" / "experiments.yaml", ROOT / "benchmarks" / "results"
RUNS, SOURCE = ROOT / "runs" / "evidence", ROOT / "src"
CLAIMS = ROOT / "benchmarks" / "claims.yaml"


@app.command("work")
def work_command(
    only: Annotated[str, typer.Option(help="Only runs whose id begins with this.")] = "",
    data: Annotated[Path | None, typer.Option(envvar="NEARSIGHT_DATA", help="Folder of the data.")] = None,
    source: Annotated[Path, typer.Option(help="Folder with the package that runs, as src of a fixed tree.")] = SOURCE,
    pause_for: Annotated[str, typer.Option(help="Pattern of commands under which runs rest.")] = PAUSE_FOR,
    listed: Listed = LISTED,
    results: Results = RESULTS,
    runs: Runs = RUNS,
) -> None:
    """Run what is open, one run at a time."""
    if data is None or not data.is_dir():
        raise typer.BadParameter(f"{data} is no folder of data; give --data, or set NEARSIGHT_DATA.")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    queue = Queue(listed, results, runs.absolute(), data.absolute(), source, pause_for, CLAIMS)
    queue.work(only)
    raise typer.Exit(1 if queue.failed else 0)


@app.command("status")
def status_command(listed: Listed = LISTED, results: Results = RESULTS, runs: Runs = RUNS) -> None:
    """Show what is done, what is open, and the hours that are left."""
    queue, total = Queue(listed, results, runs.absolute(), Path(), claims=CLAIMS), 0.0
    settled = queue.settled()
    for question in read_questions(listed):
        spent = [line["core_seconds"] / 3600 for line in queue.lines(question.name)]
        states = {one.id: queue.state(one, settled) for one in question.experiments}
        each = mean(spent) if spent else question.experiments[0].hours
        left = each * sum(state not in ("done", "settled") for state in states.values())
        total += left
        print(f"{question.name}: {len(spent)} of {len(states)} done, {left:.1f} h left")
        for name, state in states.items():
            score = next((line["val"] for line in queue.lines(question.name) if line["id"] == name), None)
            print(f"  {state:8}{name.partition('/')[2]}{'' if score is None else f'  {score:.1%} on validation'}")
    print(f"{total:.1f} hours of one core left")


@app.command("page")
def page_command(listed: Listed = LISTED, results: Results = RESULTS) -> None:
    """Write docs/results/evidence.md."""
    write_whole(
        ROOT / "docs" / "results" / "evidence.md", page(Queue(listed, results, Path(), Path(), claims=CLAIMS)).encode()
    )


def main() -> None:
    """The command line; what can't be done is said in one sentence."""
    try:
        app()
    except ValueError as error:
        sys.exit(f"evidence: {error}")


if __name__ == "__main__":
    main()
