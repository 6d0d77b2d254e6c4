"""Files under a folder, or inside a .zip, seen alike: which there are, and their bytes."""

import io
import os
import zipfile
import zlib
from abc import ABC, abstractmethod
from typing import IO, Any

from .image import is_image_name, read_file
from .names import natural_key
from .samples import BadImage
from .sources.folder import is_hidden


class Tree(ABC):
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

    def find(self, name: str, path: str = "") -> str | None:
        """The path of a file or folder directly inside a folder, however its letters are written (JPEGImages)."""
        wanted = name.casefold()
        entries = [*self.folders(path), *self.files(path)]
        return next((join(path, entry) for entry in entries if entry.casefold() == wanted), None)


class FolderTree(Tree):
    """A folder on a disk.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = tempfile.mkdtemp()
        >>> _ = Path(folder, "a.txt").write_text("hello")
        >>> tree = FolderTree(folder)
        >>> tree.files(), tree.read("a.txt")
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
        return read_file(path, self.place(path))

    def has(self, path: str) -> bool:
        return os.path.isfile(self.place(path))

    def head(self, path: str) -> IO[bytes]:
        try:
            return open(self.place(path), "rb")
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
            raise BadImage(path, reason) from None

    def place(self, path: str) -> str:
        """Where a file lies; absolute paths are taken as they are."""
        return os.path.join(self.title, path)

    def _list(self, path: str) -> tuple[list[str], list[str]]:
        """Names of folders and of files, remembered."""
        if path not in self._listed:
            folders: list[str] = []
            files: list[str] = []
            try:
                with os.scandir(self.place(path)) as entries:
                    for entry in entries:
                        if not is_hidden(entry.name):
                            (folders if entry.is_dir() else files).append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                pass
            self._listed[path] = sorted(folders, key=natural_key), sorted(files, key=natural_key)
        return self._listed[path]


class ZipTree(Tree):
    """The files of a .zip, read in place; a folder that holds everything else is left out of the paths.

    Raises:
        ValueError: The file is no .zip, or cut off.
    """

    def __init__(self, file: str | os.PathLike[str]):
        self.title = os.fspath(file)
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        self._listed: dict[str, tuple[list[str], list[str]]] = {}
        try:
            with zipfile.ZipFile(file) as archive:
                names = [info.filename for info in archive.infolist() if not info.is_dir()]
        except (zipfile.BadZipFile, OSError) as error:
            raise ValueError(f"{self.title} can't be read as a .zip file: {error}.") from None
        names = [name for name in names if not any(map(is_hidden, name.split("/")))]
        tops = {name.partition("/")[0] if "/" in name else "" for name in names}
        self.prefix = f"{tops.pop()}/" if len(tops) == 1 and "" not in tops else ""
        self._names = frozenset(name.removeprefix(self.prefix) for name in names)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_listed": {}, "_names": frozenset()}

    def folders(self, path: str = "") -> list[str]:
        return self._list().get(path, ([], []))[0]

    def files(self, path: str = "") -> list[str]:
        return self._list().get(path, ([], []))[1]

    def read(self, path: str) -> bytes:
        try:
            return self._archive().read(self.prefix + path)
        except KeyError:
            raise BadImage(path, "there is no such file in the archive") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
            raise BadImage(path, f"the archive can't be read there ({error})") from None

    def has(self, path: str) -> bool:
        return path in self._names

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
                listed.setdefault(folder, (set(), set()))[1].add(file)
                while folder:
                    parent, _, last = folder.rpartition("/")
                    listed.setdefault(parent, (set(), set()))[0].add(last)
                    folder = parent
            self._listed = {
                path: (sorted(folders, key=natural_key), sorted(files, key=natural_key))
                for path, (folders, files) in listed.items()
            }
        return self._listed


def join(folder: str, name: str) -> str:
    """The path of something inside a folder.

    Example:
        >>> join("", "a.txt"), join("images", "1.png")
        ('a.txt', 'images/1.png')
    """
    return f"{folder}/{name}" if folder else name


def stem(path: str) -> str:
    """The name of a file without its folder and its last suffix."""
    return os.path.splitext(path.rpartition("/")[2])[0]
