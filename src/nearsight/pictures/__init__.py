"""Pictures with objects and regions drawn into them, and files of answers that other programs read."""

from .files import coco_answers, index_png
from .objects import draw_objects
from .panels import side_by_side
from .regions import draw_regions

__all__ = ["coco_answers", "draw_objects", "draw_regions", "index_png", "side_by_side"]
