"""What is written is complete or absent, and takes nothing away from anybody."""

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

import pytest

from nearsight.atomic import check_output, claimed_part, write_whole, writing


@pytest.mark.linux
def test_a_device_is_written_to_and_stays_one() -> None:
    write_whole("/dev/null", b"gone")
    check_output("/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left"):
        write_whole("/dev/full", b"too much")
    assert Path("/dev/full").is_char_device()


@pytest.mark.posix
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"through")
    reader.join(10)
    assert read == [b"through"] and pipe.is_fifo()


@pytest.mark.posix
@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_is_followed(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "elsewhere" / "target.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink() and target.read_text() == "new"


@pytest.mark.posix
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; give the name of a file to write"):
        write_whole(tmp_path, b"")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for refuse in (lambda path: write_whole(path, b""), check_output):
            with pytest.raises(ValueError, match="is no regular file"):
                refuse(tmp_path / "socket")


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), writing(path) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def fork_and_stop(write: Callable[[], AbstractContextManager[object]]) -> int:
    """A child that has begun to write and stands still; its number."""
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        with write():
            os.write(tell, b"x")
            signal.pause()
        os._exit(0)
    assert os.read(ready, 1) == b"x"
    return child


def end(child: int) -> None:
    """Kill a child."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nearsight.atomic.os.fsync", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*note\.txt'"):
        write_whole(tmp_path / "note.txt", b"too much")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.posix
def test_what_killed_processes_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    children = [fork_and_stop(lambda: writing(path)) for _ in range(3)]
    assert len(list(tmp_path.glob(".a.csv.*.part"))) == 3
    for child in children:
        end(child)
    (tmp_path / ".b.csv.1.part").write_text("of another file")
    write_whole(path, b"whole")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".b.csv.1.part", "a.csv"]


@pytest.mark.posix
def test_what_another_process_writes_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    child = fork_and_stop(lambda: writing(path))
    held = {file.name for file in tmp_path.iterdir()}
    write_whole(path, b"whole")
    assert path.read_bytes() == b"whole" and {file.name for file in tmp_path.iterdir()} == held | {"a.csv"}
    end(child)


def test_writers_of_one_file_at_once_leave_one_of_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"

    def work(letter: bytes) -> None:
        for _ in range(100):
            write_whole(path, letter * 5000)

    threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            seen.add(path.read_bytes())
    assert seen <= {letter * 5000 for letter in (b"a", b"b", b"c", b"d")} and seen
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.posix
def test_a_folder_left_by_a_killed_process_is_emptied_and_used(tmp_path: Path) -> None:
    child = fork_and_stop(lambda: claimed_part(tmp_path / "bundle", folder=True))
    (tmp_path / ".bundle.1.part" / "half").mkdir()
    with claimed_part(tmp_path / "bundle", folder=True) as part:
        assert part.name == ".bundle.2.part"
    end(child)
    with claimed_part(tmp_path / "bundle", folder=True) as part:
        assert part.name == ".bundle.1.part" and not list(part.iterdir())
        part.rename(tmp_path / "bundle")
    assert [file.name for file in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("name", ["n" * 255, "\N{SNOWMAN}" * 85], ids=["letters", "snowmen"])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, name: str) -> None:
    write_whole(tmp_path / name, b"whole")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.posix
def test_a_link_in_the_place_of_the_part_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".a.csv.1.part").symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "a.csv", b"whole")
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / "a.csv").read_bytes() == b"whole"


@pytest.mark.posix
def test_a_file_system_without_locks_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    write_whole(tmp_path / "a.csv", b"whole")
    with claimed_part(tmp_path / "bundle", folder=True) as part:
        part.rename(tmp_path / "bundle")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.csv", "bundle"]


@pytest.mark.linux
@pytest.mark.parametrize("folder", [False, True])
def test_where_nothing_can_be_written_nothing_is_tried_for_ever(folder: bool) -> None:
    with pytest.raises(OSError), claimed_part(Path("/proc/nearsight"), folder):
        pass


def test_inputs_and_files_of_others_are_refused(tmp_path: Path) -> None:
    mine, ours, empty = tmp_path / "mine.csv", tmp_path / "ours.csv", tmp_path / "empty.csv"
    mine.write_text("name,age\n")
    ours.write_text("image,class_1\n")
    empty.touch()
    again = tmp_path / "again.csv"
    os.link(mine, again)

    def is_ours(head: bytes) -> bool:
        return head.startswith(b"image,")

    check_output(ours, is_ours=is_ours)
    check_output(empty, is_ours=is_ours)
    check_output(tmp_path / "new.csv", inputs=[mine], is_ours=is_ours)
    check_output(mine, is_ours=is_ours, force=True)
    with pytest.raises(ValueError, match=r"^--csv .*mine.csv was not written by this command"):
        check_output(mine, is_ours=is_ours, option="--csv")
    for path in (mine, again):
        with pytest.raises(ValueError, match="is read here as well and would be lost"):
            check_output(path, inputs=[mine], is_ours=is_ours, force=True)


@pytest.mark.posix
def test_a_pipe_that_nobody_reads_is_not_waited_at_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearsight.atomic.PATIENCE", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"nobody reads this pipe.*pipe'"):
        write_whole(tmp_path / "pipe", b"x")
