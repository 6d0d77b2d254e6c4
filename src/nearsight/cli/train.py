"""`nearsight train` and `nearsight distill`."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Changes, Cpu, Groups, ImageSize, Limit, Quiet, RecipeName, Task

if TYPE_CHECKING:
    from ..runs.run import Outcome
    from ..training.folds import CrossValidation

Batch = Annotated[int | None, typer.Option(help="Images in a step, over all processes.")]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate.")]
Seed = Annotated[int | None, typer.Option(help="Of the weights, the order and every random draw.")]
Precision = Annotated[str | None, typer.Option(help="float32, bfloat16 or auto.")]
Keep = Annotated[int | None, typer.Option(help="Newest checkpoints to keep, beside the best.")]
Workers = Annotated[int | None, typer.Option(help="Processes that read images.")]
Track = Annotated[list[str] | None, typer.Option(help="Also report to wandb, mlflow, ... (repeatable).")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
RunFolder = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="RUN", help="Folder of the run.", show_default="runs/...")
]


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
    task: Task = None,
    head: Annotated[
        str | None,
        typer.Option(help="retinanet, mask-rcnn, cascade-mask-rcnn, detr; semantic-fpn, upernet, linear."),
    ] = None,
    recipe: RecipeName = None,
    out: RunFolder = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run, as it was; nothing else is needed.")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(min=2, help="Train so many models, each without a part of the images, and judge all parts."),
    ] = None,
    groups: Groups = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that all may take: 20m, 1h30m; the plan keeps to it.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch: Batch = None,
    lr: LearningRate = None,
    img_size: ImageSize = None,
    patch_size: Annotated[int | None, typer.Option(help="Stride of the model's embedding in pixels.")] = None,
    channels: Annotated[int | None, typer.Option(help="1: grey images, in a classifier. Default: the data's.")] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="auto|none|pretrained|FILE|RUN",
            help="Start from pretrained weights at hand, from scratch, from the model's own pretrained weights, from a "
            "file or a former run.",
        ),
    ] = "auto",
    download: Annotated[bool, typer.Option("--download", help="Download pretrained weights if need be.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask nothing of other machines, nor whether to.")] = False,
    localize: Annotated[
        str | None, typer.Option(metavar="SLOT=PART,...", help="Local parts for it, such as ffn=localvit,qkv=life.")
    ] = None,
    class_weights: Annotated[str | None, typer.Option(help="'balanced' weighs rare classes more.")] = None,
    limit: Limit = None,
    seed: Seed = None,
    precision: Precision = None,
    keep: Keep = None,
    workers: Workers = None,
    changes: Changes = None,
    track: Track = None,
    threads: Threads = None,
    cpu: Cpu = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on DATA; the same command again goes on where it stopped."""
    options = locals()

    from ..training.train import train as verb

    run(verb, options)


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
    recipe: RecipeName = None,
    out: RunFolder = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images, labelled or not.")] = None,
    batch: Batch = None,
    lr: LearningRate = None,
    img_size: Annotated[int | None, typer.Option(help="Side of the student's images in pixels.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Stride of the student's embedding in pixels.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use the labels of so many training images only.")] = None,
    seed: Seed = None,
    precision: Precision = None,
    keep: Keep = None,
    workers: Workers = None,
    changes: Changes = None,
    track: Track = None,
    threads: Threads = None,
    cpu: Cpu = False,
    quiet: Quiet = False,
) -> None:
    """Train a small model on what TEACHER says of DATA; the same command again goes on where it stopped."""
    options = locals()

    from ..training.distill import distill as verb

    run(verb, options)


def run(verb: "Callable[..., Outcome | CrossValidation]", options: dict[str, Any]) -> None:
    """Train, and print the result and what to do with it; an interrupted training leaves with the signal's code."""
    from ..runs.run import Outcome
    from ..training.signals import Interrupted

    speaks = os.environ.get("RANK", "0") == "0"  # of several processes, which torchrun and accelerate number
    try:
        outcome = verb(**options)
    except Interrupted as stop:
        if speaks:
            print(f"nearsight: {stop}", file=sys.stderr)
        raise typer.Exit(128 + stop.number) from None
    if options["quiet"] or not speaks:
        return
    if not isinstance(outcome, Outcome):
        print("\n".join(outcome.lines()))
        return
    folder = outcome.folder
    tested = "" if outcome.test_score is None else f", {outcome.test_score:.2%} on the test images"
    reached = f"{outcome.metric} {outcome.val_score:.2%} on the validation images (epoch {outcome.epoch})"
    print(f"{outcome.model}: {reached}{tested}.")
    if outcome.bad_images:
        print(f"Unreadable images passed over: {len(outcome.bad_images)}; {folder}/outcome.json names them.")
    print(f"Model: {folder}/model.safetensors · summary: {folder}/summary.md")
    typed = shlex.quote(str(folder))
    print(f"Next:  nearsight eval {typed} · nearsight predict {typed} IMAGE...")
