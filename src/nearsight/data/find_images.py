"""Which images are meant by paths of files and folders."""

import os
from collections.abc import Sequence

from .image import is_image_name
from .names import natural_key
from .sources.folder import walk


def find_images(given: Sequence[str]) -> list[str]:
    """The files that are meant, each once; folders are searched through.

    Raises:
        ValueError: A path is not there, or a folder has no images.
    """
    if not given:
        raise ValueError("No image was named; give image files or folders.")
    missing = [path for path in given if not os.path.exists(path)]
    if missing:
        more = f" (and {len(missing) - 1} more are missing)" if len(missing) > 1 else ""
        raise ValueError(f"There is no file or folder {missing[0]}{more}; give image files or folders.")
    found: dict[str, None] = {}
    for path in given:
        if os.path.isdir(path):
            inside = sorted(walk(path, "", set()), key=natural_key)
            if not inside:
                raise ValueError(f"The folder {path} has no images in it, at any depth.")
            found |= dict.fromkeys(os.path.join(path, name) for name in inside)
        elif is_image_name(path):
            found[path] = None
        else:
            raise ValueError(f"{path} is no image by its name; give image files (.jpg, .png, ...) or folders.")
    return list(found)
