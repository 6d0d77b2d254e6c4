"""Options that several commands have in common, and how they are read."""

import re
from pathlib import Path
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


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of a text such as `224` or `224x320`.

    Example:
        >>> parse_size("224x320"), parse_size("96")
        ((224, 320), (96, 96))
    """
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", text.strip().lower())
    if match is None:
        raise ValueError(f"--size {text} is no size; write height and width in pixels like 224x320, or 224 for both.")
    return int(match[1]), int(match[2] or match[1])


def check_folder(option: str, folder: Path | None) -> None:
    """Refuse a file where a folder is to be written, before the work."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ValueError(f"{option} {folder} is a file; give the name of a folder.")
