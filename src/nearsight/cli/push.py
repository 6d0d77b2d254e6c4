"""`nearsight push`: a trained model for others, in a folder or on the Hugging Face hub."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson


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
