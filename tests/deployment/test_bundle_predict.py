"""A bundle predicts what PyTorch predicts, image for image, where there is no PyTorch."""

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from bundles import bundle, trained_run
from PIL import Image
from typer.testing import CliRunner

import nearsight
from nearsight.cli.evaluate import predict as command
from nearsight.data.file_system import find_images
from nearsight.data.image import Files
from nearsight.data.loader import EvalImages
from nearsight.data.transforms import Preprocessing
from nearsight.prediction import predict
from nearsight.runs.bundle import ABOUT, describe, read_bundle, write_json
from nearsight.runs.runtime import ImageBatches
from tests.rounding import assert_rounded

APP = typer.Typer()
APP.command()(command)
# What runs a bundle in ONNX: nearsight's own command line, images, arrays, and the runtime.
ALONE = (
    "numpy numpy.libs PIL pillow.libs onnxruntime flatbuffers google packaging typing_extensions.py "
    "typer click rich pygments markdown_it mdurl shellingham annotated_doc "
    "pydantic pydantic_core annotated_types typing_inspection"
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of all the forms that people have, two of them broken."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    smooth = Image.fromarray(generator.integers(0, 255, (12, 9, 3), dtype=np.uint8)).resize((270, 190))
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    smooth.save(folder / "1-turned.jpg", exif=exif)
    smooth.convert("L").save(folder / "2-grey.png")
    deep = generator.integers(0, 65535, (40, 30), dtype=np.uint16)
    Image.fromarray(deep).save(folder / "3-deep.png")
    smooth.quantize(16).save(folder / "4-palette.gif")
    smooth.convert("CMYK").save(folder / "5-cmyk.jpg")
    clear = smooth.convert("RGBA")
    clear.putalpha(generator.integers(0, 255, (1, 1)).item())
    clear.save(folder / "6-clear.png")
    smooth.resize((2700, 1900)).save(folder / "7-large.jpg")  # decoded smaller, to save time
    Image.new("RGB", (3, 5), (9, 99, 199)).save(folder / "8-small.bmp")
    (folder / "9-cut.png").write_bytes((folder / "2-grey.png").read_bytes()[:300])
    (folder / "10-empty.png").touch()
    return folder


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(("size", "crop"), [((16, 16), 1.0), ((224, 224), 0.875), ((33, 90), 0.9)])
def test_images_are_shown_bit_by_bit_as_in_pytorch(pictures: Path, workers: int, size, crop: float) -> None:
    about = replace(read_bundle(bundle("onnx")), size=size, crop=crop, mean=(0.485, 0.456, 0.406))
    paths = find_images([str(pictures)])
    input = Preprocessing(size, about.mean, about.std, crop)
    shown = EvalImages(Files("", paths, np.zeros(len(paths), dtype=np.int64)), input)
    theirs = torch.stack([item[0] for item in map(shown.__getitem__, range(len(paths))) if isinstance(item, tuple)])
    groups = list(ImageBatches(Files("", paths, np.zeros(len(paths), dtype=np.int64)), about, 3, workers))
    mine = np.stack([pixels for group in groups for pixels in group.pixels])
    assert [name for group in groups for name in group.names] == paths
    assert len(mine) == 8
    np.testing.assert_array_equal(mine, theirs.numpy())
    np.testing.assert_array_equal(about.normalise(mine), input.normalise(theirs.float() / 255).numpy())


@pytest.mark.parametrize("kind", ["onnx", "pt2", "openvino"])
def test_predictions_and_problems_are_those_of_the_run(pictures: Path, kind: str) -> None:
    expected = list(predict(trained_run(), pictures, top=4, batch=3, workers=0))
    found = list(predict(bundle(kind), pictures, top=4, batch=3))
    assert [item.image for item in found] == [item.image for item in expected]
    assert [item.problem for item in found] == [item.problem for item in expected]
    assert sum(item.problem is None for item in found) == 8
    for mine, theirs in zip(found, expected, strict=True):
        if mine.problem is None:
            assert [name for name, _ in mine.top(4)] == [name for name, _ in theirs.top(4)]
            assert_rounded(mine.probabilities, theirs.probabilities, nearsight.load(trained_run()).model)


def run_alone(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`nearsight` in a Python that has a few packages and the standard library, and nothing else."""
    installed = Path(np.__file__).parents[1]
    links = [(name, installed / name) for name in ALONE.split()]
    for name, target in [*links, ("nearsight", Path(nearsight.__file__).parent)]:
        if target.exists() and not (folder / name).exists():
            (folder / name).symlink_to(target)
    code = (
        f"import sys; sys.path.append({str(folder)!r})\n"
        "for name in ('torch', 'torchvision', 'timm', 'sklearn', 'scipy', 'safetensors'):\n"
        "    try:\n        __import__(name)\n    except ModuleNotFoundError:\n        continue\n"
        "    sys.exit(f'{name} is there')\n"
        "from nearsight.cli.shell import main; main()"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_where_there_is_no_torch(pictures: Path, tmp_path: Path) -> None:
    outcome = run_alone(tmp_path, "predict", bundle("onnx"), pictures, "--json", "--top", 3)
    assert outcome.returncode == 0, outcome.stderr
    assert f"skipped {pictures / '9-cut.png'}: the file is cut off" in outcome.stderr
    found = json.loads(outcome.stdout)
    expected = [item for item in predict(trained_run(), pictures, top=3) if not item.problem]
    assert [item["image"] for item in found] == [item.image for item in expected]
    for mine, theirs in zip(found, expected, strict=True):
        names, probabilities = zip(*theirs.top(3), strict=True)
        assert [answer["class"] for answer in mine["answers"]] == list(names)
        assert [answer["probability"] for answer in mine["answers"]] == pytest.approx(probabilities, abs=1e-5)


def test_what_is_not_installed_is_named(pictures: Path, tmp_path: Path) -> None:
    outcome = run_alone(tmp_path, "predict", bundle("openvino"), pictures)
    assert outcome.returncode == 1 and "Traceback" not in outcome.stderr
    sentence = "An OpenVINO bundle needs openvino, which is not installed; pip install 'nearsight[openvino]'."
    assert outcome.stderr == f"nearsight: {sentence}\n"
    assert "A .pt2 bundle needs torch" in run_alone(tmp_path, "predict", bundle("pt2"), pictures).stderr


def test_a_bundle_that_python_opens_imports_no_torch(pictures: Path) -> None:
    code = (
        "import sys, numpy, nearsight\n"
        f"predictor = nearsight.load({str(bundle('onnx'))!r})\n"
        f"found = list(predictor.predict({str(pictures)!r}))\n"
        "found += predictor.predict(numpy.zeros((2, 20, 30, 3), dtype=numpy.uint8))\n"
        "print(len(found), [name for name in ('torch', 'torchvision', 'timm', 'safetensors') if name in sys.modules])"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout == "12 []\n"


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    first = tmp_path / "0.png"
    Image.new("RGB", (64, 64), (1, 2, 3)).save(first)
    for number in range(1, 3000):
        os.link(first, tmp_path / f"{number}.png")
    peaks = {}
    for count in (300, 3000):
        paths = [tmp_path / f"{number}.png" for number in range(count)]
        tracemalloc.start()
        assert sum(1 for _ in predict(bundle("onnx"), paths, top=1, batch=16, workers=2)) == count
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    held = 2700 * 64 * 64 * 3  # if the images were kept
    assert peaks[3000] - peaks[300] < held / 10


def test_predictions_come_as_they_are_made(pictures: Path) -> None:
    seen = []

    def watched(batches):
        for group in batches:
            seen.append(len(group.names))
            yield group

    found = predict(bundle("onnx"), pictures, batch=2, workers=0, progress=watched)
    next(found)
    assert seen == [2]


def refuse(*arguments: object) -> str:
    outcome = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    assert isinstance(outcome.exception, (ValueError, OSError)), outcome.output
    assert outcome.exit_code == 1 and outcome.stdout == ""
    return str(outcome.exception)


def test_refusals_are_those_of_a_run(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for model in (trained_run(), bundle("onnx")):
        assert "There is no file or folder gone.png; give" in refuse(model, "gone.png")
        assert "has no images in it, at any depth." in refuse(model, tmp_path / "empty")
        assert refuse(model, pictures / "9-cut.png") == "No image can be read: 1 of 1 are unreadable."
    assert "is a bundle, which runs on the CPU" in refuse(bundle("onnx"), pictures, "--device", "cuda")


@pytest.mark.parametrize(("kind", "file"), [("onnx", "model.onnx"), ("pt2", "model.pt2"), ("openvino", "model.xml")])
def test_a_model_that_its_runtime_does_not_take(kind: str, file: str, pictures: Path, tmp_path: Path) -> None:
    for entry in bundle(kind).iterdir():
        (tmp_path / entry.name).write_bytes(entry.read_bytes())
    (tmp_path / file).write_bytes(b"no model at all")
    assert f"{file} is damaged: it is not the file that was verified" in refuse(tmp_path, pictures)
    write_json(tmp_path / ABOUT, describe(read_bundle(bundle(kind)), tmp_path))  # as if that were right
    assert f"{file} can't be run (" in refuse(tmp_path, pictures)


def test_the_table_is_the_same(pictures: Path, tmp_path: Path) -> None:
    tables = []
    for model in (trained_run(), bundle("onnx")):
        target = tmp_path / "table.csv"
        outcome = CliRunner().invoke(APP, [str(model), str(pictures), "--csv", str(target), "--top", "2"])
        assert outcome.exit_code == 0, outcome.output
        assert outcome.stderr.endswith(f"8 images predicted, 2 unreadable skipped. Wrote {target}.\n")
        tables.append([line.split(",")[:2] for line in target.read_text().splitlines()])
    assert tables[0] == tables[1]
