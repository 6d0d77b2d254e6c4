"""Tell what sort of data somebody means."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from .places import is_pattern
from .samples import Data
from .split import restore_splits

NAMES = ("digits", "cifar10", "cifar100", "flowers102", "oxford_pets", "fashion_mnist")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
KINDS = (
    "a folder of class folders, a .csv, .tsv or .parquet table, an .npz file, .tar shards, a Hugging Face data set "
    f"(hf:owner/name), or one of {', '.join(NAMES)}"
)
OPTIONS = ("path", "label", "split", "image", "config")


def open_data(source: str | os.PathLike[str]) -> Data:
    """Labelled images from any source.

    What it is, is told in this order: a known name (write `./digits` for a folder of that name), `hf:` and an id, a
    folder or file that exists, a pattern or URL of shards, an id `owner/name` of the Hugging Face hub.

    Args:
        source: A folder, a file, a pattern, a URL or a name. Columns of a table are chosen by adding
            `?path=COLUMN&label=COLUMN`.

    Raises:
        ValueError: The source is none of these, or not in order.

    Example:
        >>> data = open_data("digits")
        >>> data.classes
        ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
        >>> len(data.train), len(data.test)
        (1438, 359)
    """
    text = os.fspath(source)
    data = open_any(text)
    if len(data.classes) < 2:
        raise ValueError(f"{text} has the one class {data.classes[0]}; to tell images apart takes at least two.")
    return data


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
    return restore_splits(open_any(place + mark + options if is_elsewhere else source), dict(record))


def open_any(text: str) -> Data:
    """The data, of whatever kind and with however many classes."""
    if text == "digits":
        from .digits import open_digits

        return open_digits()
    if text in NAMES:
        from .named import open_named

        return open_named(text)
    bare, columns = parse_options(text)
    path = Path(bare).expanduser()
    if bare.startswith("hf:"):
        from .hub import open_hub

        return open_hub(bare.removeprefix("hf:"), columns)
    if path.is_dir():
        return open_directory(path, columns)
    if path.is_file():
        return open_single(path, columns)
    if is_pattern(text):
        from .shards import open_shards

        return open_shards(os.path.expanduser(text))
    if HUB_ID.fullmatch(bare) and not bare.startswith(".") and not os.path.exists(bare.split("/")[0]):
        from .hub import open_hub

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
    if mark and (not options or set(options) - set(OPTIONS)) and "*" not in text and ".tar" not in text:
        raise ValueError(f"{text} has {query or 'nothing'} after the question mark; {', '.join(OPTIONS)} can be set.")
    return (bare, options) if options else (text, {})


def open_directory(path: Path, columns: Mapping[str, str]) -> Data:
    """A folder, which may hold class folders, shards or a Hugging Face data set."""
    from .hub import is_parquet_folder, is_saved, open_hub

    if is_saved(path) or is_parquet_folder(path):
        return open_hub(str(path), columns)
    if any(any(path.glob(pattern)) for pattern in ("*.tar", "*/*.tar")):
        from .shards import open_shards

        return open_shards(str(path))
    from .folders import open_folder

    return open_folder(path)


def open_single(path: Path, columns: Mapping[str, str]) -> Data:
    """A file, by its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        from .arrays import open_npz

        return open_npz(path)
    if suffix in (".csv", ".tsv", ".parquet"):
        from .tables import open_table

        return open_table(path, columns)
    if suffix == ".tar":
        from .shards import open_shards

        return open_shards(str(path))
    raise ValueError(f"{path} is a {suffix or 'file without suffix'}; data may be {KINDS}.")
