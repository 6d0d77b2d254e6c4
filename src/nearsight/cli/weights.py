"""Models of others and for others: `nearsight weights` (pretrained ones), `convert` (released checkpoints), `push`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Shell, watch

weights_app = Shell(
    help="List pretrained weights to start from, or fetch some.", invoke_without_command=True, rich_markup_mode=None
)


@weights_app.callback()
def weights(context: typer.Context, as_json: AsJson = False) -> None:
    """List the pretrained weights that are at hand, and those that can be had, in the order in which they are taken."""
    if context.invoked_subcommand is not None:
        return
    from ..checkpoints.pretrained import list_pretrained, megabytes, permits_commercial_use, weight_folders
    from ..console import make_console, print_json, titled

    listed = list_pretrained()
    if as_json:
        print_json([one.to_dict() for one in listed])
        return
    table = titled("weights", "size")
    table.add_column("licence")
    table.add_column("where")
    for one in listed:
        taken = ", only if named" if one.source == "shipped" or not permits_commercial_use(one.licence) else ""
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


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Released checkpoint (.pth, .pt, .bin, .safetensors).")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write (.safetensors).")],
    behaviour: Annotated[str, typer.Option(help="Where release and paper differ: released or paper.")] = "released",
    act: Annotated[str, typer.Option(help="LocalViT's activation: hswish or relu6.")] = "hswish",
    channel_attention: Annotated[str, typer.Option(help="LocalViT's ECA: eca or eca_hsigmoid.")] = "eca",
    heads: Annotated[int | None, typer.Option(help="Attention heads, where the file can't tell.")] = None,
    trained_window: Annotated[
        int | None, typer.Option(help="Swin v2: window before fine-tuning with a larger.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="IMAGENET_DIR", help="Evaluate it on ImageNet's validation images (class folders)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that Nearsight did not write.")] = False,
) -> None:
    """Convert a released checkpoint to a safetensors file that knows its model."""
    options = locals()

    from ..checkpoints.format import read_description
    from ..conversion import convert as convert_file

    written = convert_file(**options, progress=watch("Evaluating"))
    about = read_description(written)
    print(
        f"{source.name} is {about['name'] or 'a model without a registered name'} (family {about['origin']['family']})."
    )
    print(f"Wrote {written} and {written.with_suffix('.json').name}.")


def push(
    source: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run, or its weight file.")],
    repository: Annotated[
        str | None, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub; it is made if there is none.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Of the weights, such as apache-2.0. Default: asked at the terminal.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Write what is shared here, too; without OWNER/NAME nothing is uploaded.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see a repository that is made.")] = False,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Share a trained model with a card made from its run: what it is, how good, from which data and weights."""
    from ..console import print_json
    from ..sharing import OFTEN
    from ..sharing import push as push_model

    if licence is None:
        if not sys.stdin.isatty():
            raise ValueError(f"The weights need a licence; give --licence with one such as {', '.join(OFTEN)}.")
        licence = str(typer.prompt(f"Licence of the weights ({', '.join(OFTEN)})"))
    shared = push_model(source, repository, licence=licence, folder=folder, public=public, message=message)
    if as_json:
        print_json(shared.to_dict())
    else:
        print(f"Shared {shared!r}.")
