"""Files that are complete or absent, and never take the place of what is not ours."""

import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

LONGEST = 255  # bytes of a name in most file systems
PATIENCE = 10.0  # seconds until somebody reads a pipe
HEAD = 4096  # bytes of a file by which it is told whose it is


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that it is complete or absent, even after a crash; see `writing`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "new" / "note.txt"
        >>> write_whole(path, b"whole")
        >>> path.read_bytes(), [file.name for file in path.parent.iterdir()]
        (b'whole', ['note.txt'])
    """
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream into a file beside `path`, which takes that name when all is written and on the disk.

    A device or a pipe is written to as it is; of a symbolic link the file behind it is written.

    Raises:
        ValueError: The path is a folder, or something else that can't be written to.
        OSError: There is no room, or no right to write; it names the file.
    """
    if is_stream(path):
        with naming(Path(path)), open_stream(path) as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    refuse_odd(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with claimed_part(target) as part:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)


@contextmanager
def writing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write files into, which takes the name `path` when all of them are on the disk.

    What was there before is replaced then.
    """
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with claimed_part(target, folder=True) as part:
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                with file.open("r+b") as stream:  # Windows waits for what may be written to alone
                    os.fsync(stream.fileno())
        sync_names(part)
        if target.exists():
            with claimed_part(target.with_name(f"{target.name}.old"), folder=True) as old:
                target.rename(old / target.name)
                part.rename(target)
        else:
            part.rename(target)
        sync_names(target.parent)


def sync_names(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; Windows has no such thing."""
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def claimed_part(target: Path, folder: bool = False) -> Iterator[Path]:
    """A file or folder beside `target` that no other process writes to, to be renamed; otherwise it is removed.

    What a killed process left there for the same target is taken over or removed: the claim is a lock, which goes with
    its process, so that nobody takes what is still being written. Where there are no locks, leftovers stay.
    """
    name = target.name
    if len(os.fsencode(name)) > LONGEST - len("..999999.part"):
        name = sha256(os.fsencode(name)).hexdigest()
    parts = (target.with_name(f".{name}.{number}.part") for number in count(1))
    try:
        part, handle = next((part, handle) for part in parts if (handle := claim(part, folder)) is not None)
    except NoLocksError:
        part, handle = target.with_name(f".{name}.pid{os.getpid()}.part"), None
        if folder:
            part.mkdir(exist_ok=True)
    try:
        for left in parts if handle is not None else ():
            if not os.path.lexists(left):
                break
            if (other := claim(left, folder)) is not None:
                remove(left)
                os.close(other)
        for held in part.iterdir() if folder else ():
            remove(held)
        with naming(target):
            yield part
    finally:
        if handle is None or is_open_as(handle, part):  # else it was renamed, and what has its name now is another's
            remove(part)
        if handle is not None:
            os.close(handle)


def open_stream(path: str | os.PathLike[str]) -> BinaryIO:
    """A device or a pipe to write to; at a pipe that nobody reads it is waited for some seconds only.

    Raises:
        OSError: Nobody reads it.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(error.errno, "nobody reads this pipe", os.fspath(path)) from None
            time.sleep(0.05)
    os.set_blocking(handle, True)
    return open(handle, "wb")


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Let an error say to which file nothing more can be written: a stream does not know its name."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            error.filename = os.fspath(target)
        raise


class NoLocksError(Exception):
    """The system, or a file system, has no locks that go with their process."""


def claim(part: Path, folder: bool) -> int | None:
    """Make and lock a file or folder; the handle that keeps the lock, or None where another process has it.

    Raises:
        OSError: Nothing can be written there.
        NoLocksError: There are no locks; nothing was made.
    """
    if sys.platform == "win32":
        raise NoLocksError
    while True:
        if folder:
            with suppress(FileExistsError):
                part.mkdir()
        how = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT
        try:
            handle = os.open(part, how | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            if not folder:
                raise
            continue  # whoever had it has just removed it
        except OSError:
            if not os.path.lexists(part):
                raise
            return None  # not ours: a link, or another user's
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:  # of the file system
            remove(part)
            os.close(handle)
            raise NoLocksError from None
        if is_open_as(handle, part):
            return handle
        os.close(handle)  # whoever had it has just renamed or removed it


def is_open_as(handle: int, path: Path) -> bool:
    """Whether what is open under a handle still has that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that it holds; what is not there is no matter."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_output(
    path: str | os.PathLike[str],
    *,
    inputs: Iterable[str | os.PathLike[str]] = (),
    is_ours: Callable[[bytes], bool] = lambda head: False,
    force: bool | None = False,
    option: str = "",
) -> None:
    """Refuse, before any work, a file to write that would take the place of what somebody needs.

    Devices and pipes are written to and lose nothing; an empty file holds nothing to lose.

    Args:
        path: File to write.
        inputs: Files that are read, and folders in which they lie; none of them is ever written over.
        is_ours: Whether a file that begins with these bytes was written by the same command before.
        force: Whether files of others may be written over; None for a command that never does.
        option: How the path was given, for the sentence.

    Raises:
        ValueError: The file is a folder, an input, or not ours.
        OSError: Nothing can be written where it would be.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.csv"
        >>> check_output(path)
        >>> size = path.write_text("name,age")
        >>> check_output(path, is_ours=lambda head: head.startswith(b"image,"))
        Traceback (most recent call last):
        ...
        ValueError: ...mine.csv was not written by this command; give another name, or write over it with --force.
    """
    title = f"{option} {path}" if option else str(path)
    if is_stream(path):
        return
    if os.path.isdir(path):
        raise ValueError(f"{title} is a folder; give the name of a file to write.")
    refuse_odd(Path(os.path.realpath(path)), title)
    refuse_unwritable(Path(os.path.realpath(path)).parent)
    if not os.path.isfile(path):
        return
    if any(os.path.exists(given) and os.path.samefile(given, path) for given in inputs):
        raise ValueError(f"{title} is read here as well and would be lost; give another file to write.")
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if head and not force and not is_ours(head):
        other = "give another name" if force is None else "give another name, or write over it with --force"
        raise ValueError(f"{title} was not written by this command; {other}.")


def is_writable_text(text: str) -> bool:
    r"""Whether files can hold a text: bytes that are no UTF-8 they can, half of a character (of JSON) they can't.

    Example:
        >>> [is_writable_text(text) for text in ("\N{SNOWMAN}", "\udcff", "\ud800")]
        [True, True, False]
    """
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def expand_home(path: str | os.PathLike[str]) -> Path:
    """A path whose `~` is written out.

    Raises:
        ValueError: There is no such user, or the one who asks has no home.

    Example:
        >>> expand_home("~no_such_user/a")
        Traceback (most recent call last):
        ...
        ValueError: ~no_such_user/a: it is not known where that home folder is; write the path in full, or set HOME.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(
            f"{path}: it is not known where that home folder is; write the path in full, or set HOME."
        ) from None


def refuse_unwritable(folder: Path) -> None:
    """Refuse, before any work, a folder in which nothing can be written, or made if it is not there yet.

    Raises:
        OSError: The folder, or the nearest around it that there is, can't be written to.
    """
    around = Path(os.path.realpath(folder))
    while not around.exists() and around != around.parent:
        around = around.parent
    if not os.access(around, os.W_OK):
        raise PermissionError(errno.EACCES, "nothing can be written to this folder; give another", str(around))


def is_own_png(head: bytes) -> bool:
    """Whether a file begins like a PNG of ours, which name the program in their text."""
    return head.startswith(b"\x89PNG") and b"Software\0Nearsight" in head


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a device or a pipe."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISFIFO(mode)


def refuse_odd(target: Path, title: str = "") -> None:
    """Refuse what is there and no regular file, such as a folder or a socket."""
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "no regular file"
        raise ValueError(f"{title or target} is {what}; give the name of a file to write.")
