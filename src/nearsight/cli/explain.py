"""`nearsight explain`: what a model looks at, and whether the maps are true."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..explanation.maps import View
    from ..explanation.methods import Explanation, Wishes
    from ..explanation.model import Opened

NAMES = (
    "attention, rollout, dense-rollout, global-tokens (LightViT), sampling (LIT), probability-grids, kernels (DWNet), "
    "receptive-field, grad-cam"
)


def explain(
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Folder of a run, weights, or a model's name.")],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE|FOLDER...", help="Images, or folders of images; with --score: DATA.")
    ],
    method: Annotated[list[str] | None, typer.Option("--method", "-m", help=f"{NAMES}. Default: rollout.")] = None,
    layer: Annotated[
        str | None, typer.Option(help="Number of the layer from 0, -1 the last; or stage.block, such as 3.2.")
    ] = None,
    head: Annotated[int | None, typer.Option(min=0, help="One head, from 0. Default: the mean of all.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(metavar="X,Y", help="A pixel of the image that is asked about (repeatable).")
    ] = None,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="A class by name or number (repeatable). Default: the answer.")
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="dense-rollout: another run in a row below (repeatable).")
    ] = None,
    fusion: Annotated[str, typer.Option(help="Roll-out: heads by their mean, max or min.")] = "mean",
    discard: Annotated[float, typer.Option(help="Roll-out: share of the smallest weights that is left out.")] = 0.0,
    size: Annotated[
        int | None, typer.Option(min=1, help="Show the whole image with this shorter side. Default: as in evaluation.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for figures and arrays.")] = Path(
        "explained"
    ),
    score: Annotated[bool, typer.Option("--score", help="Measure whether the maps are true, on DATA.")] = False,
    limit: Annotated[int, typer.Option(min=2, help="--score: images at most.")] = 200,
    seed: Annotated[int, typer.Option(help="Of random weights, and of the random maps of --score.")] = 0,
) -> None:
    """Show what a model looks at: figures (PNG) and the numbers behind them (.npz).

    A model by name has random weights, and the figures say so. --score takes DATA whose objects have known places, and
    measures the maps against random ones and the middle of the image.
    """
    from ..explanation.model import open_model

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give the name of a folder.")
    methods = check_methods(method, score)
    opened = open_model(model, seed)
    others = tuple(open_model(other, seed) for other in beside or ())
    if not opened.learned:
        print(f"{opened.name} has random weights: the figures show the method, not what was learned.", file=sys.stderr)
    if score:
        score_maps(opened, images, methods, out, limit=limit, seed=seed)
        return
    from ..data.file_system import find_images
    from ..explanation.methods import OVER_MANY, Wishes

    numbers = tuple(opened.class_number(name) for name in classes or ())
    places = [parse_place(text) for text in at or ()]
    wishes = Wishes(layer, head, (), numbers, fusion, discard, others)  # type: ignore[arg-type]
    files = find_images(images)
    done = 0
    for name in methods:
        if name == OVER_MANY:
            done += explain_many(opened, files, places, size, out)
        else:
            done += explain_each(opened, files, name, wishes, places, size, out)
    if not done:
        raise ValueError(f"No image can be read: {len(files):,} of {len(files):,} are unreadable.")
    print(f"Wrote {done:,} figure{'s' * (done != 1)} with their arrays to {out}.", file=sys.stderr)


def check_methods(given: list[str] | None, score: bool) -> list[str]:
    """The methods that are asked for, or the usual ones."""
    from difflib import get_close_matches

    from ..explanation.faithfulness import SCORED
    from ..explanation.methods import METHODS, OVER_MANY

    known = list(SCORED) if score else [*METHODS, OVER_MANY]
    for name in given or ():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            what = "can be scored" if score else "is known"
            raise ValueError(f"No method {name!r} {what}; {hint}There are: {', '.join(known)}.")
    return list(dict.fromkeys(given or ())) or ([] if score else ["rollout"])


def parse_place(text: str) -> tuple[float, float]:
    """A pixel written as `X,Y`."""
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--at {text} is no pixel; write X,Y, such as --at 120,80.") from None
    return x, y


def read_views(opened: "Opened", files: Iterable[str], size: int | None) -> "Iterator[tuple[str, View]]":
    """The files that can be read, as the model is shown them."""
    from ..data.image import decode
    from ..data.samples import BadImage
    from ..explanation.maps import view_of

    for file in files:
        try:
            image = decode(file, Path(file))
        except BadImage as bad:
            print(f"skipped {file}: {bad.reason}", file=sys.stderr)
            continue
        yield file, view_of(image, opened.preprocessing, size)


def explain_each(
    opened: "Opened",
    files: list[str],
    method: str,
    wishes: "Wishes",
    places: list[tuple[float, float]],
    size: int | None,
    out: Path,
) -> int:
    """A figure for each image; returns how many."""
    from dataclasses import replace

    from ..console import tracked
    from ..explanation.methods import METHODS

    names = figure_names(files, method)
    done = 0
    for file, view in read_views(opened, tracked(files, f"Explaining {opened.name} by {method}"), size):
        at = tuple(view.locate(x, y) for x, y in places)
        save(METHODS[method](opened, view, replace(wishes, at=at)), out, names[file])
        done += 1
    return done


def figure_names(files: list[str], method: str) -> dict[str, str]:
    """A name for the figure of each image: that of its file, with a number where two would be the same."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for file in files:
        stem = f"{Path(file).stem}-{method}"
        name, number = stem, 2
        while name in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name)
        names[file] = name
    return names


def explain_many(
    opened: "Opened", files: list[str], places: list[tuple[float, float]], size: int | None, out: Path
) -> int:
    """One figure of all images together: the mean attention of one place."""
    from ..console import tracked
    from ..explanation.attention import probability_grids
    from ..explanation.figures import draw_grids
    from ..explanation.methods import OVER_MANY, Explanation

    if len(places) > 1:
        raise ValueError(f"{OVER_MANY} shows the attention of one place; give --at once.")
    views = read_views(opened, tracked(files, f"Averaging the attention of {opened.name}"), size)
    first = next(views, None)
    if first is None:
        return 0
    at = first[1].locate(*places[0]) if places else None

    def batches() -> Iterator[Any]:
        yield first[1].normalised(opened.preprocessing)
        for _, view in views:
            yield view.normalised(opened.preprocessing)

    found = probability_grids(opened.model, batches(), at=at)
    save(Explanation(draw_grids(found, note=opened.note), found.arrays()), out, OVER_MANY)
    return 1


def save(made: "Explanation", folder: Path, name: str) -> None:
    """Write a figure and its arrays."""
    import io

    import numpy as np

    from ..atomic import write_whole
    from ..plots.style import to_png

    stream = io.BytesIO()
    np.savez_compressed(stream, **made.arrays)  # type: ignore[arg-type]
    write_whole(folder / f"{name}.npz", stream.getvalue())
    write_whole(folder / f"{name}.png", to_png(made.figure))


def score_maps(opened: "Opened", sources: list[str], methods: list[str], out: Path, *, limit: int, seed: int) -> None:
    """Measure whether maps are true, print a table, write it and the curves."""
    from ..console import make_console, tracked
    from ..explanation.faithfulness import score, scores_table, write_scores

    if len(sources) != 1:
        raise ValueError(f"--score takes one DATA, not {len(sources)}; give one source with known places of objects.")
    title = f"Scoring the maps of {opened.name}"
    found = score(
        opened, sources[0], methods or None, limit=limit, seed=seed, progress=lambda items: tracked(items, title)
    )
    folder = write_scores(found, out)
    make_console().print(scores_table(found), highlight=False)
    print(f"Wrote {folder}: scores.json, scores.md, curves.png.", file=sys.stderr)
