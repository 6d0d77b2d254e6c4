"""The page: what stands where, and which hand does what."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import ImageOps

from ..plots.style import image_url
from .panels import FIRST, METHODS, notice
from .samples import SAMPLES, sample
from .session import AppSession, Corrections, PageState
from .similar import SimilarImages

NOTHING = "none"
OWN = "own size"
SIDES = (OWN, "32", "64", "96", "128", "160", "224")
HEADS = ("mean of all", *(str(number) for number in range(1, 9)))
START = "Click anywhere on the image: the models show what they do there."
SAVE = """(uri) => { if (uri) { const link = document.createElement("a"); link.href = uri;
  link.download = "nearsight.png"; document.body.appendChild(link); link.click(); link.remove(); } }"""
HEADER = """<div class="ns-header"><div class="ns-eye" aria-hidden="true"></div><div><h1>Nearsight</h1>
<p>See what a vision model sees. Choose an image, click on it, and compare two models at that point.</p></div></div>"""


def look() -> dict[str, Any]:
    """Colours, fonts (of the machine that looks: none is fetched) and layout."""
    fonts = ["ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
    mono = ["ui-monospace", "SF Mono", "Consolas", "DejaVu Sans Mono", "monospace"]
    theme = gr.themes.Base(primary_hue="emerald", neutral_hue="slate", font=fonts, font_mono=mono)
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    return {"theme": theme, "head": f"<style>{style}</style>"}  # as `css` it could not reach the page's own frame


def make_page(
    sources: list[str],
    folder: Path,
    corrections: Path | None = None,
    tta: str | None = None,
    error_rate: float | None = None,
    similar: SimilarImages | None = None,
) -> gr.Blocks:
    """The page with these models to choose from; uploads pass through the folder, corrected labels go to another."""
    kept = None if corrections is None else Corrections(corrections)
    session = AppSession(sources, kept, tta, error_rate, similar)
    with gr.Blocks(title="Nearsight", analytics_enabled=False, fill_width=True, delete_cache=(600, 1800)) as page:
        build(Handlers(session, folder), sources)
    return page


def build(handlers: "Handlers", sources: list[str]) -> None:
    """Lay the page out, with what the first models see already in it, and connect it."""
    start, session = PageState(first=sources[0], second=sources[1] if len(sources) > 1 else None), handlers.session
    blocks = blocks_of(session, start)
    layers = [session.layers(source, start) if source else [] for source, _ in both(start)]
    try:
        image = session.shown(start)
    except ValueError:  # the first model can't see it, as its block says
        image = None
    state = gr.State(asdict(start))
    gr.HTML(HEADER, elem_id="ns-top", padding=False)
    message = gr.HTML(notice(START), elem_id="ns-message", padding=False)
    with gr.Row(elem_id="ns-session", equal_height=False):
        with gr.Column(min_width=280, elem_id="ns-pick"):
            shown = gr.Image(
                image,
                type="pil",
                interactive=False,
                show_label=False,
                buttons=[],
                elem_id="ns-image",
                container=False,
            )
            gallery = gr.Gallery(
                [(ImageOps.fit(sample(name), (144, 144)), name) for name in SAMPLES],
                columns=5,
                allow_preview=False,
                show_label=False,
                buttons=[],
                elem_id="ns-samples",
                interactive=False,
            )
            upload = gr.File(show_label=False, file_count="single", height=64, elem_id="ns-upload")
            with gr.Accordion("Take a picture", open=False, elem_id="ns-camera-box"):
                camera: Any = gr.Image(
                    sources=["webcam"],
                    type="filepath",
                    show_label=False,
                    buttons=[],
                    elem_id="ns-camera",
                    container=False,
                )
            camera.preprocess = path_alone
            with gr.Row():
                first = gr.Dropdown(sources, value=start.first, label="Model", min_width=120, elem_id="ns-first")
                choices = [NOTHING, *sources]
                second = gr.Dropdown(
                    choices, value=start.second or NOTHING, label="Beside it", min_width=120, elem_id="ns-second"
                )
            one, several = (gr.Dropdown(label="Right label", **box) for box in label_boxes(session, start))
            right = gr.Button("Save the label", visible=bool(session.label_choices(start)[0]), elem_id="ns-correct")
        with gr.Column(min_width=280, elem_id="ns-results"):
            left = gr.HTML(blocks[0], elem_id="ns-model-1", padding=False)
            beside = gr.HTML(blocks[1], elem_id="ns-model-2", padding=False)
        with gr.Column(min_width=280, elem_id="ns-controls"):
            with gr.Row():
                first_layer = gr.Dropdown(label="Layer", min_width=120, elem_id="ns-first-layer", **in_box(layers[0]))
                second_layer = gr.Dropdown(
                    label="Layer beside", min_width=120, elem_id="ns-second-layer", **in_box(layers[1])
                )
            with gr.Row():
                head = gr.Dropdown(
                    list(HEADS), value=HEADS[0], label="Attention head", min_width=120, elem_id="ns-head"
                )
                side = gr.Dropdown(list(SIDES), value=OWN, label="Pixels seen", min_width=120, elem_id="ns-side")
            methods = gr.CheckboxGroup(list(METHODS), value=list(FIRST), label="Show", elem_id="ns-methods")
            save = gr.Button("Download the figure", variant="primary", elem_id="ns-save")
            link = gr.Textbox(visible=False, elem_id="ns-link")
    connect(
        handlers,
        dict(state=state, message=message, shown=shown, gallery=gallery, upload=upload, save=save, link=link)
        | dict(camera=camera, one=one, several=several, right=right),
        dict(first=first, second=second, side=side, first_layer=first_layer, second_layer=second_layer, head=head),
        methods,
        [left, beside],
    )


def connect(
    handlers: "Handlers", parts: dict[str, Any], boxes: dict[str, Any], methods: Any, models: list[Any]
) -> None:
    """Which handler is called by what."""
    state, shown, message = parts["state"], parts["shown"], parts["message"]
    labels = [parts["one"], parts["several"], parts["right"]]
    everything = [state, message, shown, *models, boxes["first_layer"], boxes["second_layer"], *labels]
    quick = [state, message, shown, *models]
    # a click while another is being handled waits its turn; Gradio would drop it, or repeat the other one
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "trigger_mode": "multiple"}
    parts["gallery"].select(handlers.pick, [state], everything, **quiet)
    parts["upload"].upload(handlers.take, [state, parts["upload"]], [*everything, parts["upload"]], **quiet)
    parts["camera"].input(handlers.take, [state, parts["camera"]], [*everything, parts["camera"]], **quiet)
    parts["right"].click(handlers.correct, [state, *labels[:2]], [message], **quiet)
    shown.select(handlers.click, [state], quick, **quiet)
    settings = [boxes[name] for name in ("first", "second", "side", "first_layer", "second_layer", "head")]
    for name in ("first", "second", "side"):
        boxes[name].input(handlers.change, [state, *settings[:3], boxes["head"], methods], everything, **quiet)
    for box in (boxes["first_layer"], boxes["second_layer"], boxes["head"], methods):
        box.input(handlers.change_view, [state, *settings, methods], quick, **quiet)
    parts["save"].click(handlers.save, [state], [message, parts["link"]], **quiet).then(
        None, [parts["link"]], None, js=SAVE, api_visibility="private"
    )


class Handlers:
    """What the page calls; each returns what is to be put into the page."""

    def __init__(self, session: AppSession, folder: Path):
        self.session = session
        self.folder = folder

    def pick(self, kept: dict[str, Any], event: gr.SelectData) -> list[Any]:
        """A sample was chosen."""
        name, before = SAMPLES[int(event.index)], restored(kept)
        return self.all_of(replace(before, image=f"sample:{name}", point=None), before)

    def take(self, kept: dict[str, Any], file: str | None) -> list[Any]:
        """A file was given; what is wrong with it is told on the page, and the old image stays."""
        state = restored(kept)
        if file is None:
            return [*self.all_of(state, state), None]
        try:
            path = uploaded(file, self.folder)
            try:
                key = self.session.take(path)
            finally:
                path.unlink(missing_ok=True)  # the image is kept in memory alone
        except ValueError as error:
            return [gr.skip(), notice(str(error), bad=True), *[gr.skip()] * 8, None]
        return [*self.all_of(replace(state, image=key, point=None), state), None]

    def click(self, kept: dict[str, Any], event: gr.SelectData) -> list[Any]:
        """A point of the image was clicked."""
        state = restored(kept)
        try:
            state = self.session.click(state, float(event.index[0]), float(event.index[1]))
        except ValueError as error:
            return [gr.skip(), notice(str(error), bad=True), *[gr.skip()] * 3]
        return self.view_of(state)

    def change(
        self, kept: dict[str, Any], first: str, second: str | None, side: str | None, *settings: Any
    ) -> list[Any]:
        """Other models, or another size; layers stay as they are known, their boxes may still show the old model's."""
        before = restored(kept)
        state = changed(before, first, second, side, before.first_layer, before.second_layer, *settings)
        # a drop-down list reports a state twice, and its `select` event leaves out choices by keyboard
        return [gr.skip()] * 10 if state == before else self.all_of(state, before)

    def change_view(self, kept: dict[str, Any], *settings: Any) -> list[Any]:
        """Another layer or head, other methods."""
        before = restored(kept)
        state = changed(before, *settings)
        return [gr.skip()] * 5 if state == before else self.view_of(state)

    def correct(self, kept: dict[str, Any], one: str | None, several: list[str] | None) -> str:
        """The right label of the image is wanted on the disk."""
        state = restored(kept)
        most = self.session.label_choices(state)[1]
        try:
            return notice(self.session.correct(state, [one] if one and most == 1 else several or []))
        except ValueError as error:
            return notice(str(error), bad=True)

    def save(self, kept: dict[str, Any]) -> list[Any]:
        """The figure is wanted."""
        try:
            return [gr.skip(), image_url(self.session.figure(restored(kept)))]
        except ValueError as error:
            return [notice(str(error), bad=True), ""]

    def view_of(self, state: PageState) -> list[Any]:
        """State, sentence, image and both models."""
        try:
            shown = self.session.shown(state)
        except ValueError as error:
            return [asdict(state), notice(str(error), bad=True), gr.skip(), *blocks_of(self.session, state)]
        said = notice(self.session.comparison(state) or START)
        return [asdict(state), said, shown, *blocks_of(self.session, state)]

    def all_of(self, state: PageState, before: PageState) -> list[Any]:
        """The same, and the layers to choose from."""
        boxes = []
        for (source, wanted), (old, _) in zip(both(state), both(before), strict=True):
            layers = self.session.layers(source, state) if source else []
            # a list that is renewed closes under the visitor's hand, so it stays where nothing in it changed
            same = source == old and (not old or layers == self.session.layers(old, before))
            boxes.append(gr.skip() if same else gr.Dropdown(**in_box(layers, wanted)))
        if self.session.corrections is None:
            return [*self.view_of(state), *boxes, *[gr.skip()] * 3]
        labels = [gr.Dropdown(**box) for box in label_boxes(self.session, state)]
        button = gr.Button(visible=bool(self.session.label_choices(state)[0]))
        return [*self.view_of(state), *boxes, *labels, button]


def in_box(layers: list[tuple[str, str]], wanted: str | None = None) -> dict[str, Any]:
    """The layers of a model to choose from; nothing to see where there is none."""
    if not layers:
        # its choices stay: the browser goes on sending the value of a hidden box, which has to be among them
        return {"visible": False}
    names = [name for _, name in layers]
    return {"choices": layers, "value": wanted if wanted in names else names[len(names) // 2], "visible": True}


def label_boxes(session: AppSession, state: PageState) -> list[dict[str, Any]]:
    """Two boxes for the right label, one of which is seen: for a single label, and for any number."""
    classes, most = session.label_choices(state)
    boxes = []
    for several in (False, True):
        there = bool(classes) and (most != 1) == several
        name = "ns-right-labels" if several else "ns-right-label"
        boxes.append({"choices": classes, "value": [] if several else None, "multiselect": several, "elem_id": name})
        boxes[-1]["visible"] = there
    return boxes


def path_alone(picture: Any) -> Any:
    """Path of a camera picture, which is read as every upload is: Gradio would open it with all that Pillow reads."""
    return picture and picture.path


def uploaded(file: str, folder: Path) -> Path:
    """A file that was uploaded. Gradio takes any path from a program that calls it; only the page's folder is ours."""
    path = Path(file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError("That file was not uploaded here; drop an image on the page.")
    return path


def both(state: PageState) -> list[tuple[str | None, str | None]]:
    """Both models and their layers; of the second there may be none."""
    return [(state.first, state.first_layer), (state.second, state.second_layer)]


def blocks_of(session: AppSession, state: PageState) -> list[str]:
    """HTML of both models; empty for the second if there is none."""
    blocks = session.blocks(state)
    return [*blocks, *[""] * (2 - len(blocks))]


def restored(kept: dict[str, Any]) -> PageState:
    """The state of a visitor, as it was kept."""
    point = tuple(kept["point"]) if kept["point"] else None
    return PageState(**{**kept, "point": point, "methods": tuple(kept["methods"])})


def changed(
    state: PageState,
    first: str,
    second: str | None,
    side: str | None,
    first_layer: str | None,
    second_layer: str | None,
    head: str | None,
    methods: list[str],
) -> PageState:
    """The state with the settings of the boxes."""
    return replace(
        state,
        first=first,
        second=None if second in (None, NOTHING) else second,
        side=None if side in (None, OWN) else int(side),
        first_layer=first_layer if first == state.first else None,
        second_layer=second_layer if second == state.second else None,
        head=None if head in (None, HEADS[0]) else int(head) - 1,
        methods=tuple(name for name in METHODS if name in methods),
    )
