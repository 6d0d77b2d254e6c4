"""An evaluation for the terminal, in 80 columns."""

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..console import percent
from ..interval import Interval
from ..plots.style import abbreviate
from .evaluate import Evaluation
from .metrics import Metrics, most_confused, worst_classes

ROWS = 5  # worst classes and commonest confusions to list
SEEN = {  # what the training did with the images already
    "train": "the model learned from them, so expect less on new ones",
    "val": "the best epoch was chosen by them",
}
NAME = 30  # characters of a class name


def evaluation_table(evaluation: Evaluation) -> RenderableType:
    """What was evaluated, the figures, the worst classes and the commonest confusions."""
    return Group(heading(evaluation), figures_table(evaluation), *details(evaluation))


def heading(evaluation: Evaluation) -> Text:
    """Which model saw which images."""
    metrics, bad = evaluation.metrics, len(evaluation.predictions.bad)
    classes = int((metrics.support > 0).sum())
    total = len(evaluation.classes)
    text = Text()
    text.append(evaluation.model, style="bold")
    text.append(" on all images of " if evaluation.split == "all" else f" on the {evaluation.split} images of ")
    text.append(evaluation.source, style="bold")
    images = f"{metrics.images:,} image{'s' * (metrics.images != 1)}"
    text.append(f"\n{images} of {classes if classes == total else f'{classes} of {total}'} classes")
    if bad:
        text.append(f"; {bad:,} unreadable left out", style="yellow")
    if evaluation.own and evaluation.split in SEEN:
        text.append(f"; {SEEN[evaluation.split]}", style="yellow")
    text.append(".")
    return text


def figures_table(evaluation: Evaluation) -> Table:
    """One line for each figure: name, value, interval, meaning."""
    metrics = evaluation.metrics
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(style="dim")
    table.add_row()
    table.add_row("top-1", percent(metrics.top1.value), f"95 % interval {interval(metrics.top1)}")
    if metrics.top5 is not None:
        table.add_row("top-5", percent(metrics.top5.value), f"95 % interval {interval(metrics.top5)}")
    table.add_row("balanced accuracy", percent(metrics.balanced_accuracy), "mean of the classes' accuracies")
    table.add_row("macro F1", percent(metrics.macro_f1), "mean of the classes' F1")
    table.add_row("calibration error", percent(metrics.calibration.error), calibration_text(metrics))
    table.add_row("log loss", f"{metrics.nll:.3f}", "mean of -log p(true class)")
    return table


def calibration_text(metrics: Metrics) -> str:
    """Whether the model is too sure or not sure enough."""
    calibration = metrics.calibration
    sure = float(np.nansum(calibration.images * calibration.confidence)) / metrics.images
    more = "surer than right" if sure > metrics.top1.value else "less sure than right"
    return f"{more}: {percent(sure)} sure on average"


def details(evaluation: Evaluation) -> list[RenderableType]:
    """The worst classes and the commonest confusions, if there are mistakes."""
    metrics, names = evaluation.metrics, evaluation.classes
    worst = [number for number in worst_classes(metrics, ROWS) if metrics.recall[number].value < 1]
    if not worst:
        return [Text("\nNo mistake.", style="green")]
    classes = titled("worst classes", "images", "accuracy", "95 % interval", "precision")
    for number in worst:
        recall, precision = metrics.recall[number], metrics.precision[number]
        shown = percent(precision.value) if precision.value == precision.value else "never said"
        cells = (f"{metrics.support[number]:,}", percent(recall.value), interval(recall), shown)
        classes.add_row(short(names[number]), *cells)
    confusions = titled("most frequent confusions", "images", "of the class")
    for true, said, count in most_confused(metrics.confusion, ROWS):
        pair = Text.assemble(short(names[true]), (" taken for ", "dim"), short(names[said]))
        confusions.add_row(pair, f"{count:,}", percent(count / metrics.support[true]))
    return [Text(), classes, Text(), confusions]


def titled(first: str, *titles: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(first)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def short(name: str) -> Text:
    """A class name that leaves room for the numbers; taken literally, whatever brackets it holds."""
    return Text(abbreviate(name, NAME))


def interval(share: Interval) -> str:
    """The limits of a share for people."""
    return f"{100 * share.low:.1f} – {100 * share.high:.1f} %"
