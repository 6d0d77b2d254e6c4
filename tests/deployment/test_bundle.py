"""A bundle is whole or refused, and is written whole or not at all."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from nearsight.atomic import writing_folder
from nearsight.runs.bundle import (
    ABOUT,
    Bundle,
    BundleError,
    describe,
    is_bundle,
    read_bundle,
    refuse_target,
    write_json,
)
from nearsight.runs.runtime import run_described, run_onnx

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
        with pytest.raises(KeyboardInterrupt), writing_folder(target) as part:
            (part / "model.onnx").write_bytes(b"half")
            raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]
    assert read_bundle(folder) == BUNDLE


def test_a_finished_write_replaces_what_was_there(tmp_path: Path, folder: Path) -> None:
    with writing_folder(folder) as part:
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


@pytest.mark.parametrize("name", ["thesis.doc", ".git", "notes"])
def test_force_replaces_no_folder_that_holds_more_than_a_bundle(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    with pytest.raises(ValueError, match=rf"holds other files \(such as {name}\)"):
        refuse_target(folder, force=True)
    (folder / name).rename(folder / "eval-digits-test")  # its own report goes with it
    refuse_target(folder, force=True)


def logits(*values: float) -> dict[str, np.ndarray]:
    return {"logits": np.array([values], dtype=np.float32)}


@pytest.mark.parametrize(
    ("found", "postprocessing", "reason"),
    [
        (logits(1, 2, 3), "classes", "it tells 3 classes, not 2"),
        (logits(1), "labels", "it tells 1 classes, not 2"),
        (logits(1, float("nan")), "classes", "it gives no finite numbers"),
        ({"scores": np.ones((1, 5, 2))}, "classes", "nothing is called 'logits'"),
        (logits(1, 2), "__import__", "nothing is called '__import__'"),
        ({"scores": np.ones((1, 5, 3)), "boxes": np.tile([0.0, 0, 9, 9], (1, 5, 1))}, "queries", "nothing is called"),
        ({"logits": np.array(["a"])}, "classes", ""),
        ({"logits": np.zeros((1, 2, 0, 0))}, "pixels", ""),
        ({}, "classes", ""),
    ],
)
def test_a_model_that_is_not_the_described_one_is_refused_when_it_is_run(
    found: dict[str, np.ndarray], postprocessing: str, reason: str
) -> None:
    bundle, images = replace(BUNDLE, postprocessing={"name": postprocessing}), np.zeros((1, 3, 32, 48), np.float32)
    with pytest.raises(BundleError, match=rf"of lit_nano is not what its description says \(.*{reason}"):
        run_described(lambda _: found, bundle, images, (32, 48), [(32, 48)])


def test_what_a_runtime_refuses_while_it_runs_is_told_in_a_sentence() -> None:
    def fails(images: np.ndarray) -> dict[str, np.ndarray]:
        raise RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got 32 Expected: 64")

    with pytest.raises(BundleError, match="Got 32 Expected: 64"):
        run_described(fails, BUNDLE, np.zeros((1, 3, 32, 48), np.float32), (32, 48), [(32, 48)])


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd"])
def test_a_model_reads_no_file_outside_of_its_folder(tmp_path: Path, location: str) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    weights = onnx.TensorProto(name="weights", data_type=1, dims=[16], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "64"}.items():
        weights.external_data.add(key=key, value=value)
    given, made = (onnx.helper.make_tensor_value_info(name, 1, [16]) for name in ("images", "logits"))
    node = onnx.helper.make_node("Add", ["images", "weights"], ["logits"])
    graph = onnx.helper.make_graph([node], "graph", [given], [made], [weights])
    (tmp_path / "bundle").mkdir()
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "bundle" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match=r"model\.onnx can't be run \(.*[Pp]ath"):
        run_onnx(tmp_path / "bundle" / "model.onnx")
