"""Files under a folder or inside a .zip, seen alike; which of them are images, and which ones annotations mean."""

import io
import os
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, Any

from .image import LARGEST_FILE, is_array_name, is_image_name, open_file, read_file
from .labels import natural_key, shorten
from .samples import BadImage

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
HIDDEN = ("__MACOSX",)
DEEPEST = 200  # folders inside each other
INFLATED, RATIO = 2**30, 100  # bytes, and times its size, beyond which an archive is not unpacked


class FileSystem(ABC):
    """Folders and files; paths have forward slashes and start from the root, which is the empty path.

    Attributes:
        title: What the user named.
    """

    title: str

    @abstractmethod
    def folders(self, path: str = "") -> list[str]:
        """Names of the visible folders directly inside a folder, in natural order."""

    @abstractmethod
    def files(self, path: str = "") -> list[str]:
        """Names of the visible files directly inside a folder, in natural order; none if there is no such folder."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            BadImage: There is no such file, or it can't be read.
        """

    @abstractmethod
    def has(self, path: str) -> bool:
        """Whether there is such a file."""

    def head(self, path: str) -> IO[bytes]:
        """A file, opened so that its beginning can be read without the rest."""
        return io.BytesIO(self.read(path))

    def below(self, path: str = "") -> list[str]:
        """Paths of all files in a folder and the folders inside."""
        found = [join(path, name) for name in self.files(path)]
        for folder in self.folders(path):
            found += self.below(join(path, folder))
        return found

    def images(self, path: str = "") -> list[str]:
        """Paths of all images in a folder and the folders inside."""
        return [name for name in self.below(path) if is_image_name(name)]

    def walk_images(self, path: str = "") -> Iterator[str]:
        """Paths of the images in a folder and the folders inside, in no particular order; of arrays if no others."""
        images = self.walk(path)
        first = next(images, None)
        if first is None:
            yield from filter(is_array_name, self.walk(path, all_files=True))
        else:
            yield from chain((first,), images)

    def walk(self, path: str = "", all_files: bool = False) -> Iterator[str]:
        """Paths of the images, or all files, in a folder and the folders inside one by one, in no particular order."""
        yield from (join(path, name) for name in self.files(path) if all_files or is_image_name(name))
        for folder in self.folders(path):
            yield from self.walk(join(path, folder), all_files)

    def find(self, name: str, path: str = "") -> str | None:
        """The path of a file or folder directly inside a folder, however its letters are written (JPEGImages)."""
        wanted = name.casefold()
        entries = [*self.folders(path), *self.files(path)]
        return next((join(path, entry) for entry in entries if entry.casefold() == wanted), None)


class LocalFolder(FileSystem):
    """A folder on a disk.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = tempfile.mkdtemp()
        >>> _ = Path(folder, "a.txt").write_text("hello")
        >>> fs = LocalFolder(folder)
        >>> fs.files(), fs.read("a.txt")
        (['a.txt'], b'hello')
    """

    def __init__(self, root: str | os.PathLike[str]):
        self.title = os.fspath(root)
        self._listed: dict[str, tuple[list[str], list[str]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"title": self.title, "_listed": {}}  # what was listed is of no use to who only reads

    def folders(self, path: str = "") -> list[str]:
        return self._list(path)[0]

    def files(self, path: str = "") -> list[str]:
        return self._list(path)[1]

    def read(self, path: str) -> bytes:
        return read_file(path, self.locate(path), LARGEST_FILE if is_image_name(path) else None)

    def has(self, path: str) -> bool:
        return os.path.isfile(self.locate(path))

    def head(self, path: str) -> IO[bytes]:
        return open_file(path, self.locate(path))

    def below(self, path: str = "") -> list[str]:
        try:
            found = list(walk(self.locate(path), f"{path}/" if path else "", set(), all_files=True))
        except (FileNotFoundError, NotADirectoryError):
            return []

        def files_first(name: str) -> list[tuple[bool, object]]:
            *folders, file = name.split("/")
            return [*((True, natural_key(folder)) for folder in folders), (False, natural_key(file))]

        return sorted(found, key=files_first)

    def walk(self, path: str = "", all_files: bool = False) -> Iterator[str]:
        return walk(self.locate(path), f"{path}/" if path else "", set(), all_files)

    def locate(self, path: str) -> str:
        """Where a file lies; absolute paths are taken as they are."""
        if "\0" in path:
            raise BadImage(ascii(path), "no file has a zero byte in its name")
        return os.path.join(self.title, path)

    def _list(self, path: str) -> tuple[list[str], list[str]]:
        """Names of folders and of files, remembered."""
        if path not in self._listed:
            folders: list[str] = []
            files: list[str] = []
            try:
                with os.scandir(self.locate(path)) as entries:
                    for entry in entries:
                        if not is_hidden(entry.name):
                            (folders if is_folder(entry) else files).append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                pass
            self._listed[path] = sorted(folders, key=natural_key), sorted(files, key=natural_key)
        return self._listed[path]


class ZipArchive(FileSystem):
    """The files of a .zip, read in place.

    A folder that holds everything else, and is no split, is left out of the paths.

    Raises:
        ValueError: The file is no .zip, or cut off.
    """

    def __init__(self, file: str | os.PathLike[str]):
        self.title = os.fspath(file)
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        self._listed: dict[str, tuple[list[str], list[str]]] = {}
        try:
            with zipfile.ZipFile(file) as archive:
                refuse_inflation(self.title, archive.infolist())
                names = [info.filename for info in archive.infolist()]  # of a folder it ends with a slash
        except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
            raise ValueError(f"{self.title} can't be read as a .zip file: {error}.") from None
        if any(name.count("/") > DEEPEST for name in names):
            raise ValueError(f"{self.title} has more than {DEEPEST} folders inside each other; pack its images anew.")
        self.prefix = ""
        self._names = frozenset(name for name in names if not any(map(is_hidden, name.split("/"))))
        tops = {name.partition("/")[0] if "/" in name else "" for name in self._names}
        if len(tops) == 1 and not {top.casefold() for top in tops} & {"", *SPLITS}:
            self._enter(tops.pop())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_listed": {}, "_names": frozenset()}

    def folders(self, path: str = "") -> list[str]:
        return self._list().get(path, ([], []))[0]

    def files(self, path: str = "") -> list[str]:
        return self._list().get(path, ([], []))[1]

    def read(self, path: str) -> bytes:
        try:
            archive = self._archive()
            info = archive.getinfo(self.prefix + path)
            if is_image_name(path) and info.file_size > LARGEST_FILE:
                raise BadImage(path, f"it claims {info.file_size:,} bytes; images have at most {LARGEST_FILE:,}")
            return archive.read(info)  # ends with an error where there is more than the header claims
        except KeyError:
            raise BadImage(path, "there is no such file in the archive") from None
        except MemoryError:
            raise BadImage(path, "it does not fit into memory") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
            raise BadImage(path, f"the archive can't be read there ({error})") from None

    def has(self, path: str) -> bool:
        return path in self._names

    def inside(self, folder: str) -> "ZipArchive":
        """The files in one of its folders."""
        copy = ZipArchive.__new__(ZipArchive)
        copy.__dict__ = {**self.__dict__, "_opened": None, "_listed": {}}
        copy._enter(folder)
        return copy

    def _enter(self, folder: str) -> None:
        """Let paths start from a folder."""
        self.prefix += f"{folder}/"
        self._names = frozenset(name[len(folder) + 1 :] for name in self._names if name.startswith(f"{folder}/"))

    def _archive(self) -> zipfile.ZipFile:
        """The archive, opened in this process: one that was forked would share the position in the file."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.title)
        return self._opened[1]

    def _list(self) -> dict[str, tuple[list[str], list[str]]]:
        """Folders and files inside each folder."""
        if not self._listed and self._names:
            listed: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
            for name in self._names:
                folder, _, file = name.rpartition("/")
                listed.setdefault(folder, (set(), set()))[1].update({file} - {""})
                while folder:
                    parent, _, last = folder.rpartition("/")
                    listed.setdefault(parent, (set(), set()))[0].add(last)
                    folder = parent
            self._listed = {
                path: (sorted(folders, key=natural_key), sorted(files, key=natural_key))
                for path, (folders, files) in listed.items()
            }
        return self._listed


def refuse_inflation(title: str, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse an archive that would grow beyond measure, by what its headers claim, before anything is unpacked.

    Raises:
        ValueError: It claims more than a gigabyte, and a hundred times the bytes that it has.
    """
    claimed = sum(info.file_size for info in entries)
    if claimed > INFLATED and claimed > RATIO * sum(info.compress_size for info in entries):
        raise ValueError(
            f"{title} claims to unpack to {claimed / 2**30:,.1f} GiB, more than {RATIO} times its size, as no images "
            "do; unpack it yourself if you trust it, and give the folder."
        )


def join(folder: str, name: str) -> str:
    """The path of something inside a folder.

    Example:
        >>> join("", "a.txt"), join("images", "1.png")
        ('a.txt', 'images/1.png')
    """
    return f"{folder}/{name}" if folder else name


def first_words(fs: FileSystem, path: str) -> list[str]:
    """The first word of each line of a file, as lists of images name them; none if there is no such file."""
    lines = fs.read(path).decode("utf-8", "replace").splitlines() if fs.has(path) else []
    return [line.split()[0] for line in lines if line.split()]


def stem(path: str) -> str:
    """The name of a file without its folder and its last suffix."""
    return os.path.splitext(path.rpartition("/")[2])[0]


WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![a-z])")
IMAGE_FOLDERS = ("images", "image", "img", "imgs", "jpegimages", "data", "pictures", "photos")
LOST = 0.01  # a larger fraction of missing files means that they are looked for in the wrong folder
PROBED = 20  # names by which a folder of images is recognised
LEVELS = 3  # folders inside folders that are looked into


def split_of(text: str) -> str | None:
    """The split that a file or folder name speaks of, by its last word that names one.

    Example:
        >>> split_of("instances_train2017"), split_of("valid"), split_of("training_images"), split_of("trainer")
        ('train', 'val', 'train', None)
    """
    found = WORD.findall(text.lower())
    return SPLITS[found[-1]] if found else None


def locate_images(fs: FileSystem, beside: str, names: Sequence[str], split: str | None) -> list[str]:
    """Paths of the images that annotations name, in the order of the names.

    Names may be bare, or paths from the annotations' folder, from the root, or from a folder of images. Where none of
    these fits, as in exports of labelling tools, files are found by their last part.

    Args:
        fs: Where to look.
        beside: Folder of the annotations.
        names: As the annotations have them.
        split: Which split it is, if that is known.

    Raises:
        ValueError: More than one in a hundred is not there.
    """
    tidy = [name.replace("\\", "/") for name in names]
    sample = tidy[:: max(1, len(tidy) // PROBED)][:PROBED]
    folders = candidate_folders(fs, beside, split)
    hits = {folder: sum(normal_path(join(folder, name)) in KnownFiles(fs) for name in sample) for folder in folders}
    best = max(folders, key=lambda folder: hits[folder])
    present = KnownFiles(fs)
    paths = [normal_path(join(best, name)) for name in tidy]
    if hits[best] < len(sample) or any(path not in present for path in paths):
        paths = by_file_name(fs, paths, tidy, present, split)
    missing = [name for name, path in zip(names, paths, strict=True) if path not in present]
    if len(missing) > LOST * len(names):
        raise ValueError(
            f"{len(missing)} of the {len(names)} images that the annotations in {fs.title} name are not there: "
            f"{shorten(missing, 3)}; put them beside the annotations, or into a folder called images."
        )
    return paths


class KnownFiles:
    """The files of a file system, asked for by path; a folder is listed once."""

    def __init__(self, fs: FileSystem):
        self.fs = fs
        self.listed: dict[str, frozenset[str]] = {}

    def __contains__(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if folder not in self.listed:
            self.listed[folder] = frozenset(self.fs.files(folder))
        return name in self.listed[folder] or (path.startswith("/") and self.fs.has(path))


def candidate_folders(fs: FileSystem, beside: str, split: str | None) -> list[str]:
    """Folders that image names may start from, likely ones first."""
    inner = [join(beside, name) for name in fs.folders(beside)] if beside else []
    outer = [path for path in walk_folders(fs, "", LEVELS) if path not in inner]
    known = [
        path
        for path in (*inner, *outer)
        if path.rpartition("/")[2].casefold() in IMAGE_FOLDERS or split_of(path) is not None
    ]
    fitting = [path for path in known if split is not None and split_of(path) == split]
    return list(dict.fromkeys([beside, "", *fitting, *known, *inner, *outer]))


def walk_folders(fs: FileSystem, path: str, levels: int) -> Iterable[str]:
    """Paths of the folders inside a folder, down to some levels."""
    for name in fs.folders(path):
        yield join(path, name)
        if levels > 1:
            yield from walk_folders(fs, join(path, name), levels - 1)


def by_file_name(
    fs: FileSystem, paths: list[str], names: list[str], present: KnownFiles, split: str | None
) -> list[str]:
    """The paths, with those that lead nowhere replaced by files of the same last part, where there is just one."""
    files: dict[str, list[str]] = {}
    for path in fs.images():
        files.setdefault(path.rpartition("/")[2], []).append(path)
    located = []
    for path, name in zip(paths, names, strict=True):
        found = [] if path in present else files.get(name.rpartition("/")[2].partition("?")[0], [])
        if len(found) > 1:  # the one whose folder is of the split
            found = [file for file in found if split_of(file.rpartition("/")[0]) == split]
        located.append(found[0] if len(found) == 1 else path)
    return located


def normal_path(path: str) -> str:
    """A path without `.` and `..`, as a file system has them.

    Example:
        >>> normal_path("annotations/../images/./1.jpg")
        'images/1.jpg'
    """
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", ".") or (part == "" and not parts):
            parts.append(part)
    return "/".join(parts) if parts != [""] else "/"


def by_stem(paths: Iterable[str]) -> dict[str, str]:
    """Images by their names without folder and suffix."""
    found: dict[str, str] = {}
    for path in paths:
        if is_image_name(path):
            found.setdefault(path.rpartition("/")[2].rpartition(".")[0], path)
    return found


def find_images(given: Sequence[str]) -> list[str]:
    """The files that are meant, each once; folders are searched through.

    Raises:
        ValueError: A path is not there, or a folder has no images.
    """
    if not given:
        raise ValueError("No image was named; give image files or folders.")
    missing = [path for path in given if not os.path.lexists(path)]  # a link that leads nowhere is an unreadable image
    if missing:
        more = f" (and {len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        name = missing[0] or "of an empty name"
        raise ValueError(f"There is no file or folder {name}{more}; give image files or folders.")
    found: dict[str, None] = {}
    for path in given:
        if os.path.isdir(path):
            inside = sorted(walk(path, "", set()), key=natural_key)
            inside = inside or sorted(filter(is_array_name, walk(path, "", set(), True)), key=natural_key)
            if not inside:
                raise ValueError(f"The folder {path} has no images in it, at any depth.")
            found |= dict.fromkeys(os.path.join(path, name) for name in inside)
        elif is_image_name(path) or is_array_name(path):
            found[path] = None
        else:
            raise ValueError(f"{path} is no image by its name; give image files (.jpg, .png, ...) or folders.")
    return list(found)


def named_split(name: str) -> str | None:
    """The split that a folder is called after, by its whole name or by a word of it.

    Example:
        >>> [named_split(name) for name in ("Validation", "seg_train", "test1", "strain", "train_or_test")]
        ['val', 'train', 'test', None, None]
    """
    told = {SPLITS[word] for word in re.findall("[a-z]+", name.casefold()) if word in SPLITS}
    return told.pop() if len(told) == 1 else None


def walk(folder: str, prefix: str, links: set[str], all_files: bool = False) -> Iterator[str]:
    """Paths of all images, or of all files, below a folder, in no particular order.

    Args:
        folder: Where to begin.
        prefix: What the paths begin with.
        links: Where symbolic links have led to already; a link may lead back to where it came from.
        all_files: Whether to yield files that are no images by their name, too.
    """
    if prefix.count("/") > DEEPEST:
        raise ValueError(
            f"{folder[:80]}... has more than {DEEPEST} folders inside each other; give one further inside."
        )
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if is_folder(entry):
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if target in links or f"{os.path.realpath(folder)}{os.sep}".startswith(target + os.sep):
                        continue
                    links.add(target)
                yield from walk(entry.path, f"{prefix}{entry.name}/", links, all_files)
            elif all_files or is_image_name(entry.name):
                yield f"{prefix}{entry.name}"


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or leads to one; a link to itself is one more file that is unreadable."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_hidden(name: str) -> bool:
    """Whether a name is one that file managers hide or leave behind."""
    return name.startswith(".") or name in HIDDEN
