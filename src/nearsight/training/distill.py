"""The verb `distill`: a small model learns what a large one says of images, with and without labels."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arguments import checked
from ..config.files import load_recipe, parse_changes
from ..config.recipe import Recipe
from ..data.open import find_task
from ..runs.predictor import is_path
from ..runs.run import Outcome
from ..tasks import get_task
from ..timing import check_threads
from .loop import run_training
from .train import default_folder, named_settings, refuse_nothing, use_threads

# A teacher that has seen the labels itself is right about most of them and says more than they do, so it has most of
# the weight. Four views cost as much of a teacher as four passes over the images.
TEMPERATURE, WEIGHT, VIEWS = 2.0, 0.9, 4


@checked
def distill(
    teacher: str | Path,
    data: str | Path,
    *,
    into: str | None = None,
    task: str | None = None,
    unlabelled: Sequence[str | Path] | str | Path | None = None,
    kind: str = "soft",
    temperature: float | None = None,
    weight: float = WEIGHT,
    features: float = 0.0,
    views: int | None = VIEWS,
    recipe: str | Path | Recipe | None = None,
    out: str | Path | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    img_size: int | None = None,
    patch_size: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    keep: int | None = None,
    workers: int | None = None,
    changes: Mapping[str, Any] | Sequence[str] | None = None,
    track: Sequence[str] | None = None,
    threads: int | None = None,
    cpu: bool = False,
    quiet: bool = False,
) -> Outcome:
    """Train a model on what a teacher says of images; the same call again goes on where it stopped.

    Args:
        teacher: Folder of a run, a weight file, or a model of timm with pretrained weights, which knows the classes.
        data: Labelled images; see `nearsight.open_data`.
        into: The model to train, ours or timm's; None lets the data choose.
        task: `classify` or `multilabel`; None follows the data.
        unlabelled: Images without labels, one source or several: folders, or data whose labels are passed over. Those
            that the data have are left out.
        kind: `soft` for the teacher's probabilities, `hard` for its class.
        temperature: Of soft labels; None takes 2.
        weight: Fraction of the teacher in the loss of a labelled image.
        features: Weight of the distance to the teacher's pooled features; 0 for none.
        views: Views of each image that the epochs show in turn and the teacher predicts once; 0 draws new ones in every
            epoch and asks the teacher every time.
        recipe: A recipe by name, a YAML file, or a `Recipe`.
        out: Folder of the run; without, one in `runs`.
        epochs: Passes over the images, labelled or not.
        batch: Images in a step, over all processes.
        lr: Learning rate.
        img_size: Side of the student's images in pixels.
        patch_size: Stride of the student's embedding in pixels.
        limit: Use the labels of so many training images only.
        seed: Of the weights, the order and every random draw.
        precision: `float32`, `bfloat16`, or `auto` for the faster one by some measured steps.
        keep: Newest checkpoints to keep, beside the best.
        workers: Processes that read images.
        changes: Other settings of the recipe: `{"augment.mixup": 0}` or `["augment.mixup=0"]`.
        track: Also report to these trackers of accelerate: `wandb`, `mlflow`, ...
        threads: CPU threads.
        cpu: Do not use a GPU.
        quiet: Show no progress.

    Returns:
        What came of it; `outcome.folder` is the run, which every other verb takes.

    Raises:
        ValueError: Something can't be done, in one sentence.
        Interrupted: A signal ended the run; its checkpoint is written.

    Example:
        >>> import tempfile, nearsight
        >>> few = {"epochs": 1, "limit": 64, "batch": 32, "quiet": True}
        >>> teacher = nearsight.train("digits", model="deit_nano", out=tempfile.mkdtemp(), **few).folder
        >>> student = nearsight.distill(teacher, "digits", into="localvit_nano", out=tempfile.mkdtemp(), **few)
        >>> student.model, student.steps
        ('localvit_nano', 2)
    """
    options = locals()
    source, given_teacher = os.fspath(data), os.fspath(teacher)
    refuse_nothing({"TEACHER": teacher, "DATA": data, "--into": into, "--out": out, "--epochs": epochs})
    task = task or find_task(source)
    if not get_task(task).is_linear:
        raise ValueError(
            f"A teacher gives classes to whole images, but {source} is there to {task}; use `nearsight train`."
        )
    if is_path(given_teacher) and not os.path.exists(os.path.expanduser(given_teacher)):
        raise ValueError(f"There is no teacher at {given_teacher}; give the folder of a run, a weight file or a model.")
    if threads is not None:
        check_threads(threads)
    sources = [unlabelled] if isinstance(unlabelled, (str, os.PathLike)) else list(unlabelled or ())
    given = named_settings(options)
    given["distill"] = {
        "teacher": given_teacher,
        "kind": kind,
        "temperature": temperature if temperature is not None else TEMPERATURE if kind == "soft" else 1.0,
        "weight": weight,
        "features": features,
        "views": views or None,
        "unlabelled": [os.fspath(one) for one in sources],
    }
    chosen = load_recipe(recipe or get_task(task).default_recipe, given | parse_changes(changes))
    folder = (
        Path(out)
        if out is not None
        else default_folder(source, f"{chosen.model.name or 'auto'}-distilled", seed=chosen.seed)
    )
    use_threads(threads, folder)
    return run_training(source, chosen, folder, track=tuple(track or ()), quiet=quiet, cpu=cpu)
