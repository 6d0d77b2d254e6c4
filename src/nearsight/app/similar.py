"""Images of a data set that are most like the one on the page."""

import io
import os
import sys
from html import escape

from PIL import Image

from ..embedding import Embedding, embed, open_any_images
from ..plots.style import abbreviate, image_url
from ..runs.predictor import load
from ..tasks import get_task
from .cache import Recent

SHOWN = 6
SIDE = 192  # pixels of the longer side


class SimilarImages:
    """Features of a data set, and what is found among them.

    Args:
        source: Data, or a folder of images.
        model: Whose features count: a run, or None for pretrained weights that are at hand, which also stand in for a
            model that does not tell whole images apart.

    Raises:
        ValueError: There are no images, or neither a model nor weights.
    """

    def __init__(self, source: str | os.PathLike[str], model: str | None):
        if model is not None and not (get_task((opened := load(model)).task).is_linear and opened.learned):
            model = None
        self.source = os.fspath(source)
        self.found: Embedding = embed(self.source, model=model, progress=say_progress)
        self.splits = open_any_images(self.source).splits()
        self.numbers = {
            (home, split.name(index)): index for home, split in self.splits.items() for index in range(len(split))
        }
        self.blocks: Recent[str, str] = Recent(48)

    def block(self, key: str, image: Image.Image) -> str:
        """The most similar images as HTML.

        Args:
            key: Tells the image from others.
            image: In mode RGB.
        """
        return self.blocks.get(key, lambda: self.draw(image))

    def draw(self, image: Image.Image) -> str:
        """The same, computed."""
        (near,) = self.found.similar(image, top=SHOWN)
        figures = []
        for one in near:
            shown = self.splits[one.split].read(self.numbers[one.split, one.image], SIDE).convert("RGB")
            shown.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
            stream = io.BytesIO()
            shown.save(stream, "WEBP", quality=85)
            url = image_url(stream.getvalue(), "webp")
            file = os.path.basename(one.image)
            title = escape(abbreviate(one.label or file, 24))
            about = f"{one.similarity:.2f} {escape(abbreviate(file, 40))}"
            figures.append(
                f'<figure class="ns-panel"><figcaption><b>{title}</b><span>{about}</span></figcaption>'
                f'<img style="aspect-ratio:1;object-fit:cover" src="{url}" alt="{title}">'
                "</figure>"
            )
        head = f'<header><h3>Similar images</h3><span class="ns-size">of {escape(self.source)}, by the features of '
        head += f"{escape(self.found.model)} (1 is the same)</span></header>"
        return f'<section class="ns-model">{head}<div class="ns-panels">{"".join(figures)}</div></section>'


def say_progress(done: int, total: int) -> None:
    """Say now and then how far the features are; those of a former start take no time."""
    if done == total or done % 512 < 32:
        print(f"Features of {done:,} of {total:,} images", file=sys.stderr)
