"""A bundle is whole or refused, and is written whole or not at all."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nearsight.runs.bundle import (
    ABOUT,
    Bundle,
    BundleError,
    describe,
    is_bundle,
    read_bundle,
    refuse_target,
    write_json,
    writing_bundle,
)

BUNDLE = Bundle(
    kind="onnx",
    model="lit_nano",
    weights="trained",
    labels=("a", "ö"),
    size=(32, 48),
    crop=0.875,
    mean=(0.1, 0.2, 0.3),
    std=(0.4, 0.5, 0.6),
    any_batch=True,
    any_size=False,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle whose model is no model: nobody opens it here."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"weights")
    write_json(folder / ABOUT, describe(BUNDLE, folder))
    return folder


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    assert read_bundle(folder) == BUNDLE
    about = json.loads((folder / ABOUT).read_text())
    assert about["input"] == {"layout": "NCHW", "type": "float32", "colour": "RGB", "size": [32, 48]}
    assert about["dynamic"] == {"batch": True, "height": False, "width": False}


def test_openvino_has_two_files_with_checksums(tmp_path: Path) -> None:
    for name in ("model.xml", "model.bin"):
        (tmp_path / name).write_text(name)
    write_json(tmp_path / ABOUT, describe(replace(BUNDLE, kind="openvino"), tmp_path))
    read_bundle(tmp_path)
    (tmp_path / "model.bin").write_text("other")
    with pytest.raises(BundleError, match=r"model\.bin is damaged"):
        read_bundle(tmp_path)


def change(folder: Path, **values: object) -> None:
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps(about | values))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "model.onnx").unlink(), "lacks model.onnx; copy the whole folder"),
        (lambda folder: (folder / "model.onnx").write_bytes(b"weighty"), "it is not the file that was verified"),
        (lambda folder: (folder / ABOUT).unlink(), "lacks preprocess.json; copy the whole folder"),
        (lambda folder: (folder / ABOUT).write_text('{"format": '), "preprocess.json is not whole JSON"),
        (lambda folder: (folder / ABOUT).write_bytes(b"\xff\xfe"), "preprocess.json is not whole JSON"),
        (lambda folder: (folder / ABOUT).write_text("[]"), "does not describe a bundle of Nearsight"),
        (lambda folder: change(folder, version=9), "is a bundle of format 9"),
        (lambda folder: change(folder, kind="tflite"), "is damaged"),
        (lambda folder: change(folder, labels=[]), "is damaged"),
        (lambda folder: change(folder, std=[0, 1, 1]), "is damaged"),
        (lambda folder: change(folder, mean=[0.5]), "is damaged"),
        (lambda folder: change(folder, input={}), "is damaged"),
        (lambda folder: change(folder, files={"../run/model.onnx": "sha256:0"}), "is damaged"),
    ],
)
def test_a_damaged_bundle_is_refused_in_a_sentence(folder: Path, damage, sentence: str) -> None:
    damage(folder)
    assert is_bundle(folder)
    with pytest.raises(BundleError) as caught:
        read_bundle(folder)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_folders_are_no_bundles(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert not is_bundle(tmp_path)
    assert not is_bundle(tmp_path / "absent")
    assert not is_bundle(folder / ABOUT)


def test_an_interrupted_write_leaves_nothing_and_keeps_what_was_there(tmp_path: Path, folder: Path) -> None:
    for target in (tmp_path / "new", folder):
        with pytest.raises(KeyboardInterrupt), writing_bundle(target) as part:
            (part / "model.onnx").write_bytes(b"half")
            raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]
    assert read_bundle(folder) == BUNDLE


def test_a_finished_write_replaces_what_was_there(tmp_path: Path, folder: Path) -> None:
    with writing_bundle(folder) as part:
        (part / "only").touch()
        assert read_bundle(folder) == BUNDLE  # until the last moment
    assert [entry.name for entry in folder.iterdir()] == ["only"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]


def test_targets(tmp_path: Path, folder: Path) -> None:
    refuse_target(tmp_path / "deep" / "new", force=False)
    (tmp_path / "empty").mkdir()
    refuse_target(tmp_path / "empty", force=False)
    refuse_target(folder, force=True)
    with pytest.raises(ValueError, match=r"holds a bundle; give another folder with --out, or replace it with --force"):
        refuse_target(folder, force=False)
    with pytest.raises(ValueError, match=r"is a file; give the name of a folder"):
        refuse_target(folder / ABOUT, force=True)
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "thesis.doc").touch()
    with pytest.raises(ValueError, match=r"holds other files"):
        refuse_target(folder, force=True)  # force replaces bundles, nothing else
