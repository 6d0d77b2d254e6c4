"""The folder of a run: its identity, its lock, its records, and disks that are full or can't be written."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearsight.runs.checkpoint import Checkpoints
from nearsight.runs.run import Outcome, Run, first_difference
from nearsight.training import loop, resume_training, run_training


@pytest.mark.usefixtures("no_page")
def test_other_settings_and_other_data_are_refused(colours: str, tiny: Callable[..., Any], tmp_path: Path) -> None:
    folder, copy = tmp_path / "run", tmp_path / "copy.npz"
    arrays = dict(np.load(colours))
    np.savez(copy, **arrays)
    run_training(str(copy), tiny({"epochs": 1}), folder, quiet=True)
    with pytest.raises(ValueError, match=r"other settings \(epochs is 1 there and 2 here\); go on with it as it was"):
        run_training(str(copy), tiny(), folder, quiet=True)
    with pytest.raises(ValueError, match=r"optimizer\.lr is 0\.001 there and 0\.01 here"):
        run_training(str(copy), tiny({"epochs": 1, "optimizer.lr": 0.01}), folder, quiet=True)
    with pytest.raises(ValueError, match=r"holds a run on other data .*; give another folder with --out"):
        run_training(colours, tiny({"epochs": 1}), folder, quiet=True)
    (folder / "outcome.json").unlink()  # as if it had not been finished
    np.savez(copy, **(arrays | {"y_train": arrays["y_train"][::-1]}))
    with pytest.raises(ValueError, match="with other names or labels than when it was recorded; put the old data back"):
        resume_training(folder, quiet=True)


@pytest.mark.usefixtures("no_page")
def test_settings_that_yaml_writes_otherwise_are_the_same_settings(
    colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    changes = {
        "epochs": 1,
        "loss.class_weights": (1.0, 2.0, 1.0, 1.0),
        "model.options": {"heads": 3},
        "optimizer.eps": 1e-8,
    }
    outcome = run_training(colours, tiny(changes), tmp_path, quiet=True)
    assert run_training(colours, tiny(changes), tmp_path, quiet=True) == outcome
    with_tuple = tiny({"model.options": {"x": (1, 2)}})
    with_list = tiny({"model.options": {"x": [1, 2]}})
    assert first_difference(with_tuple, with_list) is None


@pytest.mark.usefixtures("no_page")
def test_data_that_were_moved_are_asked_for(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = tmp_path / "run", tmp_path / "copy.npz"
    shutil.copy(colours, copy)
    monkeypatch.chdir(tmp_path)
    run_training("copy.npz", tiny({"epochs": 1}), folder, quiet=True)
    (folder / "outcome.json").unlink()  # as if it had not been finished
    copy.rename(tmp_path / "moved.npz")
    with pytest.raises(ValueError, match=f"run needs its data at {copy}, where nothing is; put them back, or link"):
        resume_training(folder, quiet=True)
    copy.symlink_to(tmp_path / "moved.npz")
    monkeypatch.chdir(folder)
    assert resume_training(folder, quiet=True).epochs == 1


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the folder of a run; begin one with `nearsight train DATA --out"):
        resume_training(tmp_path)
    with pytest.raises(ValueError, match="absent is not the folder of a run"):
        resume_training(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_refused_start_leaves_nothing_behind(colours: str, tiny: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        run_training(str(tmp_path / "nowhere"), tiny(), tmp_path / "runs" / "new", quiet=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "given").mkdir()
    with pytest.raises(ValueError, match="no_such_model"):
        run_training(colours, tiny({"model.name": "no_such_model"}), tmp_path / "given", quiet=True)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["given"]


def test_a_second_process_is_refused_and_leaves_no_trace(
    colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    with Run(tmp_path).locked():
        before = sorted(tmp_path.rglob("*"))
        for begin in (lambda: run_training(colours, tiny(), tmp_path), lambda: Run(tmp_path).locked().__enter__()):
            with pytest.raises(ValueError, match="is in use by another process; wait for it, or give another folder"):
                begin()
        assert sorted(tmp_path.rglob("*")) == before
    with Run(tmp_path).locked():
        pass


def test_records_survive_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in range(1, 5):
        run.record({"kind": "step", "epoch": 0, "step": step, "loss": 1.5})
    run.record({"kind": "epoch", "epoch": 1, "step": 4})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    assert [values["step"] for values in run.records()] == [1, 2, 3, 4, 4]
    run.forget_after(step=4, epoch=0)
    assert [values["kind"] for values in run.records()] == ["step"] * 4
    run.forget_after(step=2, epoch=0)
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 2


def test_file_names_that_are_no_text_survive(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    outcome = Outcome(
        "m",
        1,
        1,
        1,
        1,
        "classify",
        "accuracy",
        0.5,
        None,
        None,
        1.0,
        False,
        {name: "the file is cut off", "größe.png": "x"},
    )
    Run(tmp_path).finish(outcome)
    assert Run(tmp_path).outcome() == outcome
    assert "größe" in (tmp_path / "outcome.json").read_text(encoding="utf-8", errors="surrogateescape")


def test_the_environment_is_recorded(colours: str, tiny: Callable[..., Any], tmp_path: Path) -> None:
    prepared = loop.prepare(colours, tiny())
    Run(tmp_path).begin(prepared.recipe, prepared.record)
    about = json.loads((tmp_path / "environment.json").read_text())
    assert {"command", "begun", "python", "system", "versions", "device", "cores", "threads"} <= about.keys()
    assert Run(tmp_path).recipe() == prepared.recipe
    assert Run(tmp_path).data() == prepared.record


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_kill_while_a_run_is_begun_leaves_a_folder_to_begin_in(
    writes: int, colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    prepared = loop.prepare(colours, tiny())
    left = iter(range(writes))

    def dying(path: Path, content: bytes) -> None:
        if next(left, None) is None:
            raise Killed
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr("nearsight.runs.run.write_whole", dying)
        with pytest.raises(Killed):
            Run(tmp_path).begin(prepared.recipe, prepared.record)
    assert not Run(tmp_path).is_begun()
    Run(tmp_path).begin(prepared.recipe, prepared.record)
    assert Run(tmp_path).is_begun()


def test_the_resume_command_can_be_typed(tmp_path: Path) -> None:
    assert Run("runs/a").resume_command == "nearsight train --resume runs/a"
    assert Run("my runs/it's").resume_command == """nearsight train --resume 'my runs/it'"'"'s'"""


# Disks.


def test_a_folder_that_can_not_be_made_is_an_error_that_names_it(
    colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file") as error:
        run_training(colours, tiny(), tmp_path / "file" / "run", quiet=True)
    assert error.value.strerror in ("Not a directory", "File exists")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system in memory, where that is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here ({done.stderr.decode().strip()})")
        return disk

    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", disk], capture_output=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_disk_that_can_only_be_read_is_an_error(
    mounted: Callable[[str], Path], colours: str, tiny: Callable[..., Any]
) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        run_training(colours, tiny(), mounted("ro") / "run", quiet=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.usefixtures("no_page")
def test_a_full_disk_keeps_the_last_good_checkpoint(
    mounted: Callable[[str], Path],
    colours: str,
    tiny: Callable[..., Any],
    tmp_path: Path,
    state_of: Callable[[Path], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = mounted("size=40m")
    recipe = tiny({"epochs": 3})
    save, saved = loop.save_checkpoint, []

    def fill_first(session: Any) -> None:
        if len(saved) == 1:
            room = os.statvfs(disk)
            (disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_bsize - 3_000_000))
        saved.append(session.progress.step)
        save(session)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", fill_first)
        with pytest.raises(
            ValueError, match=r"No space left on device\. The last good checkpoint is .*-epoch-0001; go on"
        ):
            run_training(colours, recipe, disk / "run", quiet=True)
    assert Checkpoints(disk / "run" / "checkpoints", 1, 3).names() == ["step-00000003-epoch-0001"]
    (disk / "ballast").unlink()
    resume_training(disk / "run", quiet=True)
    run_training(colours, recipe, tmp_path / "whole", quiet=True)
    assert state_of(disk / "run") == state_of(tmp_path / "whole")


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit on the size of files")
@pytest.mark.usefixtures("no_page")
def test_a_file_that_may_not_grow_keeps_the_last_good_checkpoint(
    colours: str, tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, limits = loop.save_checkpoint, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(session: Any) -> None:
        if session.progress.epoch == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
        save(session)

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        monkeypatch.setattr(loop, "save_checkpoint", limited)
        with pytest.raises(ValueError, match=r"File too large\. The last good checkpoint is .*-epoch-0001"):
            run_training(colours, tiny(), tmp_path, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    monkeypatch.setattr(loop, "save_checkpoint", save)
    assert resume_training(tmp_path, quiet=True).epochs == 2


@pytest.mark.usefixtures("no_page")
def test_a_run_in_another_thread_trains_without_listening(
    colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    outcomes: list[Any] = []
    recipe = tiny({"epochs": 1})
    thread = threading.Thread(target=lambda: outcomes.append(run_training(colours, recipe, tmp_path, quiet=True)))
    thread.start()
    thread.join()
    assert outcomes[0].steps == 3
