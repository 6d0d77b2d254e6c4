"""Tell what sort of data somebody means."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from .samples import Data
from .sources.urls import is_pattern
from .split import restore_splits

NAMES = ("digits", "shapes", "cifar10", "cifar100", "flowers102", "oxford_pets", "fashion_mnist")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
KINDS = (
    "a folder of class folders, a .csv, .tsv or .parquet table, an .npz file, .tar shards, a Hugging Face data set "
    "(hf:owner/name), a folder or .zip with COCO, VOC or YOLO annotations or with masks, "
    f"or one of {', '.join(NAMES)}"
)
OPTIONS = ("path", "label", "split", "image", "config")
SCENE_OPTIONS = ("background", "ignore", "images", "size", "seed")
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
        from .dense.find import open_made

        return open_made(text, task, options)
    path = Path(bare).expanduser()
    if not (path.is_dir() or (path.is_file() and path.suffix.lower() in (".zip", ".json", ".yaml", ".yml"))):
        return None
    from .dense.find import open_scenes

    return open_scenes(path, task, options)


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
    known = (*OPTIONS, *SCENE_OPTIONS)
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
