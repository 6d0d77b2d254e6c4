"""Objects or regions that a trained model finds in images: any number of files, in constant memory."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from ..data.dense.loader import Collate, Item, SceneBatch, make_scene_loader
from ..data.dense.transforms import SceneInput
from ..data.file_system import find_images
from ..data.image import Files
from ..data.loader import default_workers
from ..data.samples import BadImage
from ..evaluation.predictions import pick_device
from ..runs.predictor import Trained, open_trained
from ..tasks.dense import find_objects, find_regions

BATCH = 8


@dataclass(frozen=True)
class ScenePrediction:
    """What a detector or segmenter finds in an image.

    Attributes:
        image: Path of the file.
        size: Height and width of the upright image.
        objects: Of a detector: arrays `boxes` [n, 4] (x1, y1, x2, y2 in pixels), `labels`, `scores` and, where it finds
            masks, run lengths `rles`.
        regions: Of a segmenter: the class of every pixel `[H, W]`.
        problem: Why the image can't be read; None if it can.
    """

    image: str
    size: tuple[int, int] = (0, 0)
    objects: dict[str, Any] | None = None
    regions: NDArray[np.uint8] | None = None
    problem: str | None = None


class PlainImages(Dataset[Item | BadImage]):
    """Images of which nothing is known, as a detector or segmenter is shown them."""

    def __init__(self, files: Files, input: SceneInput):
        self.files, self.input = files, input

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Item | BadImage:
        try:
            image: Image.Image = self.files.read(index)
        except BadImage as error:
            return error
        original = (image.height, image.width)
        return Item(self.input.prepare(image, original), None, index, {}, original)


def predict_scenes(
    run: str | Path | Trained,
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    least: float = 0.0,
    batch: int = BATCH,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[Any], Any] = iter,
) -> Iterator[ScenePrediction]:
    """Find the objects or regions of images, one after the other; an unreadable image is answered with its problem.

    Args:
        run: Folder of a finished run that detects or segments, or its weight file, or what `open_trained` returned.
        images: Image files, and folders whose images at any depth are meant.
        least: Objects that the model is less sure of are left out.
        batch: Images at a time.
        workers: Processes that read images; None follows the machine.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: Before any work: the model classifies, or there is no such file, or no image in a folder.
    """
    trained = run if isinstance(run, Trained) else open_trained(run)
    if trained.task == "classify":
        raise ValueError(f"{trained.path} classifies whole images; use nearsight.prediction.predict for it.")
    given = [images] if isinstance(images, (str, os.PathLike)) else images
    paths = find_images([os.fspath(path) for path in given])
    place = pick_device(device)
    if workers is None:
        workers = default_workers("folder", place) if len(paths) > batch else 0
    files = Files("", paths, np.zeros(len(paths), dtype=np.int64))
    shown = PlainImages(files, trained.input)
    loader = make_scene_loader(
        shown, workers, Collate(trained.input.divisor, training=False), batch_size=batch, sampler=range(len(files))
    )
    return answer_batches(trained, files, progress(loader), batch, least, place)


def answer_batches(
    trained: Trained, files: Files, batches: Iterable[SceneBatch], batch: int, least: float, device: torch.device
) -> Iterator[ScenePrediction]:
    """What is found in each file, in order."""
    model = trained.model.to(device)
    for number, group in enumerate(batches):
        places = {index: place for place, index in enumerate(group.indices.tolist())}
        find: Any = find_objects if trained.task == "detect" else find_regions
        found = find(model, group, trained.input, device)
        for index in range(number * batch, min((number + 1) * batch, len(files))):
            name = files.name(index)
            if index not in places:
                yield ScenePrediction(name, problem=group.bad[name])
                continue
            size = tuple(group.originals[places[index]].tolist())
            answer = found[places[index]]
            if trained.task == "detect":
                yield ScenePrediction(name, size, objects=sure_of(answer, least))
            else:
                yield ScenePrediction(name, size, regions=answer)


def sure_of(objects: dict[str, Any], least: float) -> dict[str, Any]:
    """Objects that the model is at least so sure of."""
    kept = np.flatnonzero(objects["scores"] >= least)
    return {key: [value[i] for i in kept] if key == "rles" else value[kept] for key, value in objects.items()}
