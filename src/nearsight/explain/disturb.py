"""Take the places that a map names away from an image, or put them back, and ask the model again."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from .capture import evaluating
from .maps import Floats
from .subjects import Opened
from .views import View


def curves(
    opened: Opened,
    view: View,
    number: int,
    region: Tensor | None,
    values: Floats,
    steps: int,
    random: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How sure a model stays of a class while places are taken away, and becomes while they are put back.

    What is taken away becomes the mean colour; what is not yet put back is blurred beyond recognition.

    Args:
        opened: The model.
        view: What it is shown.
        number: The class.
        region: Of a segmenter: the pixels that it gave this class `[H, W]`; else None.
        values: The map `[H, W]`; its highest places go first.
        steps: In how many steps.
        random: Decides between places that are equally high.

    Returns:
        Sureness after 0, 1, ... `steps` of them: `[steps + 1]` each.
    """
    image = view.normalised(opened.input)
    first = order(values, steps, random)  # the step in which each pixel goes
    after = torch.from_numpy(first)[None, None]
    shares = torch.arange(steps + 1)[:, None, None, None]
    gone = after < shares  # [steps + 1, 1, H, W]
    without = torch.where(gone, torch.zeros_like(image), image)
    back = torch.where(gone, image, blurred(image))
    both = sureness(opened, torch.cat((without, back)), number, region)
    return both[: steps + 1], both[steps + 1 :]


def order(values: Floats, steps: int, random: np.random.Generator) -> NDArray[np.int64]:
    """The step from 0 in which each place of a map goes `[H, W]`, the highest first, as many in each."""
    flat = np.nan_to_num(values, nan=-np.inf).ravel()
    ranked = np.lexsort((random.random(flat.size), -flat))
    step = np.empty(flat.size, dtype=np.int64)
    step[ranked] = np.arange(flat.size) * steps // flat.size
    return step.reshape(values.shape)


def blurred(image: Tensor) -> Tensor:
    """An image `[1, 3, H, W]` in which nothing can be told any more."""
    side = max(3, min(image.shape[-2:]) // 2 * 2 - 1)
    kernel = min(side, 2 * (max(image.shape[-2:]) // 4) + 1)
    return gaussian_blur(image, [kernel, kernel], [kernel / 3, kernel / 3])


def sureness(opened: Opened, images: Tensor, number: int, region: Tensor | None) -> NDArray[np.float64]:
    """How sure a model is of a class in each image `[B, 3, H, W]`: `[B]`.

    Of a classifier its probability; of a segmenter its mean probability in the region; of a detector the best score.
    """
    with torch.no_grad(), evaluating(opened.model):
        output: Any = opened.model(images)
    if not isinstance(output, Tensor):
        scores = [found["scores"][found["labels"] == number] for found in output]
        return np.array([float(found.max()) if len(found) else 0.0 for found in scores])
    chances = F.softmax(output.float(), dim=1)[:, number]
    if chances.ndim == 3 and region is not None:
        chances = chances[:, : region.shape[0], : region.shape[1]][:, region].mean(dim=1)
    return chances.double().cpu().numpy()
