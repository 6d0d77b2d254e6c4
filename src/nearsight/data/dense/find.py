"""Tell by the layout of a folder or .zip in which form its objects or regions are annotated."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..file_system import FolderTree, Tree, ZipTree
from ..samples import Data
from ..sources.coco import find_coco, is_coco, open_coco
from ..sources.folder import SPLITS
from ..sources.masks import find_pairs, open_masks
from ..sources.synthetic import IMAGES, SEED, SIZE, open_shapes
from ..sources.voc import find_voc, open_voc
from ..sources.yolo import find_yolo, load_yaml, open_yolo
from .known import is_ade, open_cityscapes, open_voc_regions
from .label_map import find_table
from .locate import split_of

ON = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}


def open_scenes(path: Path, task: str | None, options: Mapping[str, str]) -> Data | None:
    """Scenes of a folder, a .zip, or a file of annotations; None if the layout is none that is known here.

    Args:
        path: What the user named.
        task: `detect` or `segment`; None follows the data.
        options: What follows the question mark.

    Raises:
        ValueError: The data are not in order, or not for this task.
    """
    suffix = path.suffix.lower()
    if path.is_file() and suffix == ".json":
        return open_json(path, task, options)
    if path.is_file() and suffix in (".yaml", ".yml"):
        return open_yaml_file(path, task, options)
    data = open_tree(FolderTree(path) if path.is_dir() else ZipTree(path), task, options)
    if data is not None:
        return replace(data, source=named(path, options))
    if suffix == ".zip":
        raise ValueError(
            f"{path} has no COCO, VOC or YOLO annotations and no masks; to classify, unpack it into class folders."
        )
    return None


def open_tree(tree: Tree, task: str | None, options: Mapping[str, str]) -> Data | None:
    """Scenes of a tree, or of the one folder that is all that a folder holds; None if the layout is none known here."""
    for opener in FOR_REGIONS if task == "segment" else FOR_OBJECTS:
        data = opener(tree, task, options)
        if data is not None:
            return data
    if isinstance(tree, FolderTree) and len(tree.folders()) == 1 and not tree.files():
        return open_tree(FolderTree(tree.place(tree.folders()[0])), task, options)
    return None


def coco_opener(tree: Tree, task: str | None, options: Mapping[str, str]) -> Data | None:
    """COCO's json files."""
    files = find_coco(tree)
    if not files:
        return None
    refuse_unknown("COCO annotations", options, ("background",))
    return open_coco(tree, files, task or "detect", read_switch(options, "background"))


def voc_opener(tree: Tree, task: str | None, options: Mapping[str, str]) -> Data | None:
    """VOC's xml files."""
    files = find_voc(tree)
    if not files:
        return None
    refuse_unknown("VOC annotations", options, ())
    return open_voc(tree, files, task or "detect")


def yolo_opener(tree: Tree, task: str | None, options: Mapping[str, str]) -> Data | None:
    """YOLO's txt files."""
    content = find_yolo(tree)
    if content is None:
        return None
    refuse_unknown("YOLO annotations", options, ("background",))
    return open_yolo(tree, content, task or "detect", read_switch(options, "background"))


def mask_opener(tree: Tree, task: str | None, options: Mapping[str, str]) -> Data | None:
    """Masks beside images."""
    background, ignore = read_switch(options, "background"), read_list(options, "ignore")
    data = open_cityscapes(tree) or open_voc_regions(tree, ignore, background)
    if data is None:
        pairs = find_pairs(tree)
        if not pairs:
            return None
        if background is None and is_ade(tree):
            background = False
        folders = tuple(dict.fromkeys(["", *(found.masks[0].rpartition("/")[0] for found in pairs.values())]))
        data = open_masks(tree, pairs, find_table(tree, folders), ignore, background)
    refuse_unknown("masks", options, ("background", "ignore"))
    if task == "detect":
        raise ValueError(
            f"{tree.title} has masks with a class for every pixel, from which objects can't be told apart; use the "
            "task segment."
        )
    return data


Opener = Callable[[Tree, str | None, Mapping[str, str]], Data | None]
FOR_OBJECTS: tuple[Opener, ...] = (coco_opener, voc_opener, yolo_opener, mask_opener)
FOR_REGIONS: tuple[Opener, ...] = (mask_opener, coco_opener, yolo_opener, voc_opener)


def open_json(path: Path, task: str | None, options: Mapping[str, str]) -> Data | None:
    """A COCO file that was named itself: its images are beside it, or beside its folder."""
    if not is_coco(path.read_bytes()):
        raise ValueError(f"{path} is not a COCO file; it needs the lists images, annotations and categories.")
    refuse_unknown("COCO annotations", options, ("background",))
    folder = path.absolute().parent
    word = SPLITS.get(folder.name.casefold())  # a whole word: a folder called my_tests says nothing
    root = folder.parent if word is not None or folder.name.casefold() in ("annotations", "labels") else folder
    tree = FolderTree(root)
    split = split_of(path.stem) or word or "train"
    files = {split: path.absolute().relative_to(root).as_posix()}
    data = open_coco(tree, files, task or "detect", read_switch(options, "background"))
    return replace(data, source=named(path, options))


def open_yaml_file(path: Path, task: str | None, options: Mapping[str, str]) -> Data:
    """A data.yaml that was named itself."""
    tree = FolderTree(path.parent)
    content = load_yaml(tree, path.name)
    refuse_unknown("YOLO annotations", options, ("background",))
    data = open_yolo(tree, content, task or "detect", read_switch(options, "background"))
    return replace(data, source=named(path, options))


def open_made(text: str, task: str | None, options: Mapping[str, str]) -> Data:
    """The shapes that are drawn here, with `images`, `size`, `seed` and `background` from the options."""
    refuse_unknown("shapes", options, ("images", "size", "seed", "background"))
    numbers = {"images": IMAGES, "size": SIZE, "seed": SEED}
    for name in numbers:
        if name in options:
            if not options[name].isdecimal():
                raise ValueError(f"{name}={options[name]} of {text} is not a whole number.")
            numbers[name] = int(options[name])
    background = read_switch(options, "background")
    return open_shapes(task or "detect", **numbers, background=background is not False, source=text)


def refuse_unknown(kind: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuse options that mean nothing to data of a kind."""
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]}={options[unknown[0]]} means nothing to {kind}; it takes {', '.join(known)}.")


def read_switch(options: Mapping[str, str], name: str) -> bool | None:
    """What an option switches; None if it is not given."""
    if name not in options:
        return None
    if options[name].lower() not in ON:
        raise ValueError(f"{name}={options[name]} is neither on nor off.")
    return ON[options[name].lower()]


def read_list(options: Mapping[str, str], name: str) -> list[str] | None:
    """What an option lists between commas; None if it is not given."""
    return [part.strip() for part in options[name].split(",")] if name in options else None


def named(path: Path, options: Mapping[str, str]) -> str:
    """What the user named: a path and options."""
    return str(path) + ("?" + "&".join(f"{key}={value}" for key, value in options.items()) if options else "")
