"""Where shards are: local files and URLs, found by folder, pattern or name, and read in parts."""

import glob
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from ..names import natural_key
from .folder import SPLITS, is_hidden

BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
PREFIX = re.compile(rf"({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)
MOST_OPEN = 64  # files that a process keeps open


class Refused(ValueError):
    """Something about the content of a shard, not about reaching it."""


def is_pattern(source: str) -> bool:
    """Whether a text stands for several files, or for files behind a URL."""
    return "://" in source or bool(BRACES.search(source)) or (glob.has_magic(source) and ".tar" in source)


def expand_braces(pattern: str) -> list[str]:
    """All names that a pattern with braces stands for.

    Example:
        >>> expand_braces("train-{08..10}.tar")
        ['train-08.tar', 'train-09.tar', 'train-10.tar']
        >>> expand_braces("{train,val}-{0..1}.tar")
        ['train-0.tar', 'train-1.tar', 'val-0.tar', 'val-1.tar']
    """
    match = BRACES.search(pattern)
    if not match:
        return [pattern]
    first, last, words = match.groups()
    if words is None:
        pieces = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    else:
        pieces = words.split(",")
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [head + piece + rest for piece in pieces for rest in expand_braces(tail)]


def find_shards(source: str) -> dict[str, list[str]]:
    """The shards of each split, told by the folder they are in or by how their names begin.

    Raises:
        ValueError: There are none, one is missing, or some shards name a split and others don't.
    """
    places = list_places(source)
    if not places:
        raise ValueError(f"{source} stands for no .tar files; give a file, a folder of them, or a pattern.")
    splits = {place: split_of(place, source) for place in places}
    known = {split for split in splits.values() if split}
    if not known:
        return {"train": places}
    unknown = [place for place, split in splits.items() if split is None]
    if unknown:
        raise ValueError(f"{unknown[0]} does not say which split it is for, as other shards do; name it train-...tar.")
    return {split: [p for p in places if splits[p] == split] for split in ("train", "val", "test") if split in known}


def split_of(place: str, source: str) -> str | None:
    """The split that a shard's name tells, or its folder if the user did not name just that one."""
    *_, folder, name = ["", *place.split("/")]
    match = PREFIX.match(name)
    if match:
        return SPLITS[match[1].lower()]
    return SPLITS.get(folder.casefold()) if folder not in source.split("/") else None


def list_places(source: str) -> list[str]:
    """Paths or URLs of the shards, in natural order."""
    if os.path.isdir(source):
        return sorted(tars_below(source.rstrip("/")), key=natural_key)
    places = []
    for name in expand_braces(source):
        matches = match_places(name) if glob.has_magic(name) else [name]
        if "://" not in name and not glob.has_magic(name) and not os.path.exists(name):
            raise ValueError(f"There is no shard {name}, which {source} stands for.")
        places += sorted(matches, key=natural_key)
    return places


def tars_below(folder: str) -> Iterator[str]:
    """Paths of all tar archives in a folder and the folders inside."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from tars_below(f"{folder}/{entry.name}")
            elif entry.name.endswith(".tar"):
                yield f"{folder}/{entry.name}"


def match_places(pattern: str) -> list[str]:
    """Files or URLs that a pattern with stars stands for."""
    if "://" not in pattern:
        return glob.glob(os.path.expanduser(pattern))
    import fsspec

    with reaching(pattern):
        system, path = fsspec.core.url_to_fs(pattern)
        return [system.unstrip_protocol(found) for found in system.glob(path)]


def open_place(place: str) -> IO[bytes]:
    """A file or URL, opened for reading; use it within `reaching`."""
    if "://" not in place:
        return open(place, "rb")
    import fsspec

    return fsspec.open(place, "rb").open()


@contextmanager
def reaching(place: str) -> Iterator[None]:
    """Turn what goes wrong with a URL, for which every protocol has classes of its own, into one sentence."""
    try:
        yield
    except Exception as error:
        if "://" not in place or isinstance(error, Refused):
            raise
        reason = str(error.__cause__ or error).strip().rstrip(".") or type(error).__name__
        raise OSError(f"{place} can't be read: {reason}.") from None


def read_whole(place: str) -> bytes | None:
    """The content of a small file, or None if there is none."""
    try:
        if "://" not in place:
            with open(place, "rb") as file:
                return file.read()
        import fsspec

        with reaching(place):
            system, path = fsspec.core.url_to_fs(place)
            return system.cat_file(path)
    except OSError:
        return None


def read_part(place: str, start: int, size: int, opened: dict[str, io.FileIO]) -> bytes:
    """Some bytes of a file or URL; local files stay open in `opened`."""
    if "://" in place:
        import fsspec

        with reaching(place):
            system, path = fsspec.core.url_to_fs(place)  # asked for each time: it is not to cross into another process
            return system.cat_file(path, start=start, end=start + size)
    if place not in opened:
        if len(opened) >= MOST_OPEN:
            opened.pop(next(iter(opened))).close()
        opened[place] = io.FileIO(place)
    # Not seek and read: a process made by fork shares the position.
    return os.pread(opened[place].fileno(), size, start)
