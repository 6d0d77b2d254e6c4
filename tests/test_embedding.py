"""Features of images as tables, similar images, and what is kept of them."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nearsight
from nearsight import features
from tests.rounding import assert_rounded

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of images: red and blue ones with noise."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, channel in (("red", 0), ("blue", 2)):
        (folder / name).mkdir()
        for number in range(6):
            pixels = rng.integers(0, 60, (24, 24, 3), dtype=np.uint8)
            pixels[:, :, channel] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_features_are_those_of_the_model(photos: Path, tmp_path: Path) -> None:
    predictor = nearsight.load("deit_nano")
    made = nearsight.embed(photos, model=predictor, cache=tmp_path, workers=0)
    assert made.values.shape == (12, 192) and sorted(set(made.labels)) == ["blue", "red"]
    index = made.images.index("red/3.png")
    image = Image.open(photos / "red" / "3.png")
    shown = predictor.preprocessing.normalise(predictor.preprocessing.prepare(image, image.size[::-1])[None] / 255)
    with torch.inference_mode():
        tokens = predictor.model.forward_features(shown)[0]  # the class token, then the patches
    wanted = torch.cat((tokens[0], tokens[1:].mean(0)))
    assert_rounded(made.values[index], wanted, predictor.model)


def test_the_most_similar_images_are_of_the_same_colour(photos: Path, tmp_path: Path) -> None:
    made = nearsight.embed(photos, model="deit_nano", cache=tmp_path, workers=0)
    query = photos / "blue" / "2.png"
    (near,) = made.similar(query, top=6)
    assert near[0].image == "blue/2.png" and near[0].similarity == pytest.approx(1, abs=1e-4)
    assert {one.label for one in near} == {"blue"}
    assert [one.similarity for one in near] == sorted((one.similarity for one in near), reverse=True)
    (again,) = made.similar(["blue/2.png"], top=6)
    assert [one.image for one in again] == [one.image for one in near]
    (pixels,) = made.similar(np.asarray(Image.open(query)), top=1)
    assert pixels[0].image == "blue/2.png"
    with pytest.raises(ValueError, match="can't be read"):
        made.similar([b"no image"])


def test_what_was_computed_is_kept_until_a_file_changes(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    pool = features.pool_features
    monkeypatch.setattr(features, "pool_features", lambda model, x: (seen.append(len(x)), pool(model, x))[1])
    first = nearsight.embed(photos, model="deit_nano", cache=tmp_path, workers=0)
    assert sum(seen) == 12
    second = nearsight.embed(photos, model="deit_nano", cache=tmp_path, workers=0)
    assert sum(seen) == 12 and np.array_equal(first.values, second.values)
    file = photos / "red" / "0.png"
    Image.new("RGB", (24, 24), "green").save(file)
    third = nearsight.embed(photos, model="deit_nano", cache=tmp_path, workers=0)
    assert sum(seen) == 24
    changed = [not np.array_equal(one, other) for one, other in zip(first.values, third.values, strict=True)]
    assert changed == [name == "red/0.png" for name in first.images]


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_tables_hold_names_labels_and_numbers(photos: Path, tmp_path: Path, suffix: str, type_in: Typed) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"features{suffix}"
    words = ("embed", str(photos), "--model", "deit_nano", "--workers", "0", "--cache", str(tmp_path / "kept"))
    code, _, err = type_in(*words, "--out", str(file))
    assert code == 0, err
    made = nearsight.embed(photos, model="deit_nano", cache=tmp_path / "kept", workers=0)
    if suffix == ".npz":
        with np.load(file, allow_pickle=False) as held:
            images, labels, values = held["image"].tolist(), held["label"].tolist(), held["features"]
    elif suffix == ".csv":
        rows = list(csv.reader(file.read_text().splitlines()))[1:]
        images, labels = [row[0] for row in rows], [row[2] for row in rows]
        values = np.array([[float(cell) for cell in row[3:]] for row in rows])
    else:
        from pyarrow import parquet

        table = parquet.read_table(file).to_pydict()
        images, labels, values = table["image"], table["label"], np.array(table["features"])
    assert tuple(images) == made.images and tuple(labels) == made.labels
    np.testing.assert_allclose(values, made.values, rtol=1e-6)
    code, _, err = type_in(*words, "--out", str(file))  # again
    assert (code == 0) == (suffix != ".parquet"), err  # nobody can tell whose a Parquet file is
    file.write_bytes(b"something else")
    code, _, err = type_in(*words, "--out", str(file))
    assert code == 1 and file.read_bytes() == b"something else"


def test_the_command_names_similar_images(photos: Path, tmp_path: Path, type_in: Typed) -> None:
    words = ("embed", str(photos), "--model", "deit_nano", "--workers", "0", "--cache", str(tmp_path))
    code, out, err = type_in(*words, "--query", str(photos / "red" / "4.png"), "--top", "2", "--json")
    assert code == 0, err
    ((query, rows),) = json.loads(out)["similar"].items()
    assert query.endswith("4.png") and rows[0]["image"] == "red/4.png" and rows[1]["label"] == "red"
    for wrong, sentence in (((), "Give --out FILE"), (("--out", "a.txt"), "does not end in .parquet, .npz or .csv")):
        code, _, err = type_in(*words, *wrong)
        assert code == 1 and sentence in err


def test_a_folder_without_classes_will_do_and_a_detector_will_not(photos: Path, tmp_path: Path) -> None:
    made = nearsight.embed(photos / "blue", model="deit_nano", cache=tmp_path, workers=0)
    assert len(made.images) == 6 and set(made.labels) == {""}
    with pytest.raises(ValueError, match="No model was named, and"):
        nearsight.embed(photos, cache=tmp_path)
