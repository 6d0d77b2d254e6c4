"""Local parts for models that exist already."""

from .localize import apply_choice, localize, rebuild_localized
from .options import Localized, LocalizeOptions, localized_of

__all__ = ["LocalizeOptions", "Localized", "apply_choice", "localize", "localized_of", "rebuild_localized"]
