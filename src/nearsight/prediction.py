"""What a model sees in images, and where that goes: to the screen, into a table, into files. Bundles need no torch."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .arguments import checked
from .atomic import check_output, is_own_png, write_whole
from .data.image import decode
from .runs.predictor import Predictions, Predictor, load
from .tasks.predictions import CsvTable, JsonLines, Prediction, writing_rows

if TYPE_CHECKING:
    import torch


@checked
def predict(
    source: str | os.PathLike[str] | Predictor,
    images: Any,
    *,
    top: int = 5,
    min_score: float | None = None,
    batch: int | None = None,
    workers: int | None = None,
    device: "torch.device | str | None" = None,
    tta: str | None = None,
    error_rate: float | None = None,
    progress: Callable[[Any], Any] = iter,
) -> Predictions:
    """Say what is in images, one after the other; an unreadable image comes with its problem.

    A notebook shows the next few predictions beside their images; they are still there to be taken.

    Args:
        source: Folder of a finished run, its weight file, a bundle, a model's name, or what `nearsight.load` returned.
        images: Image files, folders whose images at any depth are meant, arrays, tensors, Pillow images, or a stream of
            these; see `Predictor.predict`.
        top: Of a classifier: how many classes text and tables name.
        min_score: Of a detector: score that an object needs; None takes what was best in the training.
        batch: Images at a time; None takes 64, of a detector or segmenter 8.
        workers: Processes (for a bundle: threads) that read images; None follows the machine.
        device: Where to compute; None takes a GPU if there is one. Bundles run on the CPU.
        tta: Views whose predictions are merged (test-time augmentation), such as `flip` or `flip,scales`.
        error_rate: Of a calibrated classifier: how often the true class may be none of the possible ones.
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
        images,
        top=top,
        min_score=min_score,
        batch=batch,
        workers=workers,
        device=device,
        tta=tta,
        error_rate=error_rate,
        progress=progress,
    )


class Output(Protocol):
    """Takes predictions in their order."""

    def add(self, prediction: Prediction) -> None:
        """Write what was predicted for an image."""


@contextmanager
def open_output(*, csv: Path | None, jsonl: Path | None, as_json: bool) -> Iterator[Output]:
    """The output that was asked for; without any, text on the screen."""
    if csv is not None or jsonl is not None:
        with writing_rows(csv or jsonl or "", CsvTable if csv is not None else JsonLines) as rows:
            yield rows
    elif as_json:
        output = JsonArray(sys.stdout)
        yield output
        output.close()
    else:
        yield Screen(sys.stdout)


def is_drawn(head: bytes) -> bool:
    """Whether a file begins like a drawn image, a map of classes, or all objects in COCO's format."""
    return is_own_png(head) or head.startswith(
        b'{"info": {"description": "Objects that a model found, written by Nearsight"'
    )


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

    Images with the same name in different folders are numbered. Neither images that are read nor files of others are
    written over.

    Args:
        folder: Where to; made if it is not there.
        images: All that is read.
        force: Whether files of others may be written over, but for those that are read.

    Attributes:
        written: What the folder holds, in words.
    """

    def __init__(self, folder: Path, images: Iterable[str | os.PathLike[str]] = (), force: bool | None = None):
        self.folder = folder
        self._force = force
        self._read = {os.path.realpath(path) for path in images}
        self._check("objects.json")  # which is written last
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
            self._check(name)
            write_whole(self.folder / name, content)
            self.written["images" if "/" not in name else f"{name.partition('/')[0]}/"] = None
        self._kept.append(prediction.light())

    def _check(self, name: str) -> None:
        """Refuse to lose what is there under a name; what this object wrote is its own."""
        path = self.folder / name
        read = [path] if os.path.realpath(path) in self._read else []
        check_output(path, inputs=read, is_ours=is_drawn, force=self._force)

    def close(self, kind: type[Prediction]) -> None:
        """Write the files about all images."""
        for name, content in kind.files_of_all(self._kept).items():
            write_whole(self.folder / name, content)
            self.written[name] = None


class LabelFolder:
    """Images with predictions as their labels, in a format that people correct and `nearsight.open_data` opens.

    The images are copied. Those with the same name in different folders are numbered.

    Attributes:
        written: What the folder holds, in words.
    """

    def __init__(self, folder: Path, format: str):
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} holds other files; give an empty or new folder with --out.")
        self.folder, self.format = folder, format
        self.written: dict[str, None] = {}
        self._taken: set[str] = set()
        self._kept: list[tuple[str, Prediction]] = []

    def add(self, prediction: Prediction) -> None:
        """Write the files of an image.

        Raises:
            ValueError: Such predictions have no such format.
        """
        known = prediction.label_formats
        if self.format not in known:
            raise ValueError(f"These predictions can't be written as {self.format}; choose {' or '.join(known)}.")
        path, number = Path(prediction.image), 1
        name = path.name
        while Path(name).stem.casefold() in self._taken:
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        self._taken.add(Path(name).stem.casefold())
        for file, content in prediction.label_files(self.format, name, path.read_bytes()).items():
            write_whole(self.folder / file, content)
            self.written[f"{file.partition('/')[0]}/"] = None
        self._kept.append((name, prediction.light()))

    def close(self, kind: type[Prediction]) -> None:
        """Write the files about all images."""
        for file, content in kind.label_files_of_all(self.format, self._kept).items():
            write_whole(self.folder / file, content)
            self.written[file] = None


def write_labels(predictions: Iterable[Prediction], folder: str | os.PathLike[str], format: str) -> LabelFolder:
    """Write predictions of image files as labels, to be corrected and trained on; unreadable images are left out.

    Args:
        predictions: Of image files, as `predict` gives them.
        folder: New or empty.
        format: `coco`, `yolo` or `voc` of a detector, `masks` of a segmenter, `folders` or `table` of a classifier,
            `table` of several labels an image.

    Raises:
        ValueError: The folder is in use, or such predictions have no such format.

    Example:
        >>> import tempfile, numpy as np
        >>> from PIL import Image
        >>> place = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (40, 30)).save(place / "a.png")
        >>> made = write_labels(predict("localvit_nano", place / "a.png"), place / "labels", "folders")
        >>> [path.name for path in (place / "labels").glob("*/*")]
        ['a.png']
    """
    output, kind = LabelFolder(Path(folder), format), Prediction
    for prediction in predictions:
        if prediction.problem is None:
            output.add(prediction)
            kind = type(prediction)
    if kind is not Prediction:
        output.close(kind)
    return output


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
