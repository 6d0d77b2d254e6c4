"""What a model sees in images: any number of files, in constant memory."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.file_system import find_images
from ..runs.bundle import is_bundle
from .values import Prediction

if TYPE_CHECKING:
    import torch

    from ..runs.predictor import Trained


def predict(
    run: "str | Path | Trained",
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    top: int = 5,
    *,
    batch: int = 64,
    workers: int | None = None,
    device: "torch.device | str | None" = None,
    progress: Callable[[Any], Any] = iter,
) -> Iterator[Prediction]:
    """Say what is in images, one after the other; an unreadable image is answered with its problem.

    Args:
        run: Folder of a finished run, or its weight file, or what `open_trained` returned, or the folder of a bundle
            that `nearsight.deployment.export` wrote.
        images: Image files, and folders whose images at any depth are meant.
        top: Answers for each image.
        batch: Images at a time.
        workers: Processes (for a bundle: threads) that read images; None follows the machine.
        device: Where to compute; None takes a GPU if there is one. Bundles run on the CPU.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: Before any work: there is no finished model, no such file, or no image in a folder.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from nearsight.tasks.build import build
        >>> from nearsight.config.recipe import ModelChoice
        >>> from nearsight.runs.predictor import save_trained
        >>> folder = Path(tempfile.mkdtemp())
        >>> untrained = build(ModelChoice(name="localvit_nano"), classes=3)
        >>> weights = save_trained(untrained, "classify", ("cat", "cow", "dog"), folder / "model.safetensors")
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
    if isinstance(run, (str, os.PathLike)) and is_bundle(run):
        from .bundle import predict_with_bundle

        if device not in (None, "cpu"):
            raise ValueError(f"{run} is a bundle, which runs on the CPU; leave --device {device} out.")
        return predict_with_bundle(run, paths, top, batch=batch, workers=workers, progress=progress)
    from .run import predict_with_run

    return predict_with_run(run, paths, top, batch=batch, workers=workers, device=device, progress=progress)
