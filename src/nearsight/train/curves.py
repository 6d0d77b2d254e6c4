"""The course of a run as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..figures import COLOURS, SMALL, figure, tidy, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
    picture = figure(11.5, 3.4)
    loss, score, rate = picture.subplots(1, 3)
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

    shares = [100 * record["val_score"] for record in epochs]
    tidy(score, title=f"Validation {metric}", x="epoch")
    score.plot(numbers, shares, color=COLOURS[2], **look)
    if len(epochs) == 1:
        score.set_ylim(0, 100)
    mark_best(score, best, shares[numbers.index(best)])
    score.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")

    tidy(rate, title="Learning rate", x="epoch")
    course = sorted({(r["step"], r["lr"]) for r in steps} or {(r["step"], r["lr"]) for r in epochs})
    rate.plot([step / steps_per_epoch for step, _ in course], [lr for _, lr in course], color=COLOURS[3], linewidth=1.8)
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for axes in (loss, score, rate):
        axes.set_xlim(0, numbers[-1])
        axes.locator_params(axis="x", nbins=6, integer=True)
    return picture


def mark_best(axes: "Axes", epoch: int, share: float) -> None:
    """Mark the best epoch, and write its score where a rising curve leaves room."""
    axes.plot([epoch], [share], "o", color=COLOURS[1], markersize=7, zorder=5, clip_on=False)
    text = axes.text(0.97, 0.05, f"best: {share:.1f} % after epoch {epoch}", transform=axes.transAxes, ha="right")
    write(text, SMALL, COLOURS[1], weight="bold")
