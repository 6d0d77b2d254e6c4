"""A page in the browser: drop an image, click on it, and see what models see there."""

from .serve import page_server

__all__ = ["page_server"]
