"""Data for training: sources of every form, checks that explain, and the path from file to batch."""

from .open import open_data
from .samples import BadImage, Data, Split

__all__ = ["BadImage", "Data", "Split", "open_data"]
