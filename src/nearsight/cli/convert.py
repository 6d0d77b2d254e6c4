"""`nearsight convert`: released checkpoints as files that know their model."""

from pathlib import Path
from typing import Annotated

import typer


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
        typer.Option(
            metavar="IMAGENET_DIR",
            help="Evaluate the converted file on ImageNet's validation images, in a folder for each class.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that Nearsight did not write.")] = False,
) -> None:
    """Convert a released checkpoint to a safetensors file that knows its model."""
    from ..checkpoints.format import read_description
    from ..conversion import convert as convert_file
    from .evaluate import watch

    written = convert_file(
        source,
        target,
        behaviour=behaviour,
        act=act,
        channel_attention=channel_attention,
        heads=heads,
        trained_window=trained_window,
        check=check,
        progress=watch("Evaluating"),
        force=force,
    )
    about = read_description(written)
    print(
        f"{source.name} is {about['name'] or 'a model without a registered name'} (family {about['origin']['family']})."
    )
    print(f"Wrote {written} and {written.with_suffix('.json').name}.")
