"""What sort of data is meant."""

from pathlib import Path

import pytest

from nearsight.data import open_data


def refused(source: str) -> str:
    with pytest.raises(ValueError) as caught:
        open_data(source)
    return str(caught.value)


ALLOWED = (
    "a folder or .zip of class folders, a .csv, .tsv or .parquet table, an .npz file, .tar shards, a Hugging Face "
    "data set (hf:owner/name), a folder or .zip with COCO, VOC or YOLO annotations or with masks, or one of "
    "digits, shapes, cifar10, cifar100, flowers102, oxford_pets, fashion_mnist."
)


def test_what_is_not_there() -> None:
    assert refused("my_photos") == f"There is no file or folder my_photos. Data may be {ALLOWED}"
    assert refused("/no/such/place") == f"There is no file or folder /no/such/place. Data may be {ALLOWED}"
    assert refused("./a/b.csv") == f"There is no file or folder ./a/b.csv. Data may be {ALLOWED}"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("cifar-10", "cifar10"),
        ("CIFAR100", "cifar100"),
        ("digit", "digits"),
        ("fashion-mnist", "fashion_mnist"),
        ("oxford_pet", "oxford_pets"),
    ],
)
def test_names_that_are_nearly_right(written: str, meant: str) -> None:
    assert refused(written) == f"There is no file or folder {written}. Did you mean {meant}? Data may be {ALLOWED}"


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "a.docx").touch()
    assert refused(str(tmp_path / "a.docx")) == f"{tmp_path}/a.docx is a .docx; data may be {ALLOWED}"
    (tmp_path / "plain").touch()
    assert refused(str(tmp_path / "plain")) == f"{tmp_path}/plain is a file without suffix; data may be {ALLOWED}"


def test_a_typo_inside_an_existing_folder_is_not_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert refused("data/phots").startswith("There is no file or folder data/phots.")


def test_a_folder_named_like_a_data_set_is_reached_by_its_path(tmp_path: Path, write_png, monkeypatch) -> None:
    write_png(tmp_path / "digits/a/1.png")
    write_png(tmp_path / "digits/b/1.png")
    monkeypatch.chdir(tmp_path)
    assert open_data("digits").kind == "digits"
    assert open_data("./digits").kind == "folder"


def test_the_home_folder_is_known(tmp_path: Path, write_png, monkeypatch: pytest.MonkeyPatch) -> None:
    write_png(tmp_path / "photos/a/1.png")
    write_png(tmp_path / "photos/b/1.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_data("~/photos").classes == ("a", "b")
