"""Well-known data sets by name, downloaded once.

Files are checked against their known sums before they are opened, and none is unpickled: CIFAR comes from its binary
version, not from the Python version that torchvision uses.
"""

import gzip
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...atomic import expand_home
from ...network import VARIABLE, is_offline
from ..image import Files
from ..samples import Data
from .npz import Arrays

CIFAR = {  # archive, its MD5 sum, folder inside, training files, bytes of labels, file of class names
    "cifar10": (
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        1,
        "batches.meta.txt",
    ),
    "cifar100": (
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        ("train.bin",),
        ("test.bin",),
        2,  # coarse, then fine
        "fine_label_names.txt",
    ),
}
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
SIDE = 32


def cache_folder() -> Path:
    """Where downloaded data sets lie: `$NEARSIGHT_CACHE`, or `~/.cache/nearsight/data`."""
    chosen = os.environ.get("NEARSIGHT_CACHE")
    return expand_home(chosen or "~/.cache/nearsight/data")


def open_named(name: str) -> Data:
    """A data set by name.

    Raises:
        ValueError: Its files are not here and can't be downloaded.
    """
    return NAMED[name](name, cache_folder())


def fetch(name: str, folder: Path, files: Sequence[str], download: Callable[[], Any]) -> Any:
    """What `download` gives, or a sentence on how to get the files by other means."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return download()
    except (OSError, RuntimeError) as error:  # no network, a wrong sum, a full disk
        reason = str(getattr(error, "reason", error)).strip().rstrip(".")
        reason = f"--offline or {VARIABLE} forbids it" if is_offline() else reason
        raise ValueError(
            f"{name} is not in {folder} and can't be downloaded ({reason}); "
            f"get {' and '.join(files)} by other means and put it there."
        ) from None


def download(url: str, folder: Path, md5: str) -> Path:
    """A file with this sum, fetched unless it is there."""
    from torchvision.datasets.utils import check_integrity, download_url

    file = folder / url.rpartition("/")[2]
    if not check_integrity(str(file), md5):
        if is_offline():
            raise RuntimeError
        download_url(url, str(folder), md5=md5)
    return file


def open_cifar(name: str, root: Path) -> Data:
    """CIFAR-10 or CIFAR-100 with its fine classes: training and test images of 32×32 pixels."""
    from torchvision.datasets.utils import extract_archive

    archive, md5, inside, train, test, label_bytes, titles = CIFAR[name]
    folder = root / inside
    if not all((folder / file).is_file() for file in (*train, *test, titles)):
        url = f"{CIFAR_URL}{archive}"
        fetch(name, root, [url], lambda: extract_archive(str(download(url, root, md5)), str(root)))
    classes = tuple(line.strip() for line in (folder / titles).read_text().splitlines() if line.strip())
    splits = {
        "train": read_cifar("train", folder, train, label_bytes, len(classes)),
        "test": read_cifar("test", folder, test, label_bytes, len(classes)),
    }
    return Data(name, "torchvision", classes, **splits)


def read_cifar(title: str, folder: Path, files: Sequence[str], label_bytes: int, classes: int) -> Arrays:
    """The images of binary files: for each one or two bytes of labels, then a plane of each colour."""
    length = label_bytes + 3 * SIDE * SIDE
    records = []
    for file in files:
        content = np.fromfile(folder / file, dtype=np.uint8)
        if not content.size or content.size % length:
            raise ValueError(f"{folder / file} is cut off; remove {folder}, and it is made again.")
        records.append(content.reshape(-1, length))
    whole = np.concatenate(records)
    labels = whole[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= classes:
        raise ValueError(f"{folder} is damaged: label {labels.max()} of {classes} classes; remove it.")
    planes = whole[:, label_bytes:].reshape(-1, 3, SIDE, SIDE)
    return Arrays(title, np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)


def open_fashion(name: str, root: Path) -> Data:
    """Zalando's 70,000 pieces of clothing in grey, 28×28 pixels."""
    from torchvision.datasets import FashionMNIST

    folder = root / "fashion-mnist"
    url = FashionMNIST.mirrors[0]
    files = [f"{url}{file}" for file, _ in FashionMNIST.resources]
    for file, md5 in FashionMNIST.resources:
        fetch(name, folder, files, lambda f=file, m=md5: download(f"{url}{f}", folder, m))  # type: ignore[misc]
    splits = {
        split: Arrays(
            split,
            read_idx(folder / f"{prefix}-images-idx3-ubyte.gz"),
            read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz").astype(np.int64),
        )
        for split, prefix in (("train", "train"), ("test", "t10k"))
    }
    return Data(name, "torchvision", tuple(FashionMNIST.classes), **splits)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes in MNIST's format: a magic number that ends in the count of axes, their sizes, the values."""
    with gzip.open(path, "rb") as file:
        content = file.read()
    axes = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=axes, offset=4).astype(int)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(tuple(shape))


def open_flowers(name: str, root: Path) -> Data:
    """Oxford's 102 flowers: 10 images of each class to train, 10 to validate, the rest to test."""
    from torchvision.datasets import Flowers102

    folder = root / "flowers-102"
    files = [Flowers102._download_url_prefix + file for file, _ in Flowers102._file_dict.values()]
    splits = {}
    for split in ("train", "val", "test"):
        found = fetch(name, folder, files, lambda s=split: Flowers102(str(root), split=s, download=not is_offline()))  # type: ignore[misc]
        splits[split] = as_files(folder, found._image_files, found._labels)
    return Data(name, "torchvision", tuple(Flowers102.classes), **splits)


def open_pets(name: str, root: Path) -> Data:
    """Oxford's 37 breeds of cats and dogs: about 100 images each to train, and 100 to test."""
    from torchvision.datasets import OxfordIIITPet

    folder = root / "oxford-iiit-pet"
    files = [url for url, _ in OxfordIIITPet._RESOURCES]
    splits = {}
    for split, part in (("train", "trainval"), ("test", "test")):
        found = fetch(name, folder, files, lambda p=part: OxfordIIITPet(str(root), split=p, download=not is_offline()))  # type: ignore[misc]
        splits[split] = as_files(folder, found._images, found._labels)
    return Data(name, "torchvision", tuple(found.classes), **splits)


def as_files(folder: Path, paths: Sequence[Path], labels: Sequence[int]) -> Files:
    """Files that torchvision found, named from their folder on."""
    return Files(str(folder), [path.relative_to(folder).as_posix() for path in paths], np.array(labels, dtype=np.int64))


NAMED: dict[str, Callable[[str, Path], Data]] = {
    "cifar10": open_cifar,
    "cifar100": open_cifar,
    "flowers102": open_flowers,
    "oxford_pets": open_pets,
    "fashion_mnist": open_fashion,
}
