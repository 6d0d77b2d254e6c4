"""`nearsight explain`: what a model looks at, and whether the maps are faithful; `nearsight app`: a page for it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..atomic import HEAD, check_output, is_own_png
from .options import Host, check_folder

if TYPE_CHECKING:
    from ..runs.predictor import Predictor

NAMES = (
    "grad-rollout, dense-rollout, rollout, attention, global-tokens (LightViT), sampling (LIT), probability-grids, "
    "kernels (DWNet), receptive-field, grad-cam"
)


def explain(
    source: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Folder of a run, weights, or a model's name.")],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE|FOLDER...", help="Images, or folders of images; with --score: DATA.")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", help=f"{NAMES}. Default: grad-rollout; of predicted masks and boxes dense-rollout."
        ),
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="Number of the layer from 0, -1 the last; or stage.block, such as 3.2.")
    ] = None,
    head: Annotated[int | None, typer.Option(min=0, help="One head, from 0. Default: the mean of all.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(metavar="X,Y", help="A pixel of the image that is asked about (repeatable).")
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class by name or number (repeatable). Default: the prediction."),
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="dense-rollout: another run in a row below (repeatable).")
    ] = None,
    fusion: Annotated[str, typer.Option(help="Roll-out: heads by their mean, max or min.")] = "mean",
    discard: Annotated[float, typer.Option(help="Roll-out: fraction of the smallest weights that is left out.")] = 0.0,
    overlay: Annotated[
        str | None,
        typer.Option(
            help="smooth: interpolated between patches; cells: each patch as it is.",
            show_default="smooth where all layers count",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Show the whole image with this shorter side. Default: as in evaluation."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for figures and arrays.")] = Path(
        "explained"
    ),
    score: Annotated[bool, typer.Option("--score", help="Measure whether the maps are faithful, on DATA.")] = False,
    limit: Annotated[int, typer.Option(min=2, help="--score: images at most.")] = 200,
    seed: Annotated[int, typer.Option(help="Of random weights, and of the random maps of --score.")] = 0,
) -> None:
    """Show what a model looks at: figures (PNG) and the numbers behind them (.npz).

    A model by name has random weights, and the figures say so. --score takes DATA, with boxes or masks of objects to
    point at or without, and measures the maps against random ones and the middle of the image.
    """
    from ..explanation.faithfulness import SCORED
    from ..explanation.methods import METHODS, OVER_MANY, check_methods, each_explanation, file_names
    from ..runs.predictor import load_module

    check_folder("--out", out)
    methods = check_methods(method or (), SCORED if score else [*METHODS, OVER_MANY])
    pixels = [parse_pixel(text) for text in at or ()]
    predictor = load_module(source, seed)
    if not predictor.learned:
        print(
            f"{predictor.name} has random weights: the figures show the method, not what was learned.", file=sys.stderr
        )
    if score:
        score_maps(predictor, images, methods, out, limit=limit, seed=seed)
        return
    from ..console import tracked

    found = each_explanation(
        predictor,
        images,
        method=methods or None,
        layer=layer,
        head=head,
        at=pixels,
        classes=classes or (),
        beside=beside or (),
        fusion=fusion,  # type: ignore[arg-type]
        discard=discard,
        overlay=overlay,  # type: ignore[arg-type]
        size=size,
        seed=seed,
        skip=lambda file, reason: print(f"skipped {file}: {reason}", file=sys.stderr),
        progress=lambda files: tracked(files, f"Explaining {predictor.name}"),
    )
    taken: set[str] = set()
    for made in found:
        name = next(file_names([made], taken))
        refuse_other_files(out / f"{name}.png", out / f"{name}.npz")
        made.save(out / name)
    print(f"Wrote {len(taken):,} figure{'s' * (len(taken) != 1)} with their arrays to {out}.", file=sys.stderr)


def refuse_other_files(figure: Path, *beside: Path) -> None:
    """Refuse files of others in the place of a figure and of what is written after it, which is ours where it is."""
    is_there = figure.is_file() and is_own_png(figure.read_bytes()[:HEAD])
    check_output(figure, is_ours=is_own_png, force=None)
    for file in beside:
        check_output(file, is_ours=lambda head: is_there, force=None)


def parse_pixel(text: str) -> tuple[float, float]:
    """A pixel written as `X,Y`."""
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--at {text} is no pixel; write X,Y, such as --at 120,80.") from None
    return x, y


def score_maps(
    predictor: "Predictor", sources: list[str], methods: list[str], out: Path, *, limit: int, seed: int
) -> None:
    """Measure whether maps are faithful, print a table, write it and the curves."""
    from ..console import make_console, tracked
    from ..explanation.faithfulness import score, scores_table

    if len(sources) != 1:
        raise ValueError(f"--score takes one DATA, not {len(sources)}; give one source.")
    refuse_other_files(out / "curves.png", out / "scores.md", out / "scores.json")
    title = f"Scoring the maps of {predictor.name}"
    found = score(
        predictor, sources[0], method=methods, limit=limit, seed=seed, progress=lambda items: tracked(items, title)
    )
    found.save(out)
    make_console().print(scores_table(found), highlight=False)
    print(f"Wrote {out}: scores.json, scores.md, curves.png.", file=sys.stderr)


def app(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|MODEL...",
            help="Runs, weight files or names of models to offer first.",
            show_default="the nano models",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the page.", show_default="7860 or later")
    ] = None,
    host: Host = "127.0.0.1",
    password: Annotated[
        str | None,
        typer.Option(
            envvar="NEARSIGHT_PASSWORD",
            show_envvar=True,
            help="Ask visitors for it (under any name).",
            show_default=False,
        ),
    ] = None,
    corrections: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep labels that are corrected on the page, as a table for train."),
    ] = None,
    tta: Annotated[
        str | None, typer.Option(metavar="VIEW,...", help="Merge several views of an image, such as flip.")
    ] = None,
    error_rate: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Of calibrated classifiers: say 'don't know' so that no more is missed."),
    ] = None,
    similar: Annotated[
        str | None, typer.Option(metavar="DATA", help="Show the images of DATA that are most like the chosen one.")
    ] = None,
) -> None:
    """Open a page: drop an image, click on it, and see what models do there."""
    from ..app.serve import launch_app

    check_folder("--corrections", corrections)
    launch_app(
        runs or (),
        port=port,
        host=host,
        password=password,
        corrections=corrections,
        tta=tta,
        error_rate=error_rate,
        similar=similar,
    )
