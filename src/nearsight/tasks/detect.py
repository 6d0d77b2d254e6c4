"""Detection: objects of an image as boxes and, where data and model have them, masks."""

from collections.abc import Sequence
from typing import Any

from ..config.recipe import Recipe
from ..data.instances import Instances
from ..data.samples import BadImage, Data, Split
from ..data.sizes import Sizes, measure_sizes
from ..data.transforms import DensePreprocessing
from .dense import DenseTask
from .detection_metrics import DetectionEvaluator
from .predictions import Detection
from .views import View, fuse_detections


class Detect(DetectionEvaluator, DenseTask):
    """Finding objects."""

    purpose = "find these objects in images"
    hub_tag = "object-detection"
    default_recipe = "small-detect"

    def sizes(self, data: Data) -> Sizes:
        sizes = super().sizes(data)
        assert data.train is not None
        if sizes.small is None:
            sizes = measure_sizes(data.train, len(data.train))  # there may be some beside those that were looked at
        if sizes.small is None:
            raise ValueError(f"{data.source} has no objects in its {len(data.train)} training images; annotate some.")
        return sizes

    def head(self, data: Data) -> str:
        return "mask-rcnn" if data.masks else "retinanet"

    def complete(self, recipe: Recipe, data: Data) -> Recipe:
        if recipe.loss.class_weights != "none":
            raise ValueError("loss.class_weights is not for detectors, whose losses balance themselves; leave it out.")
        return super().complete(recipe, data)

    def undo_view(self, output: Any, view: View, size: tuple[int, int]) -> Any:
        return [view.undo_objects(found, size) for found in output]

    def merge(self, outputs: Sequence[Any]) -> Any:
        return [fuse_detections(found) for found in zip(*outputs, strict=True)]

    def boxes_of(self, split: Split) -> list[tuple[int, tuple[float, float, float, float], int]]:
        found = []
        for index in range(len(split)):
            try:
                held = split.annotation(index)
            except BadImage:
                continue
            assert isinstance(held, Instances)
            rows = zip(held.boxes.tolist(), held.labels.tolist(), held.crowd.tolist(), strict=True)
            found += [(index, (a, b, c, d), label) for (a, b, c, d), label, crowd in rows if not crowd]
        return found

    def restore(
        self, output: Any, shown: tuple[int, int], preprocessing: DensePreprocessing, about: dict[str, Any]
    ) -> Detection:
        found = preprocessing.restore_objects(output, shown, about["size"])
        rles = tuple(found.pop("rles")) if "rles" in found else None
        return Detection(**about, **found, rles=rles)


TASK = Detect()
