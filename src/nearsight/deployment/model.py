"""What is exported: a model of RGB images, opened and tried."""

import os
import re
from dataclasses import replace
from typing import Any

import torch

from ..runs.predictor import Predictor, load_module


def open_exportable(source: str | os.PathLike[str], size: tuple[int, int] | None = None) -> Predictor:
    """The model that somebody names.

    Args:
        source: Folder of a run, weight file, or name of a model, ours or timm's.
        size: Height and width that images are to be shown in; None takes the model's own.

    Raises:
        ValueError: There is no such model, it is none of RGB images, or it does not take that size.

    Example:
        >>> opened = open_exportable("lit_nano", size=(48, 64))
        >>> opened.weights, opened.preprocessing.size, len(opened.classes)
        ('random', (48, 64), 1000)
    """
    opened = load_module(source)
    if size is not None:
        opened = replace(opened, preprocessing=with_size(opened.preprocessing, size))
    refuse_others(opened)
    return opened


def with_size(preprocessing: Any, size: tuple[int, int]) -> Any:
    """Preprocessing for another size; of a model that is shown whole images its shorter and its longest side."""
    if preprocessing.dense:
        return replace(preprocessing, min_size=min(size), max_size=max(size))
    return replace(preprocessing, size=size)


@torch.inference_mode()
def refuse_others(opened: Predictor) -> None:
    """Refuse a model that does not take RGB images of its size, or does not say what it finds in them."""
    height, width = opened.preprocessing.size
    try:
        logits = opened.model(torch.zeros(1, 3, height, width))
    except Exception as error:  # timm's models fail in many ways on sizes that they were not made for
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{opened.name} does not take RGB images of {height}×{width} pixels ({reason}); give another --size."
        ) from None
    if hasattr(opened.model, "export_outputs"):
        return
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, len(opened.classes)) or not opened.classes:
        raise ValueError(f"{opened.name} is no classifier (it gives no number for each class); it can't be exported.")


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of a text such as `224` or `224x320`.

    Example:
        >>> parse_size("224x320"), parse_size("96")
        ((224, 320), (96, 96))
    """
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", text.strip().lower())
    if match is None:
        raise ValueError(f"--size {text} is no size; write height and width in pixels like 224x320, or 224 for both.")
    return int(match[1]), int(match[2] or match[1])
