"""`nearsight weights`: pretrained weights that are at hand, and fetching others."""

import sys
from pathlib import Path
from typing import Annotated

import typer

weights_app = typer.Typer(
    help="List pretrained weights to start from, or fetch some.", invoke_without_command=True, rich_markup_mode=None
)


@weights_app.callback()
def weights(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the pretrained weights that are at hand, and those that can be had, in the order in which they are taken."""
    if context.invoked_subcommand is not None:
        return
    from ..checkpoints.pretrained import list_pretrained, megabytes, permits_commercial_use, weight_folders
    from ..console import make_console, print_json, titled

    listed = list_pretrained()
    if as_json:
        print_json(
            [
                {
                    "name": one.name,
                    "licence": one.licence,
                    "bytes": one.bytes,
                    "file": str(one.path) if one.path else None,
                    "source": one.source,
                    "automatic": one.path is not None and permits_commercial_use(one.licence),
                    "about": one.about,
                }
                for one in listed
            ]
        )
        return
    table = titled("weights", "size")
    table.add_column("licence")
    table.add_column("where")
    for one in listed:
        taken = "" if permits_commercial_use(one.licence) else ", only if named"
        table.add_row(one.name, megabytes(one.bytes), one.licence, f"{one.source}{taken}" if one.source else "to get")
    make_console().print(table)
    for folder, source in weight_folders():
        print(f"{source}: {folder}{' (NEARSIGHT_WEIGHTS)' if source == 'folder' else ', and those of timm'}")
    print("Fetch others, also of any model of timm, with `nearsight weights get NAME`.")


@weights_app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model of timm, with or without a tag, or of ours.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to put the file.", show_default="NEARSIGHT_WEIGHTS, or ~/.cache/nearsight/weights"),
    ] = None,
) -> None:
    """Fetch pretrained weights ahead, such as for a machine without a network."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from ..checkpoints.pretrained import get_pretrained, megabytes

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        got = get_pretrained(name, folder, lambda done, size: bar.update(task, completed=done, total=size))
    how = "Fetched" if got.source == "download" else "There already:"
    print(f"{how} {got.path} ({megabytes(got.bytes)}, licence {got.licence}, SHA-256 {got.sha256[:12]}...).")
    if folder is not None:
        print(f"Trainings take it if NEARSIGHT_WEIGHTS={folder} is set.", file=sys.stderr)
