"""What a trained model sees in images: any number of files, in constant memory."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..data.files import Files
from ..data.folders import walk
from ..data.image import is_image_name
from ..data.loader import default_workers, eval_loader
from ..data.names import natural_key
from ..evaluate.predictions import Progress, answer, pick_device
from ..trained import Trained, open_trained


class Answer(NamedTuple):
    """A class and how likely the model holds it."""

    name: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What a model says about an image.

    Attributes:
        image: Path of the file.
        answers: The likeliest classes, the likeliest first; none if the image can't be read.
        problem: Why the image can't be read; None if it can.
    """

    image: str
    answers: tuple[Answer, ...]
    problem: str | None = None


def predict(
    run: str | Path | Trained,
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    top: int = 5,
    *,
    batch: int = 64,
    workers: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> Iterator[Prediction]:
    """Say what is in images, one after the other; an unreadable image is answered with its problem.

    Args:
        run: Folder of a finished run, or its weight file, or what `open_trained` returned.
        images: Image files, and folders whose images at any depth are meant.
        top: Answers for each image.
        batch: Images at a time.
        workers: Processes that read images; None follows the machine.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: Before any work: there is no finished model, no such file, or no image in a folder.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from nearsight.train.build import build
        >>> from nearsight.train.recipe import ModelChoice
        >>> from nearsight.trained import save_trained
        >>> folder = Path(tempfile.mkdtemp())
        >>> untrained = build(ModelChoice(name="localvit_nano"), classes=3)
        >>> weights = save_trained(untrained, ("cat", "cow", "dog"), folder / "model.safetensors")
        >>> Image.new("RGB", (40, 30)).save(folder / "dark.png")
        >>> for prediction in predict(folder, folder / "dark.png", top=2):
        ...     print(Path(prediction.image).name, len(prediction.answers))
        dark.png 2
    """
    if top < 1:
        raise ValueError(f"{top} answers were asked for; ask for at least 1.")
    if batch < 1:
        raise ValueError(f"A batch of {batch} images was asked for; it takes at least 1.")
    given = [images] if isinstance(images, (str, os.PathLike)) else images
    paths = find_images([os.fspath(path) for path in given])
    trained = run if isinstance(run, Trained) else open_trained(run)
    place = pick_device(device)
    if workers is None:
        workers = default_workers("folder", place) if len(paths) > batch else 0
    files = Files("", paths, np.zeros(len(paths), dtype=np.int64))
    batches = progress(eval_loader(files, trained.input, batch, workers))
    return answer_batches(trained, files, batches, batch, min(top, len(trained.classes)), place)


def find_images(given: Sequence[str]) -> list[str]:
    """The files that are meant, each once; folders are searched through.

    Raises:
        ValueError: A path is not there, or a folder has no images.
    """
    if not given:
        raise ValueError("No image was named; give image files or folders.")
    missing = [path for path in given if not os.path.exists(path)]
    if missing:
        more = f" (and {len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise ValueError(f"There is no file or folder {missing[0]}{more}; give image files or folders.")
    found: dict[str, None] = {}
    for path in given:
        if os.path.isdir(path):
            inside = sorted(walk(path, "", set()), key=natural_key)
            if not inside:
                raise ValueError(f"The folder {path} has no images in it, at any depth.")
            found |= dict.fromkeys(os.path.join(path, name) for name in inside)
        elif is_image_name(path):
            found[path] = None
        else:
            raise ValueError(f"{path} is no image by its name; give image files (.jpg, .png, ...) or folders.")
    return list(found)


def answer_batches(
    trained: Trained, files: Files, batches: Iterable, batch: int, top: int, device: torch.device
) -> Iterator[Prediction]:
    """The predictions for each file, in order."""
    model = trained.model.to(device)
    for number, group in enumerate(batches):
        rows = {}
        if len(group.indices):
            logits = torch.from_numpy(answer(model, trained.input, group.images, device))
            best = logits.double().softmax(dim=1).topk(top)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            rows = dict(zip(group.indices.tolist(), pairs, strict=True))
        for index in range(number * batch, min((number + 1) * batch, len(files))):
            name = files.name(index)
            if index in rows:
                named = zip(*rows[index], strict=True)
                yield Prediction(name, tuple(Answer(trained.classes[kind], chance) for kind, chance in named))
            else:
                yield Prediction(name, (), group.bad[name])
