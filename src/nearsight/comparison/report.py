"""The report: one page that needs nothing but itself, made from the results alone."""

import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich import box
from rich.table import Table
from rich.text import Text

from ..atomic import write_whole
from ..training.progress import duration
from .charts import colour, interval_bar, learning_curves, score_by_latency
from .results import Results
from .verdict import percent, probability, signed, verdict


def write_report(results: Results, folder: Path) -> Path:
    """Write `report.html` into a folder."""
    path = folder / "report.html"
    write_whole(path, render(results).encode())
    return path


def render(results: Results) -> str:
    """The report as HTML; every text from outside is escaped."""
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {
        "duration": duration,
        "figure": figure,
        "percent": percent,
        "probability": probability,
        "signed": signed,
        "count": count,
    }
    text = (files("nearsight.comparison") / "report.html.j2").read_text(encoding="utf-8")
    headline, *more = verdict(results)
    order = {model.label: place for place, model in enumerate(results.ranked)}
    rows = sorted(enumerate(results.models), key=lambda item: order.get(item[1].label, len(order)))
    return page.from_string(text).render(
        results=results,
        headline=headline,
        metric=results.metric[:1].upper() + results.metric[1:],
        more=more,
        rows=[{"model": model, "colour": colour(i), "bar": interval_bar(results, i)} for i, model in rows],
        curves=learning_curves(results),
        scatter=score_by_latency(results),
        facts=facts(results),
        best=results.ranked[0].label if results.ranked else None,
        decided_by_val=results.split == "val",
    )


def facts(results: Results) -> list[tuple[str, str]]:
    """How it was done, as pairs of a title and a text."""
    data, recipe, machine = results.data, results.recipe, results.machine
    sizes = ", ".join(f"{images:,} {name}" for name, images in data["images"].items())
    made = f" ({' and '.join(data['made'])} drawn by class with a fixed seed)" if data["made"] else ""
    changes = f" with {', '.join(recipe['changes'])}" if recipe["changes"] else ""
    return [
        ("Data", f"{data['source']}: {data['classes']} classes; images: {sizes}{made}"),
        ("Recipe", f"{recipe['name']}{changes}, {recipe['img_size']} pixels, batches of {recipe['batch']}"),
        ("Budget", budget(results)),
        ("Seeds", ", ".join(map(str, results.seeds))),
        ("Machine", f"{machine['device']}; latency with {count(machine['threads'], 'thread')}"),
        ("Versions", ", ".join(f"{name} {machine[name]}" for name in ("nearsight", "torch", "timm", "python"))),
        ("Command", results.command),
    ]


def budget(results: Results) -> str:
    """The training that every model got."""
    epochs = results.recipe["epochs"]
    if results.recipe["budget"] is not None:
        each = ", ".join(f"{label} {number}" for label, number in epochs.items())
        return f"{duration(results.recipe['budget'])} of training for each run; epochs that fit: {each}"
    different = sorted(set(epochs.values()))
    return f"{' or '.join(map(str, different))} epochs for every model and seed"


def figure(value: float) -> str:
    """A large number in short: `797 k`, `49.6 M`, `1.26 G`.

    Example:
        >>> figure(797704), figure(49642368), figure(1.26e9), figure(812)
        ('798 k', '49.6 M', '1.26 G', '812')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            short = value / size
            digits = max(0, 2 - math.floor(math.log10(short)))
            return f"{short:.{digits}f} {unit}"
    return f"{value:.0f}"


def count(number: Any, name: str) -> str:
    """A number with its noun: `1 seed`, `3 seeds`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


STYLES = {"better": "green", "worse": "red", "no difference shown": "dim"}


def results_table(results: Results) -> Table:
    """One line for each model, the best first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("model", overflow="fold")
    for title in (results.metric, "to baseline", "params", "MACs", "latency", "training"):
        table.add_column(title, justify="right", no_wrap=True)
    failed = [model for model in results.models if model.score is None]
    for model in [*results.ranked, *failed]:
        difference: str | Text = "baseline" if model.label == results.baseline else "–"
        if model.difference is not None:
            reach = f"{100 * model.difference.interval.half_width:.1f}"
            difference = Text(f"{signed(model.difference.mean)} ± {reach}", style=STYLES[model.difference.verdict])
        table.add_row(
            Text(model.label),
            percent(model.score) if model.score else "failed",
            difference,
            figure(model.parameters),
            figure(model.macs),
            f"{model.latency.milliseconds.value:.2f} ms" if model.latency else "–",
            duration(model.seconds) if model.seconds else "–",
        )
    return table
