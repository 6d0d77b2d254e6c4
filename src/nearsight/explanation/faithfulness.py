"""Whether maps are faithful: pointing game on annotated data, deletion and insertion curves, with their report.

Deletion takes the pixels that a map ranks highest away from an image, insertion puts them back, and the model is asked
again (Petsiuk et al., 2018).
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from ..arguments import checked
from ..atomic import expand_home, write_whole
from ..config.recipe import check_seed
from ..data.open import open_data
from ..data.samples import BadImage, Split, Target
from ..data.unlabelled import open_images
from ..interval import Interval
from ..plots.style import COLOURS, SMALL, SOFT, figure, image_html, tidy, to_png, write
from ..runs.predictor import Predictor, load_module
from .attention import attention
from .capture import Capture, capture, evaluating
from .gradients import grad_cam, grad_rollout
from .maps import Floats, ImageView, view_of
from .methods import BACKGROUND, check_methods
from .rollout import dense_rollout, masks_of_boxes, rollout
from .targets import class_confidence, predicted_targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(
    predictor: Predictor,
    view: ImageView,
    number: int,
    mask: Tensor | None,
    values: Floats,
    steps: int,
    random: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Deletion and insertion: how confident a model stays of a class while pixels go, and becomes while they come back.

    A deleted pixel becomes the mean colour; what is not yet inserted is blurred beyond recognition.

    Args:
        predictor: The model.
        view: What it is shown.
        number: The class.
        mask: Of a segmenter: the pixels that it gave this class `[H, W]`; else None.
        values: The map `[H, W]`; its highest pixels go first.
        steps: In how many steps.
        random: Decides between pixels that are equally high.

    Returns:
        Confidence after 0, 1, ... `steps` of them: `[steps + 1]` each.
    """
    image = view.normalised(predictor.preprocessing)
    first = torch.from_numpy(order(values, steps, random))[None, None]  # the step in which each pixel goes
    gone = first < torch.arange(steps + 1)[:, None, None, None]  # [steps + 1, 1, H, W]
    deleted = torch.where(gone, torch.zeros_like(image), image)
    inserted = torch.where(gone, image, blurred(image))
    with torch.no_grad(), evaluating(predictor.model):
        output = predictor.model(torch.cat((deleted, inserted)))
    both = class_confidence(predictor, output, number, mask)
    return both[: steps + 1], both[steps + 1 :]


def order(values: Floats, steps: int, random: np.random.Generator) -> NDArray[np.int64]:
    """The step from 0 in which each pixel of a map goes `[H, W]`, the highest first, as many in each."""
    flat = np.nan_to_num(values, nan=-np.inf).ravel()
    ranked = np.lexsort((random.random(flat.size), -flat))
    step = np.empty(flat.size, dtype=np.int64)
    step[ranked] = np.arange(flat.size) * steps // flat.size
    return step.reshape(values.shape)


def blurred(image: Tensor) -> Tensor:
    """An image `[1, 3, H, W]` in which nothing can be told any more."""
    side = max(3, min(image.shape[-2:]) // 2 * 2 - 1)
    kernel = min(side, 2 * (max(image.shape[-2:]) // 4) + 1)
    return gaussian_blur(image, [kernel, kernel], [kernel / 3, kernel / 3])


PREFERRED = ("test", "val", "train")


@dataclass(frozen=True)
class AnnotatedImage:
    """An image, with ground truth of where its objects are if that is known.

    Attributes:
        name: Of the image.
        view: What the model is shown of it.
        masks: Where each class is, by the model's number of it `[H, W]`, in the pixels of the view; None if not known.
    """

    name: str
    view: ImageView
    masks: dict[int, NDArray[np.bool_]] | None


@dataclass(frozen=True)
class AnnotatedData:
    """A split, and by its class numbers those of the model where it says where objects are; None where it does not."""

    source: str
    split_name: str
    split: Split
    numbers: dict[int, int] | None


def open_annotated(source: str, predictor: Predictor) -> AnnotatedData:
    """Open data with ground truth of where objects are, with labels of whole images, or images without any.

    Raises:
        ValueError: Boxes or masks are of no class that the model knows, or it predicts these and there are none.
    """
    try:
        data = open_data(source)
    except ValueError:
        if not expand_home(source).is_dir():
            raise
        return AnnotatedData(source, "images", open_images(source), None)
    splits = data.splits()
    name = next(name for name in PREFERRED if name in splits)
    try:
        labels_only = len(splits[name]) > 0 and not isinstance(splits[name].target(0), (dict, Tensor))
    except BadImage:  # of a mask, so there are masks
        labels_only = False
    if labels_only:
        return AnnotatedData(source, name, splits[name], None)
    numbers = {
        index: predictor.classes.index(kind)
        for index, kind in enumerate(data.classes)
        if kind in predictor.classes and kind != BACKGROUND
    }
    if not numbers:
        raise ValueError(
            f"{predictor.name} knows none of the classes of {source} ({', '.join(data.classes[:6])}); give a model "
            "that was trained with them."
        )
    return AnnotatedData(source, name, splits[name], numbers)


def annotated_images(known: AnnotatedData, predictor: Predictor, indices: Iterable[int]) -> Iterator[AnnotatedImage]:
    """The readable images of a split with the masks of the classes that the model knows."""
    for index in indices:
        try:
            image = known.split.read(index)
            target = None if known.numbers is None else known.split.target(index)
        except BadImage:
            continue
        view = view_of(image, predictor.preprocessing)
        if known.numbers is None or target is None:
            yield AnnotatedImage(known.split.name(index), view, None)
            continue
        masks = {
            known.numbers[kind]: mask_in_view(mask, view)
            for kind, mask in class_masks(target, image).items()
            if kind in known.numbers
        }
        yield AnnotatedImage(known.split.name(index), view, {kind: mask for kind, mask in masks.items() if mask.any()})


def class_masks(target: Target, image: Image.Image) -> dict[int, NDArray[np.bool_]]:
    """Where each class is in an image `[H, W]`."""
    if isinstance(target, Tensor):
        classes = target.numpy()
        return {int(kind): classes == kind for kind in np.unique(classes) if kind != 255}
    assert isinstance(target, dict)
    labels = target["labels"]
    masks = target.get("masks")
    masks_in = masks_of_boxes(target["boxes"], (image.height, image.width)) if masks is None else masks
    return {kind: masks_in[labels == kind].any(dim=0).numpy() for kind in set(labels.tolist())}


def mask_in_view(mask: NDArray[np.bool_], view: ImageView) -> NDArray[np.bool_]:
    """A mask of the image `[H, W]` in the pixels of a view of it."""
    height, width = view.size
    shown = Image.fromarray(mask.astype(np.uint8) * 255).resize((width, height), Image.Resampling.NEAREST, box=view.box)
    return np.asarray(shown) > 127


BASELINES = ("random", "centre")
OF_CLASSIFIERS = ("grad-rollout", "rollout", "attention", "grad-cam")
OF_DENSE = ("grad-rollout", "dense-rollout", "rollout", "prediction")
SCORED = tuple(dict.fromkeys((*OF_CLASSIFIERS, *OF_DENSE)))
DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class MethodScore:
    """How faithful the maps of one method are.

    Attributes:
        method: Its name.
        pointing: Pointing game: fraction of maps whose highest pixel lies on the object; None of data that do not say
            where objects are.
        deletion: Area under the curve of the model's confidence while the highest pixels are deleted: low is good.
        insertion: The same while they are inserted: high is good.
        gap: Insertion less deletion, image by image: high is good.
        deletion_curve: Mean confidence at each step `[steps + 1]`.
        insertion_curve: Mean confidence at each step `[steps + 1]`.
    """

    method: str
    pointing: Interval | None
    deletion: Interval
    insertion: Interval
    gap: Interval
    deletion_curve: Floats
    insertion_curve: Floats


@dataclass(frozen=True)
class Scores:
    """How faithful the maps of several methods are.

    Attributes:
        model: Name of the model.
        source: The data.
        split: Which split of them.
        images: Images that were looked at.
        cases: Maps of each method: one for each class that the model predicts in an image that has it.
        covered: Mean fraction of the image that the object covers: what blind pointing would hit; None if not known.
        methods: The scores.
    """

    model: str
    source: str
    split: str
    images: int
    cases: int
    covered: float | None
    methods: tuple[MethodScore, ...]

    def __getitem__(self, method: str) -> MethodScore:
        return next(row for row in self.methods if row.method == method)

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has."""
        values = asdict(self)
        for row in values["methods"]:
            for key in ("pointing", "deletion", "insertion", "gap"):
                row[key] = row[key] and dict(zip(("mean", "low", "high"), row[key], strict=True))
            for key in ("deletion_curve", "insertion_curve"):
                row[key] = [round(float(value), 5) for value in row[key]]
        return values

    def figure(self) -> "Figure":
        """The deletion and insertion curves."""
        return draw_curves(self)

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write `curves.png`, `scores.md` and `scores.json` into a folder."""
        written = {
            "curves.png": to_png(draw_curves(self)),
            "scores.md": to_markdown(self).encode(),
            "scores.json": (json.dumps(self.to_dict(), indent=1) + "\n").encode(),
        }
        for name, content in written.items():
            write_whole(Path(path) / name, content)
        return [Path(path) / name for name in written]

    def _repr_html_(self) -> str:
        return image_html(to_png(self.figure()), "deletion and insertion curves")


@dataclass(frozen=True)
class Case:
    """One class that a model predicts in an image that has it, and a map of it for each method `[H, W]`.

    Attributes:
        number: The class.
        truth: Where it is `[H, W]`; None if not known.
        mask: Where the model predicts it `[H, W]`; None of a model that predicts no masks.
        maps: By method.
    """

    number: int
    truth: NDArray[np.bool_] | None
    mask: Tensor | None
    maps: dict[str, Floats]


@checked
def score(
    source: str | os.PathLike[str] | Predictor,
    data: str | os.PathLike[str],
    *,
    method: str | Sequence[str] = (),
    limit: int = 200,
    steps: int = 10,
    seed: int = 0,
    progress: Callable[[Any], Iterable[Any]] = iter,
) -> Scores:
    """Measure whether the maps of methods are faithful.

    On data with boxes or masks a classifier is asked about the class that it predicts, if that is in the image; a
    segmenter or detector about every class that it predicts and that is in the image. On labelled images, or images of
    which nothing is known, every model is asked about what it predicts, and there is nothing to point at. Intervals
    come from a bootstrap over images.

    Args:
        source: Folder of a run, weight file, or a model's name; or what `load` returned.
        data: Data with boxes or masks, with classes that the model knows; or other data, or a folder of images.
        method: Name of a method, or several; none takes all that fit the model.
        limit: Images at most.
        steps: Steps of the curves.
        seed: Of random weights, of random maps, of ties, and of the bootstrap.
        progress: Wraps the numbers of the images, to show how far the work is.

    Example:
        >>> found = score("deit_nano", "digits", method="rollout", limit=4, steps=2)
        >>> found.cases, [row.method for row in found.methods]
        (4, ['rollout', 'random', 'centre'])
    """
    check_seed(seed)
    data = os.fspath(data)
    given = check_methods([method] if isinstance(method, str) else method, SCORED)
    predictor = load_module(source, seed)
    known = open_annotated(data, predictor)
    random = np.random.default_rng(seed)
    indices = np.sort(random.permutation(len(known.split))[:limit])
    hits: dict[str, list[float]] = {}
    falls: dict[str, list[NDArray]] = {}
    rises: dict[str, list[NDArray]] = {}
    owners, covered, images = [], [], 0
    for image in annotated_images(known, predictor, progress([int(index) for index in indices])):
        images += 1
        for case in cases_of(predictor, image, given, random):
            owners.append(images)
            if case.truth is not None:
                covered.append(float(case.truth.mean()))
            for name, values in case.maps.items():
                if case.truth is not None:
                    hits.setdefault(name, []).append(float(case.truth[highest(values, random)]))
                fall, rise = curves(predictor, image.view, case.number, case.mask, values, steps, random)
                falls.setdefault(name, []).append(fall)
                rises.setdefault(name, []).append(rise)
    if not owners:
        raise ValueError(f"{predictor.name} finds nothing in {images} images of {data} that is there; train it first.")
    rows = [
        MethodScore(
            name,
            fraction_interval(np.array(hits[name]), owners, seed) if hits else None,
            interval(area(falls[name]), owners, seed),
            interval(area(rises[name]), owners, seed),
            interval(area(rises[name]) - area(falls[name]), owners, seed),
            np.mean(falls[name], axis=0).astype(np.float32),
            np.mean(rises[name], axis=0).astype(np.float32),
        )
        for name in falls
    ]
    mean_covered = float(np.mean(covered)) if covered else None
    return Scores(predictor.name, data, known.split_name, images, len(owners), mean_covered, tuple(rows))


def cases_of(
    predictor: Predictor, image: AnnotatedImage, methods: Sequence[str], random: np.random.Generator
) -> list[Case]:
    """The classes that the model predicts in an image that has them, as far as is known, with their maps."""
    seen = capture(predictor.model, image.view.normalised(predictor.preprocessing))
    present = None if image.masks is None else list(image.masks)
    found = predicted_targets(predictor, seen.output, image.view.size, only=present)
    possible = OF_CLASSIFIERS if found.masks is None else OF_DENSE
    if wrong := [name for name in methods if name not in possible]:
        what = "classes of images" if found.masks is None else "masks or boxes"
        raise ValueError(f"{predictor.name} predicts {what}, and {wrong[0]} does not fit; use {', '.join(possible)}.")
    if not found.numbers:
        return []
    if found.masks is None:
        made = {name: [map_of_prediction(seen, name, n) for n in found.numbers] for name in methods or possible}
        masks: list[Tensor | None] = [None] * len(found.numbers)
    else:
        made = {name: maps_of_classes(seen, name, found.numbers, found.masks) for name in methods or possible}
        masks = list(found.masks)
    cases = []
    for index, number in enumerate(found.numbers):
        free = {"random": random_map(seen, random), "centre": centre_map(image.view.size)}
        maps = {name: values[index] for name, values in made.items()} | free
        cases.append(Case(number, None if image.masks is None else image.masks[number], masks[index], maps))
    return cases


def map_of_prediction(seen: Capture, method: str, number: int) -> Floats:
    """A map of the class that a classifier predicts `[H, W]`."""
    if method == "grad-rollout":
        return grad_rollout(seen, classes=[number]).in_pixels()[0, 0]
    if method == "rollout":
        return rollout(seen).in_pixels()[0, 0]
    if method == "attention":
        layer = seen.mixing_layer()
        tokens = [0] if layer.grid.aux else list(range(layer.grid.tokens))
        found = attention(seen, layer=layer.name, tokens=tokens).maps()
        return found.in_pixels()[0].mean(axis=0)
    return grad_cam(seen.model, seen.images, classes=[number]).in_pixels()[0, 0]


def maps_of_classes(seen: Capture, method: str, numbers: Sequence[int], masks: Tensor) -> list[Floats]:
    """A map `[H, W]` for each class that a segmenter or detector predicts in `masks` `[n, H, W]`."""
    if method == "prediction":  # the mask itself as a map: what the roll-out has to add to
        return [mask.float().cpu().numpy() for mask in masks]
    if method == "grad-rollout":
        return list(grad_rollout(seen, classes=numbers, masks=masks[None]).in_pixels()[0])
    made = dense_rollout(seen, masks=masks[None])
    if method == "rollout":
        return [made.overall.in_pixels()[0, 0]] * len(masks)
    return list(made.classes.in_pixels()[0])


def random_map(seen: Capture, random: np.random.Generator) -> Floats:
    """Random numbers on the model's patches `[H, W]`."""
    height, width = seen.image_size
    cells = random.random((seen.first.height, seen.first.width), dtype=np.float32)
    return cells.repeat(seen.cell[0], axis=0).repeat(seen.cell[1], axis=1)[:height, :width]


def centre_map(size: tuple[int, int]) -> Floats:
    """The nearer to the middle, the higher `[H, W]`."""
    rows, columns = (np.abs(np.arange(side) - (side - 1) / 2) / side for side in size)
    return -np.hypot(rows[:, None], columns).astype(np.float32)


def highest(values: Floats, random: np.random.Generator) -> tuple[int, int]:
    """Row and column of the highest pixel; one of several as high, such as the pixels of a cell, at random."""
    top = np.flatnonzero(values == np.nanmax(values))
    row, column = divmod(int(random.choice(top)), values.shape[1])
    return row, column


def area(rows: list[NDArray]) -> NDArray[np.float64]:
    """Area under each curve `[n]`, from nothing to everything."""
    curves = np.array(rows, dtype=np.float64)
    return ((curves[:, 1:] + curves[:, :-1]) / 2).mean(axis=1)


def interval(values: NDArray[np.floating], owners: Sequence[int], seed: int) -> Interval:
    """The mean of values `[n]`, and where it would lie with other images: a bootstrap over their owners.

    Example:
        >>> found = interval(np.array([1.0, 0.0, 1.0, 1.0]), [1, 1, 2, 3], seed=0)
        >>> found.value, found.low <= 0.75 <= found.high
        (0.75, True)
    """
    _, groups = np.unique(owners, return_inverse=True)
    sums, counts = np.bincount(groups, weights=values), np.bincount(groups)
    draws = np.random.default_rng(seed).integers(0, len(sums), (DRAWS, len(sums)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(np.mean(values)), float(low), float(high))


def fraction_interval(hits: NDArray[np.floating], owners: Sequence[int], seed: int) -> Interval:
    """The same for hits and misses `[n]`: none or nothing but hits in few images is no certainty.

    A bootstrap draws the same again and again then. What other images would bring is bounded by the exact interval of a
    binomial fraction, counting images and not maps.

    Example:
        >>> none = fraction_interval(np.zeros(12), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6], seed=0)
        >>> none.low, round(none.high, 2)
        (0.0, 0.46)
    """
    found = interval(hits, owners, seed)
    if 0 < found.value < 1:
        return found
    reach = 1 - 0.025 ** (1 / len(set(owners)))
    return Interval(found.value, max(0.0, found.value - reach), min(1.0, found.value + reach))


def spelled(found: Interval | None, fraction: bool = False) -> str:
    """A mean with its interval for people."""
    if found is None:
        return "–"
    if fraction:
        return f"{100 * found.value:.1f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def scores_table(scores: Scores) -> RenderableType:
    """The scores of all methods, for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("method")
    for title in columns_of(scores):
        table.add_column(title, justify="right", no_wrap=True)
    for row in scores.methods:
        table.add_row(row.method, *cells_of(scores, row), style="dim" if row.method in BASELINES else "")
    covered = "" if scores.covered is None else f" The objects cover {100 * scores.covered:.1f} % of their images."
    caption = Text(
        f"{scores.model} on {scores.source} ({scores.split}): {scores.cases:,} maps in {scores.images:,} images, 95 % "
        f"intervals over images. Low deletion and high insertion are good.{covered}",
        style="dim italic",
    )
    return Group(table, caption)


def columns_of(scores: Scores) -> list[str]:
    """Titles of a table's columns behind the method; pointing where it is known what to point at."""
    return [*(["pointing"] if scores.covered is not None else []), "deletion ↓", "insertion ↑", "difference ↑"]


def cells_of(scores: Scores, row: MethodScore) -> list[str]:
    """The cells of a row below these titles."""
    pointing = [spelled(row.pointing, True)] if scores.covered is not None else []
    return [*pointing, *map(spelled, (row.deletion, row.insertion, row.gap))]


def to_markdown(scores: Scores) -> str:
    """The same as a table in Markdown."""
    titles = ["method", *columns_of(scores)]
    lines = [titles, ["---"] * len(titles), *([row.method, *cells_of(scores, row)] for row in scores.methods)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def draw_curves(scores: Scores) -> "Figure":
    """Mean confidence while the highest pixels are deleted (left) and inserted (right)."""
    page = figure(8.6, 3.6)
    axes = page.subplots(1, 2, sharey=True)
    titles = ("Deletion: low is good", "Insertion: high is good")
    for panel, title in zip(axes, titles, strict=True):
        tidy(
            panel,
            title=title,
            x="fraction of the pixels, highest first",
            y="confidence" if panel is axes[0] else "",
        )
        panel.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    for number, row in enumerate(scores.methods):
        dashed = (0, (4, 3)) if row.method in BASELINES else "solid"
        colour = SOFT if row.method in BASELINES else COLOURS[number % len(COLOURS)]
        width = 1.3 if row.method == "random" else 1.9
        for panel, curve in zip(axes, (row.deletion_curve, row.insertion_curve), strict=True):
            panel.plot(
                np.linspace(0, 1, len(curve)), curve, color=colour, linestyle=dashed, linewidth=width, label=row.method
            )
    for panel in axes:
        panel.set(xlim=(0, 1), ylim=(0, None))
    legend = axes[1].legend(loc="lower right", frameon=False)
    for text in legend.get_texts():
        write(text, SMALL, SOFT)
    return page
