"""What happens when somebody uses the page, without the page: an image, one or two models, a point, what to show."""

import csv
import hashlib
import io
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ..atomic import write_whole
from ..data.formats import csv_bytes
from ..explanation.figures import Panel, draw_rows
from ..factory import list_models
from ..plots.style import to_png
from ..shipped import shipped_models
from ..tasks import get_task
from .cache import ModelView, Recent, ViewCache, open_shown
from .panels import FIRST, MethodPanel, PanelOptions, draw_panels, model_block, problem_block, ring
from .samples import sample
from .similar import SimilarImages
from .uploads import read_upload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


IMAGES = 48  # kept in memory; older ones have to be given again
MOST_CORRECTED = 2000  # images with corrected labels in a folder
SEVERAL = "|"  # between the labels of one image in a table


@dataclass(frozen=True)
class PageState:
    """What one visitor has chosen.

    Attributes:
        image: Which image: `sample:NAME`, or the fingerprint of an upload.
        first: A model.
        second: Another beside it, or none.
        side: Shorter side in pixels of what the models see; None: their own.
        point: Of the last click, as fractions of the image's width and height.
        first_layer: Name of a layer; None: one in the middle.
        second_layer: The same of the second model.
        head: Number of a head; None: the mean of all.
        methods: What to show.
    """

    image: str = "sample:Balloons"
    first: str = "deit_nano"
    second: str | None = None
    side: int | None = None
    point: tuple[float, float] | None = None
    first_layer: str | None = None
    second_layer: str | None = None
    head: int | None = None
    methods: tuple[str, ...] = FIRST

    def models(self) -> list[tuple[str, str | None]]:
        """The models and their layers."""
        both = [(self.first, self.first_layer)]
        return [*both, (self.second, self.second_layer)] if self.second else both

    def options(self, layer: str | None) -> PanelOptions:
        """What is to be shown of one model."""
        return PanelOptions(self.point, layer, self.head, self.methods)


class AppSession:
    """Does what the page asks for.

    Args:
        sources: Runs, weight files and names of models to choose from.
        corrections: Where labels that visitors correct are kept; None: nowhere.
        tta: Views that are merged to a prediction.
        error_rate: Promised by models that were calibrated for it.
        similar: Images among which those are shown that are most like the chosen one.

    Example:
        >>> session = AppSession(["dwnet_nano"])
        >>> state = session.click(PageState(first="dwnet_nano"), 100, 200)
        >>> "Kernels" in session.blocks(state)[0]
        True
    """

    def __init__(
        self,
        sources: list[str],
        corrections: "Corrections | None" = None,
        tta: str | None = None,
        error_rate: float | None = None,
        similar: "SimilarImages | None" = None,
    ):
        self.cache = ViewCache(sources, tta, error_rate)
        self.corrections, self.similar = corrections, similar
        self.images: Recent[str, Image.Image] = Recent(IMAGES)

    def image(self, key: str) -> Image.Image:
        """An image that was chosen or given."""
        kind, _, name = key.partition(":")
        if kind == "sample":
            return sample(name)

        def gone() -> Image.Image:
            raise ValueError("This image was given too long ago and is forgotten; give it again.")

        return self.images.get(key, gone)

    def take(self, path: str | Path) -> str:
        """Keep the image in a file in memory, and tell how it is called here."""
        image = read_upload(path)
        key = hashlib.sha256(image.tobytes() + repr(image.size).encode()).hexdigest()[:24]
        with self.cache.lock:
            self.images.get(key, lambda: image)
        return key

    def view(self, source: str, state: PageState) -> ModelView:
        """The chosen image as a model sees it."""
        return self.cache.view(source, self.image(state.image), state.image, state.side)

    def click(self, state: PageState, x: float, y: float) -> PageState:
        """The state after a click on the pixel (x, y) of the shown image."""
        with self.cache.lock:
            return replace(state, point=self.view(state.first, state).from_shown(x, y))

    def shown(self, state: PageState) -> Image.Image:
        """The image as the first model sees it, with a ring around the point."""
        with self.cache.lock:
            view = self.view(state.first, state)
            image = view.shown.copy()
            if state.point is not None:
                x, y = view.to_model(state.point)
                ring(image, x * image.width / view.part.size[1], y * image.height / view.part.size[0])
            return image

    def blocks(self, state: PageState) -> list[str]:
        """What each model says and shows, as HTML."""
        blocks = []
        for source, layer in state.models():
            try:
                with self.cache.lock:
                    view = self.view(source, state)
                    blocks.append(model_block(view, draw_panels(view, state.options(layer))))
            except ValueError as error:
                blocks.append(problem_block(source, str(error)))
        if self.similar is not None:
            with self.cache.lock:
                blocks[-1] += self.similar.block(state.image, self.image(state.image))
        return blocks

    def comparison(self, state: PageState) -> str:
        """Whether two trained models predict the same, in a sentence; empty where there are no two."""
        if state.second is None:
            return ""
        with self.cache.lock:
            try:
                views = [self.view(source, state) for source, _ in state.models()]
                if not all(view.opened.learned for view in views):
                    return ""
                first, second = (view.found for view in views)
            except ValueError:  # as the block of the model says
                return ""
            named = [", ".join(names[:4]) or "nothing" for names in (first, second)]
            if set(first) == set(second):
                return f"Both models predict {named[0]}."
            said = (f"{view.label} predicts {words}" for view, words in zip(views, named, strict=True))
            return f"The models differ: {', '.join(said)}."

    def label_choices(self, state: PageState) -> tuple[list[str], int | None]:
        """The classes among which a label of the image can be corrected, and how many it may have (None: any number).

        Nothing to choose where corrections are not kept, or the first model has no classes of whole images.
        """
        if self.corrections is None:
            return [], 0
        with self.cache.lock:
            try:
                opened = self.cache.open(state.first)
            except ValueError:
                return [], 0
        most = get_task(opened.task).most_labels
        return (list(opened.classes), most) if opened.weights == "trained" and most != 0 else ([], 0)

    def correct(self, state: PageState, labels: list[str]) -> str:
        """Keep the right labels of the image, and say so.

        Raises:
            ValueError: Corrections are not kept here, or these are no labels of the first model.
        """
        classes, most = self.label_choices(state)
        if self.corrections is None or not classes:
            raise ValueError("Labels can't be corrected here; start the page with --corrections FOLDER and a run.")
        if not labels or (most is not None and len(labels) > most):
            raise ValueError(f"Choose {'one label' if most == 1 else 'at least one label'} of the list first.")
        if wrong := [label for label in labels if label not in classes]:
            raise ValueError(f"The model has no class {wrong[0]!r}; choose one of the list.")
        with self.cache.lock:
            count = self.corrections.add(state.image, self.image(state.image), labels)
        table = f"{self.corrections.folder.name}/{Corrections.TABLE}"
        return f"Saved as {', '.join(labels)}: {count} in {table}. To train with them: nearsight train {table}"

    def layers(self, source: str, state: PageState) -> list[tuple[str, str]]:
        """The layers of a model: what to call them, and their names."""
        with self.cache.lock:
            try:
                found = self.view(source, state).layers()
            except ValueError:
                return []
            return [(f"stage {layer.stage}, block {layer.block}", layer.name) for layer in found]

    def figure(self, state: PageState) -> bytes:
        """Everything that is shown as one figure, a row for each model: the bytes of a PNG file."""
        with self.cache.lock:
            drawn: list[tuple[ModelView, list[MethodPanel]]] = []
            for source, layer in state.models():
                view = self.view(source, state)
                drawn.append((view, draw_panels(view, state.options(layer))))
            return to_png(draw_figure(drawn, self.shown(state)))


class Corrections:
    """Labels that visitors corrected: a folder of images, and in it a table of path and label that `train` reads.

    Args:
        folder: Made if it is not there; what an earlier page wrote into it is kept.

    Raises:
        ValueError: Its table is not one of corrections.

    Example:
        >>> import tempfile
        >>> kept = Corrections(Path(tempfile.mkdtemp()))
        >>> kept.add("sample:Cat", sample("Cat"), ["tabby"])
        1
        >>> (kept.folder / "labels.csv").read_text().split()
        ['path,label', 'images/sample-Cat.png,tabby']
    """

    TABLE = "labels.csv"

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows: dict[str, str] = {}  # path to label
        table = folder / self.TABLE
        if not table.exists():
            return
        rows: list[list[str]] = []
        with suppress(OSError, UnicodeDecodeError, csv.Error):
            if table.is_file():  # at a pipe one would wait
                with table.open(newline="", encoding="utf-8") as file:
                    rows = list(csv.reader(file))
        if not rows or rows[0] != ["path", "label"] or any(len(row) != 2 for row in rows):
            raise ValueError(f"{table} is no table of corrected labels (path,label); give another folder.")
        self.rows = {path: label for path, label in rows[1:]}

    def add(self, key: str, image: Image.Image, labels: list[str]) -> int:
        """Keep an image with its labels, in place of former ones; how many images there are now."""
        if any(SEVERAL in label for label in labels) and len(labels) > 1:
            raise ValueError(f"A class with {SEVERAL!r} in its name can't stand beside others in a table.")
        path = f"images/{key.replace(':', '-')}.png"
        if path not in self.rows and len(self.rows) >= MOST_CORRECTED:
            raise ValueError(f"{MOST_CORRECTED:,} images have corrected labels already; start with a new folder.")
        stream = io.BytesIO()
        image.save(stream, "PNG")
        rows = self.rows | {path: SEVERAL.join(labels)}
        write_whole(self.folder / path, stream.getvalue())  # first, so that the table names nothing that is not there
        write_whole(self.folder / self.TABLE, csv_bytes([("path", "label"), *rows.items()]))
        self.rows = rows
        return len(rows)


def draw_figure(drawn: list[tuple[ModelView, list[MethodPanel]]], image: Image.Image) -> "Figure":
    """A row for each model: the image, then its panels."""
    rows, names = [], []
    for view, panels in drawn:
        size = (image.height, image.width)
        rows.append([Panel("input", image, size), *(framed(panel, size) for panel in panels)])
        names.append(view.label)
    random = [view.label for view, _ in drawn if not view.opened.learned]
    note = f"Random weights, not trained: {', '.join(dict.fromkeys(random))}" if random else ""
    return draw_rows(rows, title="What the models see at the marked point", names=names, note=note)


def framed(panel: MethodPanel, size: tuple[int, int]) -> Panel:
    """A panel in the frame of the image."""
    frame = Image.new("RGB", (size[1], size[0]), "white")
    inside = panel.image.copy()
    inside.thumbnail(frame.size, Image.Resampling.LANCZOS)
    frame.paste(inside, ((frame.width - inside.width) // 2, (frame.height - inside.height) // 2))
    scale = f" ({panel.low} to {panel.high})" if panel.colours else ""
    return Panel(f"{panel.title}{scale}", frame, size)


FIRST = ("swin_nano", "iddwnet_nano", "lit_nano", "deit_nano", "lightvit_nano")


def offered(given: list[str], tta: str | None = None, error_rate: float | None = None) -> list[str]:
    """What was asked for, then trained models that come with Nearsight, then the nano ones with random weights.

    Args:
        given: Runs, weight files and names of models; each is opened once, so that a wrong one is told at once.
        tta: Views that they have to know.
        error_rate: That they have to be calibrated for.

    Example:
        >>> offered([])[:2], "localvit_nano" in offered(["swin_nano"])
        (['near_nano.clothing', 'swin_nano'], True)
    """
    for source in given:
        opened = open_shown(source, tta)
        if error_rate is not None:
            opened.promise(error_rate, tta)
    nano = [*FIRST, *(name for name in list_models("*_nano*") if name not in FIRST)]
    return list(dict.fromkeys((*given, *shipped_models(), *nano)))
