"""What a backbone says of images as a table of numbers, and which images are most like another."""

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from .arguments import checked
from .atomic import check_output, expand_home, write_whole
from .checkpoints.pretrained import cache_folder, find_pretrained, why_missing
from .config.recipe import ModelChoice
from .data.formats import csv_bytes
from .data.image import Files
from .data.loader import default_workers
from .data.open import open_any
from .data.samples import Data, Split
from .data.unlabelled import open_images
from .features import extract_features, pool_features
from .network import is_offline
from .runs.images import GivenImages, gather
from .runs.predictor import Predictor, is_path, load_module, pick_device
from .tasks import get_task
from .tasks.base import Built
from .tasks.build import build
from .tasks.classify import held_channels

SUFFIXES = (".parquet", ".npz", ".csv")


@dataclass(frozen=True, eq=False)
class Embedding:
    """Features of images.

    Attributes:
        images: What the images are called `[n]`.
        splits: Split of each `[n]`: `train`, `val`, `test`, or `images` where there are none.
        labels: Class of each as text `[n]`; empty where none is known.
        values: Features `[n, D]`; of a model with a class token this token, then the mean of the patches.
        model: Name of the model.
        bad: Unreadable images, and why they are.

    Example:
        >>> made = embed("digits", model="deit_nano", split="train", limit=40)
        >>> made.values.shape, len(set(made.labels))
        ((40, 192), 10)
        >>> made.similar(made.images[:1], top=1)[0][0].image == made.images[0]
        True
    """

    images: tuple[str, ...]
    splits: tuple[str, ...]
    labels: tuple[str, ...]
    values: NDArray[np.float32]
    model: str
    bad: dict[str, str] = field(default_factory=dict)
    _see: Callable[[Any], NDArray[np.float32]] | None = field(default=None, repr=False)

    def similar(self, queries: Any, *, top: int = 5) -> list[list["Neighbour"]]:
        """The images that are most like others, by the cosine between their features.

        Args:
            queries: Images as `Predictor.predict` takes them; or names among `images`.
            top: How many to name for each.

        Returns:
            For each query its neighbours, the most similar first.

        Raises:
            ValueError: A query can't be read, or the model is not at hand any more.
        """
        if top < 1:
            raise ValueError(f"{top} similar images were asked for; ask for at least 1.")
        numbers = {name: number for number, name in enumerate(self.images)}
        if isinstance(queries, (list, tuple)) and queries and all(isinstance(q, str) and q in numbers for q in queries):
            wanted = self.values[[numbers[name] for name in queries]]
        elif self._see is None:
            raise ValueError("These features were read from a file, without their model; embed the images again.")
        else:
            wanted = self._see(queries)
        known, asked = (torch.nn.functional.normalize(torch.from_numpy(v), dim=1) for v in (self.values, wanted))
        found = (asked @ known.T).topk(min(top, len(self.images)), dim=1)
        rows = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return [
            [Neighbour(self.images[i], self.splits[i], self.labels[i], round(c, 6)) for i, c in zip(*row, strict=True)]
            for row in rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """What the features are of, without the numbers."""
        count, width = self.values.shape
        return {"model": self.model, "images": count, "features": width, "unreadable": self.bad}

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a table: `.parquet` (a list of numbers in each row), `.npz` (arrays) or `.csv` (a column for each).

        Raises:
            ValueError: The name ends in something else, a package is missing, or another file is in the way.
        """
        path = Path(path)
        check_suffix(path)
        check_output(path, inputs=[], is_ours=is_features, force=force, option="--out")
        writers = {".parquet": self._parquet, ".npz": self._npz, ".csv": self._csv}
        write_whole(path, writers[path.suffix]())
        return path

    def _parquet(self) -> bytes:
        import pyarrow
        from pyarrow import parquet

        width = self.values.shape[1]
        rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(self.values.reshape(-1)), width)
        columns = {"image": list(self.images), "split": list(self.splits), "label": list(self.labels)}
        table = pyarrow.table({**columns, "features": rows})
        table = table.replace_schema_metadata({"nearsight_features": self.model})
        file = io.BytesIO()
        parquet.write_table(table, file)
        return file.getvalue()

    def _npz(self) -> bytes:
        file = io.BytesIO()
        texts = {"nearsight_features": (self.model,), "image": self.images, "split": self.splits, "label": self.labels}
        arrays = {key: np.array(value, dtype=np.str_) for key, value in texts.items()}
        np.savez(file, **arrays, features=self.values)  # type: ignore[arg-type]
        return file.getvalue()

    def _csv(self) -> bytes:
        rows: list[Sequence[str]] = [("image", "split", "label", *(f"f{n}" for n in range(self.values.shape[1])))]
        for image, split, label, row in zip(self.images, self.splits, self.labels, self.values, strict=True):
            rows.append((image, split, label, *(f"{value:.8g}" for value in row)))
        return csv_bytes(rows)


@dataclass(frozen=True)
class Neighbour:
    """An image that is like another.

    Attributes:
        image: What it is called.
        split: Where it is.
        label: Its class; empty where none is known.
        similarity: Cosine between the features, at most 1.
    """

    image: str
    split: str
    label: str
    similarity: float


def check_suffix(path: Path) -> None:
    """Refuse a file name before the work."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} does not end in .parquet, .npz or .csv; one of these tells what to write.")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ValueError(f"{path} needs pyarrow; `pip install 'nearsight[parquet]'`, or give a .npz.") from None


def is_features(head: bytes) -> bool:
    """Whether a file begins like what `Embedding.save` writes; of a Parquet file nobody can tell by its beginning."""
    return head.startswith(b"image,split,label,f0") or head[30:].startswith(b"nearsight_features")


@checked
def embed(
    data: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | Predictor | None = None,
    split: str | None = None,
    limit: int | None = None,
    batch: int = 32,
    workers: int | None = None,
    device: "torch.device | str | None" = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embedding:
    """Features of all images, which are kept on the disk: the same call again is done at once.

    Args:
        data: What `nearsight.open_data` takes, or a folder of images without labels.
        model: Folder of a run, a weight file, a model's name, or what `nearsight.load` returned. A name means
            pretrained weights where they are at hand, else random ones. None takes pretrained weights at hand.
        split: `train`, `val` or `test`; None takes all.
        limit: First so many images of each split only.
        batch: Images at a time.
        workers: Processes that read images; None follows the machine.
        device: Where to compute; None takes a GPU if there is one.
        cache: Folder for what is kept; None takes `features` in `$NEARSIGHT_CACHE` or `~/.cache/nearsight`.
        progress: Is told how many images are done, of how many.

    Raises:
        ValueError: There is no such model, or no image.

    Example:
        >>> embed("digits", model="deit_nano", split="test", limit=8).to_dict()
        {'model': 'deit_nano', 'images': 8, 'features': 192, 'unreadable': {}}
    """
    source = os.fspath(data)
    opened = open_any_images(source)
    splits = opened.splits()
    if not splits:
        raise ValueError(f"{source} has no images.")
    built = open_backbone(model, held_channels(next(iter(splits.values()))))
    if split is not None:
        if split not in splits:
            raise ValueError(f"{source} has no split {split}; there are {', '.join(splits)}.")
        splits = {split: splits[split]}
    task, where = get_task("classify"), pick_device(device)
    total, done = sum(min(len(one), limit or len(one)) for one in splits.values()), 0
    kept = expand_home(cache) if cache is not None else cache_folder() / "features"

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    names: list[str] = []
    homes: list[str] = []
    labels: list[str] = []
    values, bad = [], dict[str, str]()
    for home, whole in splits.items():
        images = PlainImages(whole, min(len(whole), limit or len(whole)))
        key = hashlib.sha256(f"{os.path.abspath(source)}\0{home}\0{built.name}\0{limit}".encode()).hexdigest()[:20]
        found = extract_features(
            task,
            built,
            images,
            kept / key,
            fingerprint=fingerprint_of(images, source),
            batch=batch,
            workers=default_workers("folder", where) if workers is None and len(images) > batch else workers or 0,
            device=where,
            progress=advance,
        )
        values.append(found.values.reshape(len(found.values), -1))
        bad |= found.bad
        for index in found.indices.tolist():
            names.append(images.name(index))
            homes.append(home)
            labels.append(whole.label_text(index, opened.classes) if opened.classes else "")

    def see(queries: Any) -> NDArray[np.float32]:
        given = gather(queries)
        shown = given if isinstance(given, Split) else GivenImages(list(given), built.preprocessing.channels)
        rows = []
        for group in task.image_loader(shown, built.preprocessing, batch, 0):
            for name, reason in group.bad.items():
                raise ValueError(f"{name} can't be read: {reason}.")
            with torch.inference_mode():
                pixels = built.preprocessing.normalise(group.images.to(where).float() / 255)
                rows.append(pool_features(built.model, pixels).float().cpu().flatten(1).numpy())
        return np.concatenate(rows)

    together = np.concatenate(values)
    return Embedding(tuple(names), tuple(homes), tuple(labels), together, built.name, bad, see)


class PlainImages(Split):
    """The first images of a split, whatever they are annotated with."""

    def __init__(self, whole: Split, count: int):
        self.whole, self.labels = whole, np.zeros(count, dtype=np.int64)

    def name(self, index: int) -> str:
        return self.whole.name(index)

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        return self.whole.read(index, enough)

    def content(self, index: int) -> bytes:
        return self.whole.content(index)


def open_any_images(source: str) -> Data:
    """Data with what is known of them; a folder of images without classes as one split."""
    path = expand_home(source)
    if path.is_dir() and not any(entry.is_dir() for entry in path.iterdir()):
        return Data(classes=(), train=open_images(source), source=source, kind="images")
    return open_any(source)


def fingerprint_of(images: Split, source: str) -> str:
    """Names, sizes and times of the files: whatever of them changes, features are computed again."""
    digest, path = hashlib.sha256(), expand_home(source)
    whole = images.whole if isinstance(images, PlainImages) else images
    for index in range(len(images)):
        digest.update(images.name(index).encode(errors="surrogateescape"))
        file = whole.path(index) if isinstance(whole, Files) else None
        if file is not None and os.path.exists(file):
            about = os.stat(file)
            digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    if path.is_file():
        about = path.stat()
        digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


def open_backbone(model: str | os.PathLike[str] | Predictor | None, channels: int | None = None) -> Built:
    """The model that features are of; pretrained weights are made fit for images of other channels than RGB.

    Raises:
        ValueError: It gives no features of whole images, or none is at hand.
    """
    if model is None or (isinstance(model, str) and not is_path(model) and not model.startswith("hf:")):
        found = find_pretrained(model, offline=is_offline())
        if found is not None:
            built = build(ModelChoice(name=found.model, weights=str(found.path), channels=channels), 2)
            built.model.eval()
            return built
        if model is None:
            raise ValueError(
                f"No model was named, and {why_missing(None)} Or name a run, a weight file or a model with --model."
            )
    opened = load_module(model)  # type: ignore[arg-type]
    if not get_task(opened.task).is_linear:
        raise ValueError(f"{opened.path or opened.name} was trained to {opened.task}; features are of classifiers.")
    return Built(opened.model, opened.name, None, opened.preprocessing)
