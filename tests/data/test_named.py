"""Well-known data sets, from small files in their real formats."""

import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from scipy.io import savemat
from torchvision.datasets import FashionMNIST, Flowers102

from nearsight.data import open_data
from nearsight.data.open import NAMES
from nearsight.data.sources import torchvision as named
from nearsight.network import staying_offline


@pytest.fixture
def cache(tmp_path: Path, online: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine without a network."""

    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    monkeypatch.setenv("NEARSIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def cifar_file(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Records of labels, then 1,024 bytes each of red, green and blue."""
    return b"".join(
        bytes(label) + image.transpose(2, 0, 1).tobytes() for image, label in zip(images, labels, strict=True)
    )


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)


def pack(archive: Path, files: dict[str, bytes]) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_cifar10_from_the_archive_of_its_binary_version(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(12, dtype=np.uint8)[:, None] % 3
    files = {
        f"data_batch_{n + 1}.bin": cifar_file(IMAGES[2 * n : 2 * n + 2], labels[2 * n : 2 * n + 2]) for n in range(5)
    }
    files |= {"test_batch.bin": cifar_file(IMAGES[10:], labels[10:]), "batches.meta.txt": b"plane\ncar\nbird\n\n"}
    archive = cache / "cifar-10-binary.tar.gz"
    pack(archive, {f"cifar-10-batches-bin/{name}": content for name, content in files.items()})
    entry = list(named.CIFAR["cifar10"])
    entry[1] = md5(archive)
    monkeypatch.setitem(named.CIFAR, "cifar10", tuple(entry))
    for _ in range(2):  # the second time without the archive
        data = open_data("cifar10")
        assert (data.kind, data.classes) == ("torchvision", ("plane", "car", "bird"))
        assert (data.train.labels == labels[:10, 0]).all() and (data.test.labels == labels[10:, 0]).all()
        found = np.stack([np.asarray(split.read(i)) for split in (data.train, data.test) for i in range(len(split))])
        assert (found == IMAGES).all()
        archive.unlink(missing_ok=True)


def test_cifar100_takes_the_fine_classes(cache: Path) -> None:
    folder = cache / "cifar-100-binary"
    folder.mkdir(parents=True)
    labels = np.stack([np.full(12, 1), np.arange(12) % 4], axis=1)  # coarse, fine
    (folder / "train.bin").write_bytes(cifar_file(IMAGES[:8], labels[:8].astype(np.uint8)))
    (folder / "test.bin").write_bytes(cifar_file(IMAGES[8:], labels[8:].astype(np.uint8)))
    (folder / "fine_label_names.txt").write_text("apple\nbaby\nbear\nbed\n")
    data = open_data("cifar100")
    assert data.classes == ("apple", "baby", "bear", "bed")
    assert (data.train.labels == np.arange(8) % 4).all()
    assert (np.asarray(data.test.read(1)) == IMAGES[9]).all()
    (folder / "test.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"test\.bin is cut off; remove .*cifar-100-binary, and it is made again\.$"):
        open_data("cifar100")
    (folder / "test.bin").write_bytes(cifar_file(IMAGES[:1], np.array([[0, 9]], np.uint8)))
    with pytest.raises(ValueError, match=r"cifar-100-binary is damaged: label 9 of 4 classes; remove it\.$"):
        open_data("cifar100")


def test_fashion_mnist_from_its_idx_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache / "fashion-mnist"
    folder.mkdir(parents=True)
    images, labels = IMAGES[:, :28, :28, 0], np.arange(12, dtype=np.uint8) % 10
    for prefix, part in (("train", slice(0, 9)), ("t10k", slice(9, 12))):
        count = len(labels[part])
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images[part].tobytes()))
        head = struct.pack(">II", 0x801, count)
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + labels[part].tobytes()))
    sums = [(name, md5(folder / name)) for name, _ in FashionMNIST.resources]
    monkeypatch.setattr(FashionMNIST, "resources", sums)
    data = open_data("fashion_mnist")
    assert (data.classes[1], len(data.classes), len(data.train), len(data.test)) == ("Trouser", 10, 9, 3)
    assert (np.asarray(data.test.read(2))[..., 0] == images[11]).all()
    assert data.test.labels.tolist() == [9, 0, 1]


def test_flowers102_from_its_images_and_matlab_files(cache: Path, monkeypatch: pytest.MonkeyPatch, write_png) -> None:
    folder = cache / "flowers-102"
    for number in range(1, 7):
        write_png(folder / f"jpg/image_{number:05d}.jpg", red=number)
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 1, 2, 102, 1]])})
    savemat(folder / "setid.mat", {"trnid": [[1, 2]], "valid": [[3, 4]], "tstid": [[5, 6]]})
    files = {"image": Flowers102._file_dict["image"]}
    files |= {key: (name, md5(folder / name)) for key, name in (("label", "imagelabels.mat"), ("setid", "setid.mat"))}
    monkeypatch.setattr(Flowers102, "_file_dict", files)
    data = open_data("flowers102")
    assert (len(data.classes), data.classes[0]) == (102, "pink primrose")
    assert {name: split.labels.tolist() for name, split in data.splits().items()} == {
        "train": [0, 1], "val": [0, 1], "test": [101, 0]
    }  # fmt: skip
    assert (data.test.name(0), data.test.read(0).getpixel((0, 0))) == ("jpg/image_00005.jpg", (5, 0, 0))


def test_oxford_pets_from_its_text_files(cache: Path, write_png) -> None:
    folder = cache / "oxford-iiit-pet"
    for number, name in enumerate(["Abyssinian_1", "Abyssinian_2", "great_pyrenees_1", "great_pyrenees_2"]):
        write_png(folder / f"images/{name}.jpg", red=number)
    (folder / "annotations").mkdir()
    (folder / "annotations/trainval.txt").write_text("Abyssinian_1 1 1 1\ngreat_pyrenees_1 2 2 1\n")
    (folder / "annotations/test.txt").write_text("Abyssinian_2 1 1 1\ngreat_pyrenees_2 2 2 1\n")
    data = open_data("oxford_pets")
    assert data.classes == ("Abyssinian", "Great Pyrenees")
    assert (data.test.name(1), data.test.labels.tolist()) == ("images/great_pyrenees_2.jpg", [0, 1])
    assert data.test.read(1).getpixel((0, 0)) == (3, 0, 0)


@pytest.mark.parametrize(
    ("name", "folder", "files"),
    [
        ("cifar10", "", ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]),
        ("cifar100", "", ["https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"]),
        ("fashion_mnist", "/fashion-mnist", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]),
        ("flowers102", "/flowers-102", ["102flowers.tgz", "imagelabels.mat", "setid.mat"]),
        ("oxford_pets", "/oxford-iiit-pet", ["images.tar.gz", "annotations.tar.gz"]),
    ],
)
def test_without_a_network_it_says_what_to_put_where(cache: Path, name: str, folder: str, files: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        open_data(name)
    sentence = str(caught.value)
    assert sentence.startswith(f"{name} is not in {cache}{folder} and can't be downloaded (no network); get ")
    assert sentence.endswith(" by other means and put it there.") and all(file in sentence for file in files)


@pytest.mark.parametrize("name", named.NAMED)
def test_nobody_is_asked_where_that_is_forbidden(cache: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("asked another machine"))
    with staying_offline(), pytest.raises(ValueError, match=r"be downloaded \(--offline or HF_HUB_OFFLINE forb"):
        open_data(name)


def test_every_name_that_is_offered_opens_something() -> None:
    assert set(NAMES) == {"digits", "shapes", *named.NAMED}


def test_the_cache_lies_in_the_home_folder_unless_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NEARSIGHT_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert named.cache_folder() == tmp_path / ".cache/nearsight/data"
