"""Every task through every verb, in Python and on the command line, on one tiny run.

A task is tried by a subclass of `TaskTester` that names its data and says what it can do; a new task is one more.
"""

import base64
import importlib
import importlib.util
import inspect
import io
import json
import pkgutil
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image
from typer.main import get_command

import nearsight
from nearsight.app.session import AppSession, PageState
from nearsight.cli.shell import app
from nearsight.comparison import compare as comparing
from nearsight.comparison.plan import make_job
from nearsight.comparison.report import verdict
from nearsight.data.loader import EvalImages
from nearsight.data.open import open_any
from nearsight.runs.predictor import Predictions
from nearsight.runs.run import Outcome
from nearsight.tasks import TASKS
from nearsight.tasks.predictions import Classification, Prediction
from nearsight.training import run_training
from tests.rounding import assert_rounded, rounding

Typed = Callable[..., tuple[int, str, str]]
SMALL = {"batch": 8, "data.workers": 0, "model.img_size": 16}
SMALL_DENSE = {"batch": 4, "data.workers": 0, "dense.min_size": 48}
TINY_DETR = {"dim": 16, "hidden": 16, "queries": 4, "heads": 1, "encoder_layers": 1, "decoder_layers": 1}
WITHOUT_TORCH = """
import sys
from nearsight.cli.shell import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module", autouse=True)
def whole_package() -> None:
    """Import every module before any verb is called: none may take the place of a verb."""
    for module in pkgutil.walk_packages(nearsight.__path__, "nearsight."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@pytest.fixture(scope="class")
def source(request: pytest.FixtureRequest, sources: dict[str, str]) -> str:
    """The data of the tester."""
    return sources[request.cls.data]


@pytest.fixture(scope="class")
def outcome(request: pytest.FixtureRequest, source: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run of the tester."""
    return train(request.cls, source, tmp_path_factory.mktemp(request.cls.task) / "run")


@pytest.fixture(scope="class")
def folder(outcome: Outcome) -> Path:
    """Of the run."""
    assert outcome.folder is not None
    return outcome.folder


@pytest.fixture(scope="class")
def photos(request: pytest.FixtureRequest, source: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four test images as files."""
    split = nearsight.open_data(source, request.cls.task).test
    assert split is not None
    folder = tmp_path_factory.mktemp("photos")
    files = [folder / f"{index}.png" for index in range(min(4, len(split)))]
    for index, file in enumerate(files):
        split.read(index).convert("RGB").save(file)
    return files


def train(tester: "type[TaskTester]", source: str, out: Path) -> Outcome:
    """A run of a tester, by the verb."""
    return nearsight.train(
        source,
        task=tester.task,
        model=tester.models[0],
        epochs=1,
        out=out,
        changes=tester.settings,
        cpu=True,
        quiet=True,
    )


def assert_same(found: Sequence[Prediction], wanted: Sequence[Prediction]) -> None:
    """Predictions are equal in all but the names of the images."""
    for one, other in zip(found, wanted, strict=True):
        assert type(one) is type(other) and one.problem is None
        for name in (field.name for field in fields(one) if field.name not in ("image", "rles")):
            first, second = getattr(one, name), getattr(other, name)
            if isinstance(first, np.ndarray):
                np.testing.assert_array_equal(first, second, err_msg=name)
            else:
                assert first == second, name


def assert_close(found: Any, wanted: Any, tolerance: float) -> None:
    """Values of JSON are equal, numbers as far as a fraction of the largest."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_close(found[key], wanted[key], tolerance)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    else:
        assert found == wanted


class Page(HTMLParser):
    """What HTML for a notebook shows: its text, and what its images are called; they are whole, and in the page."""

    def __init__(self, page: str):
        super().__init__()
        self.images: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        assert tag in {"div", "img", "p", "pre", "table", "tr", "td"}
        assert values.keys() <= {"alt", "colspan", "src", "style"} and "url(" not in (values.get("style") or "")
        if tag == "img":
            kind, _, content = (values["src"] or "").partition(";base64,")
            assert kind in ("data:image/jpeg", "data:image/png")
            Image.open(io.BytesIO(base64.b64decode(content))).load()
            self.images.append(values["alt"] or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_names_of_files_and_classes_are_no_html(tmp_path: Path) -> None:
    path = tmp_path / "<script>\" onerror='x.png"
    Image.new("L", (30, 20)).save(path, "PNG")
    classes = ("<img src=x>", "a & b")
    found = Classification(image=str(path), probabilities=np.array([0.75, 0.25]), classes=classes)
    page = Page(found._repr_html_())
    assert page.images == [str(path)]
    assert all(words in page.text for words in (str(path), *classes, "75.0 %"))
    path.unlink()
    assert not Page(found._repr_html_()).images and classes[0] in Page(found._repr_html_()).text
    assert (
        "the file is cut off" in Page(Prediction(image="\udce4.png", problem="the file is cut off")._repr_html_()).text
    )


def test_a_notebook_shows_a_few_of_many_predictions() -> None:
    frames = (np.full((8, 8, 3), number, dtype=np.uint8) for number in range(20))
    found = nearsight.predict("localvit_nano", frames, batch=4)
    page = Page(found._repr_html_())
    assert page.images == [f"image {number}" for number in range(8)] and "More follow" in page.text
    assert next(frames)[0, 0, 0] == 12  # three batches were read to know that there is a ninth, and no more
    assert len(list(found)) == 19


class TaskTester:
    """What holds for every task."""

    task: str
    data: str  # name among `sources`
    models: tuple[str, str]  # the first is trained and used, both are compared
    settings: dict[str, Any]  # of the recipe, so that an epoch takes a second
    methods: tuple[str, ...] = ("rollout", "attention", "receptive-field")  # of explain
    exports: bool = True  # as ONNX
    legend: bool = False  # whether drawings may have one below the image

    def test_data_are_understood_and_whole(self, source: str, tmp_path: Path, type_in: Typed) -> None:
        assert nearsight.open_data(source, self.task).task == self.task
        code, out, err = type_in("data", "check", source, "--task", self.task, "--json", "--workers", "0")
        assert code == 0, err
        report = json.loads(out)
        assert report["task"] == self.task
        assert set(report["images"]) == {"train", "val", "test"} and not report["unreadable"]
        saved = nearsight.check_data(source, task=self.task, workers=0).save(tmp_path / "report.json")
        assert report | json.loads(saved.read_text()) == report  # which has the patch sizes that fit, too

    def test_the_command_trains_what_the_verb_trains(
        self, source: str, folder: Path, tmp_path: Path, type_in: Typed
    ) -> None:
        settings = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        words = ("train", source, "--task", self.task, "--model", self.models[0], "--epochs", "1", "--cpu", "--quiet")
        code, _, err = type_in(*words, "--out", str(tmp_path / "run"), *settings)
        assert code == 0, err
        for name in ("model.safetensors", "model.json", "recipe.yaml"):
            assert (tmp_path / "run" / name).read_bytes() == (folder / name).read_bytes(), name

    def test_evaluation_finds_what_the_training_found(self, outcome: Outcome, folder: Path) -> None:
        assert outcome.task == self.task and outcome.test is not None
        batch = self.settings["batch"]  # in others kernels round otherwise, and a class that is hardly ahead may change
        tested = nearsight.evaluate(folder, device="cpu", batch=batch)
        assert (tested.split, tested.own, tested.task.name) == ("test", True, self.task)
        assert tested.score == pytest.approx(outcome.test_score, abs=1e-6)
        for key, value in tested.metrics.values().items():
            assert value == pytest.approx(outcome.test[key], abs=1e-5), key
        validated = nearsight.evaluate(folder, split="val", device="cpu", batch=batch)
        assert validated.score == pytest.approx(outcome.val_score, abs=1e-6)

    def test_prediction_gives_what_evaluation_judges(self, source: str, folder: Path) -> None:
        predictor, task = nearsight.load(folder), TASKS[self.task]
        split = nearsight.open_data(source, self.task).test
        assert split is not None
        meter = task.meter(len(predictor.classes), predictor.settings)
        for batch in task.eval_loader(split, predictor.preprocessing, 4, workers=0):
            images = [split.read(index) for index in batch.indices.tolist()]
            meter.add(batch, list(predictor.predict(images, min_score=0.0)))
        judged = nearsight.evaluate(predictor, batch=4)
        allowed = rounding(predictor.model)
        assert meter.metrics().values() == pytest.approx(judged.metrics.values(), abs=allowed, nan_ok=True)
        assert_rounded(meter.scores(), judged.meter.scores(), predictor.model)

    def test_images_may_come_in_any_form(self, folder: Path, photos: list[Path]) -> None:
        predictor = nearsight.load(folder)
        wanted = list(nearsight.predict(predictor, photos, min_score=0.0, workers=0))
        assert [found.image for found in wanted] == [str(file) for file in photos]
        assert any(found.rows() for found in wanted)  # else there is nothing to compare
        images = [Image.open(file) for file in photos]
        arrays = [np.array(image) for image in images]
        tensors = [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]
        streamed = (array / np.float32(255) for array in arrays)
        for given in (photos[0].parent, images, arrays, tensors, streamed):
            assert_same(list(nearsight.predict(predictor, given, min_score=0.0)), wanted)

    def test_a_model_that_is_saved_again_predicts_the_same(
        self, folder: Path, photos: list[Path], tmp_path: Path
    ) -> None:
        first = nearsight.load(folder)
        second = nearsight.load(nearsight.save(first, tmp_path / "again.safetensors"))
        assert (second.task, second.classes, second.settings) == (first.task, first.classes, first.settings)
        assert second.preprocessing == first.preprocessing
        assert_same(list(second.predict(photos)), list(first.predict(photos)))

    def test_predictions_are_values_tables_and_drawings(self, folder: Path, photos: list[Path]) -> None:
        for found in nearsight.predict(folder, photos, min_score=0.0):
            assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
            assert all(len(row) == len(found.columns()) for row in found.rows())
            assert str(found.image) in found.summary() and "\n" not in found.summary()
            image = Image.open(found.image)
            large = image.resize((1000, round(1000 * image.height / image.width)))
            for given, factor in ((large, 1), (image, found.draw(image).width // image.width)):
                drawn = found.draw(given)
                assert drawn.mode == "RGB" and drawn.width == factor * given.width
                below = drawn.height - factor * given.height
                assert below >= 0 if self.legend else below == 0

    def test_a_notebook_shows_images_beside_predictions_and_takes_none(self, folder: Path, photos: list[Path]) -> None:
        predictor = nearsight.load(folder)
        wanted = list(predictor.predict(photos, min_score=0.0))
        arrays = [np.array(Image.open(file)) for file in photos]
        for given, names in (
            (photos, [str(file) for file in photos]),
            (arrays, [f"image {i}" for i in range(len(photos))]),
        ):
            found = predictor.predict(given, min_score=0.0)
            first = next(found)
            page = Page(found._repr_html_())
            assert page.images == names[1:] and all(name in page.text for name in names[1:])
            assert_same([first, *found], wanted)
            assert "No more predictions" in Page(found._repr_html_()).text
        alone = Page(wanted[0]._repr_html_())
        assert alone.images == [str(photos[0])]
        name, value = max(wanted[0].scored(), key=lambda pair: pair[1])
        assert name in alone.text and f"{100 * value:.1f} %" in alone.text

    def test_predictions_are_saved_as_the_command_writes_them(
        self, folder: Path, photos: list[Path], tmp_path: Path, type_in: Typed
    ) -> None:
        bad = tmp_path / "bad.png"
        bad.write_bytes(b"none")
        for kind in ("csv", "jsonl"):
            written = tmp_path / f"typed.{kind}"
            code, _, err = type_in("predict", str(folder), *map(str, [*photos, bad]), f"--{kind}", str(written))
            assert code == 0, err
            with pytest.warns(UserWarning, match=r"^1 unreadable left out, such as .*bad\.png: "):
                saved = nearsight.predict(folder, [*photos, bad]).save(tmp_path / f"saved.{kind}")
            assert saved.read_bytes() == written.read_bytes() and saved.read_bytes()
        with pytest.raises(ValueError, match="was not written by"):
            nearsight.predict(folder, photos).save(folder / "metrics.jsonl")
        with pytest.raises(ValueError, match=r"ends neither in \.csv nor in \.jsonl"):
            nearsight.predict(folder, photos).save(tmp_path / "found.txt")
        with pytest.raises(ValueError, match="No image can be read: 1 of 1"):
            nearsight.predict(folder, bad).save(tmp_path / "none.csv")
        assert not (tmp_path / "none.csv").exists()

    def test_a_notebook_shows_how_a_run_learned(self, outcome: Outcome) -> None:
        page = Page(outcome._repr_html_())
        assert page.images == ["loss and score by epoch"] and repr(outcome) in page.text

    def test_a_notebook_shows_an_evaluation_with_its_figures(self, folder: Path) -> None:
        judged = nearsight.evaluate(folder, device="cpu")
        page = Page(judged._repr_html_())
        assert page.images == [name[:-4] for name in judged.task.files if name.endswith(".png")]
        assert f"{judged.model} on the test images" in page.text and f"{100 * judged.score:.1f} %" in page.text

    def test_commands_print_what_verbs_return(
        self, folder: Path, photos: list[Path], tmp_path: Path, type_in: Typed
    ) -> None:
        code, out, err = type_in("eval", str(folder), "--json", "--out", str(tmp_path / "report"), "--device", "cpu")
        assert code == 0, err
        judged = nearsight.evaluate(folder, device="cpu")
        assert json.loads(out) == json.loads(json.dumps(judged.to_dict()))
        assert {entry.name for entry in (tmp_path / "report").iterdir()} == {"metrics.json", *judged.task.files}
        code, out, err = type_in("predict", str(folder), *map(str, photos), "--json", "--out", str(tmp_path / "drawn"))
        assert code == 0, err
        assert json.loads(out) == [found.to_dict() for found in nearsight.predict(folder, photos)]
        assert {f"{file.stem}.png" for file in photos} <= {entry.name for entry in (tmp_path / "drawn").iterdir()}

    def test_a_comparison_shows_test_images_once(
        self, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_in: Typed
    ) -> None:
        shown, trained = Counter[tuple[str, str]](), []
        test = nearsight.open_data(source, self.task).test
        assert test is not None
        names = {test.name(index) for index in range(len(test))}
        read = EvalImages.read

        def counted(images: EvalImages, index: int) -> Any:
            shown[trained[-1], images.split.name(index)] += 1
            return read(images, index)

        def run_in_this_process(runs: Any, shared: Any, *_: Any) -> dict[Path, str]:
            for run in runs:
                job = make_job(run, shared, threads=1)
                trained.append(run.model.label)
                run_training(job.source, job.recipe, job.folder, quiet=True)
            trained.append("report")
            return {}

        monkeypatch.setattr(EvalImages, "read", counted)
        monkeypatch.setattr(comparing, "run_here", run_in_this_process)
        monkeypatch.setattr(comparing, "ROUNDS", 1)
        monkeypatch.chdir(tmp_path)
        found = nearsight.compare(
            source, self.models, task=self.task, epochs=1, seeds=1, changes=self.settings, out="both", quiet=True
        )
        for label in self.models:
            assert {name for model, name in shown if model == label} >= names
            assert all(shown[label, name] == 1 for name in names)
        examples = {example.name for sort in found.disagreements for example in sort.examples}
        assert {name for label, name in shown if label == "report"} <= examples  # drawn with what the models predict
        assert not found.failures and found.task == self.task and found.metric == TASKS[self.task].metric.title
        for model in found.models:
            (run,) = model.runs
            outcome = json.loads(Path("both", "runs", f"{model.label}-seed0", "outcome.json").read_text())
            assert run.score == pytest.approx(outcome["test_score"], abs=1e-6)
        code, out, _ = type_in("compare", "--report", "both")
        assert code == 0 and verdict(found)[0].split()[0] in out

    def test_maps_are_finite(self, folder: Path, photos: list[Path], tmp_path: Path, type_in: Typed) -> None:
        found = nearsight.explain(folder, photos[0], method=self.methods)
        assert [made.method for made in found] == list(self.methods)
        for made in found:
            numbers = [array for array in made.arrays.values() if array.dtype.kind == "f"]
            assert numbers and all(np.isfinite(array).all() for array in numbers)
        assert any(array.any() for array in found[0].arrays.values())
        code, _, err = type_in("explain", str(folder), str(photos[0]), "--out", str(tmp_path))
        assert code == 0, err
        assert {entry.suffix for entry in tmp_path.iterdir()} == {".png", ".npz"}

    def test_a_bundle_predicts_the_same_without_torch(
        self, folder: Path, source: str, photos: list[Path], tmp_path: Path, type_in: Typed
    ) -> None:
        if not self.exports:
            pytest.skip("is not exported")
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        made = nearsight.export(folder)
        assert made.bundle.task == self.task and nearsight.load(made.folder).task == self.task
        words = ["predict", str(folder), *map(str, photos), "--json", "--min-score", "0", "--out", str(tmp_path)]
        code, wanted, err = type_in(*words)
        assert code == 0, err
        words[1] = str(made.folder)
        run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert_close(json.loads(run.stdout), json.loads(wanted), tolerance=1e-3)
        words = ["eval", str(folder), source, "--split", "test", "--json", "--out", str(tmp_path / "report")]
        code, wanted, err = type_in(*words)
        assert code == 0, err
        words[1] = str(made.folder)
        run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        mine, theirs = json.loads(run.stdout), json.loads(wanted)
        for about in (mine, theirs):
            del about["model"], about["weights"]
        assert_close(mine, theirs, tolerance=5e-3)

    def test_predictions_become_labels_that_open_as_data(
        self, folder: Path, photos: list[Path], tmp_path: Path, type_in: Typed
    ) -> None:
        found = list(nearsight.predict(folder, photos, min_score=0.0))
        assert found[0].label_formats
        for format in found[0].label_formats:
            out = tmp_path / format
            words = (
                "predict",
                str(folder),
                *map(str, photos),
                "--min-score",
                "0",
                "--format",
                format,
                "--out",
                str(out),
            )
            code, _, err = type_in(*words, "--json")
            assert code == 0, err
            data = open_any(str(out / "labels.csv" if format == "table" else out), self.task)
            assert data.task == self.task and set(data.classes) <= set(found[0].classes)
            split = data.train
            assert split is not None and len(split) == len(photos)
            by_name = {Path(split.name(index)).name: index for index in range(len(split))}
            for one in found:
                index = by_name[Path(one.image).name]
                self.same_labels(one, split, index, data.classes)
                assert np.array_equal(np.asarray(split.read(index)), np.asarray(Image.open(one.image)))
            code, _, err = type_in(*words)
            assert code == 1 and "holds other files" in err
        code, _, err = type_in("predict", str(folder), str(photos[0]), "--format", "xml", "--out", str(tmp_path / "no"))
        assert code == 1 and "can't be written as xml; choose" in err

    def same_labels(self, one: Any, split: Any, index: int, classes: tuple[str, ...]) -> None:
        """Whether the label of an image is what was predicted."""
        assert split.label_text(index, classes) == one.top()[0][0]

    def test_a_server_says_what_it_predicts(self, folder: Path, photos: list[Path]) -> None:
        pytest.importorskip("uvicorn")
        jsonschema = pytest.importorskip("jsonschema")
        server = nearsight.serve(folder, port=0, device="cpu", block=False)
        assert server is not None
        with server:
            for wanted in nearsight.predict(folder, photos, min_score=0.0, batch=1, device="cpu"):
                asked = urllib.request.Request(f"{server.url}/predict?min_score=0", Path(wanted.image).read_bytes())
                found = json.load(urllib.request.urlopen(asked))
                assert_close(found, wanted.response() | {"image": "image"}, tolerance=1e-4)
                jsonschema.Draft202012Validator(type(wanted).schema()).validate(found)

    def test_its_speed_is_measured(self, folder: Path, tmp_path: Path, type_in: Typed) -> None:
        file = tmp_path / "bench.json"
        words = ("bench", str(folder), "--batch", "1", "--runtimes", "eager", "--rounds", "1", "--no-memory")
        code, _, err = type_in(*words, "--device", "cpu", "--json", str(file))
        assert code == 0, err
        (model,) = json.loads(file.read_text())["models"]
        assert model["parameters"] == sum(one.numel() for one in nearsight.load(folder).model.parameters())

    def test_the_page_shows_it(self, folder: Path, photos: list[Path]) -> None:
        session = AppSession([str(folder)])
        (block,) = session.blocks(PageState(first=str(folder), image=session.take(photos[0]), point=(0.5, 0.5)))
        assert "<figure" in block and "ns-problem" not in block


class TestClassify(TaskTester):
    task = "classify"
    data = "classes"
    models = ("deit_nano", "localvit_nano")
    settings = SMALL
    methods = (*TaskTester.methods, "grad-cam")


class TestMultilabel(TaskTester):
    task = "multilabel"
    data = "labels"
    models = ("deit_nano", "localvit_nano")
    settings = SMALL
    methods = (*TaskTester.methods, "grad-cam")

    def same_labels(self, one: Any, split: Any, index: int, classes: tuple[str, ...]) -> None:
        assert {classes[number] for number in np.flatnonzero(split.target(index))} == set(one.labels)


class TestDetect(TaskTester):
    task = "detect"
    data = "shapes"
    models = ("dwnet_nano", "lit_nano")
    settings = SMALL_DENSE | {"model.head": "detr"} | {f"model.head_options.{k}": v for k, v in TINY_DETR.items()}
    legend = True

    def same_labels(self, one: Any, split: Any, index: int, classes: tuple[str, ...]) -> None:
        truth = split.annotation(index, one.size)
        assert [classes[number] for number in truth.labels] == [one.classes[number] for number in one.labels]
        np.testing.assert_allclose(truth.boxes, one.boxes, atol=0.02)


class TestSegment(TaskTester):
    task = "segment"
    data = "shapes"
    models = ("dwnet_nano", "lit_nano")
    settings = SMALL_DENSE | {"model.head": "linear"}

    def same_labels(self, one: Any, split: Any, index: int, classes: tuple[str, ...]) -> None:
        names = np.array([*classes, "none"])
        truth = np.where(split.annotation(index) == 255, len(classes), split.annotation(index))
        assert (names[truth] == np.array(one.classes)[one.labels]).all()

    methods = (*TaskTester.methods, "dense-rollout")
    legend = True


def test_every_task_is_tried() -> None:
    assert {tester.task for tester in TaskTester.__subclasses__()} == set(TASKS)


VERBS = [name for name in nearsight.__all__ if name[0].islower() and name not in ("explanation", "models", "parts")]
COMMANDS = {
    name: name
    for name in ("train", "distill", "predict", "explain", "export", "push", "compare", "search", "bench", "convert")
}
COMMANDS |= {"eval": "evaluate", "probe": "probe", "models": "describe_models", "app": "launch_app", "serve": "serve"}
COMMANDS |= {"doctor": "doctor", "embed": "embed"}
COMMANDS |= {"calibrate": "calibrate"}
COMMANDS |= {"data check": "check_data", "weights": "list_pretrained", "weights get": "get_pretrained"}
COMMANDS |= {"data make shapes": "make_shapes", "reproduce": "reproduce"}
# What belongs to a terminal: where printed results go, and how they look.
PRINTED = {"as_json", "json", "csv", "jsonl", "plot", "force", "quiet", "offline"}
SPOKEN = {"changes": "set", "classes": "class", "as_json": "json"}  # options that Python has other names for


def all_commands(group: Any, before: str = "") -> Iterator[str]:
    """The whole names of a group's commands; of a group that does something by itself also its own."""
    for name, command in group.commands.items():
        if not command.hidden:
            if not hasattr(command, "commands") or command.invoke_without_command:
                yield before + name
            if hasattr(command, "commands"):
                yield from all_commands(command, f"{before}{name} ")


def test_every_command_has_a_verb() -> None:
    assert set(all_commands(get_command(app))) == set(COMMANDS)
    assert set(COMMANDS.values()) <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_stay_functions(verb: str) -> None:
    assert inspect.isfunction(getattr(nearsight, verb))
    assert importlib.util.find_spec(f"nearsight.{verb}") is None
    # Its example calls it, and runs as a test where every module has been imported (`--doctest-modules`).
    assert re.search(rf"(>>>|\.\.\.) .*\b{verb}\(", getattr(nearsight, verb).__doc__)


# What other verbs than these return goes to JSON and into a file.
NOT_SAVED = {"create_model", "load_official", "localize", "fold", "load", "load_recipe", "open_data"}  # to work with
NOT_SAVED |= {"convert", "save", "list_models", "make_shapes", "launch_app", "serve"}  # paths, names, what is running


@pytest.mark.parametrize("verb", sorted(set(VERBS) - NOT_SAVED))
def test_what_a_verb_returns_goes_to_json_and_into_a_file(verb: str) -> None:
    function = getattr(nearsight, verb)
    found = get_type_hints(function, vars(sys.modules[function.__module__]) | {"torch": torch})["return"]
    kinds = get_args(found) if get_origin(found) in (Union, UnionType) else (get_origin(found) or found,)
    for kind in kinds:
        assert callable(kind.save) and (kind is Predictions or callable(kind.to_dict))
        assert kind.__repr__ is not object.__repr__ or hasattr(kind, "_repr_html_")


def test_rows_of_models_are_a_list_a_table_and_a_file(tmp_path: Path) -> None:
    found = nearsight.describe_models("lit_s*")
    assert found == [nearsight.describe_models("lit_small")[0]] and isinstance(found, list)
    saved = json.loads(found.save(tmp_path / "models.json").read_text())
    assert saved == found.to_dict() and saved["rows"][0]["parameters"] == 27973720
    page = Page(found._repr_html_())
    assert all(words in page.text for words in ("lit_small", "parameters", "27973720", "Global ×12/24"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_verb_takes_what_its_command_takes(command: str) -> None:
    verb = inspect.signature(getattr(nearsight, COMMANDS[command])).parameters
    found = get_command(app)
    for word in command.split():
        found = found.commands[word]  # type: ignore[attr-defined]
    for parameter in found.params:
        name = parameter.name
        assert name in verb or name in PRINTED | ONLY_TYPED.get(command, set()), name
        if parameter.param_type_name == "option":
            assert f"--{SPOKEN.get(name, name).replace('_', '-')}" in parameter.opts, name
        if name in verb and not parameter.required and not isinstance(parameter.default, Path):
            assert parameter.default in (None, verb[name].default) or parameter.default == str(verb[name].default), name


ONLY_TYPED = {
    "eval": {"out"},  # the result has save()
    "predict": {"out", "format", "least"},  # an old name, hidden
    "embed": {"out", "query", "top"},  # the result has save() and similar()
    "explain": {"out", "score", "limit"},  # score is a verb of its own
    "compare": {"report"},
    "data check": {"fix_list", "strict", "page"},  # the result has to_remove and problems
    "reproduce": {"markdown"},  # the page in docs/
    "probe": {"modules", "tables", "draw"},  # the verb takes one module; tables and figures are the page's
}
