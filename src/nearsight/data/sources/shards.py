"""WebDataset shards: tar archives of images and labels, on a disk or behind a URL."""

import glob
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...console import tracked
from ...network import refuse_offline
from ..file_system import SPLITS, walk
from ..image import decode, is_image_name
from ..labels import natural_key, number_labels
from ..samples import BadImage, Data, Names, Split

BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
PREFIX = re.compile(rf"({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)
MOST_SHARDS = 100_000  # that a pattern may stand for
MOST_OPEN = 64  # files that a process keeps open


class RefusedShard(ValueError):
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
    if words is None and (len(last) > 18 or int(last) - int(first) >= MOST_SHARDS):
        raise ValueError(f"{pattern} stands for more than {MOST_SHARDS:,} shards; give a smaller range.")
    if words is None:
        pieces = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    else:
        pieces = words.split(",")
    head, tail = pattern[: match.start()], pattern[match.end() :]
    rests = expand_braces(tail)
    if len(pieces) * len(rests) > MOST_SHARDS:
        raise ValueError(f"{pattern} stands for more than {MOST_SHARDS:,} shards; give a smaller range.")
    return [head + piece + rest for piece in pieces for rest in rests]


def find_shards(source: str) -> dict[str, list[str]]:
    """The shards of each split, told by the folder they are in or by how their names begin.

    Raises:
        ValueError: There are none, one is missing, or some shards name a split and others don't.
    """
    paths = list_paths(source)
    if not paths:
        raise ValueError(f"{source} stands for no .tar files; give a file, a folder of them, or a pattern.")
    splits = {path: split_of(path, source) for path in paths}
    known = {split for split in splits.values() if split}
    if not known:
        return {"train": paths}
    unknown = [path for path, split in splits.items() if split is None]
    if unknown:
        raise ValueError(f"{unknown[0]} does not say which split it is for, as other shards do; name it train-...tar.")
    return {split: [p for p in paths if splits[p] == split] for split in ("train", "val", "test") if split in known}


def split_of(path: str, source: str) -> str | None:
    """The split that a shard's name tells, or its folder if the user did not name just that one."""
    *_, folder, name = ["", *path.split("/")]
    match = PREFIX.match(name)
    if match:
        return SPLITS[match[1].lower()]
    return SPLITS.get(folder.casefold()) if folder not in source.split("/") else None


def list_paths(source: str) -> list[str]:
    """Paths or URLs of the shards, in natural order."""
    if os.path.isdir(source):
        root = source.rstrip("/")
        below = (path for path in walk(root, f"{root}/", set(), all_files=True) if path.endswith(".tar"))
        return sorted(filter(os.path.isfile, below), key=natural_key)
    paths = []
    for name in expand_braces(source):
        matches = match_paths(name) if glob.has_magic(name) else [name]
        if "://" not in name and not glob.has_magic(name) and not os.path.isfile(name):
            raise ValueError(f"There is no shard {name}, which {source} stands for.")
        paths += sorted(matches, key=natural_key)
    return paths


def match_paths(pattern: str) -> list[str]:
    """Files or URLs that a pattern with stars stands for."""
    if "://" not in pattern:
        return list(filter(os.path.isfile, glob.glob(os.path.expanduser(pattern))))
    import fsspec

    with reaching(pattern):
        system, path = fsspec.core.url_to_fs(pattern)
        return [system.unstrip_protocol(found) for found in system.glob(path)]


def open_path(path: str) -> IO[bytes]:
    """A file or URL, opened for reading; use it within `reaching`."""
    if "://" not in path:
        return open(path, "rb")
    import fsspec

    return fsspec.open(path, "rb").open()


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Turn what goes wrong with a URL, for which every protocol has classes of its own, into one sentence."""
    if "://" in path:
        refuse_offline(path, "copy the shards to this machine", path)
    try:
        yield
    except Exception as error:
        if "://" not in path or isinstance(error, RefusedShard):
            raise
        lacking = getattr(error.__cause__, "name", None) if isinstance(error, ImportError) else None
        if lacking:  # each protocol has a package of its own
            raise ValueError(
                f"Reading {path} needs {lacking}, which is not installed; pip install {lacking}."
            ) from None
        reason = str(error.__cause__ or error).strip().rstrip(".") or type(error).__name__
        raise OSError(f"{path} can't be read: {reason}.") from None


def read_whole(path: str) -> bytes | None:
    """The content of a small file, or None if there is none."""
    try:
        if "://" not in path:
            with open(path, "rb") as file:
                return file.read()
        import fsspec

        with reaching(path):
            system, path = fsspec.core.url_to_fs(path)
            return system.cat_file(path)
    except OSError:
        return None


def read_part(path: str, start: int, size: int, opened: dict[str, io.FileIO]) -> bytes:
    """Some bytes of a file or URL; local files stay open in `opened`."""
    if "://" in path:
        import fsspec

        with reaching(path):
            system, path = fsspec.core.url_to_fs(path)  # asked for each time: it is not to cross into another process
            return system.cat_file(path, start=start, end=start + size)
    if not hasattr(os, "pread"):  # on Windows
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)
    if path not in opened:
        if len(opened) >= MOST_OPEN:
            opened.pop(next(iter(opened))).close()
        opened[path] = io.FileIO(path)
    # Not seek and read: a process made by fork shares the position.
    return os.pread(opened[path].fileno(), size, start)


KEYS = ("label", "class_name", "class", "category", "target", "cls")  # where a .json file may say the label


def open_shards(source: str) -> Data:
    """Images in tar archives, each beside a `.cls` file (a number or a text) or a `.json` file with its label.

    The archives are gone through once, by their headers; images are read by their offset afterwards.

    Args:
        source: A `.tar` file, a folder of them, a pattern such as `shards-{000..010}.tar`, or a URL of these.

    Raises:
        ValueError: There are no shards, or images without labels in them.
    """
    shards = find_shards(source)
    every = [(split, path) for split, paths in shards.items() for path in paths]
    indices: dict[str, list[Index]] = {split: [] for split in shards}
    for split, path in tracked(every, "Reading the shards' tables of contents") if len(every) > 8 else every:
        indices[split].append(index_shard(path))
    empty = [paths[0] for split, paths in shards.items() if not any(len(part.keys) for part in indices[split])]
    if empty:
        raise ValueError(f"{empty[0]} has no images with a .cls or .json file beside them.")
    labels = {}
    for split, parts in indices.items():
        labels[split] = np.array([label for part in parts for label in part.labels])
        with suppress(ValueError):  # texts
            labels[split] = labels[split].astype(np.int64)
    classes, numbered = number_labels(source, labels, given_classes(every[0][1]))
    splits = {split: Shards(shards[split], parts, numbered[split]) for split, parts in indices.items()}
    return Data(source, "shards", classes, **splits)


@dataclass
class Index:
    """Where the images of a shard lie, and their labels."""

    keys: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def index_shard(path: str) -> Index:
    """The contents of a shard, by its headers."""
    index = Index()
    try:
        with reaching(path), open_path(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for key, image, label in samples(path, archive):
                index.keys.append(key)
                index.starts.append(image.offset_data)
                index.sizes.append(image.size)
                index.labels.append(label)
    except tarfile.TarError as error:
        if "unexpected end of data" in str(error):
            raise ValueError(f"{path} is cut off; copy or write it again.") from None
        raise ValueError(f"{path} can't be read as a tar archive that is not compressed: {error}.") from None
    if len(set(index.keys)) < len(index.keys):
        raise ValueError(f"{path} has two images of the same name; give each its own.")
    return index


def samples(path: str, archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo, str]]:
    """Name, image and label of each sample: of the neighbours whose names are equal up to the first dot."""
    key: str | None = None
    image: tarfile.TarInfo | None = None
    label: str | None = None
    for member in archive:
        folder, _, base = member.name.rpartition("/")
        if not member.isfile() or base.startswith("."):
            continue
        stem, _, kind = base.partition(".")
        if f"{folder}/{stem}" != key:
            if image is not None:
                yield image.name, image, known(path, image, label)
            key, image, label = f"{folder}/{stem}", None, None
        if is_image_name(base):
            if image is None or image.name.count(".") > member.name.count("."):  # a.jpg rather than a.mask.png
                image = member
        elif kind.lower().rpartition(".")[2] in ("cls", "json"):
            label = read_label(path, member, archive.extractfile(member)) or label
    if image is not None:
        if label is None:
            assert archive.fileobj is not None
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:  # with which tar ends
                raise RefusedShard(f"{path} is cut off behind {image.name}; copy or write it again.")
        yield image.name, image, known(path, image, label)


def known(path: str, image: tarfile.TarInfo, label: str | None) -> str:
    """The label; an image without one is refused."""
    if label is None:
        raise RefusedShard(
            f"{image.name} in {path} has no label; put a .cls file, or a .json file with the key label, beside it."
        )
    return label


def read_label(path: str, member: tarfile.TarInfo, file: IO[bytes] | None) -> str | None:
    """The label in a `.cls` or `.json` file."""
    content = file.read() if file else b""
    try:
        text = content.decode("utf-8").strip()
        if member.name.lower().endswith(".cls"):
            return text or None
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedShard(f"{member.name} in {path} can't be read: {str(error).partition(';')[0]}.") from None
    values = [record[key] for key in KEYS if record.get(key) is not None] if isinstance(record, dict) else []
    return str(values[0]) if values else None


def given_classes(path: str) -> list[str] | None:
    """The names in `classes.txt` (one a line) or `classes.json` (a list) beside the shards or one folder up."""
    folders = [path.rpartition("/")[0]]
    if path.count("/") > (3 if "://" in path else 1):  # not beyond a host, nor beyond where the user pointed
        folders.append(folders[0].rpartition("/")[0])
    names = ("classes.txt", "classes.json")
    for file in (f"{folder}/{name}" if folder else name for folder in folders for name in names):
        content = read_whole(file)
        if content is None:
            continue
        try:
            text = content.decode("utf-8")
            found = json.loads(text) if file.endswith(".json") else [line.strip() for line in text.splitlines() if line]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} can't be read: {str(error).partition(';')[0]}.") from None
        if not isinstance(found, list):
            raise ValueError(f"{file} holds no list; it has to name the classes in the order of their numbers.")
        return [str(name) for name in found]
    return None


class Shards(Split):
    """Images inside tar archives.

    Args:
        paths: Paths or URLs of the shards.
        indices: What is in each of them.
        labels: Class numbers `[n]`.
    """

    def __init__(self, paths: Sequence[str], indices: Sequence[Index], labels: NDArray[np.int64]):
        self.paths = list(paths)
        # Not `commonpath`, which takes a URL for a path and drops a slash.
        shared = os.path.commonprefix(self.paths).rpartition("/")[0]  # noqa: RUF071
        self.titles = [f"{path[len(shared) :].lstrip('/')}/" for path in paths]
        self.labels = labels
        self.sizes_of_shards = [len(part.keys) for part in indices]
        self.shard = np.repeat(np.arange(len(paths)), self.sizes_of_shards)
        self.keys = Names(key for part in indices for key in part.keys)
        self.starts = np.array([start for part in indices for start in part.starts], dtype=np.int64)
        self.sizes = np.array([size for part in indices for size in part.sizes], dtype=np.int64)
        self._open: dict[str, io.FileIO] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}  # a process opens its own files

    def name(self, index: int) -> str:
        return self.titles[self.shard[index]] + self.keys[index]

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return decode(self.name(index), self.content(index), enough)

    def content(self, index: int) -> bytes:
        path = self.paths[self.shard[index]]
        try:
            content = read_part(path, int(self.starts[index]), int(self.sizes[index]), self._open)
        except OSError as error:
            raise BadImage(self.name(index), f"its shard can't be read ({str(error).rstrip('.')})") from None
        if len(content) < self.sizes[index]:
            raise BadImage(self.name(index), f"{path} is cut off")
        if len(content) > self.sizes[index]:
            raise BadImage(self.name(index), f"the server of {path} sends whole files only, not parts of them")
        return content

    def blocks(self) -> Sequence[int]:
        return [size for size in self.sizes_of_shards if size]
