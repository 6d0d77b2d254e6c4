"""What a model says and shows, as HTML without anything from outside: pictures are inside the text."""

import base64
import io
from collections.abc import Sequence
from html import escape

from PIL import Image

from ..figures import abbreviate
from ..predict.answers import Answer
from .looking import View
from .tiles import Tile, colour_table

LOSSLESS = 40_000  # pixels up to which a picture is sent without loss


def model_block(view: View, tiles: Sequence[Tile]) -> str:
    """A model: its name, its answers and its tiles."""
    height, width = view.part.size
    kind, weights = ("trained", "trained") if view.opened.learned else ("random", "random weights")
    head = (
        f'<header><h3>{escape(view.label)}</h3><span class="ns-tag ns-{kind}">{weights}</span>'
        f'<span class="ns-size">sees {width}×{height} pixels</span></header>'
    )
    note = ""
    if not view.opened.learned:
        note = (
            '<p class="ns-note">The weights are random: this model was not trained, and neither its answers nor its '
            "maps mean anything yet. Train it (<code>nearsight train</code>) and open the run: "
            "<code>nearsight app RUN</code>.</p>"
        )
    shown = "".join(tile_block(tile, view.label) for tile in tiles)
    faint = "" if view.opened.learned else " ns-faint"
    return (
        f'<section class="ns-model">{head}<div class="ns-said"><div class="ns-answers{faint}">'
        f'{answer_bars(view.answers)}</div>{note}</div><div class="ns-tiles">{shown}</div></section>'
    )


def answer_bars(answers: Sequence[Answer]) -> str:
    """The likeliest classes with bars."""
    rows = []
    for answer in answers:
        share = 100 * answer.probability
        name = answer.name
        rows.append(
            f'<div class="ns-bar"><span class="ns-name" title="{escape(name)}">{escape(abbreviate(name, 32))}</span>'
            f'<span class="ns-track"><i style="width:{share:.1f}%"></i></span><b>{share:.1f} %</b></div>'
        )
    return "".join(rows)


def tile_block(tile: Tile, model: str) -> str:
    """One tile with its title, and its scale below."""
    alt = escape(f"{tile.title} of {model}: {tile.about}")
    scale = ""
    if tile.colours:
        table = colour_table(tile.colours)
        stops = ",".join("rgb({},{},{})".format(*table[place]) for place in range(0, 256, 17))
        scale = (
            f'<div class="ns-scale"><span>{escape(tile.low)}</span>'
            f'<i style="background:linear-gradient(90deg,{stops})"></i><span>{escape(tile.high)}</span></div>'
        )
    return (
        f'<figure class="ns-tile"><figcaption><b>{escape(tile.title)}</b><span>{escape(tile.about)}</span></figcaption>'
        f'<img src="{picture_uri(tile.picture)}" alt="{alt}">{scale}</figure>'
    )


def problem_block(name: str, sentence: str) -> str:
    """A model that has nothing to show, and why."""
    head = f"<header><h3>{escape(name)}</h3></header>"
    return f'<section class="ns-model">{head}<p class="ns-problem" role="alert">{escape(sentence)}</p></section>'


def notice(sentence: str, bad: bool = False) -> str:
    """A sentence to whoever looks at the page; nothing for an empty one."""
    if not sentence:
        return ""
    kind = "ns-problem" if bad else "ns-hint"
    return f'<p class="{kind}" role="{"alert" if bad else "status"}">{escape(sentence)}</p>'


def picture_uri(picture: Image.Image, kind: str = "webp") -> str:
    """A picture as text that an `img` takes."""
    stream = io.BytesIO()
    if kind == "webp":
        picture.save(stream, "WEBP", quality=88, method=1, lossless=picture.width * picture.height <= LOSSLESS)
    else:
        picture.save(stream, "PNG")
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def file_uri(content: bytes) -> str:
    """The bytes of a PNG file as a link."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
