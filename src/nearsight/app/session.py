"""What happens when somebody uses the page, without the page: a picture, one or two models, a point, what to show."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ..explanation.figures import Panel, draw_rows
from ..factory import list_models
from ..plots.style import to_png
from ..runs.predictor import load_module
from .cache import ModelView, Recent, ViewCache
from .panels import FIRST, PanelOptions, Tile, draw_tiles, model_block, problem_block, ring
from .samples import sample
from .uploads import read_upload

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PICTURES = 48  # kept in memory; older ones have to be given again


@dataclass(frozen=True)
class PageState:
    """What one visitor has chosen.

    Attributes:
        picture: Which picture: `sample:NAME`, or the fingerprint of an upload.
        first: A model.
        second: Another beside it, or none.
        side: Shorter side in pixels of what the models see; None: their own.
        point: Of the last click, as fractions of the picture's width and height.
        first_layer: Name of a layer; None: one in the middle.
        second_layer: The same of the second model.
        head: Number of a head; None: the mean of all.
        methods: What to show.
    """

    picture: str = "sample:Balloons"
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
    """Answers what the page asks.

    Args:
        sources: Runs, weight files and names of models to choose from.

    Example:
        >>> session = AppSession(["dwnet_nano"])
        >>> state = session.click(PageState(first="dwnet_nano"), 100, 200)
        >>> "Kernels" in session.blocks(state)[0]
        True
    """

    def __init__(self, sources: list[str]):
        self.cache = ViewCache(sources)
        self.pictures: Recent[str, Image.Image] = Recent(PICTURES)

    def picture(self, key: str) -> Image.Image:
        """A picture that was chosen or given."""
        kind, _, name = key.partition(":")
        if kind == "sample":
            return sample(name)

        def gone() -> Image.Image:
            raise ValueError("This picture was given too long ago and is forgotten; give it again.")

        return self.pictures.get(key, gone)

    def take(self, path: str | Path) -> str:
        """Keep the picture in a file in memory, and tell how it is called here."""
        picture = read_upload(path)
        key = hashlib.sha256(picture.tobytes() + repr(picture.size).encode()).hexdigest()[:24]
        with self.cache.lock:
            self.pictures.get(key, lambda: picture)
        return key

    def view(self, source: str, state: PageState) -> ModelView:
        """The chosen picture as a model sees it."""
        return self.cache.view(source, self.picture(state.picture), state.picture, state.side)

    def click(self, state: PageState, x: float, y: float) -> PageState:
        """The state after a click on the pixel (x, y) of the shown picture."""
        with self.cache.lock:
            return replace(state, point=self.view(state.first, state).from_shown(x, y))

    def shown(self, state: PageState) -> Image.Image:
        """The picture as the first model sees it, with a ring around the point."""
        with self.cache.lock:
            view = self.view(state.first, state)
            picture = view.shown.copy()
            if state.point is not None:
                x, y = view.to_model(state.point)
                ring(picture, x * picture.width / view.part.size[1], y * picture.height / view.part.size[0])
            return picture

    def blocks(self, state: PageState) -> list[str]:
        """What each model says and shows, as HTML."""
        blocks = []
        for source, layer in state.models():
            try:
                with self.cache.lock:
                    view = self.view(source, state)
                    blocks.append(model_block(view, draw_tiles(view, state.options(layer))))
            except ValueError as error:
                blocks.append(problem_block(source, str(error)))
        return blocks

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
            drawn: list[tuple[ModelView, list[Tile]]] = []
            for source, layer in state.models():
                view = self.view(source, state)
                drawn.append((view, draw_tiles(view, state.options(layer))))
            return to_png(draw_figure(drawn, self.shown(state)))


def draw_figure(drawn: list[tuple[ModelView, list[Tile]]], picture: Image.Image) -> "Figure":
    """A row for each model: the picture, then its tiles."""
    rows, names = [], []
    for view, tiles in drawn:
        size = (picture.height, picture.width)
        rows.append([Panel("input", picture, size), *(tile_panel(tile, size) for tile in tiles)])
        names.append(view.label)
    random = [view.label for view, _ in drawn if not view.opened.learned]
    note = f"Random weights, not trained: {', '.join(dict.fromkeys(random))}" if random else ""
    return draw_rows(rows, title="What the models see at the marked point", names=names, note=note)


def tile_panel(tile: Tile, size: tuple[int, int]) -> Panel:
    """A tile in the frame of the picture."""
    frame = Image.new("RGB", (size[1], size[0]), "white")
    inside = tile.picture.copy()
    inside.thumbnail(frame.size, Image.Resampling.LANCZOS)
    frame.paste(inside, ((frame.width - inside.width) // 2, (frame.height - inside.height) // 2))
    scale = f" ({tile.low} to {tile.high})" if tile.colours else ""
    return Panel(f"{tile.title}{scale}", frame, size)


FIRST = ("swin_nano", "iddwnet_nano", "lit_nano", "deit_nano", "lightvit_nano")


def offered(given: list[str]) -> list[str]:
    """What was asked for, then the nano models, which need no training to be looked into.

    Args:
        given: Runs, weight files and names of models; each is opened once, so that a wrong one is told at once.

    Example:
        >>> offered([])[:2], "localvit_nano" in offered(["swin_nano"])
        (['swin_nano', 'iddwnet_nano'], True)
    """
    for source in given:
        load_module(source)
    nano = [*FIRST, *(name for name in list_models("*_nano*") if name not in FIRST)]
    return list(dict.fromkeys((*given, *nano)))
