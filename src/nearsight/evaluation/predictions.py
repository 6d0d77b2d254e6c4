"""What a trained model says about every image of a split."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.loader import Batch, eval_loader
from ..data.samples import Split
from ..data.transforms import Input
from ..runs.predictor import Predictor, pick_device

Progress = Callable[[Iterable[Batch]], Iterable[Batch]]


@dataclass(frozen=True)
class Predictions:
    """Answers for the readable images of a split, in its order.

    Attributes:
        logits: What the model returned `[n, classes]`.
        labels: True class numbers `[n]`.
        indices: Numbers of the images in their split `[n]`.
        bad: Names of unreadable images, and why they are.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]
    bad: dict[str, str]

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Softmax of the logits `[n, classes]`."""
        shifted = np.exp(self.logits.astype(np.float64) - self.logits.max(axis=1, keepdims=True, initial=-np.inf))
        return shifted / shifted.sum(axis=1, keepdims=True)


def predict_split(
    trained: Predictor,
    split: Split,
    *,
    batch: int = 64,
    workers: int = 0,
    device: torch.device | str | None = None,
    progress: Progress = iter,
) -> Predictions:
    """Show a split to a model, in order and always in the same way.

    Args:
        trained: Model, classes and input.
        split: Labelled images, their class numbers those of the model.
        batch: Images at a time.
        workers: Processes that read images; 0 reads them here.
        device: Where to compute; None takes a GPU if there is one.
        progress: Wraps the batches, to show how far the work is.

    Raises:
        ValueError: The device is not there, none of the images can be read, or the model returns no finite numbers.

    Example:
        >>> from nearsight.data import open_data
        >>> from nearsight.data.samples import Subset
        >>> from nearsight.tasks.build import build
        >>> from nearsight.config.recipe import ModelChoice
        >>> data, built = open_data("digits"), build(ModelChoice(name="localvit_nano"), classes=10)
        >>> trained = Predictor(built.model.eval(), built.name, "classify", data.classes, built.input, None)
        >>> predict_split(trained, Subset(data.test, range(3))).probabilities.shape
        (3, 10)
    """
    place = pick_device(device)
    model = trained.model.to(place)
    logits, labels, indices = [], [], []
    bad: dict[str, str] = {}
    for group in progress(eval_loader(split, trained.preprocessing, batch, workers)):
        bad |= group.bad
        if len(group.labels):
            logits.append(answer(model, trained.preprocessing, group.images, place))
            labels.append(group.labels.numpy())
            indices.append(group.indices.numpy())
    if not logits:
        first = next((f"; the first: {name} ({reason})" for name, reason in bad.items()), "")
        raise ValueError(f"None of the {len(split)} images can be read{first}.")
    result = Predictions(np.concatenate(logits), np.concatenate(labels), np.concatenate(indices), bad)
    wrong = int((~np.isfinite(result.logits)).any(axis=1).sum())
    if wrong:
        raise ValueError(
            f"{trained.path} answers {wrong} of {len(result.labels)} images with numbers that are not finite; "
            "its weights are damaged, train it anew."
        )
    return result


@torch.inference_mode()
def answer(model: nn.Module, input: Input, images: Tensor, device: torch.device) -> NDArray[np.float32]:
    """Logits `[B, classes]` for images as bytes `[B, 3, H, W]`."""
    shown = images.to(device, non_blocking=True).float() / 255
    return model(input.normalise(shown)).float().cpu().numpy()
