"""Released checkpoints as files that know their model, held against the accuracy that their papers print."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as change

from .arguments import checked
from .checkpoints.format import check_target, save_model
from .checkpoints.released.convert import open_official
from .checkpoints.released.families import Choices
from .data import Data, open_data
from .data.loader import default_workers
from .data.restore import Size
from .data.transforms import Preprocessing, to_tensor
from .evaluation import Progress, choose_split, collect
from .interval import Interval
from .reproduction.papers import PublishedAccuracy, published_accuracy
from .runs.predictor import load, pick_device
from .tasks import get_task

IMAGENET = 1000


@checked
def convert(
    source: str | Path,
    target: str | Path,
    *,
    behaviour: str = "released",
    act: str = "hswish",
    channel_attention: str = "eca",
    heads: int | None = None,
    trained_window: int | None = None,
    check: str | Path | None = None,
    progress: Progress = iter,
    force: bool = False,
) -> Path:
    """Write a released checkpoint as `target` (safetensors) and `target` with the ending `.json`.

    The options are those of `load_official`. `create_model(weights=target)` opens the result. Files that Nearsight did
    not write are replaced only by `force`, the source never.

    Args:
        source: The file, `.pth` or `.safetensors`.
        target: File to write, `.safetensors`.
        behaviour: Where code and paper differ: `released` or `paper`.
        act: LocalViT's activation, `hswish` or `relu6`.
        channel_attention: LocalViT's ECA, `eca` or `eca_hsigmoid`.
        heads: Attention heads, where the file can't tell.
        trained_window: Swin v2: window before fine-tuning with a larger one.
        check: Validation images of ImageNet, a folder for each class; the converted file is evaluated on them, and what
            it reaches is printed beside what its paper prints. `check_accuracy` returns it instead.
        progress: Wraps the batches of that evaluation, to show how far it is.
        force: Write over files that are not ours.

    Returns:
        The path of the weights.

    Example:
        >>> import tempfile, timm, torch
        >>> from nearsight import create_model
        >>> folder = Path(tempfile.mkdtemp())
        >>> deit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=10)
        >>> torch.save({"model": deit.state_dict()}, folder / "released.pth")
        >>> weights = convert(folder / "released.pth", folder / "ours.safetensors")
        >>> create_model(weights=weights).num_classes
        10
    """
    data = None if check is None else open_validation(check)  # before any work
    target = Path(target)
    if target.suffix != ".safetensors":
        raise ValueError(f"{target} does not end in .safetensors; that is the format that convert writes.")
    check_target(target, inputs=[source], force=force)
    model, reading = open_official(source, Choices(behaviour, act, channel_attention, heads, trained_window))
    origin = {"file": Path(source).name, "family": reading.spec.family, "behaviour": behaviour}
    written = save_model(model, target, origin)
    if data is not None:
        print(accuracy_on(written, data, progress))
    return written


@dataclass(frozen=True)
class CheckedAccuracy:
    """What a converted file reaches on ImageNet, beside what is published.

    Attributes:
        model: Name of the model.
        images: How many were evaluated.
        top1: Fraction of right predictions.
        top5: Fraction of images with the right class among the first five.
        published: What a paper prints for this model; None for a model that none of the five lists.
        bad: Unreadable images, with the reason.
    """

    model: str
    images: int
    top1: Interval
    top5: Interval
    published: PublishedAccuracy | None
    bad: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.images:,} images of ImageNet, with 95 % intervals:"]
        for name, found in (("top-1", self.top1), ("top-5", self.top5)):
            line = f"  {name} {100 * found.value:.2f} % ({100 * found.low:.2f} to {100 * found.high:.2f})"
            printed = self.published and self.published.printed(name)
            lines.append(f"{line}; published: {printed} %" if printed else line)
        if self.published is not None:
            lines.append(f"  published in {self.published.where}")
        else:
            lines.append("  none of the five papers prints an accuracy for it")
        if self.bad:
            lines.append(f"  {len(self.bad):,} unreadable left out")
        return "\n".join(lines)


class ReleasedPreprocessing(Preprocessing):
    """As the five releases show images in evaluation: the shorter side bicubically to 256/224 of the input, its middle.

    `Preprocessing` resizes and cuts in one step, which differs by fractions of a pixel; here every pixel counts.
    """

    def prepare(self, image: Image.Image, original: Size | None = None) -> Tensor:
        shorter = int(256 / 224 * min(self.size))
        resized = change.resize(image, [shorter], InterpolationMode.BICUBIC)
        return to_tensor(change.center_crop(resized, list(self.size)))

    def enough(self) -> int:
        return 1_000_000  # no JPEG is decoded smaller than it is


def check_accuracy(weights: str | Path, folder: str | Path, *, progress: Progress = iter) -> CheckedAccuracy:
    """Evaluate a converted file on validation images of ImageNet, as the releases do.

    Args:
        weights: What `convert` wrote, a classifier of 1000 classes.
        folder: A folder for each class, called by its WordNet id (`n01443537`, or `n01443537_goldfish`) or its number
            from 0 to 999; some of the classes will do.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: The folder has other classes, or the model is not for ImageNet.
    """
    return accuracy_on(weights, open_validation(folder), progress)


def open_validation(folder: str | Path) -> Data:
    """Images of ImageNet in folders, with the numbers of their classes as names."""
    data = open_data(str(folder), "classify")
    return replace(data, classes=class_numbers(data.classes, folder))


def class_numbers(names: Sequence[str], folder: str | Path) -> tuple[str, ...]:
    """ImageNet's number of each class, by its WordNet id or as it stands."""
    from timm.data import ImageNetInfo

    numbers = {wordnet: str(number) for number, wordnet in enumerate(ImageNetInfo("imagenet-1k").label_names())}
    found = [numbers.get(name.partition("_")[0], name) for name in names]
    for name, number in zip(names, found, strict=True):
        if not (number.isascii() and number.isdigit() and int(number) < IMAGENET):
            raise ValueError(
                f"{folder} has a class {name!r}, which is no class of ImageNet-1K; call the folders by WordNet ids, "
                "such as n01443537, or by numbers from 0 to 999."
            )
    return tuple(str(int(number)) for number in found)


def accuracy_on(weights: str | Path, data: Data, progress: Progress) -> CheckedAccuracy:
    """Evaluate a converted file on images that were opened."""
    predictor = load(weights)
    if predictor.task != "classify" or len(predictor.classes) != IMAGENET:
        raise ValueError(
            f"{weights} tells {len(predictor.classes)} classes apart, but ImageNet has {IMAGENET}; it can't be checked."
        )
    shown = predictor.preprocessing
    predictor = replace(predictor, preprocessing=ReleasedPreprocessing(shown.size, shown.mean, shown.std))
    _, images = choose_split(data, None)
    images = get_task("classify").match_split(images, data, predictor.classes)
    device = pick_device(None)
    with torch.inference_mode():
        meter, bad = collect(
            predictor, images, workers=default_workers(data.kind, device), device=device, progress=progress
        )
    metrics = meter.metrics()
    return CheckedAccuracy(
        predictor.name, metrics.images, metrics.top1, metrics.top5, published_accuracy(predictor.name), bad
    )
