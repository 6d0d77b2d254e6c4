"""The evidence queue: every run is made once, a kill loses nothing, and no choice sees a test image.

Most tests put a package of a few lines in the place of `nearsight`, which writes what a run writes and takes as long as
it is told; the last one runs the real one.
"""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from nearsight.cli.shell import app as commands
from nearsight.comparison.statistics import estimate_difference
from nearsight.config.files import load_recipe, parse_changes
from tools.evidence import Question, Queue, fold_of_each, pack, page, pool, read_questions, scores_of

ROOT = Path(__file__).parents[2]
FAKE = """
import json, os, sys, time
import numpy as np
words = sys.argv[1:]
out = words[words.index("--out") + 1]
with open(out + "/starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
open(out + "/data.json", "w").write("{}")
for step in range(int(words[2])):
    done = out + f"/step{step}"
    if not os.path.exists(done):
        time.sleep(0.05)
        open(done, "w").close()
if "fail" in words:
    sys.exit("nearsight: This can't be done.")
split = "test" if any(name.startswith("x_test") for name in np.load(words[1]).files) else "val"
np.savez(out + "/predictions.npz", split=np.array(split), scores=np.arange(20) % 3 > 0, indices=np.arange(20))
open(out + "/recipe.yaml", "w").write("batch: 8\\nprecision: fp32\\n")
about = {"device": "a CPU", "versions": {"torch": "2"}}
json.dump(about, open(out + "/environment.json", "w"))
outcome = {"val_score": 0.5, "test_score": None, "model": "m", "parameters": 1, "epoch": 1, "epochs": 1, "steps": 3}
records = [{"kind": "epoch", "loss": 2.0, "val_score": 0.25}, {"kind": "epoch", "loss": 1.5, "val_score": 0.5}]
records.append({"kind": "step", "loss": 1.0})
open(out + "/metrics.jsonl", "w").write("".join(json.dumps(one) + "\\n" for one in records))
json.dump(outcome | {"elapsed": 1.0}, open(out + "/outcome.json", "w"))
"""


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """A queue without experiments, whose runs are those of the stand-in."""
    package = tmp_path / "src" / "nearsight"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Stand in"]):
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *named, *words], cwd=package.parent, check=True)
    (tmp_path / "data").mkdir()
    images, labels = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "data" / "small.npz", x_train=images, y_train=labels, x_test=images[:4], y_test=labels[:4])
    names = {"listed": "list.yaml", "results": "results", "runs": "runs", "data": "data", "source": "src"}
    return Queue(**{key: tmp_path / name for key, name in names.items()}, pause_for="nobody runs this")


def write_list(queue: Queue, runs: dict[str, str], **more: object) -> None:
    """Give the queue one question, `try`, with a run for each label and how many steps it takes."""
    values = {"about": "Why?", "data": "small.npz", "command": "train {data}", "hours": 0.1, "runs": runs, **more}
    queue.listed.write_text(json.dumps({"try": values}))  # JSON is YAML


def start_worker(queue: Queue) -> subprocess.Popen[bytes]:
    """A worker in a process of its own."""
    named = {"listed": queue.listed, "results": queue.results, "runs": queue.runs, "data": queue.data}
    options = [word for name, path in named.items() for word in (f"--{name}", str(path))]
    command = [*options, "--source", str(queue.source), "--pause-for", queue.pause_for]
    return subprocess.Popen([sys.executable, "-m", "tools.evidence", "work", *command], cwd=ROOT)


def wait_for(is_so: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it has not come about in time"
        time.sleep(0.05)


def starts(queue: Queue, run: str) -> list[int]:
    """Processes that have worked on a run."""
    path = queue.folder(f"try/{run}-seed0") / "starts"
    return [int(line) for line in path.read_text().split()] if path.is_file() else []


def is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def labels_done(queue: Queue) -> list[str]:
    return [line["label"] for line in queue.lines("try")]


@pytest.mark.slow
def test_a_killed_worker_takes_its_run_along_and_the_next_one_goes_on(queue: Queue) -> None:
    write_list(queue, {"first": "60", "second": "1"})
    worker = start_worker(queue)
    wait_for(lambda: (queue.folder("try/first-seed0") / "step5").exists())
    assert [queue.state(one) for one in queue.experiments()] == ["running", "open"]
    worker.kill()
    worker.wait()
    (run,) = starts(queue, "first")
    wait_for(lambda: not is_alive(run))
    assert [queue.state(one) for one in queue.experiments()] == ["begun", "open"]
    assert labels_done(queue) == []
    made = {path.name: path.stat().st_mtime_ns for path in queue.folder("try/first-seed0").glob("step*")}
    assert 5 < len(made) < 60
    assert start_worker(queue).wait() == 0
    assert labels_done(queue) == ["first", "second"]
    assert len(starts(queue, "first")) == 2 and len(starts(queue, "second")) == 1
    again = {path.name: path.stat().st_mtime_ns for path in queue.folder("try/first-seed0").glob("step*")}
    assert made.items() <= again.items()  # what was done was not done anew


@pytest.mark.slow
def test_two_workers_never_make_the_same_run(queue: Queue) -> None:
    runs = [f"run{number}" for number in range(4)]
    write_list(queue, dict.fromkeys(runs, "4"))
    assert [worker.wait() for worker in [start_worker(queue), start_worker(queue)]] == [0, 0]
    assert sorted(labels_done(queue)) == runs
    assert [len(starts(queue, run)) for run in runs] == [1] * 4


def test_what_has_a_line_is_done_without_its_folder(queue: Queue) -> None:
    write_list(queue, {"teacher": "1", "student": "1 {run:try/teacher-seed0}", "other": "1"})
    queue.work()
    assert labels_done(queue) == ["teacher", "student", "other"]
    before = (queue.results / "try.jsonl").read_bytes()
    new = Queue(queue.listed, queue.results, queue.runs.parent / "elsewhere", queue.data, queue.source, queue.pause_for)
    new.work()
    assert not list(new.runs.glob("try/*"))
    write_list(queue, {"teacher": "1", "student": "1 {run:try/teacher-seed0}", "more": "1 {run:try/teacher-seed0}"})
    new.work()  # what is new needs the teacher, which is made again, and not the first student
    assert (queue.results / "try.jsonl").read_bytes().startswith(before)
    assert labels_done(queue) == ["teacher", "student", "other", "more"]
    assert sorted(path.name for path in new.runs.glob("try/*")) == ["more-seed0", "teacher-seed0"]


@pytest.fixture
def measuring() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a process with a name of its own, and ends it."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "someone-measures"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_run_rests_while_someone_measures(queue: Queue, measuring: Callable[[], subprocess.Popen[bytes]]) -> None:
    write_list(queue, {"long": "100"})
    queue.pause_for = "someone-measures"
    folder = queue.folder("try/long-seed0")
    worker = start_worker(queue)
    try:
        wait_for(lambda: (folder / "step3").exists())
        other = measuring()
        (run,) = starts(queue, "long")
        wait_for(lambda: state_of(run) == "T")
        made = len(list(folder.glob("step*")))
        time.sleep(1.5)
        assert len(list(folder.glob("step*"))) == made < 100
        other.kill()
        other.wait()
        wait_for(lambda: len(list(folder.glob("step*"))) > made)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    assert not is_alive(run)


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_runs_have_the_lowest_priority(queue: Queue) -> None:
    write_list(queue, {"long": "100"})
    worker = start_worker(queue)
    wait_for(lambda: bool(starts(queue, "long")))
    assert os.getpriority(os.PRIO_PROCESS, starts(queue, "long")[0]) == 19
    worker.terminate()
    worker.wait()


def test_a_question_of_choice_gets_no_test_images(queue: Queue) -> None:
    write_list(queue, {"chosen": "1"}, test=False)
    queue.work()
    assert queue.lines("try")[0]["judged"]["split"] == "val"
    with np.load(queue.runs / "data" / "without-test" / "small.npz") as file:
        assert sorted(file.files) == ["x_train", "y_train"]


def test_a_failure_is_reported_and_the_others_go_on(queue: Queue, capfd: pytest.CaptureFixture[str]) -> None:
    write_list(queue, {"needy": "1 {run:try/bad-seed0}", "bad": "1 fail", "good": "1"})
    queue.work()
    assert labels_done(queue) == ["good"] and queue.failed == {"try/bad-seed0"}
    assert len(starts(queue, "bad")) == 1  # not once more for each that needs it
    assert "try/bad-seed0 failed (1): nearsight: This can't be done." in capfd.readouterr().err


def test_a_command_that_changed_is_not_taken_for_the_old_one(queue: Queue) -> None:
    write_list(queue, {"one": "1"})
    queue.work()
    write_list(queue, {"one": "2"})
    with pytest.raises(ValueError, match="give what is new another label"):
        queue.work()


def test_a_listed_need_must_be_listed(queue: Queue) -> None:
    write_list(queue, {"student": "1 {run:try/teacher-seed0}"})
    with pytest.raises(ValueError, match="needs the run try/teacher-seed0, which is not listed"):
        read_questions(queue.listed)


@pytest.mark.parametrize("question", read_questions(ROOT / "benchmarks" / "experiments.yaml"), ids=lambda one: one.name)
def test_listed_commands_are_understood(question: Question, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours later is too late to hear of a misspelt option; the command line and the recipe take every one."""
    monkeypatch.setattr("tools.evidence.make_data", lambda queue, experiment: queue.data / experiment.data)
    verbs = get_command(commands).commands  # type: ignore[attr-defined]
    for experiment in question.experiments:
        verb, *words = queue.arguments(experiment)
        given = verbs[verb].make_context(verb, words).params
        recipe = load_recipe(given["recipe"] or "small-data", parse_changes(given["changes"]))
        assert given["seed"] == experiment.seed and recipe.task == "classify"


def test_cheap_runs_come_first_and_a_third_seed_only_where_a_claim_needs_it(queue: Queue) -> None:
    values = {"about": "Why?", "data": "small.npz", "command": "train {data} 1", "seeds": [0, 1, 2], "runs": {"a": ""}}
    questions = {"dear": {**values, "hours": 1}, "first": {**values, "hours": 0.1}, "second": {**values, "hours": 0.1}}
    queue.listed.write_text(json.dumps(questions))
    claims = [{"where": "?", "claim": "?", "better": f"{name}/a", "than": "first/a"} for name in ("second", "dear")]
    queue.claims = queue.listed.with_name("claims.yaml")
    queue.claims.write_text(json.dumps({"LIT": claims}))
    made = []
    while (experiment := queue.take_next("")) is not None:
        made.append(experiment.id)
    # The stand-in always has the same images right, which decides nothing.
    cheap = [f"{name}/a-seed{seed}" for name in ("first", "second") for seed in (0, 1)]
    assert made == [*cheap, "first/a-seed2", "second/a-seed2", *(f"dear/a-seed{seed}" for seed in range(3))]
    path = queue.results / "second.jsonl"
    kept = [
        line | {"judged": line["judged"] | {"right": pack(np.ones(20, bool))}} for line in queue.lines("second")[:2]
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    queue.claims.write_text(json.dumps({"LIT": claims[:1]}))
    (third,) = [one for one in queue.experiments("second") if one.seed == 2]
    assert queue.state(third, queue.settled()) == "settled" and queue.take_next("second") is None


def test_folds_divide_all_images_evenly_by_class() -> None:
    names = [f"{split}/{label}/{n}.jpg" for split in ("train", "test") for label in "abc" for n in range(17)]
    folds = fold_of_each(names, 5)
    assert set(folds) == set(names)
    for label in "abc":
        counts = np.bincount([folds[name] for name in names if name.split("/")[1] == label])
        assert counts.sum() == 34 and counts.max() - counts.min() <= 1


def test_differences_are_paired_over_pooled_folds(queue: Queue) -> None:
    """Two folds with different answers give the interval of all their images together."""
    rng = np.random.default_rng(0)
    right = {(label, fold): rng.random(50) < chance for label, chance in (("a", 0.9), ("b", 0.5)) for fold in (0, 1)}

    def line(label: str, fold: int) -> dict:
        judged = {"split": "test", "images": 50, "indices": f"of fold {fold}", "right": pack(right[label, fold])}
        return {"id": f"try/{label}-seed0-fold{fold}", "label": label, "seed": 0, "fold": fold, "judged": judged}

    lines = [line(label, fold) for label, fold in right]
    both = pool(scores_of(lines, "a"), scores_of(lines, "b"))
    assert both is not None
    whole = [np.concatenate([right[label, 0], right[label, 1]])[None] for label in "ab"]
    assert all((made == told).all() for made, told in zip(both, whole, strict=True))
    found = estimate_difference(*(one.astype(float) for one in whole))

    write_list(queue, {"a": "1", "b": "1"}, baseline="b")
    more = {"command": "train", "images_seen": 1, "core_seconds": 60.0}
    queue.results.mkdir()
    (queue.results / "try.jsonl").write_text("".join(json.dumps(one | more) + "\n" for one in lines))
    row = next(text for text in page(queue).splitlines() if text.startswith("| a |"))
    assert f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})" in row


@pytest.mark.slow
def test_photos_are_trained_and_tested_by_folds_with_the_real_library(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "photos.zip", "w") as archive:
        for number in range(40):
            colour = (200, 30, 30) if number % 2 else (30, 30, 200)
            split, label = ("train", "val", "test")[number % 3], ("blue", "red")[number % 2]
            with archive.open(f"{split}/{label}/{number}.png", "w") as file:
                Image.new("RGB", (16, 16), colour).save(file, "png")
    folders = {"listed": "list.yaml", "results": "results", "runs": "runs", "data": "data"}
    queue = Queue(**{key: tmp_path / name for key, name in folders.items()}, pause_for="nobody runs this")
    command = "train {data} --recipe small-data --weights none --model deit_nano --img-size 16 --epochs 1 --batch 8"
    write_list(queue, {"tiny": ""}, data="photos.zip", command=command, folds=4)
    queue.work("try/tiny-seed0-fold1")
    (line,) = queue.lines("try")
    assert (line["fold"], line["judged"]["split"], line["judged"]["images"], line["images_seen"]) == (1, "test", 10, 24)
    assert line["test"] is not None and line["core_seconds"] > 0 and line["data"]["file"] == "photos.zip"
    assert len(line["curve"]) == line["epochs"] and max(line["curve"]) == round(line["val"], 4)
