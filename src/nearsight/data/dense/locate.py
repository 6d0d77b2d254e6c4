"""Find the image files that annotations speak of, and the split that a name speaks of."""

import re
from collections.abc import Iterable, Mapping, Sequence

from ..file_system import Tree, join
from ..image import is_image_name
from ..labels import shorten
from ..sources.folder import SPLITS

WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![a-z])")
IMAGE_FOLDERS = ("images", "image", "img", "imgs", "jpegimages", "data", "pictures", "photos")
LOST = 0.01  # a larger share of missing files means that they are looked for in the wrong place
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


def locate_images(tree: Tree, beside: str, names: Sequence[str], split: str | None) -> list[str]:
    """Paths of the images that annotations name, in the order of the names.

    Names may be bare, or paths from the annotations' folder, from the root, or from a folder of images. Where none of
    these fits, as in exports of labelling tools, files are found by their last part.

    Args:
        tree: Where to look.
        beside: Folder of the annotations.
        names: As the annotations have them.
        split: Which split it is, if that is known.

    Raises:
        ValueError: More than one in a hundred is not there.
    """
    tidy = [name.replace("\\", "/") for name in names]
    sample = tidy[:: max(1, len(tidy) // PROBED)][:PROBED]
    folders = candidate_folders(tree, beside, split)
    hits = {folder: sum(normal(join(folder, name)) in Present(tree) for name in sample) for folder in folders}
    best = max(folders, key=lambda folder: hits[folder])
    present = Present(tree)
    paths = [normal(join(best, name)) for name in tidy]
    if hits[best] < len(sample) or any(path not in present for path in paths):
        paths = by_last_part(tree, paths, tidy, present, split)
    missing = [name for name, path in zip(names, paths, strict=True) if path not in present]
    if len(missing) > LOST * len(names):
        raise ValueError(
            f"{len(missing)} of the {len(names)} images that the annotations in {tree.title} name are not there: "
            f"{shorten(missing, 3)}; put them beside the annotations, or into a folder called images."
        )
    return paths


class Present:
    """The files of a tree, asked for by path; a folder is listed once."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self.listed: dict[str, frozenset[str]] = {}

    def __contains__(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if folder not in self.listed:
            self.listed[folder] = frozenset(self.tree.files(folder))
        return name in self.listed[folder] or (path.startswith("/") and self.tree.has(path))


def candidate_folders(tree: Tree, beside: str, split: str | None) -> list[str]:
    """Folders that image names may start from, likely ones first."""
    inner = [join(beside, name) for name in tree.folders(beside)] if beside else []
    outer = [path for path in walk_folders(tree, "", LEVELS) if path not in inner]
    known = [path for path in (*inner, *outer) if is_of_images(path)]
    fitting = [path for path in known if split is not None and split_of(path) == split]
    return list(dict.fromkeys([beside, "", *fitting, *known, *inner, *outer]))


def is_of_images(path: str) -> bool:
    """Whether a folder is for images by its name or by the split in it."""
    return path.rpartition("/")[2].casefold() in IMAGE_FOLDERS or split_of(path) is not None


def walk_folders(tree: Tree, path: str, levels: int) -> Iterable[str]:
    """Paths of the folders inside a folder, down to some levels."""
    for name in tree.folders(path):
        yield join(path, name)
        if levels > 1:
            yield from walk_folders(tree, join(path, name), levels - 1)


def by_last_part(tree: Tree, paths: list[str], names: list[str], present: Present, split: str | None) -> list[str]:
    """The paths, with those that lead nowhere replaced by files of the same last part, where there is just one."""
    files: dict[str, list[str]] = {}
    for path in tree.images():
        files.setdefault(path.rpartition("/")[2], []).append(path)
    return [
        path if path in present else only(files, name, split) or path for path, name in zip(paths, names, strict=True)
    ]


def only(files: Mapping[str, list[str]], name: str, split: str | None) -> str | None:
    """The one file of that last part; of several the one whose folder is of the split."""
    found = files.get(name.rpartition("/")[2].partition("?")[0], [])
    if len(found) > 1:
        found = [path for path in found if split_of(path.rpartition("/")[0]) == split]
    return found[0] if len(found) == 1 else None


def normal(path: str) -> str:
    """A path without `.` and `..`, as a tree has them.

    Example:
        >>> normal("annotations/../images/./1.jpg")
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
