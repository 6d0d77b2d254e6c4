"""What the model says is what it says when it is asked by hand."""

import numpy as np
import pytest
import torch
from PIL import Image

from nearsight.data import open_data
from nearsight.data.image import Files
from nearsight.data.samples import Subset
from nearsight.evaluation import collect, evaluate
from nearsight.runs.predictor import load_trained, pick_device
from nearsight.tasks.classify import TASK
from tests.rounding import assert_rounded

CPU = torch.device("cpu")


def test_predictions_are_those_of_the_model(digits_run) -> None:
    trained, split = load_trained(digits_run), Subset(open_data("digits").test, np.arange(5, 25))
    batches = list(TASK.eval_loader(split, trained.preprocessing, batch=7, workers=0))
    found = [
        one
        for batch in batches
        for one in TASK.predict(trained.model, batch, trained.preprocessing, CPU, trained.classes)
    ]
    for row in (0, 13, 19):
        small = np.asarray(split.read(row).resize((32, 32), Image.Resampling.BICUBIC), dtype=np.float32) / 255
        mean, std = np.float32(trained.preprocessing.mean), np.float32(trained.preprocessing.std)
        shown = torch.from_numpy(((small - mean) / std).transpose(2, 0, 1))[None]
        with torch.no_grad():
            expected = trained.model(shown)[0].double().softmax(0).numpy()
        assert_rounded(found[row].probabilities, expected, trained.model)
        assert found[row].image == split.name(row)
    meter, _ = collect(trained, split, batch=7)
    assert [one.label for one in meter.ranked()] == split.labels.tolist()
    assert meter.indices.tolist() == list(range(20))


def test_twice_the_same(digits_run) -> None:
    split = Subset(open_data("digits").test, np.arange(30))
    first, second = (collect(load_trained(digits_run), split, batch=16)[0].records for _ in range(2))
    assert first == second


def make_files(folder, contents: dict[str, bytes | None]) -> Files:
    for name, content in contents.items():
        if content is None:
            Image.new("RGB", (20, 20), "red").save(folder / name)
        else:
            (folder / name).write_bytes(content)
    return Files(str(folder), list(contents), np.zeros(len(contents), dtype=np.int64))


def test_unreadable_images_are_named(digits_run, tmp_path) -> None:
    split = make_files(tmp_path, {"a.png": None, "b.png": b"junk", "c.png": b"", "d.png": None})
    meter, bad = collect(load_trained(digits_run), split, batch=2)
    assert meter.indices.tolist() == [0, 3]
    assert bad == {
        "b.png": "it holds no image, or one in an unknown format",
        "c.png": "the file is empty",
    }


def test_no_readable_image_is_refused(digits_run, tmp_path) -> None:
    split = make_files(tmp_path, {"a.png": b"junk", "b.png": b"junk"})
    with pytest.raises(ValueError, match=r"None of the 2 images can be read; the first: a\.png \(it holds no image"):
        collect(load_trained(digits_run), split)


def test_broken_weights_are_refused(digits_run) -> None:
    trained = load_trained(digits_run)
    with torch.no_grad():
        next(trained.model.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="gives predictions that are no finite numbers; its weights are damaged"):
        evaluate(trained, "digits")


@pytest.mark.parametrize(
    ("name", "sentence"), [("gpu", "'gpu' is no device; this machine has: "), ("xpu", "There is no device xpu here")]
)
def test_unknown_devices_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        pick_device(name)
