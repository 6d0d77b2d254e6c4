"""`nearsight search`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import Changes, Cpu, ImageSize, Limit, Quiet


def search(
    data: Annotated[str, typer.Argument(metavar="DATA", help="What to learn, as for `nearsight train`.")],
    latency_of: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Limit: as fast as this model here, for one image and for 32."),
    ] = None,
    ms: Annotated[float | None, typer.Option(help="Limit instead: milliseconds of one image.")] = None,
    macs: Annotated[
        str | None, typer.Option(metavar="N", help="Limit instead: multiply-adds of one image, such as 40M.")
    ] = None,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Time that all may take: 40m, 2h.")] = None,
    trials: Annotated[int | None, typer.Option(help="Models to train.", show_default="50 without a budget")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training images on the last of three rungs.")] = 18,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="A recipe by name or a YAML file.", show_default="small-data")
    ] = None,
    changes: Changes = None,
    img_size: ImageSize = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn, of the weights and the order.")] = 0,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="In the end, train the best model with each slot made plain.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", show_default="runs/search-DATA")] = None,
    cpu: Cpu = False,
    quiet: Quiet = False,
) -> None:
    """Search for the parts that learn DATA best within a limit of latency; the same command goes on after a stop."""
    options = locals()

    from ..searching.search import SearchStopped
    from ..searching.search import search as run
    from ..searching.space import summarise

    try:
        found = run(**options)
    except SearchStopped as stop:
        command = shlex.join(["nearsight", *sys.argv[1:]])
        print(f"nearsight: Stopped; nothing is lost. Go on with the same command: {command}", file=sys.stderr)
        raise typer.Exit(128 + stop.number) from None
    best = found.best
    print(f"Best of {len(found.trained)}: {best.score:.2%} on the validation images after {best.epochs} epoch(s).")
    print(f"{summarise(best.spec)}")
    print(f"{best.cost.parameters:,} parameters, {best.cost}; {best.cost.fraction:.0%} of the limit.")
    print(f"Model: {found.folder / 'spec.json'} · report: {found.folder / 'report.md'}")
    spec = shlex.quote(str(found.folder / "spec.json"))
    print(f"Next:  nearsight train {shlex.quote(data)} --model {spec} --lr {best.lr:.2g}")
