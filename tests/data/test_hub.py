"""Data sets of Hugging Face."""

import pickle
import sys
from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pytest
from PIL import Image

from nearsight.data import BadImage, open_data
from nearsight.network import staying_offline

FEATURES = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def made(images: list, features: dict | None = None, **columns: list) -> datasets.Dataset:
    columns = columns or {"label": [number % 2 for number in range(len(images))]}
    return datasets.Dataset.from_dict({"image": images, **columns}, features=datasets.Features(features or FEATURES))


def plain(red: int) -> Image.Image:
    return Image.new("RGB", (5, 4), (red, 0, 0))


def test_what_save_to_disk_wrote(tmp_path: Path) -> None:
    splits = {"train": made([plain(i) for i in range(5)]), "validation": made([plain(9), plain(8)])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
    data = open_data(tmp_path / "set")
    assert (data.kind, data.classes, list(data.splits())) == ("hub", ("cat", "dog"), ["train", "val"])
    assert [data.train.read(i).getpixel((0, 0))[0] for i in range(5)] == list(range(5))
    assert (data.train.labels.tolist(), data.val.read(1).size) == ([0, 1, 0, 1, 0], (5, 4))
    assert (data.train.name(3), data.train.content(0)[:4]) == ("train[3]", b"\x89PNG")
    packed = pickle.dumps(data)
    assert pickle.loads(packed).train.read(4).getpixel((0, 0)) == (4, 0, 0)


def test_one_split_of_a_set_is_for_training(tmp_path: Path) -> None:
    made([plain(1), plain(2)]).save_to_disk(tmp_path / "set")
    assert list(open_data(tmp_path / "set").splits()) == ["train"]


def test_a_folder_of_parquet_files_like_a_repository_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    made([plain(i) for i in range(4)]).to_parquet(tmp_path / "data/train-00000-of-00001.parquet")
    made([plain(i) for i in range(3)]).to_parquet(tmp_path / "data/test-00000-of-00001.parquet")
    data = open_data(tmp_path)
    assert {name: len(split) for name, split in data.splits().items()} == {"train": 4, "test": 3}
    assert data.train.read(3).getpixel((0, 0)) == (3, 0, 0)


def test_images_are_decoded_here_not_by_pillow_alone(tmp_path: Path) -> None:
    deep = Image.fromarray(np.array([[0, 65535], [25700, 257]], np.uint16))
    made([deep, plain(1)]).save_to_disk(tmp_path / "set")
    found = np.asarray(open_data(tmp_path / "set").train.read(0))
    assert found[..., 0].tolist() == [[0, 255], [100, 1]]


def test_images_may_be_files_and_may_be_bad(tmp_path: Path, write_png) -> None:
    write_png(tmp_path / "1.png", red=7)
    write_png(tmp_path / "2.png", red=8)
    made([str(tmp_path / "1.png"), str(tmp_path / "2.png"), None]).save_to_disk(tmp_path / "set")
    (tmp_path / "2.png").unlink()
    train = open_data(tmp_path / "set").train
    assert train.read(0).getpixel((0, 0)) == (7, 0, 0)
    with pytest.raises(BadImage, match=r"^train\[2\] can't be read as an image: the data set holds no bytes for it\.$"):
        train.read(2)


def test_columns_are_found_by_type_then_by_name(tmp_path: Path) -> None:
    features = {"image": datasets.Image(), "coarse": datasets.ClassLabel(names=["x"]), "fine_label": FEATURES["label"]}
    made([plain(1), plain(2)], features, coarse=[0, 0], fine_label=[0, 1]).save_to_disk(tmp_path / "a")
    assert open_data(tmp_path / "a").classes == ("cat", "dog")
    features = {"image": datasets.Image(), "species": datasets.Value("string"), "id": datasets.Value("int64")}
    made([plain(1), plain(2)], features, species=["b", "a"], id=[5, 6]).save_to_disk(tmp_path / "b")
    assert open_data(tmp_path / "b").classes == ("a", "b")
    assert open_data(f"{tmp_path}/b?label=id").classes == ("5", "6")


def test_a_test_split_without_labels_is_left_out(tmp_path: Path) -> None:
    hidden = made([plain(1)], label=[-1])
    datasets.DatasetDict({"train": made([plain(1), plain(2)]), "test": hidden}).save_to_disk(tmp_path / "set")
    assert list(open_data(tmp_path / "set").splits()) == ["train"]


def refused(source: object) -> str:
    with pytest.raises(ValueError) as caught:
        open_data(str(source))
    return str(caught.value)


def test_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"image": datasets.Image(), "one": datasets.Value("int64"), "two": datasets.Value("int64")}
    made([plain(1)], features, one=[1], two=[2]).save_to_disk(tmp_path / "odd")
    odd = tmp_path / "odd"
    assert refused(odd) == (
        f"Which column of {odd} holds the label can't be told: image, one, two; say so with "
        f"{odd}?image=COLUMN&label=COLUMN."
    )
    assert refused(f"{odd}?label=three") == f"{odd} has no column three; it has: image, one, two."
    datasets.DatasetDict({"north": made([plain(1)]), "south": made([plain(1)])}).save_to_disk(tmp_path / "two")
    assert refused(tmp_path / "two") == (
        f"{tmp_path}/two has the splits north, south; train, validation and test are known."
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/dataset_dict.json").write_text("{}")
    assert refused(tmp_path / "broken").startswith(f"{tmp_path}/broken can't be opened: ")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refused("hf:owner/name") == ('Opening owner/name needs Hugging Face datasets: pip install "nearsight[hub]".')


def test_an_id_is_looked_for_on_the_hub(tmp_path: Path, online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, config: str | None) -> datasets.DatasetDict:
        asked.append((name, config))
        return datasets.DatasetDict({"train": made([plain(1), plain(2)] if name != "an/empty" else [])})

    def exists(_: object, name: str, **options: object) -> None:
        if name.startswith("no/"):
            raise ConnectionError("Name or service not known.\nMore lines")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", exists)
    assert [open_data(source).classes for source in ("owner/name", "hf:name?config=small")] == [("cat", "dog")] * 2
    assert asked == [("owner/name", None), ("name", "small")]
    assert refused("no/thing") == (
        "no/thing is neither a path here nor a data set that can be had from the Hugging Face hub: "
        "Name or service not known; one that was downloaded before is opened with --offline."
    )
    assert refused("an/empty") == "an/empty has no images."
    with staying_offline():
        assert open_data("no/thing").classes == ("cat", "dog")
