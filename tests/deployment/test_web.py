"""The page that runs a bundle in the browser: the same numbers and predictions as in Python, in a real Chromium."""

import base64
import http.server
import io
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import trained_run
from PIL import Image
from test_dense import HEADS, model

import nearsight
from nearsight.config.recipe import ModelChoice
from nearsight.data.transforms import DensePreprocessing
from nearsight.deployment.web import PACKAGE, VERSION, find_runtime
from nearsight.heads import DenseModel, DenseSpec
from nearsight.models import MODELS
from nearsight.runs.bundle import read_bundle
from nearsight.runs.predictor import save_trained
from nearsight.tasks.base import Built
from nearsight.tasks.build import build
from tests.rounding import assert_rounded


@pytest.fixture(scope="session")
def runtime() -> Path:
    """onnxruntime-web as a download left it; no test downloads it."""
    folder = Path("~/.cache/nearsight").expanduser() / f"{PACKAGE}-{VERSION}"
    if not folder.is_dir():
        pytest.skip(f"{PACKAGE} is not at hand; `make web-runtime` takes it from npm")
    return folder


Open = Callable[..., Any]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens the page of a bundle behind a plain server; its complaints and requests elsewhere fail the test."""
    opened = []

    def make(folder: Path, width: int = 1200) -> Any:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        context = browser.new_context(viewport={"width": width, "height": 900})
        page, said, asked = context.new_page(), list[str](), list[str]()
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        opened.append((server, context, address, said, asked))
        page.goto(address)
        page.wait_for_selector("body[data-state]", timeout=60_000)
        assert page.evaluate("document.body.dataset.state") == "ready", page.inner_text("#status")
        return page

    yield make
    for server, context, address, said, asked in opened:
        context.close()
        server.shutdown()
        server.server_close()
        assert said == []
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def call(page: Any, function: str, content: bytes) -> Any:
    """What a function of the page makes of a file."""
    blob = "new Blob([Uint8Array.from(atob(text), c => c.charCodeAt(0))])"
    return page.evaluate(f"text => ({function})({blob})", base64.b64encode(content).decode())


def photo(width: int, height: int) -> Image.Image:
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image("china.jpg")).resize((width, height))


@pytest.fixture(scope="module")
def classifier(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("web") / "page"
    return nearsight.export(trained_run(), target, format="web", runtime=runtime).folder


def test_the_page_shows_the_model_the_same_numbers_as_python(classifier: Path, open_page: Open) -> None:
    page, bundle = open_page(classifier), read_bundle(classifier)
    for size in ((16, 16), (7, 5), (301, 64), (64, 301), (640, 427)):
        image = photo(*size)
        seen = call(page, "async blob => Array.from((await nearsight.prepare(blob)).numbers)", png(image))
        wanted = bundle.normalise(bundle.show(image, (image.height, image.width))[None])[0]
        np.testing.assert_array_equal(np.array(seen, dtype=np.float32).reshape(wanted.shape), wanted, err_msg=str(size))


def test_the_folder_is_an_ordinary_bundle_that_gives_the_pages_probabilities(classifier: Path, open_page: Open) -> None:
    page, image = open_page(classifier), photo(90, 60)
    (found,) = nearsight.load(classifier).predict(image)
    there = call(page, "async blob => (await nearsight.predict(blob)).classes", png(image))
    assert [one["class"] for one in there[:3]] == [name for name, _ in found.top(3)]
    seen = {one["class"]: one["probability"] for one in there}
    assert_rounded([seen[name] for name in found.classes], found.probabilities, nearsight.load(trained_run()).model)
    assert "MIT" in (classifier / PACKAGE / "LICENSE").read_text()


def test_a_plain_server_gets_threads_where_there_are_cores(classifier: Path, open_page: Open) -> None:
    page = open_page(classifier)
    assert page.evaluate("crossOriginIsolated")
    cores = min(8, page.evaluate("navigator.hardwareConcurrency"))
    assert page.evaluate("nearsight.runtime") == f"WebAssembly, {cores} thread{'s' if cores > 1 else ''}"


def test_a_file_is_chosen_and_its_classes_are_listed(classifier: Path, open_page: Open, tmp_path: Path) -> None:
    page, name = open_page(classifier, width=400), "a photo <b>.png"
    photo(90, 60).save(tmp_path / name)
    page.set_input_files("#file", tmp_path / name)
    page.wait_for_function("nearsight.last !== null")
    (found,) = nearsight.load(classifier).predict(tmp_path / name)
    first = page.inner_text("#found li:first-child span")
    assert first == found.top()[0][0]
    assert page.inner_text("#status").startswith(f"{name}: ") and " ms with WebAssembly" in page.inner_text("#status")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400  # nothing sticks out on a telephone
    assert page.evaluate("document.getElementById('image').width") == 90


def test_a_file_that_is_no_image_gets_a_sentence(classifier: Path, open_page: Open, tmp_path: Path) -> None:
    page, bad = open_page(classifier), tmp_path / "notes.png"
    bad.write_text("these are words")
    page.set_input_files("#file", bad)
    page.wait_for_function("nearsight.last !== null")
    assert page.inner_text("#status").startswith("notes.png can't be read as an image (")


def dense_page(head: str, runtime: Path, folder: Path) -> Path:
    torch.manual_seed(0)
    # Larger weights of this head make all its queries empty.
    made = DenseModel(DenseSpec(MODELS["lit_nano"], HEADS[head]), 3).eval() if head == "detr" else model(head)
    built = Built(made, "lit_nano", None, DensePreprocessing(64, divisor=made.pyramid.multiple))
    folder.mkdir(exist_ok=True)
    save_trained(built, made.task, ("a", "b", "c"), folder / "model.safetensors", {"threshold": 0.0})
    return nearsight.export(folder, format="web", runtime=runtime).folder


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("retinanet", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.drill) for name in ("detr", "mask-rcnn")),
    ],
)
def test_the_page_finds_the_objects_that_python_finds(
    head: str, runtime: Path, open_page: Open, tmp_path: Path
) -> None:
    folder, image = dense_page(head, runtime, tmp_path), photo(200, 150)
    there = call(open_page(folder), "async blob => (await nearsight.predict(blob)).detections", png(image))
    (found,) = nearsight.load(folder).predict(image)
    assert len(there) == len(found.scores) > 0
    there.sort(key=lambda one: [round(value) for value in one["box"]])  # equal scores may come in another order
    order = sorted(range(len(found.boxes)), key=lambda i: [round(value) for value in found.boxes[i].tolist()])
    np.testing.assert_allclose([one["score"] for one in there], found.scores[order], rtol=1e-3)
    np.testing.assert_allclose([one["box"] for one in there], found.boxes[order], atol=0.1)
    assert [one["class"] for one in there] == [found.classes[label] for label in found.labels[order]]


@pytest.mark.slow
def test_the_page_tells_the_class_of_every_pixel_as_python_does(runtime: Path, open_page: Open, tmp_path: Path) -> None:
    folder, image = dense_page("semantic-fpn", runtime, tmp_path), photo(200, 150)
    function = "async blob => Array.from(nearsight.labelsAt(await nearsight.predict(blob), 150, 200))"
    there = np.array(call(open_page(folder), function, png(image))).reshape(150, 200)
    (found,) = nearsight.load(folder).predict(image)
    assert (there == found.labels).mean() > 0.999 and len(np.unique(there)) > 1


def test_the_page_gives_every_label_that_python_gives(runtime: Path, open_page: Open, tmp_path: Path) -> None:
    torch.manual_seed(0)
    built = build(ModelChoice(name="localvit_nano"), classes=3)
    save_trained(built, "multilabel", ("a", "b", "c"), tmp_path / "model.safetensors", {"thresholds": [0.4, 0.6, 0.5]})
    folder = nearsight.export(tmp_path, format="web", runtime=runtime).folder
    image = photo(60, 40)
    there = call(open_page(folder), "async blob => (await nearsight.predict(blob)).classes", png(image))
    (found,) = nearsight.load(folder).predict(image)
    assert {one["class"] for one in there if one["has"]} == set(found.labels)
    seen = {one["class"]: one["probability"] for one in there}
    assert_rounded([seen[name] for name in "abc"], found.probabilities, built.model)


@pytest.mark.drill
def test_the_top_class_of_thirty_photos_is_pythons(
    real_weights: Path, runtime: Path, open_page: Open, tmp_path: Path
) -> None:
    photos = Path(os.environ.get("NEARSIGHT_DATA", "")) / "photos30.zip"
    if not photos.is_file():
        pytest.skip("NEARSIGHT_DATA has no photos30.zip")
    torch.manual_seed(0)
    choice = ModelChoice(name="deit_tiny", weights=str(real_weights / "deit_tiny_patch16_224.safetensors"))
    classes = tuple(map(str, range(1000)))
    save_trained(build(choice, classes=1000), "classify", classes, tmp_path / "model.safetensors")
    folder = nearsight.export(tmp_path, format="web", runtime=runtime).folder
    page, predictor = open_page(folder), nearsight.load(folder)
    with zipfile.ZipFile(photos) as archive:
        files = [archive.read(name) for name in sorted(archive.namelist())]
    assert len(files) == 30
    function = "async blob => (await nearsight.predict(blob)).classes[0].class"
    mine = [found.top()[0][0] for found in predictor.predict(files)]
    assert [call(page, function, content) for content in files] == mine


@pytest.mark.usefixtures("online")
def test_what_is_missing_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARSIGHT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"not at hand; --download takes it from npm"):
        nearsight.export("localvit_nano", tmp_path / "page", format="web")
    with pytest.raises(ValueError, match=r"lacks ort.wasm.min.mjs of onnxruntime-web"):
        nearsight.export("localvit_nano", tmp_path / "page", format="web", runtime=tmp_path)
    with pytest.raises(ValueError, match=r"are for the format web, not for onnx"):
        nearsight.export("localvit_nano", tmp_path / "page", download=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"needs npm, which is not installed"):
        find_runtime(download=True)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error network' >&2\nexit 1\n")
    npm.chmod(0o755)
    with pytest.raises(ValueError, match=r"npm could not bring onnxruntime-web .* \(npm error network\)"):
        find_runtime(download=True)
    assert not (tmp_path / "page").exists() and not (tmp_path / "cache").exists()


def test_a_package_is_found_where_people_unpack_it(runtime: Path, tmp_path: Path) -> None:
    dist = tmp_path / "node_modules" / PACKAGE / "dist"
    dist.parent.mkdir(parents=True)
    dist.symlink_to(runtime)
    for folder in (tmp_path, tmp_path / "node_modules", dist.parent, dist):
        assert find_runtime(folder) == dist


def test_the_description_beside_the_page_is_that_of_the_bundle(classifier: Path) -> None:
    about = json.loads((classifier / "preprocess.json").read_text())
    assert about["kind"] == "onnx" and set(about["files"]) == {"model.onnx"}
