"""`nearsight compare`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Changes, ImageSize, Limit, Quiet, RecipeName, Task

if TYPE_CHECKING:
    from ..comparison.results import Comparison


def compare(
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="What to train on, as for `nearsight train`."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            "-m",
            metavar="A,B,...",
            help="Models of ours or of timm; with options NAME:KEY=VALUE:..., with a name for it LABEL=NAME:...",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training images, the same for all models.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Training time of each run instead, such as 20m: some steps of each model are timed on this machine, "
            "and it gets the epochs that fit.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N", help="Runs of each model (seeds 0, 1, ...), or the seeds: 5,7.")
    ] = "3",
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model that the others are tested against; added if it is not among them.",
            show_default="the first ConvNet, else the first model",
        ),
    ] = None,
    task: Task = None,
    recipe: RecipeName = None,
    changes: Changes = None,
    img_size: ImageSize = None,
    limit: Limit = None,
    scratch_only: Annotated[
        bool, typer.Option("--scratch-only", help="Leave out pretrained weights, which are compared where at hand.")
    ] = False,
    download: Annotated[bool, typer.Option("--download", help="Fetch pretrained weights if need be.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask nothing of other machines.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", show_default="runs/compare-DATA")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time on the CPU, which share its cores.", show_default="cores")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster (needs nearsight[ray]).")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Only make the report of a comparison again.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train several models alike and say which is best on DATA, and whether it is worth it.

    The same command again goes on where it stopped.
    """
    options = locals()
    options.pop("report")
    if report is not None:
        from ..comparison.results import read_results

        again = read_results(report)
        again.save(report)
        show(again)
        return
    if data is None or models is None:
        raise ValueError("Give DATA and --models A,B,... to compare, or --report FOLDER to make a report again.")

    from ..comparison.compare import compare as run
    from ..comparison.runner import Stopped

    try:
        found = run(**options)
    except Stopped:
        command = shlex.join(["nearsight", *sys.argv[1:]])
        print(f"nearsight: Stopped; nothing is lost. Go on with the same command: {command}", file=sys.stderr)
        raise typer.Exit(130) from None
    show(found)
    if found.failures:
        raise typer.Exit(1)


def show(found: "Comparison") -> None:
    """The verdict, the table, and where the report is."""
    from ..comparison.report import results_table, verdict
    from ..console import make_console

    console = make_console()
    console.print()
    for index, sentence in enumerate(verdict(found)):
        console.print(sentence, style="bold" if index == 0 else "", highlight=False, markup=False)
    console.print(results_table(found))
    for model, run in found.failures:
        console.print(
            f"{model.label} · seed {run.seed} failed: {run.failure}", style="red", highlight=False, markup=False
        )
    assert found.folder is not None
    print(f"Report: {found.folder / 'report.html'}")
