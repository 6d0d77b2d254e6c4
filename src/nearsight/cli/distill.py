"""`nearsight distill`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .train import is_first_process, print_outcome


def distill(
    teacher: Annotated[
        str,
        typer.Argument(metavar="TEACHER", help="A run, a weight file, or a model of timm with pretrained weights."),
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Labelled images: class folders, .csv, .parquet, .npz, .tar, a name.")
    ],
    into: Annotated[
        str | None, typer.Option("--into", "-m", help="The model to train, ours or timm's; without, the data choose.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="classify or multilabel.", show_default="what the data are annotated for")
    ] = None,
    unlabelled: Annotated[
        list[str] | None,
        typer.Option(metavar="IMAGES", help="Images without labels: a folder, or data of any kind (repeatable)."),
    ] = None,
    kind: Annotated[str, typer.Option(help="soft for the teacher's probabilities, hard for its class.")] = "soft",
    temperature: Annotated[float | None, typer.Option(help="Of soft labels.", show_default="2")] = None,
    weight: Annotated[float, typer.Option(help="Fraction of the teacher in the loss of a labelled image.")] = 0.9,
    features: Annotated[float, typer.Option(help="Weight of the distance to the teacher's features.")] = 0.0,
    views: Annotated[
        int | None, typer.Option(help="Views of each image that the teacher predicts once; 0 asks it every time.")
    ] = 4,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="A recipe by name or a YAML file.", show_default="small-data, small-..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="RUN", help="Folder of the run.", show_default="runs/...")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images, labelled or not.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images in a step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    img_size: Annotated[int | None, typer.Option(help="Side of the student's images in pixels.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Stride of the student's embedding in pixels.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use the labels of so many training images only.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights, the order and every random draw.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or auto.")] = None,
    keep: Annotated[int | None, typer.Option(help="Newest checkpoints to keep, beside the best.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that read images.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as augment.mixup=0.")
    ] = None,
    track: Annotated[list[str] | None, typer.Option(help="Also report to wandb, mlflow, ... (repeatable).")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Do not use a GPU.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train a small model on what TEACHER says of DATA; the same command again goes on where it stopped."""
    options = locals()

    from ..training.distill import distill as run
    from ..training.signals import Interrupted

    try:
        outcome = run(**options)
    except Interrupted as stop:
        if is_first_process():
            print(f"nearsight: {stop}", file=sys.stderr)
        raise typer.Exit(128 + stop.number) from None
    if not quiet and is_first_process():
        print_outcome(outcome)
