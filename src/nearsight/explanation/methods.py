"""`explain`: what a model looks at, by one of the methods, as figures and the numbers behind them."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..arguments import checked
from ..atomic import write_whole
from ..data.samples import BadImage, Split
from ..plots.overlays import BACKGROUND
from ..plots.style import abbreviate, image_html, to_png
from ..runs.images import GivenImages, gather
from ..runs.predictor import Predictor, load_module
from ..tasks import get_task
from .attention import attention, global_tokens, probability_grids, to_pixels
from .capture import Capture, capture
from .figures import (
    DenseRow,
    Panel,
    draw_classes,
    draw_dense,
    draw_global_tokens,
    draw_grids,
    draw_kernels,
    draw_maps,
    draw_sampling,
)
from .gradients import grad_cam, grad_rollout, receptive_field
from .kernels import kernels, sampling_points
from .maps import ImageView, Pixel, view_of
from .rollout import dense_rollout, rollout
from .targets import Targets, predicted_targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fusion = Literal["mean", "max", "min"]
Overlay = Literal["smooth", "cells"]
BESIDE = 3  # classes whose maps stand beside each other, unless asked otherwise


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a model looks at, by one method.

    Attributes:
        method: Its name.
        model: Name of the model.
        image: Name of the image; of a method over many images how many they are.
        prediction: The classes that the model predicts, with its confidence.
        truth: The true class, where the folder of the image is named after a class of the model; else None.
        maps: What the method found: `Maps`, or the method's own type.
        arrays: The numbers as arrays, as the `.npz` file holds them.
    """

    method: str
    model: str
    image: str
    prediction: tuple[tuple[str, float], ...]
    truth: str | None
    maps: Any = field(repr=False)
    arrays: dict[str, NDArray] = field(repr=False)
    draw: "Callable[[], Figure]" = field(repr=False)

    def figure(self) -> "Figure":
        """A new figure of it, by matplotlib."""
        return self.draw()

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the figure (`.png`) and the numbers (`.npz`); one of them alone where the path ends with it.

        Returns:
            What was written.
        """
        path = Path(path)
        files = (
            [path] if path.suffix in (".npz", ".png") else [path.with_name(path.name + end) for end in (".npz", ".png")]
        )
        for file in reversed(files):  # the figure first: by it, what is there already is known as ours
            if file.suffix == ".png":
                write_whole(file, to_png(self.figure()))
                continue
            stream = io.BytesIO()
            np.savez_compressed(stream, **self.arrays)  # type: ignore[arg-type]
            write_whole(file, stream.getvalue())
        return files

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has; arrays as nested lists."""
        predicted = [{"class": name, "confidence": round(value, 6)} for name, value in self.prediction]
        arrays = {name: values.tolist() for name, values in self.arrays.items()}
        about = {"method": self.method, "model": self.model, "image": self.image}
        return {**about, "prediction": predicted, "truth": self.truth, "arrays": arrays}

    def _repr_html_(self) -> str:
        return image_html(to_png(self.figure()), f"{self.method} of {self.model}: {self.image}")


@dataclass(frozen=True)
class Explanations(Sequence[Explanation]):
    """Explanations of one or more images.

    Attributes:
        items: One for each image and method, image by image.
        skipped: Images that can't be read, with the reason.
    """

    items: tuple[Explanation, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write figures and numbers into a folder."""
        named = zip(self.items, file_names(self.items), strict=True)
        return [file for made, name in named for file in made.save(Path(path) / name)]

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has."""
        return {"explanations": [made.to_dict() for made in self.items], "skipped": dict(self.skipped)}

    def _repr_html_(self) -> str:
        return "\n".join(made._repr_html_() for made in self.items)


def file_names(items: Iterable[Explanation], taken: set[str] | None = None) -> Iterator[str]:
    """A name for the files of each: that of the image and method, with a number where two would be the same."""
    taken = set() if taken is None else taken
    for made in items:
        stem = made.method if made.method == OVER_MANY else f"{Path(made.image).stem}-{made.method}"
        name, number = stem, 2
        while name in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name)
        yield name


@checked
def explain(
    source: str | os.PathLike[str] | Predictor,
    images: Any,
    *,
    method: str | Sequence[str] | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    at: Pixel | Sequence[Pixel] = (),
    classes: str | int | Sequence[str | int] = (),
    beside: Sequence[str | os.PathLike[str] | Predictor] = (),
    fusion: Fusion = "mean",
    discard: float = 0.0,
    overlay: Overlay | None = None,
    size: int | None = None,
    seed: int = 0,
) -> Explanations:
    """Show what a model looks at.

    Args:
        source: Folder of a run, weight file, or a model's name, which has random weights; or what `load` returned.
        images: Paths of images or of folders of images, Pillow images, arrays `[H, W, 3]`, tensors `[3, H, W]`; one or
            several.
        method: Name of a method of `METHODS`, or `probability-grids`, which is one figure of all images; or several.
            None takes the one whose maps scored best, of classes `grad-rollout`, of predicted masks `dense-rollout`;
            with a layer, pixel, fusion or discard `rollout`, which these are about.
        layer: Number of the layer from 0, -1 the last, or `stage.block` such as `3.2`; None takes the method's choice.
        head: One head, from 0; None takes the mean of all.
        at: Pixel (x, y) of the image that is asked about, or several; none takes the method's choice.
        classes: Classes by name or number; none takes what the model predicts, and what it finds likely beside it.
        beside: `dense-rollout`: other models, in rows below.
        fusion: Roll-out: how heads become one.
        discard: Roll-out: fraction of the smallest weights that is left out.
        overlay: `smooth` interpolates maps between patches, `cells` shows each patch as it is; None: smooth where all
            layers count, cells where one layer is shown.
        size: Show the whole image with this shorter side; None: as in evaluation.
        seed: Of random weights.

    Returns:
        An explanation for each image and method. Images that can't be read are left out and named in `skipped`.

    Raises:
        ValueError: The method does not fit the model, there is nothing to show, or no image can be read.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> file = Path(tempfile.mkdtemp()) / "grey.png"
        >>> Image.new("RGB", (48, 32), "grey").save(file)
        >>> found = explain("deit_nano", file, method="attention", layer="1.2")
        >>> found[0].method, found[0].maps.values.shape
        ('attention', (1, 1, 8, 8))
        >>> [path.name for path in found.save(file.parent)]
        ['grey-attention.npz', 'grey-attention.png']
    """
    asked = locals()
    skipped: dict[str, str] = {}
    return Explanations(tuple(each_explanation(**asked, skip=skipped.__setitem__)), skipped)


def each_explanation(
    source: str | os.PathLike[str] | Predictor,
    images: Any,
    *,
    method: str | Sequence[str] | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    at: Pixel | Sequence[Pixel] = (),
    classes: str | int | Sequence[str | int] = (),
    beside: Sequence[str | os.PathLike[str] | Predictor] = (),
    fusion: Fusion = "mean",
    discard: float = 0.0,
    overlay: Overlay | None = None,
    size: int | None = None,
    seed: int = 0,
    skip: Callable[[str, str], None] = lambda image, reason: None,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Iterator[Explanation]:
    """What `explain` returns, one after the other, so that memory does not grow with the images.

    Args:
        skip: Is told of each image that can't be read, and why.
        progress: Wraps the images, to show how far the work is.
    """
    if not method and (layer is not None or at or fusion != "mean" or discard):
        method = "rollout"  # which these are about
    methods = check_methods([method] if isinstance(method, str) else method or (), [*METHODS, OVER_MANY])
    predictor = load_module(source, seed)
    named = [classes] if isinstance(classes, (str, int)) else classes
    options = Options(
        layer,
        head,
        (),
        tuple(predictor.class_number(str(name)) for name in named),
        fusion,
        discard,
        tuple(load_module(other, seed) for other in beside),
        overlay,
    )
    if overlay not in (None, "smooth", "cells"):
        raise ValueError(f"overlay={overlay!r} is not known; use smooth or cells.")
    pixels = to_pixels(at) if at else []
    if OVER_MANY in methods and len(pixels) > 1:
        raise ValueError(f"{OVER_MANY} shows the attention of one position; give --at once.")
    gathered = gather(images)
    given = gathered if isinstance(gathered, Split) else GivenImages(list(gathered), predictor.preprocessing.channels)
    read = 0
    single = [name for name in methods if name != OVER_MANY]
    chosen_for_it = not methods
    indices = progress(range(len(given))) if single or chosen_for_it else ()
    for name, view in read_views(predictor, given, indices, size, skip):
        read += 1
        asked = replace(options, at=tuple(view.locate(x, y) for x, y in pixels))
        seen = capture(predictor.model, view.normalised(predictor.preprocessing))
        targets = predicted_targets(predictor, seen.output, view.size)
        look = CapturedImage(predictor, view, seen, targets, true_class(name, predictor))
        for chosen in [look.best_method] if chosen_for_it else single:
            maps, arrays, draw = METHODS[chosen](look, asked)
            truth = None if look.truth is None else predictor.class_name(look.truth)
            yield Explanation(chosen, predictor.name, name, look.prediction, truth, maps, arrays, draw)
    if OVER_MANY in methods:
        again = skip if not single else lambda image, reason: None  # was told already
        views = read_views(predictor, given, progress(range(len(given))), size, again)
        first = next(views, None)
        if first is not None:
            read += 1
            yield explain_grids(predictor, first[1], (view for _, view in views), pixels)
    if not read:
        raise ValueError(f"No image can be read: {len(given):,} of {len(given):,} are unreadable.")


def true_class(image: str, predictor: Predictor) -> int | None:
    """The class whose name the folder of an image has; None if there is no such class."""
    folder = Path(image).parent.name
    return predictor.classes.index(folder) if predictor.weights == "trained" and folder in predictor.classes else None


def check_methods(given: Sequence[str], known: Sequence[str]) -> list[str]:
    """The methods that are asked for, each once, if they are known."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"No method {name!r} is known; {hint}There are: {', '.join(known)}.")
    return list(dict.fromkeys(given))


def read_views(
    predictor: Predictor,
    images: Split,
    indices: Iterable[int],
    size: int | None,
    skip: Callable[[str, str], None],
) -> Iterator[tuple[str, ImageView]]:
    """The images that can be read, as the model is shown them."""
    for index in indices:
        try:
            image = images.read(index)
        except BadImage as bad:
            skip(images.name(index), bad.reason)
            continue
        yield images.name(index), view_of(image, predictor.preprocessing, size)


@dataclass(frozen=True)
class Options:
    """What is asked of a method; see `explain`. Positions are pixels (x, y) of what the model is shown."""

    layer: int | str | None = None
    head: int | None = None
    at: tuple[Pixel, ...] = ()
    classes: tuple[int, ...] = ()
    fusion: Fusion = "mean"
    discard: float = 0.0
    beside: tuple[Predictor, ...] = ()
    overlay: Overlay | None = None


@dataclass(frozen=True)
class CapturedImage:
    """A model's look at one image: what it was shown, what its layers were given, what it predicts, what is true."""

    predictor: Predictor
    view: ImageView
    seen: Capture
    targets: Targets
    truth: int | None = None

    @property
    def best_method(self) -> str:
        """The method whose maps scored best for what the model predicts, if its layers say what it needs."""
        if self.targets.masks is not None:
            return "dense-rollout" if self.targets.numbers else "rollout"
        told = all(layer.exit is not None for layer in self.seen.layers if layer.recompute is not None)
        return "grad-rollout" if self.targets.numbers and told else "rollout"

    def likely(self, asked: Sequence[int]) -> list[tuple[int, float]]:
        """The classes that are asked about with their probability; none asked: those predicted, likely and true."""
        probabilities = get_task(self.predictor.task).probabilities(self.seen.output[:1].double())[0]
        ranked = probabilities.argsort(descending=True).tolist()
        true = [] if self.truth is None else [self.truth]
        found = [*self.targets.numbers[:BESIDE], *true]
        shown = list(asked) or list(dict.fromkeys((*found, *ranked)))[: max(BESIDE, len(set(found)))]
        return [(number, float(probabilities[number])) for number in shown]

    @property
    def prediction(self) -> tuple[tuple[str, float], ...]:
        """The predicted classes by name, with their confidence."""
        named = zip(self.targets.numbers, self.targets.confidences, strict=True)
        return tuple((self.predictor.class_name(number), confidence) for number, confidence in named)

    @property
    def headline(self) -> str:
        """What the model predicts, with its confidence, as a title."""
        if not self.prediction:
            return "Prediction: nothing"
        named = [f"{abbreviate(name, 28)} ({100 * value:.1f} %)" for name, value in self.prediction[:BESIDE]]
        return f"Prediction: {', '.join(named)}"

    @property
    def words(self) -> dict[str, Any]:
        """What stands above and below a figure: what the model predicts, and a warning."""
        truth = "" if self.truth is None else f"; true class: {self.predictor.class_name(self.truth)}"
        return {"subtitle": prediction_words(self.predictor.name, self.prediction) + truth, "note": self.predictor.note}


def prediction_words(model: str, prediction: Sequence[tuple[str, float]], most: int = 3) -> str:
    """What a model predicts, in words.

    Example:
        >>> prediction_words("deit_nano", [("cat", 0.913), ("dog", 0.05)])
        'deit_nano predicts cat (91.3 %), dog (5.0 %)'
    """
    if not prediction:
        return f"{model} predicts nothing here"
    named = [f"{name} ({100 * confidence:.1f} %)" for name, confidence in prediction[:most]]
    more = f" and {len(prediction) - most} more" if len(prediction) > most else ""
    return f"{model} predicts {', '.join(named)}{more}"


Made = tuple[Any, dict[str, NDArray], "Callable[[], Figure]"]  # what a method found, as arrays, and its figure


def explain_attention(look: CapturedImage, options: Options) -> Made:
    """Attention of chosen tokens in a layer."""
    found = attention(look.seen, layer=options.layer, at=options.at or None)
    maps = found.maps(options.head)
    words: dict[str, Any] = {"smooth": options.overlay == "smooth", **look.words}
    words["title"] = "Kernel weights around a token" if found.signed else "Attention of a token to each patch"
    return maps, maps.arrays(), lambda: draw_maps(maps, look.view.image, **words)


def explain_rollout(look: CapturedImage, options: Options) -> Made:
    """Roll-out of attention through all layers."""
    layer = -1 if options.layer is None else options.layer
    maps = rollout(look.seen, layer=layer, at=options.at or None, fusion=options.fusion, discard=options.discard)
    end = "a token" if options.at else "the head" if options.layer is None else f"layer {options.layer}"
    words: dict[str, Any] = {"smooth": options.overlay != "cells", **look.words}
    words["title"] = f"Attention roll-out to {end}"
    return maps, maps.arrays(), lambda: draw_maps(maps, look.view.image, **words)


def explain_grad_rollout(look: CapturedImage, options: Options) -> Made:
    """Which patches speak for each of a few classes: predicted, likely, true, or asked for."""
    predictor, targets = look.predictor, look.targets
    first = None
    if targets.masks is None:
        shown = look.likely(options.classes)
        named = [(predictor.class_name(number), confidence) for number, confidence in shown]
        maps = grad_rollout(look.seen, classes=[number for number, _ in shown], names=titles_of(named))
    else:
        found = predicted_targets(predictor, look.seen.output, look.view.size, only=options.classes or None)
        first, named = prediction_panel(look, found), list(zip(names_in(look, found), found.confidences, strict=True))
        maps = grad_rollout(look.seen, classes=found.numbers, masks=found.masks[None], names=titles_of(named))  # type: ignore[index]
    known = "" if look.truth is None else f"True class: {predictor.class_name(look.truth)}. "
    words = {"title": look.headline, "subtitle": f"{known}Model: {predictor.name}", "note": predictor.note}
    smooth = options.overlay != "cells"
    return maps, maps.arrays(), lambda: draw_classes(maps, look.view.image, first=first, smooth=smooth, **words)


def titles_of(named: Sequence[tuple[str, float]]) -> list[str]:
    """Classes with their confidence, above their maps."""
    return [f"{abbreviate(name, 24)}, {100 * confidence:.0f} %" for name, confidence in named]


def explain_dense(look: CapturedImage, options: Options) -> Made:
    """Dense roll-out for the classes that a model predicts with their masks; further models in rows below."""
    looks = [look]
    for other in options.beside:
        seen = capture(other.model, look.view.normalised(other.preprocessing))
        found = predicted_targets(other, seen.output, look.view.size)
        looks.append(CapturedImage(other, look.view, seen, found))
    rows = [dense_row(one, options) for one in looks]
    arrays: dict[str, NDArray] = {}
    for index, row in enumerate(rows):
        values = {"overall": row.found.overall.values, "classes": row.found.classes.values, "tokens": row.found.tokens}
        titles = {"titles": np.array(row.found.classes.titles)}
        arrays |= {(f"{key}_{index}" if index else key): value for key, value in (values | titles).items()}
    notes = dict.fromkeys(one.predictor.note for one in looks)
    subtitle = look.words["subtitle"] if len(looks) == 1 else ""
    note = " ".join(notes).strip()
    return [row.found for row in rows], arrays, lambda: draw_dense(rows, subtitle=subtitle, note=note)


def dense_row(look: CapturedImage, options: Options) -> DenseRow:
    """The row of one model in a figure of dense roll-out."""
    predictor, view = look.predictor, look.view
    found = predicted_targets(predictor, look.seen.output, view.size, only=options.classes or None)
    if found.masks is None:
        raise ValueError(
            f"{predictor.name} classifies images, and dense roll-out needs masks or boxes that a model predicts; give "
            "the run of a segmenter or detector."
        )
    names = names_in(look, found, options.classes)
    made = dense_rollout(
        look.seen,
        masks=found.masks[None],
        names=names,
        layer=-1 if options.layer is None else options.layer,
        fusion=options.fusion,
        discard=options.discard,
    )
    ground = background_of(predictor)
    legend = tuple(pair for pair in zip(names, found.numbers, strict=True) if pair[1] != ground)
    return DenseRow(predictor.name, view.image, prediction_panel(look, found), legend, made, found.confidences)


def names_in(look: CapturedImage, found: Targets, asked: Sequence[int] = ()) -> list[str]:
    """Names of the classes that a dense model found.

    Raises:
        ValueError: It found none.
    """
    named = look.predictor.class_name
    if not found.numbers:
        wanted = ", ".join(map(named, asked)) if asked else "any class"
        raise ValueError(f"{look.predictor.name} does not find {wanted} in this image, so there is no map to make.")
    return [named(number) for number in found.numbers]


def background_of(predictor: Predictor) -> int | None:
    """Number of the class that is nothing, where there is one."""
    return predictor.classes.index(BACKGROUND) if BACKGROUND in predictor.classes else None


def prediction_panel(look: CapturedImage, found: Targets) -> Panel:
    """The masks or boxes that a dense model predicts."""
    labels = found.labels
    labels = labels if labels is None else np.where(labels == background_of(look.predictor), -1, labels)
    return Panel("prediction", look.view.image, look.view.size, labels=labels, boxes=found.boxes)


def explain_global_tokens(look: CapturedImage, options: Options) -> Made:
    """What LightViT's global tokens gather, and which patches read them."""
    found = global_tokens(look.seen, layer=options.layer, head=options.head)
    arrays = {"aggregate": found.aggregate.raw["heads"], "broadcast": found.broadcast.raw["heads"]}
    return found, arrays, lambda: draw_global_tokens(found, look.view.image, **look.words)


def explain_sampling(look: CapturedImage, options: Options) -> Made:
    """Where LIT's deformable merges sample."""
    found = sampling_points(look.seen, at=options.at or spread_positions(look.view.size))
    return found, found.arrays(), lambda: draw_sampling(found, look.view.image, **look.words)


def spread_positions(size: tuple[int, int]) -> tuple[Pixel, ...]:
    """Five pixels (x, y) that lie apart, where none is asked about."""
    height, width = size
    return tuple((width * x, height * y) for x, y in ((0.5, 0.5), (0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8)))


def explain_kernels(look: CapturedImage, options: Options) -> Made:
    """Kernels at positions."""
    found = kernels(look.seen, layer=options.layer, at=options.at or spread_positions(look.view.size)[:3])
    return found, found.arrays(), lambda: draw_kernels(found, look.view.image, **look.words)


def explain_receptive_field(look: CapturedImage, options: Options) -> Made:
    """The pixels that a token depends on."""
    if len(options.at) > 1:
        raise ValueError("The receptive field is that of one position; give --at once.")
    layer = -1 if options.layer is None else options.layer
    maps = receptive_field(
        look.predictor.model, look.seen.images, layer=layer, at=options.at[0] if options.at else None
    )
    title = "Effective receptive field of a token"
    return maps, maps.arrays(), lambda: draw_maps(maps, look.view.image, title=title, **look.words)


def explain_grad_cam(look: CapturedImage, options: Options) -> Made:
    """Grad-CAM."""
    maps = grad_cam(look.predictor.model, look.seen.images, classes=options.classes[:1] or None, layer=options.layer)
    title = f"Grad-CAM for {look.predictor.class_name(int(maps.raw['classes'][0]))}"
    words: dict[str, Any] = {"title": title, "smooth": options.overlay != "cells", **look.words}
    return maps, maps.arrays(), lambda: draw_maps(maps, look.view.image, **words)


def explain_grids(
    predictor: Predictor, first: ImageView, others: Iterable[ImageView], pixels: Sequence[Pixel]
) -> Explanation:
    """One figure of all images together: the mean attention of one position in every layer and head."""
    at = first.locate(*pixels[0]) if pixels else None

    def batches() -> Iterator[Any]:
        yield first.normalised(predictor.preprocessing)
        for view in others:
            yield view.normalised(predictor.preprocessing)

    found = probability_grids(predictor.model, batches(), at=at)
    images = f"{found.images:,} image{'s' * (found.images != 1)}"

    def draw() -> "Figure":
        return draw_grids(found, model=predictor.name, note=predictor.note)

    return Explanation(OVER_MANY, predictor.name, images, (), None, found, found.arrays(), draw)


METHODS: dict[str, Callable[[CapturedImage, Options], Made]] = {
    "grad-rollout": explain_grad_rollout,
    "attention": explain_attention,
    "rollout": explain_rollout,
    "dense-rollout": explain_dense,
    "global-tokens": explain_global_tokens,
    "sampling": explain_sampling,
    "kernels": explain_kernels,
    "receptive-field": explain_receptive_field,
    "grad-cam": explain_grad_cam,
}
OVER_MANY = "probability-grids"  # one figure of all images together
