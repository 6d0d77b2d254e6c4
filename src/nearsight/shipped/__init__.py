"""Trained models that come with the package, each with its card, and photos to try them on; see README.md beside this.

Nothing here needs torch, so that a command that only looks whether a name is one of them starts at once.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped_models() -> dict[str, Path]:
    """The file of each model, by name and tag.

    Example:
        >>> "near_nano.clothing" in shipped_models()
        True
    """
    return {file.name.removesuffix(file.suffix): file for file in sorted(FOLDER.glob("*.safetensors"))}


def shipped_photos() -> dict[str, Path]:
    """Photos to try the models on, by what they show.

    Example:
        >>> sorted(shipped_photos())
        ['Dress', 'Hat', 'Jacket', 'Sandals']
    """
    return {file.stem.capitalize(): file for file in sorted(FOLDER.glob("*.jpg"))}
