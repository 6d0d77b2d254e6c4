"""Local parts for models that exist already."""

from .choice import Choice, Localized, localized_of
from .localize import apply_choice, localize, rebuild_localized

__all__ = ["Choice", "Localized", "apply_choice", "localize", "localized_of", "rebuild_localized"]
