"""Tell what sort of data somebody means, and open them."""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from .file_system import SPLITS, FileSystem, LocalFolder, ZipArchive, split_of
from .label_map import find_label_map_file
from .samples import Data
from .sources.coco import find_coco, is_coco, open_coco
from .sources.masks import find_pairs, is_ade, open_cityscapes, open_masks, open_voc_masks
from .sources.shards import is_pattern
from .sources.synthetic import IMAGES, SEED, SIZE, open_shapes
from .sources.voc import find_voc, open_voc
from .sources.yolo import find_yolo, load_yaml, open_yolo
from .split import restore_splits

NAMES = ("digits", "shapes", "cifar10", "cifar100", "flowers102", "oxford_pets", "fashion_mnist")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
KINDS = (
    "a folder of class folders, a .csv, .tsv or .parquet table, an .npz file, .tar shards, a Hugging Face data set "
    "(hf:owner/name), a folder or .zip with COCO, VOC or YOLO annotations or with masks, "
    f"or one of {', '.join(NAMES)}"
)
OPTIONS = ("path", "label", "split", "image", "config")
DENSE_OPTIONS = ("background", "ignore", "images", "size", "seed")
TASKS = ("classify", "detect", "segment")


def open_data(source: str | os.PathLike[str], task: str | None = None) -> Data:
    """Annotated images from any source.

    What it is, is told in this order: a known name (write `./digits` for a folder of that name), `hf:` and an id, a
    folder or file that exists, a pattern or URL of shards, an id `owner/name` of the Hugging Face hub.

    Args:
        source: A folder, a file, a pattern, a URL or a name. Columns of a table are chosen by adding
            `?path=COLUMN&label=COLUMN`; of regions, `?background=off` or `?ignore=0` say what is not counted.
        task: `classify`, `detect` or `segment`; None follows the data, and detects where objects have masks, too.

    Raises:
        ValueError: The source is none of these, not in order, or not for this task.

    Example:
        >>> data = open_data("digits")
        >>> data.classes
        ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
        >>> len(data.train), len(data.test)
        (1438, 359)
    """
    text = os.fspath(source)
    data = open_any(text, task)
    if data.task == "classify":
        refuse_one_class(text, data)
    elif data.task == "segment" and len(data.classes) < 2:
        raise ValueError(f"{text} has the one class {data.classes[0]}; to tell pixels apart takes at least two.")
    return data


def refuse_one_class(text: str, data: Data) -> None:
    """There is nothing to learn from images that are all of one class."""
    present = np.unique(np.concatenate([split.labels for split in data.splits().values()]))
    if len(present) > 1:
        return
    if not len(present):
        raise ValueError(f"{text} has no images.")
    hint = ""
    if data.kind == "folder":
        from .sources.folder import inner_folder

        inside = inner_folder(Path(data.source))
        hint = f"; did you mean {inside}?" if inside else ""
    title = data.classes[present[0]]
    raise ValueError(f"{text} has the one class {title}; to tell images apart takes at least two{hint or '.'}")


def open_again(record: Mapping[str, Any]) -> Data:
    """The data of a record, with its splits, also when the present folder is another one.

    Args:
        record: What `describe_splits` gave, and the `folder` in which a relative path starts.

    Raises:
        ValueError: The data are no longer there, or changed.
    """
    source = record["source"]
    bare, mark, options = source.partition("?")
    place = os.path.join(record.get("folder", ""), bare)
    is_elsewhere = not os.path.exists(bare) and os.path.exists(place)
    text = place + mark + options if is_elsewhere else source
    return restore_splits(open_any(text, record.get("task")), dict(record))


def open_any(text: str, task: str | None = None) -> Data:
    """The data, of whatever kind and with however many classes."""
    if task is not None and task not in TASKS:
        raise ValueError(f"There is no task {task!r}; tasks are {', '.join(TASKS)}.")
    if task == "classify" and text.partition("?")[0] == "shapes":
        raise ValueError("shapes has objects and regions, but no label for each image; the tasks are detect, segment.")
    data = None if task == "classify" else open_annotated(text, task)
    if data is None:
        data = open_labelled(text)
    if task is not None and data.task != task:
        raise ValueError(
            f"{text} has {'a label for each image' if data.task == 'classify' else 'no labels for whole images'}, "
            f"which is not what the task {task} learns from; give other data or the task {data.task}."
        )
    return data


def find_task(source: str) -> str:
    """What data are annotated for: `detect` or `segment`; `classify` where nothing says otherwise.

    Example:
        >>> find_task("digits"), find_task("shapes")
        ('classify', 'detect')
    """
    data = open_annotated(source, None)
    return "classify" if data is None else data.task


def open_annotated(text: str, task: str | None) -> Data | None:
    """The data if they are of objects or regions, else None."""
    bare, options = parse_options(text)
    if bare == "shapes":
        return open_made(text, task, options)
    path = Path(bare).expanduser()
    if not (path.is_dir() or (path.is_file() and path.suffix.lower() in (".zip", ".json", ".yaml", ".yml"))):
        return None

    return open_dense(path, task, options)


def open_labelled(text: str) -> Data:
    """Data with a label for each image."""
    if text == "digits":
        from .sources.npz import open_digits

        return open_digits()
    if text in NAMES:
        from .sources.torchvision import open_named

        return open_named(text)
    bare, columns = parse_options(text)
    path = Path(bare).expanduser()
    if bare.startswith("hf:"):
        from .sources.hub import open_hub

        return open_hub(bare.removeprefix("hf:"), columns)
    if path.is_dir():
        return open_directory(path, columns)
    if path.is_file():
        return open_single(path, columns)
    if is_pattern(text):
        from .sources.shards import open_shards

        return open_shards(os.path.expanduser(text))
    if HUB_ID.fullmatch(bare) and not bare.startswith(".") and not os.path.exists(bare.split("/")[0]):
        from .sources.hub import open_hub

        return open_hub(bare, columns)
    near = difflib.get_close_matches(re.sub(r"[-_ ]", "", bare.lower()), [name.replace("_", "") for name in NAMES], 1)
    hint = next((f" Did you mean {name}?" for name in NAMES if [name.replace("_", "")] == near), "")
    raise ValueError(f"There is no file or folder {bare}.{hint} Data may be {KINDS}.")


def parse_options(text: str) -> tuple[str, dict[str, str]]:
    """The source without what follows `?`, and that."""
    if os.path.exists(text) or "://" in text:
        return text, {}
    bare, mark, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = (*OPTIONS, *DENSE_OPTIONS)
    if mark and (not options or set(options) - set(known)) and "*" not in text and ".tar" not in text:
        raise ValueError(f"{text} has {query or 'nothing'} after the question mark; {', '.join(known)} can be set.")
    return (bare, options) if options else (text, {})


def open_directory(path: Path, columns: Mapping[str, str]) -> Data:
    """A folder, which may hold class folders, shards or a Hugging Face data set."""
    from .sources.folder import has_class_folders, open_folder
    from .sources.hub import is_parquet_folder, is_saved, open_hub

    if has_class_folders(path):  # whatever archive or table lies beside them
        return open_folder(path)
    if is_saved(path) or is_parquet_folder(path):
        return open_hub(str(path), columns)
    if any(any(path.glob(pattern)) for pattern in ("*.tar", "*/*.tar")):
        from .sources.shards import open_shards

        return open_shards(str(path))
    return open_folder(path)


def open_single(path: Path, columns: Mapping[str, str]) -> Data:
    """A file, by its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        from .sources.npz import open_npz

        return open_npz(path)
    if suffix in (".csv", ".tsv", ".parquet"):
        from .sources.table import open_table

        return open_table(path, columns)
    if suffix == ".tar":
        from .sources.shards import open_shards

        return open_shards(str(path))
    raise ValueError(f"{path} is a {suffix or 'file without suffix'}; data may be {KINDS}.")


ON = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}


def open_dense(path: Path, task: str | None, options: Mapping[str, str]) -> Data | None:
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
    data = open_file_system(LocalFolder(path) if path.is_dir() else ZipArchive(path), task, options)
    if data is not None:
        return replace(data, source=name_source(path, options))
    if suffix == ".zip":
        raise ValueError(
            f"{path} has no COCO, VOC or YOLO annotations and no masks; to classify, unpack it into class folders."
        )
    return None


def open_file_system(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """Data of a file system, or of the one folder that is all that a folder holds; None if unknown."""
    for opener in FOR_REGIONS if task == "segment" else FOR_OBJECTS:
        data = opener(fs, task, options)
        if data is not None:
            return data
    if isinstance(fs, LocalFolder) and len(fs.folders()) == 1 and not fs.files():
        return open_file_system(LocalFolder(fs.place(fs.folders()[0])), task, options)
    return None


def coco_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """COCO's json files."""
    files = find_coco(fs)
    if not files:
        return None
    refuse_unknown("COCO annotations", options, ("background",))
    return open_coco(fs, files, task or "detect", read_switch(options, "background"))


def voc_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """VOC's xml files."""
    files = find_voc(fs)
    if not files:
        return None
    refuse_unknown("VOC annotations", options, ())
    return open_voc(fs, files, task or "detect")


def yolo_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """YOLO's txt files."""
    content = find_yolo(fs)
    if content is None:
        return None
    refuse_unknown("YOLO annotations", options, ("background",))
    return open_yolo(fs, content, task or "detect", read_switch(options, "background"))


def mask_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """Masks beside images."""
    background, ignore = read_switch(options, "background"), read_list(options, "ignore")
    data = open_cityscapes(fs) or open_voc_masks(fs, ignore, background)
    if data is None:
        pairs = find_pairs(fs)
        if not pairs:
            return None
        if background is None and is_ade(fs):
            background = False
        folders = tuple(dict.fromkeys(["", *(found.masks[0].rpartition("/")[0] for found in pairs.values())]))
        data = open_masks(fs, pairs, find_label_map_file(fs, folders), ignore, background)
    refuse_unknown("masks", options, ("background", "ignore"))
    if task == "detect":
        raise ValueError(
            f"{fs.title} has masks with a class for every pixel, from which objects can't be told apart; use the "
            "task segment."
        )
    return data


Opener = Callable[[FileSystem, str | None, Mapping[str, str]], Data | None]
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
    fs = LocalFolder(root)
    split = split_of(path.stem) or word or "train"
    files = {split: path.absolute().relative_to(root).as_posix()}
    data = open_coco(fs, files, task or "detect", read_switch(options, "background"))
    return replace(data, source=name_source(path, options))


def open_yaml_file(path: Path, task: str | None, options: Mapping[str, str]) -> Data:
    """A data.yaml that was named itself."""
    fs = LocalFolder(path.parent)
    content = load_yaml(fs, path.name)
    refuse_unknown("YOLO annotations", options, ("background",))
    data = open_yolo(fs, content, task or "detect", read_switch(options, "background"))
    return replace(data, source=name_source(path, options))


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


def name_source(path: Path, options: Mapping[str, str]) -> str:
    """What the user named: a path and options."""
    return str(path) + ("?" + "&".join(f"{key}={value}" for key, value in options.items()) if options else "")
