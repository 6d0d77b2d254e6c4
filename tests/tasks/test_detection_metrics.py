"""Average precision is COCO's, for boxes and masks, however the images are shared among processes."""

import contextlib
import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from nearsight.data import open_data
from nearsight.tasks.detection_metrics import DetectionMeter, ImageRecord, image_scores, measure_detections


def annotated(boxes, labels, crowd=None, area=None):
    boxes = np.array(boxes, dtype=np.float32).reshape(-1, 4)
    sides = boxes[:, 2:] - boxes[:, :2]
    return {
        "boxes": boxes,
        "labels": np.array(labels, dtype=np.int64),
        "crowd": np.zeros(len(boxes), dtype=bool) if crowd is None else np.array(crowd),
        "area": sides.prod(axis=1) if area is None else np.array(area),
    }


def predictions(boxes, labels, scores):
    return {
        "boxes": np.array(boxes, dtype=np.float32).reshape(-1, 4),
        "labels": np.array(labels, dtype=np.int64),
        "scores": np.array(scores, dtype=np.float32),
    }


def noisy(truth, classes, size, random):
    """Detections as a middling detector gives them: moved, mislabelled, doubled, invented."""
    height, width = size
    boxes = truth["boxes"] + random.normal(0, 0.06, truth["boxes"].shape) * np.tile(
        truth["boxes"][:, 2:] - truth["boxes"][:, :2], 2
    )
    invented = random.uniform(0, 1, (6, 4)) * [width, height, width, height]
    boxes = np.concatenate([boxes, boxes + random.normal(0, 2, boxes.shape), invented])
    boxes = np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:]) + 1], axis=1)
    labels = np.concatenate([truth["labels"], truth["labels"], random.integers(0, classes, 6)])
    wrong = random.random(len(labels)) < 0.1
    labels[wrong] = random.integers(0, classes, wrong.sum())
    return predictions(boxes.clip(0, [width, height, width, height]), labels, random.random(len(labels)))


def coco_mini():
    folder = os.environ.get("NEARSIGHT_DATA")
    if not folder or not (Path(folder) / "coco_mini.zip").is_file():
        pytest.skip("NEARSIGHT_DATA names no folder with coco_mini.zip")
    return Path(folder) / "coco_mini.zip"


@pytest.fixture(scope="module")
def real():
    """Noisy detections on all validation images of a part of COCO."""
    from faster_coco_eval.core import mask as codec

    data = open_data(coco_mini())
    random = np.random.default_rng(0)
    records = {}
    for index in range(len(data.val)):
        found = data.val.annotation(index)
        truth = found.ground_truth()
        predicted = noisy(truth, len(data.classes), found.size, random)
        masks = found.dense()
        rles = []
        for n in range(len(predicted["labels"])):
            mask = np.zeros(found.size, dtype=np.uint8)
            if n < 2 * len(masks):
                mask |= np.roll(masks[n % len(masks)], random.integers(-4, 5, 2), axis=(0, 1))
            left, top, right, bottom = predicted["boxes"][n].astype(int)
            if n % 3 == 0:
                mask[top:bottom, left:right] = 1
            rles.append(codec.encode(np.asfortranarray(mask)))
        records[index] = ImageRecord.of({**predicted, "rles": rles}, truth, found.size)
    return data, records


def by_pycocotools(data, records, kind):
    """The same detections through COCO's own evaluation, with its own annotations file."""
    import zipfile

    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    content = json.loads(zipfile.ZipFile(coco_mini()).read("annotations/instances_val.json"))
    ids = {entry["file_name"]: entry["id"] for entry in content["images"]}
    categories = {entry["name"]: entry["id"] for entry in content["categories"]}
    results = []
    for index, record in records.items():
        for n, (left, top, right, bottom) in enumerate(record.prediction["boxes"].astype(float).tolist()):
            extent = {"bbox": [left, top, right - left, bottom - top]}
            if kind == "segm":
                rle = record.prediction["rles"][n]
                extent = {"segmentation": {"size": list(rle["size"]), "counts": rle["counts"]}}
            results.append(
                {
                    "image_id": ids[data.val.name(index)],
                    "category_id": categories[data.classes[record.prediction["labels"][n]]],
                    "score": float(record.prediction["scores"][n]),
                    **extent,
                }
            )
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = content
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


@pytest.mark.parametrize(("kind", "type"), [("boxes", "bbox"), ("masks", "segm")])
def test_real_annotations_with_noisy_detections_give_what_pycocotools_gives(real, kind, type) -> None:
    data, records = real
    metrics, reference = measure_detections(records, len(data.classes), kind), by_pycocotools(data, records, type)
    ours = [metrics.ap, metrics.ap50, metrics.ap75, metrics.small, metrics.medium, metrics.large]
    assert 0.1 < metrics.ap < 0.9  # neither all right nor all wrong
    np.testing.assert_allclose(ours, reference.stats[:6], atol=1e-3)
    assert metrics.recall == pytest.approx(reference.stats[8], abs=1e-3)
    precision = reference.eval["precision"][:, :, :, 0, -1]
    per_class = [p[p > -1].mean() if (p > -1).any() else np.nan for p in np.moveaxis(precision, 2, 0)]
    np.testing.assert_allclose(metrics.classes, per_class, atol=1e-3)


def test_f1_is_that_of_the_best_threshold(real) -> None:
    data, records = real
    metrics = measure_detections(records, len(data.classes))
    harmonic = 2 * metrics.precision_at * metrics.recall_at / (metrics.precision_at + metrics.recall_at)
    assert metrics.f1 == pytest.approx(harmonic)
    by_image = image_scores(records, metrics.threshold)
    assert set(by_image) == set(records)
    assert 0 <= min(by_image.values()) < max(by_image.values()) <= 1


def test_f1_counted_by_hand() -> None:
    truth = annotated([[0, 0, 10, 10], [20, 20, 40, 40], [60, 60, 80, 80]], [0, 1, 1])
    predicted = predictions(
        [[0, 0, 10, 10], [21, 20, 41, 40], [21, 21, 40, 40], [60, 60, 80, 80], [0, 50, 9, 59]],
        [0, 1, 1, 0, 1],
        [0.9, 0.8, 0.7, 0.6, 0.5],
    )
    records = {0: ImageRecord.of(predicted, truth, (100, 100))}
    metrics = measure_detections(records, classes=2)
    # Two right of two at 0.8, three objects: 2 * 2 / (2 + 3); a double, a wrong class and an invention add nothing.
    assert metrics.f1 == pytest.approx(0.8)
    assert metrics.threshold == pytest.approx(0.8)
    assert (metrics.precision_at, metrics.recall_at) == (1.0, pytest.approx(2 / 3))
    assert image_scores(records, 0.0)[0] == pytest.approx(2 * 2 / (5 + 3))


def test_predictions_on_a_crowd_neither_help_nor_harm() -> None:
    person = [10, 10, 30, 30]
    inside = [[42, 42, 60, 60], [60, 60, 90, 90]]
    truth = annotated([person, [40, 40, 100, 100]], [0, 0], crowd=[False, True])
    with_crowd = ImageRecord.of(predictions([*inside, person], [0, 0, 0], [0.9, 0.8, 0.7]), truth, (100, 100))
    without = ImageRecord.of(predictions([person], [0], [0.7]), annotated([person], [0]), (100, 100))
    for record in (with_crowd, without):
        metrics = measure_detections({0: record}, classes=1)
        assert (metrics.ap, metrics.f1, metrics.objects) == (pytest.approx(1.0), 1.0, 1)


def test_only_the_hundred_top_scoring_predictions_of_an_image_count() -> None:
    truth = annotated([[0, 0, 10, 10]], [0])
    many = predictions([[50, 50, 60, 60]] * 100 + [[0, 0, 10, 10]], [0] * 101, np.linspace(1, 0.5, 101))
    assert measure_detections({0: ImageRecord.of(many, truth, (100, 100))}, classes=1).ap == 0


def test_sizes_are_those_that_the_annotations_say() -> None:
    """COCO's areas are of masks, which a box of 40 × 40 may fill but a little."""
    truth = annotated([[0, 0, 40, 40]], [0], area=[500.0])
    record = ImageRecord.of(predictions([[0, 0, 40, 40]], [0], [1.0]), truth, (100, 100))
    metrics = measure_detections({0: record}, classes=1)
    assert metrics.small == pytest.approx(1.0)
    assert np.isnan([metrics.medium, metrics.large]).all()


def test_images_without_objects_and_data_without_predictions() -> None:
    records = {0: ImageRecord.of(predictions([], [], []), annotated([], []), (50, 50))}
    metrics = measure_detections(records, classes=2)
    assert np.isnan([metrics.ap, metrics.f1]).all()
    assert metrics.to_dict(["a", "b"])["ap"] is None
    records[1] = ImageRecord.of(predictions([], [], []), annotated([[0, 0, 10, 10]], [1]), (50, 50))
    metrics = measure_detections(records, classes=2)
    assert (metrics.ap, metrics.f1, metrics.images, metrics.objects) == (0, 0, 2, 1)
    assert np.isnan(metrics.classes[0])
    assert metrics.classes[1] == 0
    assert image_scores(records, 0.5) == {0: 1.0, 1: 0.0}
    with pytest.raises(ValueError, match="No image was evaluated"):
        measure_detections({}, classes=1)


def test_processes_can_hand_their_parts_to_each_other(real, monkeypatch) -> None:
    data, whole = real
    first, second = DetectionMeter(len(data.classes)), DetectionMeter(len(data.classes))
    for number, record in whole.items():
        (first if number % 2 else second).records[number] = record
    second.records[1] = whole[1]  # padding repeats an image in two processes
    parts = [first.records, pickle.loads(pickle.dumps(second.records))]
    monkeypatch.setattr("accelerate.utils.gather_object", lambda mine: parts)
    first.gather()
    expected = measure_detections(whole, len(data.classes), "masks").ap
    assert first.metrics().masks.ap == pytest.approx(expected, abs=1e-12)


@pytest.mark.drill
def test_five_thousand_images_take_less_than_a_minute() -> None:
    import time

    random = np.random.default_rng(0)
    records = {}
    for number in range(5000):
        corners = random.uniform(0, 400, (7, 2))
        truth = annotated(
            np.concatenate([corners, corners + random.uniform(8, 200, (7, 2))], axis=1), random.integers(0, 80, 7)
        )
        corners = random.uniform(0, 400, (100, 2))
        boxes = np.concatenate([corners, corners + random.uniform(8, 200, (100, 2))], axis=1)
        found = predictions(boxes, random.integers(0, 80, 100), random.random(100))
        records[number] = ImageRecord.of(found, truth, (640, 640))
    start = time.process_time()
    assert measure_detections(records, classes=80).images == 5000
    assert time.process_time() - start < 60
