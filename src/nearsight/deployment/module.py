"""A bundle in the place of a trained model, where images and figures come from PyTorch's side."""

from pathlib import Path

import torch
from torch import Tensor, nn

from ..data.transforms import Input
from ..runs.bundle import ABOUT, read_bundle
from ..runs.predictor import Trained
from ..runs.runtime import Runner, open_runner


class BundleModel(nn.Module):
    """The model of a bundle; takes images `[B, 3, H, W]` from any device, answers on the CPU."""

    def __init__(self, runner: Runner, any_batch: bool):
        super().__init__()
        self.runner, self.any_batch = runner, any_batch

    def forward(self, images: Tensor) -> Tensor:
        groups = [images] if self.any_batch else images.split(1)
        return torch.cat([torch.from_numpy(self.runner(group.float().cpu().numpy())) for group in groups])


def open_bundle(folder: str | Path) -> Trained:
    """A bundle with its classes and what it wants to be fed, to be used like a trained model.

    Raises:
        ValueError: The bundle is damaged, or what runs it is not installed.
    """
    bundle = read_bundle(folder)
    model = BundleModel(open_runner(Path(folder), bundle), bundle.any_batch)
    name = f"{bundle.model} ({bundle.kind}{', 8 bits' if bundle.int8 else ''})"
    input = Input(bundle.size, bundle.mean, bundle.std, bundle.crop)
    return Trained(model.eval(), name, bundle.labels, input, Path(folder) / ABOUT)
