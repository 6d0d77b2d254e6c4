"""`nearsight train`."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..runs.run import Outcome


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Class folders, .csv, .parquet, .npz, .tar shards, COCO, VOC or YOLO annotations, images with masks, "
            "or a name (digits, cifar10, shapes, ...).",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A model of ours or of timm; without, the data choose.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="classify, detect or segment.", show_default="what the data are annotated for")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="retinanet, mask-rcnn, cascade-mask-rcnn, detr; semantic-fpn, upernet, linear."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="A recipe by name or a YAML file.", show_default="small-data, small-..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="RUN", help="Folder of the run.", show_default="runs/...")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run, as it was; nothing else is needed.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that all may take: 20m, 1h30m; the plan keeps to it.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images in a step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    img_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Stride of the model's embedding in pixels.")] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="auto|none|pretrained|FILE|RUN",
            help="Start from pretrained weights at hand, from scratch, from the model's own pretrained weights, from a "
            "file or a former run.",
        ),
    ] = "auto",
    download: Annotated[bool, typer.Option("--download", help="Download pretrained weights if need be.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Neither download nor ask whether to.")] = False,
    localize: Annotated[
        str | None, typer.Option(metavar="SLOT=PART,...", help="Local parts for it, such as ffn=localvit,qkv=life.")
    ] = None,
    class_weights: Annotated[str | None, typer.Option(help="'balanced' weighs rare classes more.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on so many images only.")] = None,
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
    """Train a model on DATA; the same command again goes on where it stopped."""
    options = locals()

    from ..training.signals import Interrupted
    from ..training.train import train as run

    try:
        outcome = run(**options)
    except Interrupted as stop:
        if is_first_process():
            print(f"nearsight: {stop}", file=sys.stderr)
        raise typer.Exit(128 + stop.number) from None
    if not quiet and is_first_process():
        print_outcome(outcome)


def is_first_process() -> bool:
    """Whether this is the one process that speaks; torchrun and accelerate number theirs."""
    return os.environ.get("RANK", "0") == "0"


def print_outcome(outcome: "Outcome") -> None:
    """The result, and what to do with it."""
    folder = outcome.folder
    tested = "" if outcome.test_score is None else f", {outcome.test_score:.2%} on the test images"
    reached = f"{outcome.metric} {outcome.val_score:.2%} on the validation images (epoch {outcome.epoch})"
    print(f"{outcome.model}: {reached}{tested}.")
    if outcome.bad_images:
        print(f"Unreadable images passed over: {len(outcome.bad_images)}; {folder}/outcome.json names them.")
    print(f"Model: {folder}/model.safetensors · summary: {folder}/summary.md")
    typed = shlex.quote(str(folder))
    print(f"Next:  nearsight eval {typed} · nearsight predict {typed} IMAGE...")
