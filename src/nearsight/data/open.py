"""Tell what sort of data somebody means, and open them.

What a source is, is decided once, by what is there: a name, a file's suffix, or one look at a folder's listing. Only
the readers that this look speaks of are asked.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from ..arguments import checked
from ..atomic import expand_home
from ..config import TASKS
from .file_system import SPLITS, FileSystem, LocalFolder, ZipArchive, split_of
from .samples import Data
from .split import restore_splits

NAMES = ("digits", "shapes", "cifar10", "cifar100", "flowers102", "oxford_pets", "fashion_mnist")
TOLD_APART = {"segment": "pixels", "multilabel": "labels"}  # what tasks tell apart that need two classes
KINDS = (
    "a folder or .zip of class folders, a .csv, .tsv or .parquet table, an .npz file, .tar shards, a Hugging Face "
    "data set (hf:owner/name), a folder or .zip with COCO, VOC or YOLO annotations or with masks, "
    f"or one of {', '.join(NAMES)}"
)
OPTIONS = {  # what may follow the question mark, by kind
    "table": ("path", "label", "split", "group"),
    "hub": ("image", "label", "config"),
    "coco": ("background",),
    "voc": (),
    "yolo": ("background",),
    "masks": ("background", "ignore"),
    "shapes": ("images", "size", "seed", "background"),
    "folder": (),
    "arrays": ("alpha",),
}
TITLES = {"table": "tables", "hub": "data sets of the hub", "folder": "class folders", "shapes": "shapes"}
TITLES |= {
    "arrays": "arrays",
    "coco": "COCO annotations",
    "voc": "VOC annotations",
    "yolo": "YOLO annotations",
    "masks": "masks",
}
ON = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
YEAR = re.compile(r"voc|20\d\d", re.IGNORECASE)  # folders of VOC's releases, such as VOC2012


@checked
def open_data(source: str | os.PathLike[str], task: str | None = None) -> Data:
    """Annotated images from any source.

    What it is, is told in this order: a known name (write `./digits` for a folder of that name), `hf:` and an id, a
    folder or file that exists, a pattern or URL of shards, an id `owner/name` of the Hugging Face hub.

    Args:
        source: A folder, a file, a pattern, a URL or a name. Columns of a table are chosen by adding
            `?path=COLUMN&label=COLUMN`, several labels by `?label=COLUMN,COLUMN`, images that stay together in splits
            by `?group=COLUMN`; of masks, `?background=off` or `?ignore=0` say what is not counted.
        task: `classify`, `multilabel`, `detect` or `segment`; None follows the data, and detects where instances have
            masks, too.

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
    if data.labels_are_classes:
        refuse_one_class(text, data)
    elif len(data.classes) < 2 and (told := TOLD_APART.get(data.task)):
        raise ValueError(f"{text} has the one class {data.classes[0]}; to tell {told} apart takes at least two.")
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
        from .sources.coco import refuse_broken
        from .sources.folder import inner_folder

        fs = file_system(Path(data.source))
        refuse_broken(fs)
        inside = inner_folder(fs)
        hint = f"; did you mean {inside}?" if inside else ""
    title = data.classes[present[0]]
    raise ValueError(f"{text} has the one class {title}; to tell images apart takes at least two{hint or '.'}")


def open_again(record: Mapping[str, Any]) -> Data:
    """The data of a record, with its splits, also when the present folder is another one.

    Args:
        record: What `describe_splits` gave, and the `folder` in which a relative path starts.

    Raises:
        ValueError: The record is none, or the data are no longer there, or changed.
    """
    wanted = {"source": str, "classes": list, "splits": dict}
    if not isinstance(record, Mapping) or not all(isinstance(record.get(key), kind) for key, kind in wanted.items()):
        raise ValueError("The record of the data lacks source, classes or splits, as if it was edited or cut off.")
    source = record["source"]
    bare, mark, options = source.partition("?")
    moved = os.path.join(str(record.get("folder") or ""), bare)
    is_elsewhere = not os.path.exists(bare) and os.path.exists(moved)
    text = moved + mark + options if is_elsewhere else source
    return restore_splits(open_any(text, record.get("task")), dict(record))


def find_task(source: str) -> str:
    """What data are annotated for; `classify` where nothing says otherwise.

    Example:
        >>> find_task("digits"), find_task("shapes")
        ('classify', 'detect')
    """
    bare, options = parse_options(source)
    path = expand_home(bare)
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        from .sources.table import open_table

        return open_table(path, options).task
    data = open_dense(source, None)
    return "classify" if data is None else data.task


def open_any(text: str, task: str | None = None) -> Data:
    """The data, of whatever kind and with however many classes."""
    if not text.partition("?")[0].strip() or "\0" in text:
        raise ValueError(f"No data were named; data may be {KINDS}.")
    if task is not None and task not in TASKS:
        raise ValueError(f"There is no task {task!r}; tasks are {', '.join(TASKS)}.")
    is_shapes = text.partition("?")[0] == "shapes"
    if task in ("classify", "multilabel") and is_shapes:
        raise ValueError("shapes has instances and masks, but no label for each image; the tasks are detect, segment.")
    data = None if task in ("classify", "multilabel") else open_dense(text, task)
    if data is None:
        data = open_labelled(text, task if task in ("classify", "multilabel") else None)
    if task is not None and data.task != task:
        has = {
            "classify": "a label for each image",
            "multilabel": "several labels for each image",
            "segment": "masks with a class for every pixel, from which instances can't be told apart",
        }
        raise ValueError(
            f"{text} has {has.get(data.task, 'no labels for whole images')}, "
            f"which is not what the task {task} learns from; give other data or the task {data.task}."
        )
    return data


def open_dense(text: str, task: str | None) -> Data | None:
    """The data if they have instances or masks, else None."""
    bare, options = parse_options(text)
    if bare == "shapes":
        return open_shapes_by(text, task, options)
    path = expand_home(bare)
    suffix = path.suffix.lower()
    if path.is_file() and suffix == ".json":
        data: Data | None = open_json(path, task, options)
    elif path.is_file() and suffix in (".yaml", ".yml"):
        data = open_yaml(path, task, options)
    elif path.is_dir() or (path.is_file() and suffix == ".zip"):
        fs = file_system(path)
        data = open_file_system(fs, task, options)
        if data is None and (task is not None or not path.is_dir()):
            from .sources.coco import refuse_broken

            refuse_broken(fs)
    else:
        return None
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return None if data is None else replace(data, source=f"{path}?{query}" if options else str(path))


def file_system(path: Path) -> FileSystem:
    """The files of a folder or a .zip."""
    return LocalFolder(path) if path.is_dir() else ZipArchive(path)


def open_file_system(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """Dense data of a folder or .zip, or of the one folder that is all that a folder holds; None if there are none."""
    spoken_of = dense_formats(fs)
    for kind in FORMATS.get(task or "", tuple(DENSE)):
        data = DENSE[kind](fs, task, options) if kind in spoken_of else None
        if data is not None:
            return data
    if isinstance(fs, LocalFolder) and len(fs.folders()) == 1 and not fs.files():
        return open_file_system(LocalFolder(fs.locate(fs.folders()[0])), task, options)
    return None


def dense_formats(fs: FileSystem) -> set[str]:
    """Formats of dense annotations that the listings of a folder and of the splits' folders in it speak of.

    Class folders speak of none, so that no reader has to look through them.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("cats", "dogs"):
        ...     (folder / name).mkdir()
        >>> dense_formats(LocalFolder(folder))
        set()
        >>> (folder / "Annotations").mkdir()
        >>> sorted(dense_formats(LocalFolder(folder)))
        ['masks', 'voc']
    """
    from .sources.coco import coco_folders
    from .sources.masks import speaks_of_masks
    from .sources.voc import XML_FOLDERS
    from .sources.yolo import YAMLS

    found = set()
    if any(name.lower().endswith(".json") for folder in coco_folders(fs) for name in fs.files(folder)):
        found.add("coco")
    if any(YEAR.search(name) and fs.find("ImageSets", name) for name in fs.folders()):
        found.add("voc")
    for base in ("", *(name for name in fs.folders() if split_of(name) is not None)):
        files, folders = ({name.casefold() for name in names} for names in (fs.files(base), fs.folders(base)))
        if folders & {*XML_FOLDERS, "imagesets"} or any(name.endswith(".xml") for name in files):
            found.add("voc")
        if files & set(YAMLS) or {"images", "labels"} <= folders:
            found.add("yolo")
        if speaks_of_masks(files, folders):
            found.add("masks")
    return found


def coco_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """COCO's json files."""
    from .sources.coco import find_coco, open_coco

    files = find_coco(fs)
    if not files:
        return None
    refuse_unknown("coco", options)
    return open_coco(fs, files, task or "detect", read_switch(options, "background"))


def voc_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """VOC's xml files."""
    from .sources.voc import find_voc, open_voc

    files = find_voc(fs)
    if not files:
        return None
    refuse_unknown("voc", options)
    return open_voc(fs, files, task or "detect")


def yolo_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """YOLO's txt files."""
    from .sources.yolo import find_yolo, open_yolo

    content = find_yolo(fs)
    if content is None:
        return None
    refuse_unknown("yolo", options)
    return open_yolo(fs, content, task or "detect", read_switch(options, "background"))


def mask_opener(fs: FileSystem, task: str | None, options: Mapping[str, str]) -> Data | None:
    """Masks beside images."""
    from .sources.masks import find_masks

    background = read_switch(options, "background")
    ignore = [part.strip() for part in options["ignore"].split(",")] if "ignore" in options else None
    data = find_masks(fs, ignore, background)
    if data is None:
        return None
    refuse_unknown("masks", options)
    return data


DENSE: dict[str, Callable[[FileSystem, str | None, Mapping[str, str]], Data | None]] = {
    "coco": coco_opener,
    "voc": voc_opener,
    "yolo": yolo_opener,
    "masks": mask_opener,
}
FORMATS = {"segment": ("masks", "coco", "yolo", "voc")}  # the order in which tasks are offered them, if not as above


def open_json(path: Path, task: str | None, options: Mapping[str, str]) -> Data:
    """A COCO file that was named itself: its images are beside it, or beside its folder."""
    from .sources.coco import open_coco

    refuse_unknown("coco", options)
    folder = path.absolute().parent
    word = SPLITS.get(folder.name.casefold())  # a whole word: a folder called my_tests says nothing
    root = folder.parent if word is not None or folder.name.casefold() in ("annotations", "labels") else folder
    split = split_of(path.stem) or word or "train"
    files = {split: path.absolute().relative_to(root).as_posix()}
    return open_coco(LocalFolder(root), files, task or "detect", read_switch(options, "background"))


def open_yaml(path: Path, task: str | None, options: Mapping[str, str]) -> Data:
    """A data.yaml that was named itself."""
    from .sources.yolo import load_yaml, open_yolo

    fs = LocalFolder(path.parent)
    content = load_yaml(fs, path.name)
    refuse_unknown("yolo", options)
    return open_yolo(fs, content, task or "detect", read_switch(options, "background"))


def open_shapes_by(text: str, task: str | None, options: Mapping[str, str]) -> Data:
    """The shapes that are drawn here, with `images`, `size`, `seed` and `background` from the options."""
    from .sources.synthetic import IMAGES, SEED, SIZE, open_shapes

    refuse_unknown("shapes", options)
    numbers = {"images": IMAGES, "size": SIZE, "seed": SEED}
    for name in numbers:
        if name in options:
            if not options[name].isdecimal() or len(options[name]) > 18:
                raise ValueError(f"{name}={options[name]} of {text} is not a whole number, or too large.")
            numbers[name] = int(options[name])
    background = read_switch(options, "background")
    return open_shapes(task or "detect", **numbers, background=background is not False, source=text)


def open_labelled(text: str, task: str | None = None) -> Data:
    """Data with a label, or several, for each image."""
    if text == "digits":
        from .sources.npz import open_digits

        return open_digits()
    if text in NAMES:
        from .sources.torchvision import open_named

        return open_named(text)
    bare, options = parse_options(text)
    path = expand_home(bare)
    if bare.startswith("hf:"):
        return open_from_hub(bare.removeprefix("hf:"), options)
    if path.is_dir():
        return open_directory(path, options)
    if path.is_file():
        return open_single(path, options, task)
    from .sources.shards import is_pattern, open_shards

    if is_pattern(text):
        return open_shards(os.path.expanduser(text))
    if path.exists():
        raise ValueError(f"{bare} is a pipe, a socket or a device; data may be {KINDS}.")
    if HUB_ID.fullmatch(bare) and not bare.startswith(".") and not os.path.exists(bare.split("/")[0]):
        return open_from_hub(bare, options)
    near = difflib.get_close_matches(re.sub(r"[-_ ]", "", bare.lower()), [name.replace("_", "") for name in NAMES], 1)
    hint = next((f" Did you mean {name}?" for name in NAMES if [name.replace("_", "")] == near), "")
    raise ValueError(f"There is no file or folder {bare}.{hint} Data may be {KINDS}.")


def open_directory(path: Path, options: Mapping[str, str]) -> Data:
    """A folder, which may hold class folders, shards or a Hugging Face data set."""
    from .sources.coco import refuse_broken
    from .sources.folder import has_class_folders, open_folder
    from .sources.hub import is_parquet_folder, is_saved

    fs = LocalFolder(path)
    if not has_class_folders(fs):  # else they count, whatever archive or table lies beside them
        if is_saved(path) or is_parquet_folder(path):
            return open_from_hub(str(path), options)
        if any(any(path.glob(pattern)) for pattern in ("*.tar", "*/*.tar")):
            from .sources.shards import open_shards

            return open_shards(str(path))
    refuse_unknown("folder", options)
    try:
        return open_folder(fs)
    except ValueError:
        refuse_broken(fs)
        raise


def open_from_hub(source: str, options: Mapping[str, str]) -> Data:
    """A Hugging Face data set, in a folder or by its id."""
    from .sources.hub import open_hub

    refuse_unknown("hub", options)
    return open_hub(source, options)


def open_single(path: Path, options: Mapping[str, str], task: str | None) -> Data:
    """A file, by its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        from .sources.npz import open_npz

        refuse_unknown("arrays", options)
        return open_npz(path, read_switch(options, "alpha") is not False)
    if suffix in (".csv", ".tsv", ".parquet"):
        from .sources.table import open_table

        refuse_unknown("table", options)
        query = "&".join(f"{key}={value}" for key, value in options.items())  # a run that goes on needs them again
        data = open_table(path, options, task)
        return replace(data, source=f"{path}?{query}") if options else data
    if suffix == ".tar":
        from .sources.shards import open_shards

        return open_shards(str(path))
    if suffix == ".zip":
        from .sources.folder import open_folder

        refuse_unknown("folder", options)
        return open_folder(ZipArchive(path))
    raise ValueError(f"{path} is a {suffix or 'file without suffix'}; data may be {KINDS}.")


def parse_options(text: str) -> tuple[str, dict[str, str]]:
    """The source without what follows `?`, and that."""
    if os.path.exists(text) or "://" in text:
        return text, {}
    bare, mark, query = text.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = dict.fromkeys(name for names in OPTIONS.values() for name in names)
    if mark and (not options or set(options) - set(known)) and "*" not in text and ".tar" not in text:
        raise ValueError(f"{text} has {query or 'nothing'} after the question mark; {', '.join(known)} can be set.")
    return (bare, options) if options else (text, {})


def refuse_unknown(kind: str, options: Mapping[str, str]) -> None:
    """Refuse options that mean nothing to data of a kind."""
    unknown = [name for name in options if name not in OPTIONS[kind]]
    if unknown:
        takes = ", ".join(OPTIONS[kind])
        can = f"it takes {takes}" if takes else "leave it out"
        raise ValueError(f"{unknown[0]}={options[unknown[0]]} means nothing to {TITLES[kind]}; {can}.")


def read_switch(options: Mapping[str, str], name: str) -> bool | None:
    """What an option switches; None if it is not given."""
    if name not in options:
        return None
    if options[name].lower() not in ON:
        raise ValueError(f"{name}={options[name]} is neither on nor off.")
    return ON[options[name].lower()]
