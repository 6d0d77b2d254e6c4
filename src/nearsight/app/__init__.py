"""A page in the browser: drop an image, click on it, and see what models see there."""

from .serve import launch_app

__all__ = ["launch_app"]
