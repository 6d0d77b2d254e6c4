"""Whether maps are faithful: pointing game on annotated data, deletion and insertion curves, with their report.

Deletion takes the pixels that a map ranks highest away from an image, insertion puts them back, and the model is asked
again (Petsiuk et al., 2018).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from ..atomic import write_whole
from ..data.open import open_data
from ..data.samples import BadImage, Split, Target
from ..interval import Interval
from ..plots.style import COLOURS, SMALL, SOFT, figure, tidy, to_png, write
from .attention import attention
from .capture import Capture, capture, evaluating
from .gradients import grad_cam
from .maps import Floats, View, view_of
from .model import Opened
from .rollout import dense_rollout, masks_of_boxes, rollout
from .targets import Targets, predicted_targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(
    opened: Opened,
    view: View,
    number: int,
    region: Tensor | None,
    values: Floats,
    steps: int,
    random: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How sure a model stays of a class while places are taken away, and becomes while they are put back.

    What is taken away becomes the mean colour; what is not yet put back is blurred beyond recognition.

    Args:
        opened: The model.
        view: What it is shown.
        number: The class.
        region: Of a segmenter: the pixels that it gave this class `[H, W]`; else None.
        values: The map `[H, W]`; its highest places go first.
        steps: In how many steps.
        random: Decides between places that are equally high.

    Returns:
        Sureness after 0, 1, ... `steps` of them: `[steps + 1]` each.
    """
    image = view.normalised(opened.preprocessing)
    first = order(values, steps, random)  # the step in which each pixel goes
    after = torch.from_numpy(first)[None, None]
    shares = torch.arange(steps + 1)[:, None, None, None]
    gone = after < shares  # [steps + 1, 1, H, W]
    without = torch.where(gone, torch.zeros_like(image), image)
    back = torch.where(gone, image, blurred(image))
    both = confidence(opened, torch.cat((without, back)), number, region)
    return both[: steps + 1], both[steps + 1 :]


def order(values: Floats, steps: int, random: np.random.Generator) -> NDArray[np.int64]:
    """The step from 0 in which each place of a map goes `[H, W]`, the highest first, as many in each."""
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


def confidence(opened: Opened, images: Tensor, number: int, region: Tensor | None) -> NDArray[np.float64]:
    """How sure a model is of a class in each image `[B, 3, H, W]`: `[B]`.

    Of a classifier its probability; of a segmenter its mean probability in the region; of a detector the best score.
    """
    with torch.no_grad(), evaluating(opened.model):
        output: Any = opened.model(images)
    if not isinstance(output, Tensor):
        scores = [found["scores"][found["labels"] == number] for found in output]
        return np.array([float(found.max()) if len(found) else 0.0 for found in scores])
    chances = F.softmax(output.float(), dim=1)[:, number]
    if chances.ndim == 3 and region is not None:
        chances = chances[:, : region.shape[0], : region.shape[1]][:, region].mean(dim=1)
    return chances.double().cpu().numpy()


BACKGROUND = "background"  # a class that is no thing to point at
PREFERRED = ("test", "val", "train")


@dataclass(frozen=True)
class AnnotatedImage:
    """An image whose things have known places.

    Attributes:
        name: Of the image.
        view: What the model is shown of it.
        places: Where each class is, by the model's number of it `[H, W]`, in the pixels of the view.
    """

    name: str
    view: View
    places: dict[int, NDArray[np.bool_]]


@dataclass(frozen=True)
class AnnotatedData:
    """A split whose things have known places, and the model's number of each of its classes."""

    source: str
    split_name: str
    split: Split
    numbers: dict[int, int]


def open_annotated(source: str, opened: Opened) -> AnnotatedData:
    """Open data whose things have known places, with classes that the model knows.

    Raises:
        ValueError: The data have labels only, or no class that the model knows.
    """
    data = open_data(source)
    if getattr(data, "task", "classify") == "classify":
        raise ValueError(
            f"{source} has no places of objects, so maps can't be compared with them; give data with boxes or masks, "
            "such as shapes, or a COCO folder."
        )
    splits = data.splits()
    name = next(name for name in PREFERRED if name in splits)
    numbers = {
        place: opened.classes.index(kind)
        for place, kind in enumerate(data.classes)
        if kind in opened.classes and kind != BACKGROUND
    }
    if not numbers:
        raise ValueError(
            f"{opened.name} knows none of the classes of {source} ({', '.join(data.classes[:6])}); give a model "
            "that was trained with them."
        )
    return AnnotatedData(source, name, splits[name], numbers)


def annotated_images(known: AnnotatedData, opened: Opened, indices: Iterable[int]) -> Iterator[AnnotatedImage]:
    """The readable images of a split with the places of what the model knows."""
    for index in indices:
        try:
            image = known.split.read(index)
            target = known.split.target(index)
        except BadImage:
            continue
        view = view_of(image, opened.preprocessing)
        places = {
            known.numbers[kind]: mask_in_view(mask, view)
            for kind, mask in class_masks(target, image).items()
            if kind in known.numbers
        }
        yield AnnotatedImage(known.split.name(index), view, {kind: mask for kind, mask in places.items() if mask.any()})


def class_masks(target: Target, image: Image.Image) -> dict[int, NDArray[np.bool_]]:
    """Where each class is in an image `[H, W]`."""
    if isinstance(target, Tensor):
        classes = target.numpy()
        return {int(kind): classes == kind for kind in np.unique(classes) if kind != 255}
    assert isinstance(target, dict)
    labels = target["labels"]
    masks = target.get("masks")
    places = masks_of_boxes(target["boxes"], (image.height, image.width)) if masks is None else masks
    return {kind: places[labels == kind].any(dim=0).numpy() for kind in set(labels.tolist())}


def mask_in_view(mask: NDArray[np.bool_], view: View) -> NDArray[np.bool_]:
    """A mask of the image `[H, W]` in the pixels of a view of it."""
    height, width = view.size
    shown = Image.fromarray(mask.astype(np.uint8) * 255).resize((width, height), Image.Resampling.NEAREST, box=view.box)
    return np.asarray(shown) > 127


BASELINES = ("random", "centre")
OF_CLASSIFIERS = ("rollout", "attention", "grad-cam")
OF_DENSE = ("dense-rollout", "rollout", "prediction")
SCORED = tuple(dict.fromkeys((*OF_CLASSIFIERS, *OF_DENSE)))
DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class MethodScore:
    """How true the maps of one method are.

    Attributes:
        method: Its name.
        pointing: Share of maps whose highest place lies on the thing.
        deletion: Area under the curve of the model's sureness while the highest places are taken away: low is good.
        insertion: The same while they are put back: high is good.
        deletion_curve: Mean sureness at each step `[steps + 1]`.
        insertion_curve: Mean sureness at each step `[steps + 1]`.
    """

    method: str
    pointing: Interval
    deletion: Interval
    insertion: Interval
    deletion_curve: Floats
    insertion_curve: Floats


@dataclass(frozen=True)
class Scores:
    """How true the maps of several methods are.

    Attributes:
        model: Name of the model.
        source: The data.
        split: Which split of them.
        images: Images that were looked at.
        cases: Maps of each method: one for each class that the model found in an image where it really is.
        covered: Mean share of the image that the thing covers: what blind pointing would hit.
        methods: The scores.
    """

    model: str
    source: str
    split: str
    images: int
    cases: int
    covered: float
    methods: tuple[MethodScore, ...]

    def __getitem__(self, method: str) -> MethodScore:
        return next(row for row in self.methods if row.method == method)


@dataclass(frozen=True)
class Case:
    """One class that a model found where it really is, and a map of it for each method `[H, W]`."""

    number: int
    place: NDArray[np.bool_]
    region: Tensor | None
    maps: dict[str, Floats]


def score(
    opened: Opened,
    source: str,
    methods: Sequence[str] | None = None,
    *,
    limit: int = 200,
    steps: int = 10,
    seed: int = 0,
    progress: Callable[[Any], Iterable[Any]] = iter,
) -> Scores:
    """Score the maps of methods on data whose things have known places.

    A classifier is asked about its answer, if that class is in the image; a segmenter or detector about every class
    that it finds and that is in the image. Intervals come from a bootstrap over images.

    Args:
        opened: The model.
        source: Data with boxes or masks.
        methods: Names of methods; None takes all that fit the model.
        limit: Images at most.
        steps: Steps of the curves.
        seed: Of random maps, of ties, and of the bootstrap.
        progress: Wraps the numbers of the images, to show how far the work is.
    """
    chosen = fitting(opened, methods)
    known = open_annotated(source, opened)
    random = np.random.default_rng(seed)
    indices = np.sort(random.permutation(len(known.split))[:limit])
    hits: dict[str, list[list[float]]] = {name: [] for name in (*chosen, *BASELINES)}
    falls: dict[str, list[NDArray]] = {name: [] for name in hits}
    rises: dict[str, list[NDArray]] = {name: [] for name in hits}
    owners, covered, seen = [], [], 0
    for image in annotated_images(known, opened, progress([int(index) for index in indices])):
        seen += 1
        for case in cases_of(opened, image, chosen, random):
            owners.append(seen)
            covered.append(float(case.place.mean()))
            for name, values in case.maps.items():
                hits[name].append([float(case.place[highest(values, random)])])
                fall, rise = curves(opened, image.view, case.number, case.region, values, steps, random)
                falls[name].append(fall)
                rises[name].append(rise)
    if not owners:
        raise ValueError(f"{opened.name} finds nothing in {seen} images of {source} that is there; train it first.")
    rows = [
        MethodScore(
            name,
            fraction_interval(np.array(hits[name])[:, 0], owners, seed),
            interval(area(falls[name]), owners, seed),
            interval(area(rises[name]), owners, seed),
            np.mean(falls[name], axis=0).astype(np.float32),
            np.mean(rises[name], axis=0).astype(np.float32),
        )
        for name in hits
    ]
    mean = float(np.mean(covered))
    return Scores(opened.name, source, known.split_name, seen, len(owners), mean, tuple(rows))


def fitting(opened: Opened, methods: Sequence[str] | None) -> list[str]:
    """The methods that are asked for, if they fit the model's task."""
    possible = OF_CLASSIFIERS if opened.task == "classify" else OF_DENSE
    for name in methods or ():
        if name not in possible:
            raise ValueError(f"{name} can't be scored with a model to {opened.task}; use {', '.join(possible)}.")
    return list(methods or possible)


def cases_of(opened: Opened, image: AnnotatedImage, methods: Sequence[str], random: np.random.Generator) -> list[Case]:
    """The classes that the model finds in an image and that are there, with their maps."""
    seen = capture(opened.model, image.view.normalised(opened.preprocessing))
    if opened.task == "classify":
        number = int(seen.output[0].argmax())
        if number not in image.places:
            return []
        found = [number]
        made = {name: [map_of_answer(seen, name, number)] for name in methods}
        regions: list[Tensor | None] = [None]
    else:
        predicted = predicted_targets(seen.output, 0, image.view.size, sure=opened.threshold, only=list(image.places))
        if not predicted.numbers:
            return []
        found = list(predicted.numbers)
        made = {name: maps_of_classes(seen, name, predicted) for name in methods}
        regions = list(predicted.masks)
    cases = []
    for place, number in enumerate(found):
        free = {"random": random_map(seen, random), "centre": centre_map(image.view.size)}
        maps = {name: values[place] for name, values in made.items()} | free
        cases.append(Case(number, image.places[number], regions[place], maps))
    return cases


def map_of_answer(seen: Capture, method: str, number: int) -> Floats:
    """A map of a classifier's answer `[H, W]`."""
    if method == "rollout":
        return rollout(seen).in_pixels()[0, 0]
    if method == "attention":
        layer = seen.mixing_layer()
        tokens = [0] if layer.grid.aux else list(range(layer.grid.tokens))
        found = attention(seen, layer=layer.name, tokens=tokens).maps()
        return found.in_pixels()[0].mean(axis=0)
    return grad_cam(seen.model, seen.images, classes=[number]).in_pixels()[0, 0]


def maps_of_classes(seen: Capture, method: str, found: Targets) -> list[Floats]:
    """A map `[H, W]` for each class that a segmenter or detector found."""
    if method == "prediction":  # what was predicted, as a map: what the roll-out has to add to
        return [mask.float().cpu().numpy() for mask in found.masks]
    made = dense_rollout(seen, masks=found.masks[None])
    if method == "rollout":
        return [made.overall.in_pixels()[0, 0]] * len(found.numbers)
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
    """Row and column of the highest place; one of several as high, such as the pixels of a cell, by lot."""
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
    binomial share, counting images and not maps.

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


def spelled(found: Interval, fraction: bool) -> str:
    """A mean with its interval for people."""
    if fraction:
        return f"{100 * found.value:.1f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def scores_table(scores: Scores) -> RenderableType:
    """The scores of all methods, for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("method")
    for title in ("pointing", "deletion (low is good)", "insertion (high is good)"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in scores.methods:
        style = "dim" if row.method in BASELINES else ""
        cells = (spelled(row.pointing, True), spelled(row.deletion, False), spelled(row.insertion, False))
        table.add_row(row.method, *cells, style=style)
    caption = Text(
        f"{scores.model} on {scores.source} ({scores.split}): {scores.cases:,} maps in {scores.images:,} images, 95 % "
        f"intervals over images. The things cover {100 * scores.covered:.1f} % of their images.",
        style="dim italic",
    )
    return Group(table, caption)


def to_markdown(scores: Scores) -> str:
    """The same as a table in Markdown."""
    lines = ["| method | pointing | deletion ↓ | insertion ↑ |", "| --- | --- | --- | --- |"]
    for row in scores.methods:
        cells = (spelled(row.pointing, True), spelled(row.deletion, False), spelled(row.insertion, False))
        lines.append(f"| {row.method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_curves(scores: Scores) -> "Figure":
    """Mean sureness while places are taken away (left) and put back (right)."""
    page = figure(8.6, 3.6)
    axes = page.subplots(1, 2, sharey=True)
    titles = ("Highest places taken away", "Highest places put back")
    for place, title in zip(axes, titles, strict=True):
        tidy(place, title=title, x="share of the image", y="sureness" if place is axes[0] else "")
        place.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    for number, row in enumerate(scores.methods):
        dashed = (0, (4, 3)) if row.method in BASELINES else "solid"
        colour = SOFT if row.method in BASELINES else COLOURS[number % len(COLOURS)]
        width = 1.3 if row.method == "random" else 1.9
        for place, curve in zip(axes, (row.deletion_curve, row.insertion_curve), strict=True):
            fraction_interval = np.linspace(0, 1, len(curve))
            place.plot(fraction_interval, curve, color=colour, linestyle=dashed, linewidth=width, label=row.method)
    for place in axes:
        place.set(xlim=(0, 1), ylim=(0, None))
    legend = axes[1].legend(loc="lower right", frameon=False)
    for text in legend.get_texts():
        write(text, SMALL, SOFT)
    return page


def write_scores(scores: Scores, folder: Path) -> Path:
    """Write `curves.png`, `scores.md` and `scores.json`."""
    rows = asdict(scores)
    for row, method in zip(rows["methods"], scores.methods, strict=True):
        for key in ("pointing", "deletion", "insertion"):
            found: Interval = getattr(method, key)
            row[key] = {"mean": found.value, "low": found.low, "high": found.high}
        row["deletion_curve"], row["insertion_curve"] = (
            [round(float(value), 5) for value in row[key]] for key in ("deletion_curve", "insertion_curve")
        )
    write_whole(folder / "curves.png", to_png(draw_curves(scores)))
    write_whole(folder / "scores.md", to_markdown(scores).encode())
    write_whole(folder / "scores.json", (json.dumps(rows, indent=1) + "\n").encode())
    return folder
