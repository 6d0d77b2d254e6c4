"""Small images of what a model does at one point: fast to draw, so that a click shows at once."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..explanation import attention, global_tokens, kernels, sampling_points
from ..explanation.attention import middle
from ..explanation.capture import CapturedLayer
from ..explanation.figures import MARK, SEQUENTIAL, SIGNED, VEIL, limits, number, smooth_veil
from ..explanation.maps import Maps
from ..ops.attention_matrix import GatherMatrix, KernelMatrix
from ..plots.overlays import BACKGROUND, class_colours, draw_detections, draw_segmentation
from ..plots.style import abbreviate, image_url
from .cache import SHOWN, ClassScore, ModelView

Pixels = NDArray[np.uint8]
SMOOTH = 4  # drawn so much larger, for smooth rings


@dataclass(frozen=True)
class PanelOptions:
    """What is to be shown.

    Attributes:
        point: Of the click, as fractions of the image's width and height; None before one.
        layer: Name of a layer, `stage.block`; None: one in the middle.
        head: Number of an attention head; None: the mean of all.
        methods: Which panels.
    """

    point: tuple[float, float] | None = None
    layer: str | None = None
    head: int | None = None
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class MethodPanel:
    """A small image.

    Attributes:
        title: What it is.
        about: In one line, what is to be seen.
        image: Its pixels.
        low: What the darkest colour stands for; empty if there is no scale.
        high: And the lightest.
        colours: Name of the scale.
        legend: Classes that are drawn, with their colours.
    """

    title: str
    about: str
    image: Image.Image
    low: str = ""
    high: str = ""
    colours: str = ""
    legend: tuple[tuple[str, tuple[int, int, int]], ...] = ()


def attention_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """What the token at the point listens to."""
    layer = view.layer(options.layer)
    found = attention(view.seen, layer=layer.name, at=pixel_of(view, options))
    heads = found.weights.shape[1]
    head = options.head if options.head is not None and options.head < heads else None
    which = "mean of heads" if head is None else f"head {head + 1}"
    about = f"what the marked point listens to in layer {layer.name}, {which}"
    if found.signed:
        about = f"weights around the marked point in layer {layer.name}"
    return map_panel("Mixing weights" if found.signed else "Attention", about, found.maps(head), view)


def rollout_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """What reaches the prediction through all layers."""
    about = "what reaches the prediction through all layers, wherever you click"
    return map_panel("Roll-out", about, view.rolled, view)


def field_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """Which pixels the point depends on."""
    layer = view.layer(options.layer)
    token = layer.token_at(*pixel_of(view, options))
    values = view.dependence(layer, token).numpy()[None, None]
    marks = (middle(layer, token),)
    maps = Maps(
        "receptive-field", values, ("",), (1, 1), view.seen.image_size, "fraction of the dependence", marks=marks
    )
    about = f"pixels that the marked point depends on behind layer {layer.name}"
    return map_panel("Receptive field", about, maps, view, root=True)


def kernel_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """The kernels at the point."""
    layer = view.layer(options.layer)
    found = kernels(view.seen, layer=layer.name, at=pixel_of(view, options))
    weights = found.weights[0, :, 0]
    count = min(16, len(weights))
    chosen = weights[np.linspace(0, len(weights) - 1, count).round().astype(int)]
    kind = {
        "static": "the same everywhere, learned",
        "per position": "learned for this point",
        "per image": "predicted for this image",
        "predicted": "predicted at the marked point",
        "attention": "attention in the sliding window",
    }[found.kind]
    low, high = limits(chosen, signed=True)
    about = f"{count} of {len(weights)} kernels of layer {layer.name}: {kind}"
    return MethodPanel("Kernels", about, mosaic(chosen, low, high), number(low), number(high), SIGNED)


def sampling_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """Where the point's last token was sampled."""
    found = sampling_points(view.seen, at=pixel_of(view, options))
    image = faded(view)
    scale = image.width / found.image_size[1]
    draw = ImageDraw.Draw(image)
    draw.rectangle([float(side) * scale for side in found.squares[0]], outline="#17b978", width=3)
    for (x, y), inside in zip(found.points[0, 0] * scale, found.inside[0, 0], strict=True):
        if inside:
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill="#e4002b", outline="white")
    about = f"the {found.points.shape[2]} points that the framed token was made from"
    return MethodPanel("Sampling points", about, image)


def global_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """What LightViT's global tokens gather."""
    layer = view.layer(options.layer)
    maps = global_tokens(view.seen, layer=layer.name).aggregate
    maps_shown = maps.values[0, :4]
    high = float(maps_shown.max())
    sheets = [
        overlay(faded(view), cells(maps, view, number), 0.0, high, SEQUENTIAL) for number in range(len(maps_shown))
    ]
    about = f"what {len(sheets)} of {len(maps.titles)} global tokens gather in layer {layer.name}"
    return MethodPanel("Global tokens", about, sheet_of(sheets), "0", number(high), SEQUENTIAL)


def cam_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """Which points speak for the prediction."""
    return map_panel("Grad-CAM", f"what speaks for {view.predictions[0].name!r} in the last layer", view.cam, view)


def prediction_panel(view: ModelView, options: PanelOptions) -> MethodPanel:
    """The masks or boxes that a segmenter or detector predicts."""
    found, names = view.predicted, [view.opened.class_name(kind) for kind in range(len(view.opened.classes))]
    has_ground = names[0].casefold() == BACKGROUND and found.labels is not None
    colours = class_colours(len(names), has_ground)
    if found.labels is not None:
        image = draw_segmentation(view.shown, found.labels, names, legend=False)
    else:
        scale = view.shown.width / view.part.size[1]
        boxes = [[side * scale for side in sides] for sides, _ in found.boxes]
        image = draw_detections(view.shown, boxes, [kind for _, kind in found.boxes], names)
    image.thumbnail((SHOWN, 2 * SHOWN), Image.Resampling.LANCZOS)
    legend = tuple((names[kind], colours[kind]) for kind in found.numbers if not (has_ground and kind == 0))
    about = "the class of each pixel" if found.labels is not None else "the objects that were found"
    return MethodPanel("Prediction", about if found.numbers else "found: nothing", image, legend=legend[:8])


def class_panels(view: ModelView, options: PanelOptions) -> list[MethodPanel]:
    """Which patches speak for the likeliest classes, smooth over the image."""
    maps, panels = view.classes, []
    for index, score in enumerate(view.predictions[: len(maps.titles)]):
        veil = Image.fromarray(smooth_veil(maps.values[0, index], maps.cell, maps.image_size))
        image = view.shown.convert("RGBA")
        image.alpha_composite(veil.resize(image.size, Image.Resampling.BILINEAR))
        title = f"{abbreviate(score.name, 24)}, {100 * score.probability:.1f} %"
        about = "which patches speak for this class (gradient-weighted roll-out)"
        panels.append(MethodPanel(title, about, image.convert("RGB"), "low", "high", SEQUENTIAL))
    return panels


def dense_panels(view: ModelView, options: PanelOptions) -> list[MethodPanel]:
    """What each class that was found looks at."""
    maps = view.dense
    low, high = limits(maps.values[0, :MOST_CLASSES], signed=True)
    about = "what its tokens look at beyond what all do (dense roll-out)"
    return [
        MethodPanel(
            abbreviate(title, 24),
            about,
            overlay(faded(view), cells(maps, view, index), low, high, SIGNED),
            number(low),
            number(high),
            SIGNED,
        )
        for index, title in enumerate(maps.titles[:MOST_CLASSES])
    ]


MOST_CLASSES = 4  # maps of a segmenter or detector
METHODS: dict[str, Callable[[ModelView, PanelOptions], MethodPanel | list[MethodPanel]]] = {
    "Prediction": prediction_panel,
    "Class maps": class_panels,
    "Dense roll-out": dense_panels,
    "Attention": attention_panel,
    "Kernels": kernel_panel,
    "Sampling points": sampling_panel,
    "Global tokens": global_panel,
    "Receptive field": field_panel,
    "Roll-out": rollout_panel,
    "Grad-CAM": cam_panel,
}
FIRST = tuple(name for name in METHODS if name != "Grad-CAM")


def applies(method: str, view: ModelView, layer: CapturedLayer) -> bool:
    """Whether a method has something to show for a model: not each has kernels, deformable merges or global tokens."""
    match method:
        case "Prediction" | "Dense roll-out":
            return view.opened.preprocessing.dense and (method == "Prediction" or bool(view.predicted.numbers))
        case "Roll-out" | "Grad-CAM" | "Class maps":
            told = all(mixer.exit is not None for mixer in view.layers())
            known = view.opened.learned and told  # maps of random weights for a class would say nothing
            return not view.opened.preprocessing.dense and (known or method != "Class maps")
        case "Kernels":
            return isinstance(layer.attention_matrix, KernelMatrix)
        case "Sampling points":
            return any(merge.offsets is not None for merge in view.seen.back_projections)
        case "Global tokens":
            return isinstance(layer.attention_matrix, GatherMatrix)
    return True


def draw_panels(view: ModelView, options: PanelOptions) -> list[MethodPanel]:
    """The panels that are asked for and make sense for this model."""
    layer = view.layer(options.layer)
    shown: list[MethodPanel] = []
    for name, draw in METHODS.items():
        if name in options.methods and applies(name, view, layer):
            made = draw(view, options)
            shown += made if isinstance(made, list) else [made]
    return shown


def pixel_of(view: ModelView, options: PanelOptions) -> tuple[float, float]:
    """The pixel of what the model sees at the point of a click; the middle before one."""
    return view.to_model(options.point or (0.5, 0.5))


def map_panel(title: str, about: str, maps: Maps, view: ModelView, root: bool = False) -> MethodPanel:
    """A map over the image, the point ringed."""
    values = cells(maps, view)
    low, high = limits(values, maps.signed)
    shown = np.sqrt(values / high) * high if root else values
    image = overlay(faded(view), shown, low, high, SIGNED if maps.signed else SEQUENTIAL)
    for mark in maps.marks:
        ring(image, mark[0] * image.width / maps.image_size[1], mark[1] * image.height / maps.image_size[0])
    about = f"{about} (colours by the root)" if root else about
    start = 0.0 if 0 < low < high / 1000 else low
    return MethodPanel(title, about, image, number(start), number(high), SIGNED if maps.signed else SEQUENTIAL)


def cells(maps: Maps, view: ModelView, index: int = 0) -> NDArray[np.floating]:
    """A map at the size of the shown image; cells stay cells."""
    pixels = maps.in_pixels()[0, index]
    rows = np.arange(view.shown.height) * pixels.shape[0] // view.shown.height
    columns = np.arange(view.shown.width) * pixels.shape[1] // view.shown.width
    return pixels[rows[:, None], columns]


def faded(view: ModelView) -> Image.Image:
    """The image in pale grey."""
    grey = np.asarray(view.shown.convert("L"), dtype=np.float32)
    return Image.fromarray(((grey + 40) * (255 / 335)).astype(np.uint8)).convert("RGB")


@cache
def colour_table(name: str) -> Pixels:
    """256 colours of a scale."""
    from matplotlib import colormaps

    return (colormaps[name](np.linspace(0, 1, 256))[:, :3] * 255).astype(np.uint8)


def coloured(values: NDArray[np.floating], low: float, high: float, colours: str) -> Pixels:
    """Numbers as colours `[..., 3]`."""
    fraction = np.clip((np.nan_to_num(values) - low) / (high - low), 0, 1)
    return colour_table(colours)[(fraction * 255).round().astype(np.uint8)]


def overlay(ground: Image.Image, values: NDArray[np.floating], low: float, high: float, colours: str) -> Image.Image:
    """A map over an image; where there is no number the image stays."""
    below = np.asarray(ground, dtype=np.float32)
    veil = np.where(np.isnan(values), 0.0, VEIL)[..., None]
    mixed = (1 - veil) * below + veil * coloured(values, low, high, colours)
    return Image.fromarray(mixed.astype(np.uint8))


def mosaic(kernels: NDArray[np.floating], low: float, high: float) -> Image.Image:
    """Kernels `[n, side, side]` beside each other."""
    across = 4 if len(kernels) > 4 else 2
    cell = 448 // across - 8
    page = Image.new("RGB", (across * (cell + 8) - 8, -(-len(kernels) // across) * (cell + 8) - 8), "white")
    for index, kernel in enumerate(kernels):
        one = Image.fromarray(coloured(kernel, low, high, SIGNED)).resize((cell, cell), Image.Resampling.NEAREST)
        page.paste(one, (index % across * (cell + 8), index // across * (cell + 8)))
    return page


def sheet_of(images: list[Image.Image]) -> Image.Image:
    """One image, or up to four beside each other in the size of one."""
    if len(images) == 1:
        return images[0]
    gap, (width, height) = 6, (side // 2 for side in images[0].size)
    page = Image.new("RGB", (2 * width + gap, -(-len(images) // 2) * (height + gap) - gap), "white")
    for index, image in enumerate(images):
        page.paste(image.resize((width, height)), (index % 2 * (width + gap), index // 2 * (height + gap)))
    return page


def ring(image: Image.Image, x: float, y: float) -> None:
    """A ring around a point, seen on every colour."""
    radius = 11
    side = 2 * (radius + 4)
    layer = Image.new("RGBA", (side * SMOOTH, side * SMOOTH))
    draw = ImageDraw.Draw(layer)
    middle = side * SMOOTH / 2
    for colour, width in (("black", 6), (MARK, 3)):
        outer = (radius + width / 2) * SMOOTH
        box = (middle - outer, middle - outer, middle + outer, middle + outer)
        draw.ellipse(box, outline=colour, width=width * SMOOTH)
    small = layer.resize((side, side), Image.Resampling.LANCZOS)
    image.paste(small, (round(x - side / 2), round(y - side / 2)), small)


LOSSLESS = 40_000  # pixels up to which an image is sent without loss


def model_block(view: ModelView, panels: Sequence[MethodPanel]) -> str:
    """A model: its name, its predictions and its panels."""
    height, width = view.part.size
    kind, weights = ("trained", "trained") if view.opened.learned else ("random", "random weights")
    head = (
        f'<header><h3>{escape(view.label)}</h3><span class="ns-tag ns-{kind}">{weights}</span>'
        f'<span class="ns-size">sees {width}×{height} pixels{escape(merged_words(view))}</span></header>'
    )
    note = f'<p class="ns-note">{escape(view.doubt)}</p>' if view.doubt else ""
    if not view.opened.learned:
        note = (
            '<p class="ns-note">The weights are random: this model was not trained, and neither its predictions nor '
            "its maps mean anything yet. Train it (<code>nearsight train</code>) and open the run: "
            "<code>nearsight app RUN</code>.</p>"
        )
    shown = "".join(panel_block(panel, view.label) for panel in panels)
    faint = "" if view.opened.learned else " ns-faint"
    return (
        f'<section class="ns-model">{head}<div class="ns-outcome"><div class="ns-predictions{faint}">'
        f'{probability_bars(view.predictions)}</div>{note}</div><div class="ns-panels">{shown}</div></section>'
    )


def merged_words(view: ModelView) -> str:
    """What predictions are merged of, where the maps show the first alone; empty for one look of one model."""
    if view.whole is None:
        return ""
    models, views = len(view.whole.model.members), len(view.whole.model.views)
    parts = [f"{models} models"] * (models > 1) + [f"{views} views"] * (views > 1)
    return f"; the prediction merges {' and '.join(parts)}, the maps are of the first"


def probability_bars(predictions: Sequence[ClassScore]) -> str:
    """The likeliest classes with bars."""
    rows = []
    for prediction in predictions:
        fraction = 100 * prediction.probability
        name = prediction.name
        rows.append(
            f'<div class="ns-bar"><span class="ns-name" title="{escape(name)}">{escape(abbreviate(name, 32))}</span>'
            f'<span class="ns-track"><i style="width:{fraction:.1f}%"></i></span><b>{fraction:.1f} %</b></div>'
        )
    return "".join(rows)


def panel_block(panel: MethodPanel, model: str) -> str:
    """One panel with its title, and its scale below."""
    alt = escape(f"{panel.title} of {model}: {panel.about}")
    stream, pixels = io.BytesIO(), panel.image.width * panel.image.height
    panel.image.save(stream, "WEBP", quality=88, method=1, lossless=pixels <= LOSSLESS)
    scale = ""
    if panel.colours:
        table = colour_table(panel.colours)
        stops = ",".join("rgb({},{},{})".format(*table[index]) for index in range(0, 256, 17))
        scale = (
            f'<div class="ns-scale"><span>{escape(panel.low)}</span>'
            f'<i style="background:linear-gradient(90deg,{stops})"></i><span>{escape(panel.high)}</span></div>'
        )
    if panel.legend:
        chips = (f'<span><i style="background:rgb{colour}"></i>{escape(name)}</span>' for name, colour in panel.legend)
        scale = f'<div class="ns-legend">{"".join(chips)}</div>'
    return (
        f'<figure class="ns-panel"><figcaption><b>{escape(panel.title)}</b><span>{escape(panel.about)}</span>'
        f'</figcaption><img src="{image_url(stream.getvalue(), "webp")}" alt="{alt}">{scale}</figure>'
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
