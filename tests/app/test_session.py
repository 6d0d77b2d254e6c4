"""What the page shows is what the methods say, at the point that was clicked."""

import io
import json
import re
from dataclasses import asdict, replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image

import nearsight.app
from nearsight.app.cache import Recent
from nearsight.app.panels import METHODS, PanelOptions, draw_panels
from nearsight.app.samples import sample
from nearsight.app.session import AppSession, Corrections, PageState, offered
from nearsight.app.similar import SimilarImages
from nearsight.checkpoints import save_model
from nearsight.config.recipe import ModelChoice
from nearsight.data import open_data
from nearsight.data.transforms import DensePreprocessing
from nearsight.explanation import attention, receptive_field
from nearsight.explanation.figures import VEIL, limits
from nearsight.heads import DenseModel, DenseSpec, LinearHead
from nearsight.models import MODELS, Backbone
from nearsight.runs.predictor import fingerprint, load, save_trained
from nearsight.tasks.build import build
from tests.rounding import assert_rounded

ALL = tuple(name for name in METHODS if name != "Grad-CAM")


@pytest.fixture(scope="module")
def session() -> AppSession:
    return AppSession(["swin_nano", "iddwnet_nano", "lit_nano", "deit_nano", "lightvit_nano", "timm/resnet18"])


def test_a_click_reaches_the_token_under_it(session: AppSession) -> None:
    """Of 32×32 tokens of 2 pixels each, on an image shown with 448 pixels, each token has 14 pixels."""
    state = session.click(PageState(first="swin_nano"), x=14 * 20 + 3, y=14 * 5 + 12)
    view = session.view("swin_nano", state)
    assert state.point is not None
    x, y = view.to_model(state.point)
    assert view.seen.layer("1.1").token_at(x, y) == 5 * 32 + 20


@pytest.mark.parametrize("size", [(600, 300), (300, 700)])
def test_a_click_on_a_long_image_means_the_middle_that_the_model_sees(
    session: AppSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    Image.new("RGB", size, "teal").save(tmp_path / "long.png")
    state = session.click(PageState(image=session.take(tmp_path / "long.png"), first="deit_nano"), 112, 336)
    assert state.point is not None
    view = session.view("deit_nano", state)
    side, width, height = min(size), *size
    assert state.point == pytest.approx(
        (((width - side) / 2 + side / 4) / width, ((height - side) / 2 + 3 * side / 4) / height)
    )
    assert view.to_model(state.point) == pytest.approx((16, 48))


def test_the_attention_tile_is_the_attention(session: AppSession) -> None:
    """Each cell has the colour of its fraction of attention, laid over the grey image."""
    state = session.click(PageState(first="deit_nano"), 200, 100)
    view = session.view("deit_nano", state)
    (panel,) = draw_panels(view, PanelOptions(state.point, "1.2", 1, ("Attention",)))
    assert state.point is not None
    found = attention(view.opened.model, view.input, layer="1.2", at=view.to_model(state.point))
    assert panel.image.size == (448, 448) and "layer 1.2, head 2" in panel.about
    fractions = found.weights[0, 1, 0, 1:].reshape(16, 16)
    assert float(panel.high) == pytest.approx(fractions.max(), rel=5e-3)
    low, high = limits(fractions, signed=False)
    colours = 255 * colormaps["inferno"]((fractions - low) / (high - low))[..., :3]
    grey = (np.asarray(view.shown.convert("L"), dtype=float)[14::28, 14::28] + 40) * 255 / 335
    expected = VEIL * colours + (1 - VEIL) * grey[..., None]
    assert np.abs(np.asarray(panel.image, dtype=float)[5::28, 14::28] - expected).mean() < 8  # rings and slopes aside


def test_the_receptive_field_is_that_of_the_method(session: AppSession) -> None:
    view = session.view("lit_nano", PageState(first="lit_nano"))
    layer = view.layer(None)
    for at in ((3.0, 3.0), (40.0, 22.0)):  # the second walks back a graph that is kept
        quick = view.dependence(layer, layer.token_at(*at))
        expected = receptive_field(view.opened.model, view.input, layer=layer.name, at=at).values[0, 0]
        assert_rounded(quick, expected, view.opened.model)


@pytest.mark.parametrize(
    ("model", "titles"),
    [
        ("swin_nano", ["Attention", "Receptive field", "Roll-out"]),
        ("iddwnet_nano", ["Mixing weights", "Kernels", "Receptive field", "Roll-out"]),
        ("lit_nano", ["Attention", "Sampling points", "Receptive field", "Roll-out"]),
        ("lightvit_nano", ["Attention", "Global tokens", "Receptive field", "Roll-out"]),
    ],
)
def test_each_model_shows_what_it_has(session: AppSession, model: str, titles: list[str]) -> None:
    (block,) = session.blocks(PageState(first=model, methods=ALL))
    assert re.findall(r"<figcaption><b>(.*?)</b>", block) == titles
    assert "The weights are random" in block and "nearsight app RUN" in block
    assert not re.search(r"""(?:src|href)=["'](?!data:)|url\(|https?:""", block)


def test_a_segmenter_shows_what_it_found_and_why(tmp_path: Path) -> None:
    """A new head on a new backbone, saved as a run: what it finds is noise, but is shown like any other."""
    torch.manual_seed(0)
    model = DenseModel(DenseSpec(MODELS["swin_nano"], LinearHead()), 3, masks=False)
    about = {"task": "segment", "classes": ["sky", "sea", "sand"], "input": asdict(DensePreprocessing(48))}
    save_model(model, tmp_path / "model.safetensors", name="swin_nano", trained=about)
    Image.new("RGB", (120, 60), "navy").save(tmp_path / "long.png")
    session = AppSession([str(tmp_path)])
    state = session.click(PageState(session.take(tmp_path / "long.png"), first=str(tmp_path)), 10, 20)
    view = session.view(str(tmp_path), state)
    assert view.part.size[1] > view.part.size[0] and view.shown.width == 448  # the whole image, not its middle
    (block,) = session.blocks(state)
    titles = re.findall(r"<figcaption><b>(.*?)</b>", block)
    assert titles == ["Prediction", *view.found[:4], "Attention", "Receptive field"]
    assert set(view.found) == {one.name for one in view.predictions} <= {"sky", "sea", "sand"} and ">trained<" in block


def test_two_models_and_one_that_can_not_be_looked_into(session: AppSession) -> None:
    left, right = session.blocks(PageState(first="swin_nano", second="timm/resnet18", methods=("Attention",)))
    assert "ns-panel" in left
    assert "ns-problem" in right and "can&#x27;t be looked into" in right


def test_a_layer_that_another_model_has_falls_back_to_one_in_the_middle(session: AppSession) -> None:
    view = session.view("swin_nano", PageState(first="swin_nano"))
    assert view.layer("7.7").name == view.layer(None).name == "2.2"


def test_the_figure_has_a_row_for_each_model(session: AppSession) -> None:
    one = session.figure(PageState(first="swin_nano", methods=("Attention",)))
    two = session.figure(PageState(first="swin_nano", second="lit_nano", methods=("Attention",)))
    sizes = [Image.open(io.BytesIO(png)).size for png in (one, two)]
    assert sizes[0][0] == pytest.approx(sizes[1][0], abs=40) and sizes[1][1] > 1.5 * sizes[0][1]


def test_a_click_runs_no_model_again(session: AppSession) -> None:
    """Both models are looked into once for an image; then each click takes a fraction of a second."""
    state = PageState(first="swin_nano", second="lit_nano")
    session.blocks(state)
    runs: list[object] = []
    watch = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: runs.append(module))
    shown = [session.blocks(replace(state, point=position)) for position in ((0.2, 0.3), (0.7, 0.4), (0.5, 0.9))]
    watch.remove()
    assert not [module for module in runs if isinstance(module, Backbone)]
    assert len({tuple(blocks) for blocks in shown}) == 3


def test_images_are_kept_apart_and_forgotten(session: AppSession, tmp_path: Path) -> None:
    keys = []
    for colour in ("red", "blue", "red"):
        Image.new("RGB", (40, 40), colour).save(tmp_path / "a.png")
        keys.append(session.take(tmp_path / "a.png"))
    assert keys[0] == keys[2] != keys[1]
    with pytest.raises(ValueError, match="is forgotten; give it again"):
        session.image("0123456789abcdef01234567")


def test_what_is_not_offered_is_refused(session: AppSession) -> None:
    with pytest.raises(ValueError, match="is not offered here"):
        session.view("/etc/passwd", PageState())
    with pytest.raises(ValueError, match="A side of 5000 pixels is not offered"):
        session.view("swin_nano", PageState(first="swin_nano", side=5000))


def test_recent_keeps_what_was_used_last() -> None:
    kept: Recent[int, int] = Recent(2)
    made: list[int] = []
    for key in (1, 2, 1, 3, 1, 2):
        kept.get(key, lambda key=key: made.append(key) or key)  # type: ignore[misc, func-returns-value]
    assert made == [1, 2, 3, 2]


def test_what_is_given_comes_first(trained_run: Path) -> None:
    sources = offered([str(trained_run)])
    assert sources[:3] == [str(trained_run), "near_nano.clothing", "swin_nano"] and len(sources) == len(set(sources))
    session = AppSession(sources)
    (block,) = session.blocks(PageState(first=str(trained_run), methods=("Attention", "Roll-out")))
    assert ">trained<" in block and "random" not in block and "&lt;b&gt;seven" in block
    (block,) = session.blocks(PageState(first=str(trained_run), methods=("Class maps",)))
    likely = session.view(str(trained_run), PageState()).predictions[:2]
    titles = re.findall(r"<figcaption><b>(.*?)</b>", block)
    assert titles == [f"{escape(score.name)}, {100 * score.probability:.1f} %" for score in likely]
    assert "<h3>mine (localvit_nano)</h3>" in block
    assert session.view(str(trained_run), PageState()).part.size == (32, 32)
    with pytest.raises(ValueError, match="Neither Nearsight nor timm has a model 'no_such_nano'"):
        offered(["no_such_nano"])


def save_run(folder: Path, classes: tuple[str, ...], task: str = "classify", seed: int = 0) -> str:
    """The folder of a run whose weights are random but count as trained."""
    torch.manual_seed(seed)
    save_trained(build(ModelChoice(name="deit_nano"), len(classes)), task, classes, folder / "model.safetensors")
    return str(folder)


def test_two_runs_are_compared_in_a_sentence(tmp_path: Path) -> None:
    first = save_run(tmp_path / "first", ("cat", "dog"))
    second = save_run(tmp_path / "second", ("mouse", "horse"), seed=1)
    session = AppSession([first, second, "swin_nano"])
    state = PageState(first=first, second=second)
    found = [session.view(source, state).found[0] for source in (first, second)]
    differ = f"The models differ: first (deit_nano) predicts {found[0]}, second (deit_nano) predicts {found[1]}."
    assert session.comparison(state) == differ
    assert session.comparison(replace(state, second=first)) == f"Both models predict {found[0]}."
    assert session.comparison(replace(state, second="swin_nano")) == ""  # random weights predict nothing
    assert session.comparison(replace(state, second=None)) == ""


def test_corrected_labels_are_a_table_that_train_takes(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", ("cat", "dog, large"))
    kept = Corrections(tmp_path / "kept")
    session = AppSession([run, "swin_nano"], kept)
    for name, label in (("Cat", "dog, large"), ("Shapes", "dog, large"), ("Hills", "cat"), ("Cat", "cat")):
        said = session.correct(PageState(f"sample:{name}", run), [label])
    assert said == "Saved as cat: 3 in kept/labels.csv. To train with them: nearsight train kept/labels.csv"
    data = open_data(tmp_path / "kept" / "labels.csv")
    images = {Path(split.name(i)).stem: (split, i) for split in data.splits().values() for i in range(len(split))}
    labels = {name: data.classes[split.target(i)] for name, (split, i) in images.items()}
    assert labels == {"sample-Cat": "cat", "sample-Shapes": "dog, large", "sample-Hills": "cat"}
    split, index = images["sample-Cat"]
    assert split.read(index).tobytes() == session.image("sample:Cat").tobytes()
    assert Corrections(tmp_path / "kept").rows == kept.rows  # a page that is started anew goes on
    for state, given, sentence in (
        (PageState(first=run), ["bird"], "The model has no class 'bird'"),
        (PageState(first=run), [], "Choose one label"),
        (PageState(first=run), ["cat", "dog, large"], "Choose one label"),
        (PageState(first="swin_nano"), ["cat"], "Labels can't be corrected here"),
    ):
        with pytest.raises(ValueError, match=sentence):
            session.correct(state, given)
    with pytest.raises(ValueError, match="start the page with --corrections"):
        AppSession([run]).correct(PageState(first=run), ["cat"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "labels.csv").write_text("name,age\nann,4\n")
    with pytest.raises(ValueError, match=r"is no table of corrected labels \(path,label\)"):
        Corrections(tmp_path / "other")


def test_several_labels_are_corrected_together(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", ("sea", "sky", "sand"), "multilabel")
    session = AppSession([run], Corrections(tmp_path / "kept"))
    for name, labels in (("Cat", ["sea", "sand"]), ("Hills", ["sky"])):
        session.correct(PageState(f"sample:{name}", run), labels)
    rows = (tmp_path / "kept" / "labels.csv").read_text().splitlines()
    assert rows == ["path,label", "images/sample-Cat.png,sea|sand", "images/sample-Hills.png,sky"]
    assert open_data(tmp_path / "kept" / "labels.csv").task == "multilabel"


def test_every_style_is_for_something_on_the_page() -> None:
    folder = Path(nearsight.app.__file__).parent
    styled = set(re.findall(r"[.#](ns-[a-z-]+)", (folder / "page.css").read_text()))
    written = set(re.findall(r"ns-[a-z-]+[a-z]", "".join(file.read_text() for file in folder.glob("*.py"))))
    assert styled - written <= {"ns-random"}  # beside ns-trained, by what the weights are


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with the same classes, the first of them calibrated."""
    folders = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"run{seed}")
        torch.manual_seed(seed)
        built = build(ModelChoice(name="deit_nano", img_size=32), classes=3)
        torch.nn.init.normal_(built.model.head.weight, std=0.3)
        file = save_trained(built, "classify", ("cat", "cow", "dog"), folder / "model.safetensors")
        if not seed:
            settings = {"temperature": 3.0, "conformal": {"0.05": 0.2, "0.2": 0.9}, "tta": None}
            about = {"settings": settings, "weights": fingerprint(load(file))}
            (folder / "calibration.json").write_text(json.dumps(about))
        folders.append(folder)
    return folders


def bars(block: str) -> list[tuple[str, str]]:
    """Classes and their probabilities as a block shows them."""
    return re.findall(r'title="(\w+)">\w+</span>.*?<b>([\d.]+) %</b>', block)


def test_the_page_predicts_as_predict_does(calibrated: list[Path]) -> None:
    """Calibrated, with a promised error rate; views and runs averaged."""
    photo = sample("Cat")
    first = str(calibrated[0])
    session = AppSession([first], error_rate=0.05)
    (block,) = session.blocks(PageState("sample:Cat", first=first, methods=("Class maps",)))
    (found,) = load(first).predict(photo, error_rate=0.05)
    assert bars(block) == [(name, f"{100 * value:.1f}") for name, value in found.top(3)]
    assert ("Don&#x27;t know" in block) == (not found.known) and "missed at most 5.0 % of the time" in block
    several = ",".join(map(str, calibrated))
    session = AppSession([several], tta="flip")
    (block,) = session.blocks(PageState("sample:Cat", first=several, methods=("Class maps",)))
    (found,) = load(several).predict(photo, tta="flip")
    assert bars(block) == [(name, f"{100 * value:.1f}") for name, value in found.top(3)]
    assert "the prediction merges 2 models and 2 views, the maps are of the first" in block


def test_what_can_not_be_promised_is_refused_before_the_page_opens(calibrated: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"No error rate of 0\.1 can be promised"):
        offered([str(calibrated[0])], error_rate=0.1)
    with pytest.raises(ValueError, match="it was not calibrated"):
        offered([str(calibrated[1])], error_rate=0.05)
    with pytest.raises(ValueError, match="'scales' is no view to classify with"):
        offered([str(calibrated[1])], tta="scales")


def test_similar_images_begin_with_the_image_itself(calibrated: list[Path], tmp_path: Path) -> None:
    for name in ("Cat", "Hills", "Rings"):
        sample(name).save(tmp_path / f"{name.lower()}.png")
    near = SimilarImages(tmp_path, str(calibrated[0]))
    session = AppSession([str(calibrated[0])], similar=near)
    (block,) = session.blocks(PageState("sample:Cat", first=str(calibrated[0]), methods=()))
    shown = re.findall(r"<figcaption><b>(.+?)</b><span>(-?[\d.]+) ", block)
    assert shown[0] == ("cat.png", "1.00") and len(shown) == len(near.found.images)
    assert [float(value) for _, value in shown] == sorted((float(value) for _, value in shown), reverse=True)
