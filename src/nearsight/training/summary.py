"""What a run ends with: its model and its predictions, its course as a figure, and a summary."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..atomic import write_whole
from ..config.recipe import Augment, Distillation, Recipe
from ..console import percent
from ..plots.style import COLOURS, SMALL, figure, tidy, to_png, write
from ..runs.predictor import WEIGHTS, save_trained
from ..runs.run import Outcome, Run
from ..tasks import get_task
from ..tasks.base import Built
from ..tasks.evaluator import Meter
from .progress import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MARKED = 30  # epochs up to which each is marked with a dot


def draw_curves(records: Sequence[dict[str, Any]], best: int, metric: str) -> "Figure":
    """Loss, the metric on the validation images, and learning rate, over the epochs.

    Args:
        records: Lines of `metrics.jsonl`.
        best: The best epoch, counted from 1.
        metric: Name of the figure that tells which epoch is best.
    """
    steps = [record for record in records if record["kind"] == "step"]
    epochs = [record for record in records if record["kind"] == "epoch"]
    steps_per_epoch = epochs[0]["step"] / epochs[0]["epoch"]
    drawn = figure(11.5, 3.4)
    loss, score, rate = drawn.subplots(1, 3)
    numbers = [record["epoch"] for record in epochs]
    look: dict[str, Any] = {"linewidth": 1.8, "markersize": 3.5, "marker": "o" if len(epochs) <= MARKED else ""}
    look["clip_on"] = False  # half of the last dot lies outside

    tidy(loss, title="Loss", x="epoch")
    spread = [record["step"] / steps_per_epoch for record in steps]
    loss.plot(spread, [record["loss"] for record in steps], color=COLOURS[0], alpha=0.25, linewidth=0.9)
    for key, name, colour in (("loss", "training", COLOURS[0]), ("val_loss", "validation", COLOURS[1])):
        if key in epochs[0]:  # detectors have no validation loss
            loss.plot(numbers, [record[key] for record in epochs], color=colour, label=name, **look)
    for text in loss.legend(frameon=False).get_texts():
        write(text, SMALL)

    fractions = [100 * record["val_score"] for record in epochs]
    tidy(score, title=f"Validation {metric}", x="epoch")
    score.plot(numbers, fractions, color=COLOURS[2], **look)
    if len(epochs) == 1:
        score.set_ylim(0, 100)
    highest = fractions[numbers.index(best)]
    score.plot([best], [highest], "o", color=COLOURS[1], markersize=7, zorder=5, clip_on=False)
    # A rising curve leaves room below.
    text = score.text(0.97, 0.05, f"best: {highest:.1f} % after epoch {best}", transform=score.transAxes, ha="right")
    write(text, SMALL, COLOURS[1], weight="bold")
    score.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")

    tidy(rate, title="Learning rate", x="epoch")
    course = sorted({(r["step"], r["lr"]) for r in steps} or {(r["step"], r["lr"]) for r in epochs})
    rate.plot([step / steps_per_epoch for step, _ in course], [lr for _, lr in course], color=COLOURS[3], linewidth=1.8)
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for axes in (loss, score, rate):
        axes.set_xlim(0, numbers[-1])
        axes.locator_params(axis="x", nbins=6, integer=True)
    return drawn


def draw_strengths(record: dict[str, Any]) -> "Figure":
    """How many held-out training images a regression on frozen features tells right, by pooling and weight decay."""
    drawn = figure(6.4, 3.4)
    axes = drawn.subplots()
    tidy(axes, title="Cross-validation of the frozen features", x="weight decay", y="told right")
    for number, pooling in enumerate(dict.fromkeys(one[0] for one in record["tried"])):
        chosen = [(strength, 100 * score) for name, strength, score in record["tried"] if name == pooling]
        axes.plot(
            *zip(*chosen, strict=True), color=COLOURS[number], marker="o", markersize=3.5, label=pooling or "pooled"
        )
    best = record["strength"], 100 * record["cv_score"]
    axes.plot(*best, "o", color=COLOURS[1], markersize=8, zorder=5, fillstyle="none", markeredgewidth=2)
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    for text in axes.legend(frameon=False).get_texts():
        write(text, SMALL)
    return drawn


FILES = {
    "model.safetensors": "the weights of the best epoch; `model.json` says of which model and classes",
    "recipe.yaml": "every setting",
    "data.json": "the data and which images are in which split",
    "environment.json": "the command, versions and machine",
    "predictions.npz": "what the model predicted for each test image, for comparisons",
    "metrics.jsonl": "losses, figures of the validations and learning rate as numbers",
    "curves.png": "the same as a figure",
    "checkpoints/": "states to go on from",
    "teacher/": "what the teacher predicted; of no use any more",
    "tensorboard/": "the same numbers for `tensorboard --logdir`",
}


def finish_run(
    run: Run, outcome: Outcome, built: Built, classes: tuple[str, ...], settings: Mapping[str, Any], meter: Meter
) -> None:
    """Write what a run ends with: its model, its predictions, its outcome as the sign of that, and its pages.

    Args:
        run: The run.
        outcome: What came of it.
        built: The model, with the weights of the best epoch.
        classes: Names of the classes.
        settings: What the model is best used with, such as a detector's threshold.
        meter: Predictions for the split that decides a comparison: the test images, or without such the validation
            images.
    """
    save_trained(built, outcome.task, classes, run.folder / WEIGHTS, settings)
    split = "val" if outcome.test is None else "test"
    run.write_predictions(split, {"indices": meter.indices, **meter.compared()})
    run.finish(outcome)
    write_summary(run.folder)


def write_summary(folder: str | Path) -> None:
    """Write `summary.md` and `curves.png` of a finished run.

    Args:
        folder: Folder of the run.

    Raises:
        ValueError: The run is not finished.
    """
    run = Run(folder)
    outcome = run.outcome()
    if outcome is None:
        raise ValueError(f"{run.folder} is not finished; go on with `{run.resume_command}`.")
    records = run.records()
    drawn = draw_strengths(records[0]) if outcome.epochs == 0 else draw_curves(records, outcome.epoch, outcome.metric)
    write_whole(run.folder / "curves.png", to_png(drawn))
    write_whole(run.folder / "summary.md", summarise(run, outcome).encode(errors="surrogateescape"))


def summarise(run: Run, outcome: Outcome) -> str:
    """The page: result, data, model, recipe, time, files, and what to do next."""
    recipe, data = run.recipe(), run.data()
    machine = run.environment()
    sections = [
        f"# {outcome.model} on {data['source']}",
        result_text(outcome, recipe),
        f"![Loss, {outcome.metric} and learning rate](curves.png)",
        table("Data", data_lines(data, recipe, outcome)),
        table("Model", model_lines(outcome, recipe)),
        table("Recipe", recipe_lines(recipe)),
        table("Time and machine", time_lines(outcome, machine)),
        next_text(run.folder),
        table("Files", {f"`{name}`": about for name, about in FILES.items() if (run.folder / name).exists()}),
    ]
    return "\n\n".join(sections) + "\n"


def result_text(outcome: Outcome, recipe: Recipe) -> str:
    """The result in a sentence or two."""
    task = get_task(outcome.task)
    text = task.sentence(outcome.val_score, "validation")
    if outcome.test_score is not None:
        text = f"{task.sentence(outcome.test_score, 'test')} ({percent(outcome.val_score)} on the validation images)"
    if outcome.epochs == 0:
        return f"{text}, by a logistic regression on the features of pretrained weights that stay as they are."
    text += f", after epoch {outcome.epoch} of {outcome.epochs}, the best on the validation images."
    if outcome.stopped_early:
        why = f"as nothing had improved in {recipe.patience} epochs" if recipe.patience else "as the time was up"
        text += f" Training stopped before the {recipe.epochs} epochs planned, {why}."
    if outcome.test_score is None:
        text += " As the epoch was chosen by these images, expect slightly less on new ones."
    return text


def data_lines(data: dict[str, Any], recipe: Recipe, outcome: Outcome) -> dict[str, str]:
    """What was learned from."""
    lines = {"source": f"`{data['source']}`", "classes": f"{len(data['classes'])}: {some(data['classes'])}"}
    titles = {"train": "training images", "val": "validation images", "test": "test images"}
    for name, split in data["splits"].items():
        how = "a part of them, by `data.limit`" if name == "train" else "set aside from the training images"
        chosen = f", {how} (seed {recipe.data.split_seed})" if "names" in split else ""
        lines[titles[name]] = f"{split['count']:,}{chosen}"
    if "unlabelled" in data:
        lines["unlabelled images"] = f"{data['unlabelled']['count']:,}"
    if outcome.bad_images:
        first = next(iter(outcome.bad_images))
        lines["unreadable images"] = f"{len(outcome.bad_images)} passed over, such as `{first}`"
    return lines


def model_lines(outcome: Outcome, recipe: Recipe) -> dict[str, str]:
    """What was trained."""
    model = recipe.model
    lines = {"name": f"`{outcome.model}`", "parameters": f"{outcome.parameters / 1e6:.2f} million"}
    if model.img_size is not None:
        patch = f", in patches of {model.patch_size}" if model.patch_size else ""
        lines["images"] = f"{model.img_size}×{model.img_size} pixels{patch}"
    if model.options:
        lines["options"] = f"`{json.dumps(model.options)}`"
    lines["start"] = f"weights of `{model.weights}`" if model.weights else f"random weights (seed {recipe.seed})"
    return lines


def recipe_lines(recipe: Recipe) -> dict[str, str]:
    """How it was trained, in words."""
    optimizer, schedule = recipe.optimizer, recipe.schedule
    warm = f", after a warm-up of {schedule.warmup_epochs:g} epochs" if schedule.warmup_epochs else ""
    scaled = f" for each {optimizer.lr_batch} images of a batch" if optimizer.lr_batch else ""
    lines = {
        "name": f"`{recipe.name}`",
        "epochs": f"{recipe.epochs}, in batches of {recipe.batch} images",
        "optimizer": f"{optimizer.kind}, weight decay {optimizer.weight_decay:g}",
        "learning rate": f"{optimizer.lr:g}{scaled}, {schedule.kind}{warm}",
        "augmentation": augment_text(recipe.augment),
    }
    extras = {
        "label smoothing": f"{recipe.loss.smoothing:g}" if recipe.loss.smoothing else "",
        "class weights": "" if recipe.loss.class_weights == "none" else f"{recipe.loss.class_weights}",
        "teacher": teacher_text(recipe.distill) if recipe.distill else "",
        "running mean of weights": f"decay {recipe.ema:g}" if recipe.ema else "",
        "precision": recipe.precision if recipe.precision != "float32" else "",
    }
    return lines | {name: text for name, text in extras.items() if text}


def teacher_text(settings: Distillation) -> str:
    """Who taught, and how."""
    soft = f"soft labels at temperature {settings.temperature:g}" if settings.kind == "soft" else "hard labels"
    words = [f"`{settings.teacher}`", soft, f"weight {settings.weight:g}"]
    words += [f"features with weight {settings.features:g}"] if settings.features else []
    words += [f"{settings.views} views of each image"] if settings.views else []
    return ", ".join(words)


def augment_text(augment: Augment) -> str:
    """What is done to training images."""
    words = {
        f"{augment.crop} crop": augment.crop != "none",
        "mirrored": augment.flip > 0,
        "turned upside down": augment.flip_vertical > 0,
        f"RandAugment `{augment.rand_augment}`": augment.rand_augment is not None,
        f"colour jitter {augment.color_jitter:g}": augment.color_jitter > 0,
        f"erasing {augment.erase:g}": augment.erase > 0,
        f"mixup {augment.mixup:g}": augment.mixup > 0 and augment.mixes,
        f"cutmix {augment.cutmix:g}": augment.cutmix > 0 and augment.mixes,
        f"{augment.repeats} copies of each image": augment.repeats > 1,
    }
    return ", ".join(text for text, is_on in words.items() if is_on) or "none"


def time_lines(outcome: Outcome, machine: dict[str, Any]) -> dict[str, str]:
    """How long it took, where, and with what."""
    threads = machine["threads"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return {
        "training and validation": f"{duration(outcome.elapsed)} for {outcome.steps:,} steps",
        "begun": machine["begun"].replace("T", " "),
        "machine": f"{machine['device']}, {threads} thread{'s' * (threads != 1)}, Python {machine['python']}",
        "versions": versions,
        "command": f"`{machine['command']}`",
    }


def next_text(folder: Path) -> str:
    """What to type next."""
    run = shlex.quote(str(folder))
    return f"""## Next

```sh
nearsight eval {run}                # accuracy with intervals, confusions, worst mistakes
nearsight predict {run} image.jpg   # what is in an image
```

In Python, `nearsight.load({str(folder)!r})` opens the model."""


def table(title: str, lines: dict[str, str]) -> str:
    """A heading and a table of two columns."""
    rows = "\n".join(f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in lines.items())
    return f"## {title}\n\n| | |\n| --- | --- |\n{rows}"


def some(names: list[str], most: int = 12) -> str:
    """The first names of a list."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
