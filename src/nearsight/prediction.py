"""What a model sees in images, and where that goes: to the screen, into a table, into files. Bundles need no torch."""

import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .atomic import write_whole, writing
from .data.image import decode
from .runs.predictor import Predictor, load
from .tasks.predictions import Prediction

if TYPE_CHECKING:
    import torch


def predict(
    source: str | os.PathLike[str] | Predictor,
    images: Any,
    *,
    top: int = 5,
    min_score: float | None = None,
    batch: int | None = None,
    workers: int | None = None,
    device: "torch.device | str | None" = None,
    progress: Callable[[Any], Any] = iter,
) -> Iterator[Prediction]:
    """Say what is in images, one after the other; an unreadable image comes with its problem.

    Args:
        source: Folder of a finished run, its weight file, a bundle, a model's name, or what `nearsight.load` returned.
        images: Image files, folders whose images at any depth are meant, arrays, tensors, Pillow images, or a stream of
            these; see `Predictor.predict`.
        top: Of a classifier: how many classes text and tables name.
        min_score: Of a detector: score that an object needs; None takes what was best in the training.
        batch: Images at a time; None takes 64, of a detector or segmenter 8.
        workers: Processes (for a bundle: threads) that read images; None follows the machine.
        device: Where to compute; None takes a GPU if there is one. Bundles run on the CPU.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: Before any work: there is no finished model, no such file, or no image in a folder.

    Example:
        >>> from PIL import Image
        >>> for prediction in predict("localvit_nano", [Image.new("RGB", (40, 30))]):
        ...     print(prediction.image, len(prediction.top(2)))
        image 0 2
    """
    return load(source).predict(
        images, top=top, min_score=min_score, batch=batch, workers=workers, device=device, progress=progress
    )


class Output(Protocol):
    """Takes predictions in their order."""

    def add(self, prediction: Prediction) -> None:
        """Write what was predicted for an image."""


@contextmanager
def open_output(*, csv: Path | None, jsonl: Path | None, as_json: bool) -> Iterator[Output]:
    """The output that was asked for; without any, text on the screen."""
    if csv is not None or jsonl is not None:
        with writing(csv or jsonl or "") as file:
            stream = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
            yield CsvTable(stream) if csv is not None else JsonLines(stream)
            stream.flush()
            stream.detach()
    elif as_json:
        output = JsonArray(sys.stdout)
        yield output
        output.close()
    else:
        yield Screen(sys.stdout)


def is_table(head: bytes) -> bool:
    """Whether a file begins like a table of predictions."""
    return head.startswith((b"image,class_1,probability_1", b"image,class,score,x1,", b"image,class,fraction,pixels"))


def is_json_lines(head: bytes) -> bool:
    """Whether a file begins like predictions as JSON lines."""
    return head.startswith(b'{"image": ')


class CsvTable:
    """Rows for each image: its path, then what the prediction has columns for."""

    def __init__(self, stream: TextIO):
        self.writer = csv.writer(stream, lineterminator="\n")
        self.begun = False

    def add(self, prediction: Prediction) -> None:
        """Write the rows of an image, and the titles above the first."""
        if not self.begun:
            self.writer.writerow(prediction.columns())
            self.begun = True
        self.writer.writerows(prediction.rows())


class JsonLines:
    """An object on a line for each image."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def add(self, prediction: Prediction) -> None:
        """Write a line."""
        self.stream.write(json.dumps(prediction.to_dict(), ensure_ascii=False) + "\n")


class JsonArray:
    """One array of objects, which grows as it goes."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.separator = "[\n"

    def add(self, prediction: Prediction) -> None:
        """Write an element."""
        self.stream.write(f"{self.separator}  {json.dumps(prediction.to_dict(), ensure_ascii=False)}")
        self.separator = ",\n"

    def close(self) -> None:
        """End the array."""
        self.stream.write("[]\n" if self.separator == "[\n" else "\n]\n")


class Screen:
    """For people."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def add(self, prediction: Prediction) -> None:
        """Print what was predicted."""
        print(prediction.text(), file=self.stream, flush=True)


class Folder:
    """Files about each image: it is drawn, and what other programs read; at the end files about all images.

    Images with the same name in different folders are numbered.

    Attributes:
        written: What the folder holds, in words.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.written: dict[str, None] = {}
        self._taken: Counter[str] = Counter()
        self._kept: list[Prediction] = []

    def add(self, prediction: Prediction) -> None:
        """Write the files of an image."""
        path = Path(prediction.image)
        self._taken[path.stem] += 1
        count = self._taken[path.stem]
        stem = path.stem if count == 1 else f"{path.stem}-{count}"
        for name, content in prediction.files(stem, decode(str(path), path)).items():
            write_whole(self.folder / name, content)
            self.written["images" if "/" not in name else f"{name.partition('/')[0]}/"] = None
        self._kept.append(prediction.light())

    def close(self, kind: type[Prediction]) -> None:
        """Write the files about all images."""
        for name, content in kind.files_of_all(self._kept).items():
            write_whole(self.folder / name, content)
            self.written[name] = None


def write_files(predictions: Iterable[Prediction], folder: str | os.PathLike[str]) -> Folder:
    """Draw predictions of image files into a folder, with what other programs read; unreadable images are left out.

    A detector's instances become `objects.json` in COCO's format, a segmenter's maps PNGs of class numbers in
    `regions/`.
    """
    output, kind = Folder(Path(folder)), Prediction
    for prediction in predictions:
        if prediction.problem is None:
            output.add(prediction)
            kind = type(prediction)
    output.close(kind)
    return output
