"""Options that several commands have in common."""

from typing import Annotated

import typer

Task = Annotated[
    str | None,
    typer.Option(help="classify, multilabel, detect or segment.", show_default="what the data are annotated for"),
]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", "-r", help="A recipe by name or a YAML file.", show_default="small-data, small-..."),
]
ImageSize = Annotated[int | None, typer.Option(help="Side of the images in pixels.")]
Limit = Annotated[int | None, typer.Option(help="Train on so many images only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
