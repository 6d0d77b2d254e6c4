"""`nearsight compare`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..comparison.results import Results


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
        int | None, typer.Option(min=1, help="Passes over the training images, the same for all models.")
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
    task: Annotated[
        str | None, typer.Option(help="classify, detect or segment.", show_default="what the data are annotated for")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="A recipe by name or a YAML file.", show_default="small-data, small-..."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the recipe.")
    ] = None,
    img_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on so many images only.")] = None,
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train several models alike and say which is best on DATA, and whether it is worth it.

    The same command again goes on where it stopped.
    """
    if report is not None:
        from ..comparison.report import write_report
        from ..comparison.results import read_results

        show(read_results(report), write_report(read_results(report), report))
        return
    if data is None or models is None:
        raise ValueError("Give DATA and --models A,B,... to compare, or --report FOLDER to make a report again.")
    if epochs is not None and budget is not None:
        raise ValueError("Give either --epochs or --budget, not both.")

    from ..comparison.compare import Wish, run_comparison
    from ..comparison.plan import Shared, parse_duration, parse_seeds
    from ..comparison.runner import Stopped
    from ..config.candidates import parse_entries, with_baseline
    from .train import default_recipe

    entries, wanted = with_baseline(parse_entries(models), baseline)
    shared = Shared(
        data=data,
        recipe=recipe or default_recipe(data, task, None),
        changes=tuple(changes or ()),
        img_size=img_size,
        limit=limit,
        epochs=epochs,
        budget=parse_duration(budget) if budget else None,
    )
    folder = out or default_folder(data)
    try:
        results = run_comparison(Wish(shared, entries, parse_seeds(seeds), wanted, folder, jobs, ray, quiet))
    except Stopped:
        command = shlex.join(["nearsight", *sys.argv[1:]])
        print(f"nearsight: Stopped; nothing is lost. Go on with the same command: {command}", file=sys.stderr)
        raise typer.Exit(130) from None
    show(results, folder / "report.html")
    if results.failures:
        raise typer.Exit(1)


def default_folder(data: str) -> Path:
    """Folder of a comparison, named after the data."""
    return Path("runs") / f"compare-{Path(data.rstrip('/')).stem or 'data'}"


def show(results: "Results", report: Path) -> None:
    """The verdict, the table, and where the report is."""
    from ..comparison.report import results_table
    from ..comparison.verdict import verdict
    from ..console import make_console

    console = make_console()
    console.print()
    for index, sentence in enumerate(verdict(results)):
        console.print(sentence, style="bold" if index == 0 else "", highlight=False, markup=False)
    console.print(results_table(results))
    for model, run in results.failures:
        console.print(
            f"{model.label} · seed {run.seed} failed: {run.failure}", style="red", highlight=False, markup=False
        )
    print(f"Report: {report}")
