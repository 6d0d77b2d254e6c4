"""`nearsight train`."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


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
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images in a step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    img_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    patch_size: Annotated[int | None, typer.Option(help="Stride of the model's embedding in pixels.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Start from a converted file, a former run, or timm's 'pretrained'.")
    ] = None,
    localize: Annotated[
        str | None, typer.Option(metavar="SLOT=PART,...", help="Local parts for it, such as ffn=localvit,qkv=life.")
    ] = None,
    class_weights: Annotated[str | None, typer.Option(help="'balanced' weighs rare classes more.")] = None,
    limit: Annotated[int | None, typer.Option(help="Train on so many images only.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights, the order and every random draw.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16.")] = None,
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
    flags = {
        "model.name": model,
        "model.head": head,
        "model.img_size": img_size,
        "model.patch_size": patch_size,
        "model.weights": weights,
        "epochs": epochs,
        "batch": batch,
        "optimizer.lr": lr,
        "loss.class_weights": class_weights,
        "data.limit": limit,
        "data.workers": workers,
        "seed": seed,
        "precision": precision,
        "saving.keep": keep,
    }
    given: dict[str, Any] = {key: value for key, value in flags.items() if value is not None}
    if localize is not None:
        from ..retrofit import Choice

        given["model.localize"] = Choice.parse(localize).as_json()
    if (data is None) == (resume is None):
        raise ValueError("Give either DATA to train on, or --resume RUN to go on with a run.")
    if resume is not None and (given or changes or recipe or out or task):
        raise ValueError("--resume goes on with a run as it was; leave the other settings out.")

    if threads is not None and threads < 1:
        raise ValueError(f"--threads {threads} won't do; give a whole number of at least 1.")

    from ..config.files import parse_change
    from ..training import load_recipe, resume_training, run_training
    from ..training.signals import Interrupted

    settings: dict[str, Any] = {"track": tuple(track or ()), "quiet": quiet, "cpu": cpu}
    try:
        if resume is not None:
            folder = resume
            use_threads(threads, folder)
            outcome = resume_training(resume, **settings)
        else:
            if recipe is None:
                recipe = "retrofit" if localize and weights else default_recipe(str(data), task, weights)
            chosen = load_recipe(recipe, given | dict(map(parse_change, changes or ())))
            if task is not None and task != chosen.task:
                raise ValueError(f"The recipe {chosen.name} is made to {chosen.task}, not to {task}; choose another.")
            folder = out or default_folder(str(data), chosen.model.name, chosen.seed)
            use_threads(threads, folder)
            outcome = run_training(str(data), chosen, folder, **settings)
    except Interrupted as stop:
        if is_first_process():
            print(f"nearsight: {stop}", file=sys.stderr)
        raise typer.Exit(128 + stop.number) from None
    if not quiet and is_first_process():
        print_outcome(outcome, folder)


def default_recipe(data: str, task: str | None, weights: str | None) -> str:
    """The recipe for a task, or for what the data are annotated for."""
    from ..data.open import find_task

    recipes = {
        "classify": "fine-tune" if weights else "small-data",
        "detect": "small-detect",
        "segment": "small-segment",
    }
    if task is not None and task not in recipes:
        raise ValueError(f"There is no task {task!r}; choose {', '.join(recipes)}.")
    return recipes[task or find_task(data)]


def use_threads(given: int | None, folder: Path) -> None:
    """Set the CPU threads: as asked for, else as the run in the folder was begun with, as far as there are cores.

    Sums are split among the threads, so that their number decides the last bits.
    """
    import torch

    from ..runs.run import Run, processes

    noted = Run(folder).threads() if given is None and processes() == 1 else None
    cores = os.cpu_count() or 1
    if noted is not None and noted > cores:
        print(
            f"nearsight: The run was begun with {noted} threads; it goes on with the {cores} that this machine has, "
            "and the last bits may differ.",
            file=sys.stderr,
        )
        noted = cores
    if wanted := given or noted:
        torch.set_num_threads(wanted)


def is_first_process() -> bool:
    """Whether this is the one process that speaks; torchrun and accelerate number theirs."""
    return os.environ.get("RANK", "0") == "0"


def default_folder(data: str, model: str | None, seed: int) -> Path:
    """Folder of a run, named after what is trained on what."""
    stem = Path(data.rstrip("/")).stem or "data"
    name = (model or "auto").removeprefix("timm/").replace("/", "-")
    return Path("runs") / f"{stem}-{name}-seed{seed}"


def print_outcome(outcome: Any, folder: Path) -> None:
    """The result, and what to do with it."""
    tested = "" if outcome.test_score is None else f", {outcome.test_score:.2%} on the test images"
    reached = f"{outcome.metric} {outcome.val_score:.2%} on the validation images (epoch {outcome.epoch})"
    print(f"{outcome.model}: {reached}{tested}.")
    if outcome.bad_images:
        print(f"Unreadable images passed over: {len(outcome.bad_images)}; {folder}/outcome.json names them.")
    print(f"Model: {folder}/model.safetensors · summary: {folder}/summary.md")
    typed = shlex.quote(str(folder))
    print(f"Next:  nearsight eval {typed} · nearsight predict {typed} IMAGE...")
