"""A bundle in the place of a trained model, where images and metrics come from PyTorch's side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.transforms import DensePreprocessing, Preprocessing
from ..runs.bundle import ABOUT, Bundle, read_bundle
from ..runs.postprocess import postprocess
from ..runs.predictor import Predictor
from ..runs.runtime import Runner, open_runner


class BundleModel(nn.Module):
    """The model of a bundle, called as the trained one is; takes images from any device, runs on the CPU."""

    def __init__(self, runner: Runner, bundle: Bundle):
        super().__init__()
        self.runner, self.bundle = runner, bundle

    def forward(self, images: Tensor, sizes: Tensor | Sequence[Sequence[int]] | None = None) -> Any:
        """Logits of a classifier or segmenter, or the detections of each image.

        Args:
            images: Normalised images `[B, 3, H, W]`.
            sizes: Height and width of each image before it was padded, the same for all; None for no padding.
        """
        height, width = images.shape[-2:]
        if sizes is not None:
            ((height, width),) = {tuple(map(int, size)) for size in torch.as_tensor(sizes).tolist()}
            images = images[..., :height, :width]
        groups = [images] if self.bundle.any_batch else images.split(1)
        outputs = [self.runner(group.float().contiguous().cpu().numpy()) for group in groups]
        if "logits" in self.bundle.outputs:
            return torch.cat([torch.from_numpy(part["logits"]) for part in outputs])
        found = [one for part in outputs for one in postprocess(part, self.bundle.postprocessing, (height, width))]
        return [{name: torch.from_numpy(value) for name, value in one.items()} for one in found]


def open_bundle(folder: str | Path) -> Predictor:
    """A bundle with its classes and its preprocessing, to be used like a trained model.

    Raises:
        ValueError: The bundle is damaged, or what runs it is not installed.
    """
    bundle = read_bundle(folder)
    model = BundleModel(open_runner(Path(folder), bundle), bundle)
    name = f"{bundle.model} ({bundle.kind}{', 8 bits' if bundle.int8 else ''})"
    input: Any = Preprocessing(bundle.size, bundle.mean, bundle.std, bundle.crop)
    if bundle.fit is not None:
        fit = bundle.fit
        input = DensePreprocessing(fit["min_size"], fit["max_size"], fit["stretch"], bundle.mean, bundle.std, divisor=1)
    path = Path(folder) / ABOUT
    return Predictor(model.eval(), name, bundle.task, bundle.labels, input, path, bundle.weights, dict(bundle.settings))
