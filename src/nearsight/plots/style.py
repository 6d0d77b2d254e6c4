"""The look of our figures: one style, colours that people with colour blindness tell apart, no global settings."""

import base64
import html
import io
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

INK, SOFT, LINE, FAINT = "#1f2933", "#5b6774", "#b8c2cc", "#e8ecf0"
# Blue, orange, green, purple, red-brown, sky, yellow, grey: after Okabe and Ito, darkened to read well as thin lines.
COLOURS = ("#0067a5", "#d55e00", "#00805c", "#a8508f", "#7a3b12", "#3a9bd1", "#b08900", "#5b6774")
SEQUENTIAL = "Blues"  # colour map for fractions, from none to all
DOTS = 120  # per inch

TITLE, LABEL, SMALL = 12.0, 10.0, 8.5  # sizes of text in points

# Beside matplotlib's own font, for class names in other scripts; those that are installed are used.
WIDE_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Hiragino Sans",
    "PingFang SC",
    "Yu Gothic",
    "Microsoft YaHei",
    "Arial Unicode MS",
)


def figure(width: float, height: float) -> "Figure":
    """An empty figure that draws without a screen.

    Args:
        width: In inches.
        height: In inches.

    Example:
        >>> fig = figure(4, 3)
        >>> axes = tidy(fig.add_subplot(), title="Loss", x="epoch")
        >>> to_png(fig)[:4]
        b'\\x89PNG'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    result = Figure(figsize=(width, height), dpi=DOTS, layout="constrained", facecolor="white")
    FigureCanvasAgg(result)
    result.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    return result


def tidy(axes: "Axes", *, title: str = "", x: str = "", y: str = "", grid: bool = True) -> "Axes":
    """Give axes our look: two thin lines, a faint grid, a title at the left."""
    axes.set_facecolor("white")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
        spine.set_linewidth(0.8)
    axes.tick_params(colors=SOFT, labelsize=SMALL, length=3, width=0.8)
    if grid:
        axes.grid(True, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    if title:
        write(axes.set_title(title, loc="left", pad=8), TITLE, weight="bold")
    if x:
        write(axes.set_xlabel(x), LABEL, SOFT)
    if y:
        write(axes.set_ylabel(y), LABEL, SOFT)
    return axes


def write(text: "Text", size: float = LABEL, colour: str = INK, **style: Any) -> "Text":
    """Give a text our look, and take it literally: a class name may hold dollar signs, or be Chinese."""
    text.set(fontsize=size, color=colour, parse_math=False, fontfamily=list(font_families()), **style)
    return text


@cache
def font_families() -> tuple[str, ...]:
    """matplotlib's own font, and those with more scripts that are installed."""
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return ("DejaVu Sans", *(name for name in WIDE_FONTS if name in installed))


def abbreviate(text: str, most: int) -> str:
    """A text of at most so many characters, its middle left out.

    Example:
        >>> abbreviate("black-and-white ruffed lemur", 15)
        'black-a…d lemur'
    """
    text = drawable(" ".join(text.split()))
    if len(text) <= most:
        return text
    front = most // 2
    return f"{text[:front]}…{text[len(text) - (most - 1 - front) :]}"


def drawable(text: str) -> str:
    r"""A text with question marks for what no font has: bytes of file names that are no UTF-8.

    Example:
        >>> drawable("caf\udce9")
        'caf?'
    """
    return text.encode(errors="replace").decode()


def to_png(fig: "Figure") -> bytes:
    """The bytes of a PNG file that shows the whole figure."""
    from matplotlib.text import Text

    stream = io.BytesIO()
    for text in fig.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(drawable(text.get_text()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box is drawn for it
        about = {"Software": "Nearsight"}  # by which it is known as ours; see nearsight.atomic
        fig.savefig(stream, format="png", dpi=DOTS, facecolor="white", metadata=about)
    return stream.getvalue()


def image_url(content: bytes, kind: str = "png") -> str:
    """An image file as a URL that has all of it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def image_html(png: bytes, words: str) -> str:
    """A PNG on a notebook's page, with words for those who can't see it."""
    return f'<img alt="{html.escape(words, quote=True)}" style="max-width:100%" src="{image_url(png)}">'
