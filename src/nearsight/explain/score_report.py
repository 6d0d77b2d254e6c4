"""Scores of maps as a table, a file and a picture."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..figures import COLOURS, SMALL, SOFT, figure, tidy, to_png, write
from ..writing import write_whole
from .scoring import BASELINES, Interval, Scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def spelled(found: Interval, share: bool) -> str:
    """A mean with its interval for people."""
    if share:
        return f"{100 * found.mean:.1f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"
    return f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"


def scores_table(scores: Scores) -> RenderableType:
    """The scores of all methods, for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("method")
    for title in ("pointing", "deletion (low is good)", "insertion (high is good)"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in scores.methods:
        style = "dim" if row.method in BASELINES else ""
        cells = (spelled(row.pointing, True), spelled(row.deletion, False), spelled(row.insertion, False))
        table.add_row(row.method, *cells, style=style)
    caption = Text(
        f"{scores.model} on {scores.source} ({scores.split}): {scores.cases:,} maps in {scores.images:,} images, 95 % "
        f"intervals over images. The things cover {100 * scores.covered:.1f} % of their images.",
        style="dim italic",
    )
    return Group(table, caption)


def to_markdown(scores: Scores) -> str:
    """The same as a table in Markdown."""
    lines = ["| method | pointing | deletion ↓ | insertion ↑ |", "| --- | --- | --- | --- |"]
    for row in scores.methods:
        cells = (spelled(row.pointing, True), spelled(row.deletion, False), spelled(row.insertion, False))
        lines.append(f"| {row.method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_curves(scores: Scores) -> "Figure":
    """Mean sureness while places are taken away (left) and put back (right)."""
    page = figure(8.6, 3.6)
    axes = page.subplots(1, 2, sharey=True)
    titles = ("Highest places taken away", "Highest places put back")
    for place, title in zip(axes, titles, strict=True):
        tidy(place, title=title, x="share of the image", y="sureness" if place is axes[0] else "")
        place.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    for number, row in enumerate(scores.methods):
        dashed = (0, (4, 3)) if row.method in BASELINES else "solid"
        colour = SOFT if row.method in BASELINES else COLOURS[number % len(COLOURS)]
        width = 1.3 if row.method == "random" else 1.9
        for place, curve in zip(axes, (row.deletion_curve, row.insertion_curve), strict=True):
            share = np.linspace(0, 1, len(curve))
            place.plot(share, curve, color=colour, linestyle=dashed, linewidth=width, label=row.method)
    for place in axes:
        place.set(xlim=(0, 1), ylim=(0, None))
    legend = axes[1].legend(loc="lower right", frameon=False)
    for text in legend.get_texts():
        write(text, SMALL, SOFT)
    return page


def write_scores(scores: Scores, folder: Path) -> Path:
    """Write `curves.png`, `scores.md` and `scores.json`."""
    rows = asdict(scores)
    for row in rows["methods"]:
        row["deletion_curve"], row["insertion_curve"] = (
            [round(float(value), 5) for value in row[key]] for key in ("deletion_curve", "insertion_curve")
        )
    write_whole(folder / "curves.png", to_png(draw_curves(scores)))
    write_whole(folder / "scores.md", to_markdown(scores).encode())
    write_whole(folder / "scores.json", (json.dumps(rows, indent=1) + "\n").encode())
    return folder
