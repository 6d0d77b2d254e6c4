"""Weights: reading files safely, recognising the released checkpoints, and our own format."""

from .format import load_model, name_of, save_model
from .released.convert import load_official, recognise
from .safe import WeightFileError, read_tensors

__all__ = [
    "WeightFileError",
    "load_model",
    "load_official",
    "name_of",
    "read_tensors",
    "recognise",
    "save_model",
]
