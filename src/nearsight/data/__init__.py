"""Data for training: sources of every form, checks that explain, and the path from file to batch."""

from typing import TYPE_CHECKING, Any

from .samples import BadImage, Data, Split

if TYPE_CHECKING:
    from .open import open_data

__all__ = ["BadImage", "Data", "Split", "open_data"]


def __getattr__(name: str) -> Any:
    """All sources are imported where data are opened, not where an image is decoded."""
    if name != "open_data":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .open import open_data

    return open_data
