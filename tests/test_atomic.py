"""What is written is complete or absent, and takes nothing away from anybody."""

import os
import socket
import threading
from pathlib import Path

import pytest

from nearsight.atomic import check_output, write_whole, writing


def test_a_device_is_written_to_and_stays_one() -> None:
    write_whole("/dev/null", b"gone")
    check_output("/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left"):
        write_whole("/dev/full", b"too much")
    assert Path("/dev/full").is_char_device()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"through")
    reader.join(10)
    assert read == [b"through"] and pipe.is_fifo()


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_is_followed(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "elsewhere" / "target.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink() and target.read_text() == "new"


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
