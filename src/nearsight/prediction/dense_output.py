"""What was found in images, as pictures, as files for other programs, and in words."""

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..atomic import write_whole
from ..console import percent
from ..data.formats import coco_answers, index_png
from ..data.image import decode
from ..data.instances import decode_masks
from ..plots.overlays import draw_objects, draw_regions
from .dense import ScenePrediction

NAMED = 4  # classes that a line of words names


def write_scenes(
    predictions: Iterable[ScenePrediction], classes: Sequence[str], folder: Path
) -> Iterator[ScenePrediction]:
    """Write each prediction as it passes by: a picture of it, and its regions as a PNG of class numbers.

    At the end all objects are written as `objects.json`, in COCO's format. Pictures of images with the same name in
    different folders are numbered.
    """
    taken: Counter[str] = Counter()
    found: list[tuple[str, tuple[int, int], dict[str, Any]]] = []
    for prediction in predictions:
        if prediction.problem is None:
            stem = Path(prediction.image).stem
            taken[stem] += 1
            name = stem if taken[stem] == 1 else f"{stem}-{taken[stem]}"
            path = Path(prediction.image)
            image = decode(str(path), path.read_bytes(), None)
            write_whole(folder / f"{name}.png", to_png(draw(image, prediction, classes)))
            if prediction.regions is not None:
                write_whole(folder / "regions" / f"{name}.png", index_png(prediction.regions, classes))
            if prediction.objects is not None:
                found.append((prediction.image, prediction.size, prediction.objects))
        yield prediction
    if found:
        write_whole(folder / "objects.json", json.dumps(coco_answers(found, classes)).encode())


def draw(image: Image.Image, prediction: ScenePrediction, classes: Sequence[str]) -> Image.Image:
    """The image with what was found in it."""
    if prediction.regions is not None:
        return draw_regions(image, prediction.regions, classes)
    objects = prediction.objects or {}
    masks = decode_masks(objects["rles"], prediction.size) if "rles" in objects else None
    return draw_objects(image, objects["boxes"], objects["labels"], classes, objects["scores"], masks)


def to_png(picture: Image.Image) -> bytes:
    """The bytes of a PNG."""
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def in_words(prediction: ScenePrediction, classes: Sequence[str]) -> str:
    """What was found in an image: how many objects of which class, or which class covers how much.

    Example:
        >>> found = {"boxes": np.zeros((3, 4)), "labels": np.array([0, 1, 1]), "scores": np.ones(3)}
        >>> in_words(ScenePrediction("a.jpg", (8, 8), objects=found), ["cat", "dog"])
        'a.jpg: 2 dog, 1 cat'
    """
    if prediction.regions is not None:
        counts = np.bincount(prediction.regions.reshape(-1), minlength=len(classes))
        shares = [(int(count), percent(count / max(counts.sum(), 1))) for count in counts]
    else:
        assert prediction.objects is not None
        counts = np.bincount(prediction.objects["labels"], minlength=len(classes))
        shares = [(int(count), str(count)) for count in counts]
    order = [number for number in np.argsort([-count for count, _ in shares], kind="stable") if shares[number][0]]
    said = [f"{shares[number][1]} {classes[number]}" for number in order[:NAMED]]
    more = [f"{len(order) - NAMED} more"] if len(order) > NAMED else []
    return f"{prediction.image}: {', '.join([*said, *more]) or 'nothing'}"


def as_dict(prediction: ScenePrediction, classes: Sequence[str]) -> dict[str, Any]:
    """What was found in an image, as values that JSON has; masks and maps are in the files."""
    if prediction.regions is not None:
        counts = np.bincount(prediction.regions.reshape(-1), minlength=len(classes))
        shares = {
            name: round(float(count) / prediction.regions.size, 6) for name, count in zip(classes, counts, strict=True)
        }
        return {"image": prediction.image, "size": list(prediction.size), "shares": shares}
    assert prediction.objects is not None
    rows = zip(*(prediction.objects[key].tolist() for key in ("boxes", "labels", "scores")), strict=True)
    objects = [
        {"class": classes[label], "score": round(score, 5), "box": [round(value, 2) for value in box]}
        for box, label, score in rows
    ]
    return {"image": prediction.image, "size": list(prediction.size), "objects": objects}
