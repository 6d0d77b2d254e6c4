"""The report: the verdict in words, the charts, and one page that needs nothing but itself, from the results alone."""

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from rich import box
from rich.table import Table
from rich.text import Text

from ..interval import Interval
from ..plots.axes import Axis, padded
from ..tasks import get_task
from ..training.progress import duration
from .results import Comparison, Difference, ModelResult

CHEAPER = 0.9  # fraction of the time from which on a model counts as cheaper
NOTABLE = 1.1
NAMED = 3  # models up to which a sentence names them all


def verdict(results: Comparison) -> list[str]:
    """Sentences, the most important first."""
    ranked = results.ranked
    if not ranked:
        return ["No run finished, so there is nothing to compare."]
    sentences = [headline(ranked, results), *against_baseline(ranked, results), *pretraining(ranked)]
    sentences += cost(ranked, results)
    return [*sentences, *cautions(results)]


def headline(ranked: Sequence[ModelResult], results: Comparison) -> str:
    """Which model is best, and whether that can be told from chance."""
    best, ties = ranked[0], tied(ranked)
    reached = f"{percent(best.score)} of the {results.split} images right"
    if results.metric != "accuracy":
        reached = f"{percent(best.score)} {results.metric} on the {results.split} images"
    if len(ranked) == 1:
        return f"{best.label} gets {reached}."
    if not ties:
        gap = points(abs(ranked[1].behind_best.mean))  # type: ignore[union-attr]
        if best.convnet:
            return f"The ConvNet wins: {best.label} gets {reached}, {gap} more than the next, {ranked[1].label}."
        return f"{best.label} is best: it gets {reached}, {gap} more than the next, {ranked[1].label}."
    if len(ties) == len(ranked) - 1:
        last = ranked[-1]
        return (
            f"No difference shown: the models lie between {value_of(last)} ({last.label}) and {value_of(best)} "
            f"({best.label}), no further apart than chance may put them."
        )
    names = enumeration([model.label for model in ties]) if len(ties) <= NAMED else f"{len(ties)} others"
    return f"{best.label} is ahead with {reached}, but {names} can't be told apart from it."


def against_baseline(ranked: Sequence[ModelResult], results: Comparison) -> list[str]:
    """How the best model stands to the baseline."""
    best, baseline = ranked[0], results.model(results.baseline)
    kind = "the ConvNet" if baseline.convnet else "the baseline"
    if baseline.score is None:
        return [f"No run of {kind} {baseline.label} finished, so nothing could be tested against it."]
    if best is baseline:
        others = [model for model in ranked[1:] if model.difference and model.difference.verdict == "worse"]
        if baseline.convnet or not others:
            return []
        return [f"It is the baseline itself: {len(others)} of the {len(ranked) - 1} others are worse."]
    if best.difference is None:
        return []
    sentence = f"{best.label} is {spelled(best.difference, f'{kind} {baseline.label}')}"
    shown = best.difference.verdict != "no difference shown"
    return [f"{sentence}." if shown else f"{sentence}, which shows no difference."]


def pretraining(ranked: Sequence[ModelResult]) -> list[str]:
    """What pretrained weights are worth beside a start from scratch."""
    started = {is_from: [m for m in ranked if ("weights" in m.options) == is_from] for is_from in (True, False)}
    if not started[True] or not started[False]:
        return []
    best, scratch = started[True][0], started[False][0]
    both = f"{best.label} gets {value_of(best)}, the best from scratch, {scratch.label}, {value_of(scratch)}"
    behind = (scratch if ranked[0] is best else best).behind_best
    if ranked[0] not in (best, scratch) or behind is None or behind.verdict != "worse":
        return [f"Whether pretrained weights are worth it is not shown: {both}."]
    if ranked[0] is scratch:
        return [f"Pretrained weights are not worth it here: {both}."]
    spent = f" It takes {times(best.seconds / scratch.seconds)} to train." if best.seconds and scratch.seconds else ""
    return [f"Pretrained weights are worth {points(abs(behind.mean))} here: {both}.{spent}"]


def cost(ranked: Sequence[ModelResult], results: Comparison) -> list[str]:
    """What the best model costs beside the baseline, and whether a cheaper one does as well."""
    best, baseline = ranked[0], results.model(results.baseline)
    cheap = cheapest_tie(ranked)
    if cheap is not None and cheap.latency and best.latency:
        ratio = cheap.latency.milliseconds.value / best.latency.milliseconds.value
        apart = f"{cheap.label}, which can't be told apart from {best.label},"
        return [f"{apart} takes only {ratio:.2g} × as long for an image."]
    if best is baseline or not (best.latency and baseline.latency and best.seconds and baseline.seconds):
        return []
    image = best.latency.milliseconds.value / baseline.latency.milliseconds.value
    training = best.seconds / baseline.seconds
    costs = f"{times(image)} for an image and {times(training)} to train"
    return [f"{best.label} takes {costs}, compared with {baseline.label}."]


def cautions(results: Comparison) -> list[str]:
    """What the reader must know to trust the rest."""
    sentences = []
    if len(results.seeds) == 1:
        sentences.append(
            "Only one seed was trained: how much training varies is unknown, and the intervals leave it out."
        )
    if results.split == "val":
        sentences.append(
            "There are no test images: the models are judged by the validation images, which have also chosen the best "
            "epoch of each run, so all of them look a little better than they are."
        )
    if results.failures:
        runs = sum(len(model.runs) for model in results.models)
        sentences.append(f"{len(results.failures)} of {runs} runs failed and are not in the results.")
    if results.suggestion:
        sentences.append(f"No ConvNet was among the models; add {results.suggestion} for an honest comparison.")
    return sentences


def tied(ranked: Sequence[ModelResult]) -> list[ModelResult]:
    """Models that can't be told apart from the best."""
    return [m for m in ranked[1:] if m.behind_best is None or m.behind_best.verdict == "no difference shown"]


def cheapest_tie(ranked: Sequence[ModelResult]) -> ModelResult | None:
    """The fastest of the models that can't be told apart from the best, if it is clearly faster."""
    best = ranked[0]
    timed = [model for model in tied(ranked) if model.latency]
    if best.latency is None or not timed:
        return None
    fastest = min(timed, key=lambda model: model.latency.milliseconds.value)  # type: ignore[union-attr]
    ratio = fastest.latency.milliseconds.value / best.latency.milliseconds.value  # type: ignore[union-attr]
    return fastest if ratio < CHEAPER else None


def percent(value: Interval | None) -> str:
    """`61.3 % ± 1.1`, on one line."""
    assert value is not None
    return f"{100 * value.value:.1f} % ± {100 * value.half_width:.1f}".replace(" ", "\N{NO-BREAK SPACE}")


def value_of(model: ModelResult) -> str:
    """`61.3 %`, on one line."""
    assert model.score is not None
    return f"{100 * model.score.value:.1f}\N{NO-BREAK SPACE}%"


def points(difference: float) -> str:
    """`12.6 points`."""
    return f"{100 * difference:.1f} points"


def spelled(difference: Difference, other: str) -> str:
    """`12.6 points above resnet18 (95 % interval +10.2 to +15.0, p < 0.001)`; numbers stay with their signs."""
    side = "above" if difference.mean >= 0 else "below"
    interval = f"95\N{NO-BREAK SPACE}% interval {signed(difference.low)} to {signed(difference.high)}"
    p = probability(difference.p).replace(" ", "\N{NO-BREAK SPACE}")
    return f"{points(abs(difference.mean))} {side} {other} ({interval}, {p})"


def signed(difference: float) -> str:
    """A difference in points with its sign: `+1.2`, `−0.4`."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def probability(p: float) -> str:
    """`p = 0.012`, or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.0995 else f"p = {p:.2f}"


def times(ratio: float) -> str:
    """A ratio of times in words."""
    if 1 / NOTABLE < ratio < NOTABLE:
        return "about as long"
    return f"{ratio:.2g} × as long"


def enumeration(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`.

    Example:
        >>> enumeration(["a", "b", "c"])
        'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 40
COLOURS = 8
STROKES = ("", " dashed", " dotted")  # of the first eight models, the next, and the next
LETTER = 7.2  # width of a letter, roughly
BAR = 150  # length of an interval's bar in the table


def colour(index: int) -> str:
    """Classes that give a model its colour and stroke; 24 models can be told apart."""
    return f"m{index % COLOURS}{STROKES[index // COLOURS % len(STROKES)]}"


def learning_curves(results: Comparison, quantity: str = "val_score") -> Markup:
    """A quantity of the runs' curves while training: mean over seeds, with the range between the seeds.

    Args:
        results: The comparison.
        quantity: `val_score`, `val_top5` or `loss`; nothing is drawn where no run has it.
    """
    by_time, lines = results.recipe.get("budget") is not None, []
    for index, model in enumerate(results.models):
        curves = [run.curve for run in model.runs if run.curve and run.curve.epoch and run.failure is None]
        values = [getattr(curve, quantity) for curve in curves]
        epochs = min(map(len, values), default=0)
        if epochs:
            minutes = np.mean([curve.seconds[:epochs] for curve in curves], axis=0) / 60
            x = minutes.tolist() if by_time else [float(epoch) for epoch in curves[0].epoch[:epochs]]
            table = np.array([row[:epochs] for row in values])
            lines.append((index, x, *(part(axis=0).tolist() for part in (table.min, table.mean, table.max))))
    if not lines:
        return Markup("")
    is_score = quantity != "loss"
    every = [value for _, _, low, _, high in lines for value in (*low, *high)]
    across = Axis(0, max(x[-1] for _, x, *_ in lines) * 1.02, LEFT, WIDTH - RIGHT)
    down = Axis(*(upright(every) if is_score else padded(every)), HEIGHT - BOTTOM, TOP)
    parts = [frame(across, down, "training time in minutes" if by_time else "epoch", 5, is_score)]
    for index, x, low, mean, high in lines:
        there = points_of(across, down, x, high)
        back = points_of(across, down, x[::-1], low[::-1])
        parts.append(f'<polygon class="band {colour(index)}" points="{there} {back}"/>')
        parts.append(f'<polyline class="line {colour(index)}" points="{points_of(across, down, x, mean)}"/>')
        if len(x) == 1:  # which no line shows
            centre = f'cx="{across.position(x[0]):.1f}" cy="{down.position(mean[0]):.1f}"'
            parts.append(f'<g class="{colour(index)}"><circle class="dot" {centre} r="5"/></g>')
    titles = {"val_score": f"Validation {results.metric}", "val_top5": "Validation top-5", "loss": "Training loss"}
    ends = "; ".join(
        f"{results.models[i].label} ends at {f'{mean[-1]:.1%}' if is_score else f'{mean[-1]:.3f}'}"
        for i, _, _, mean, _ in lines
    )
    return drawing(f"{titles[quantity]} by epoch: {ends}.", parts)


def score_by_latency(results: Comparison) -> Markup:
    """Score against the time for one image, with the models that no other beats in both."""
    shown = [
        (index, model.latency.milliseconds, model.score)
        for index, model in enumerate(results.models)
        if model.latency and model.score
    ]
    if not shown:
        return Markup("")
    times = [time.value for _, time, _ in shown]
    logarithmic = max(times) > 4 * min(times)
    span = (min(times) / 1.25, max(times) * 1.25) if logarithmic else padded(times, 0.18, 0.08 * max(times))
    across = Axis(span[0], span[1], LEFT, WIDTH - RIGHT, logarithmic)
    down = Axis(*upright([v for _, _, acc in shown for v in (acc.low, acc.high)]), HEIGHT - BOTTOM, TOP)
    parts = [frame(across, down, "milliseconds for one image (less is better)", 5)]
    front = pareto_front([(time.value, score.value) for _, time, score in shown])
    parts.append(front_line([(shown[i][1].value, shown[i][2].value) for i in front], across, down))
    taken: list[tuple[float, float, float, float]] = [
        (x - 5, y - 5, x + 5, y + 5)
        for x, y in ((across.position(t.value), down.position(a.value)) for _, t, a in shown)
    ]
    for index, time, score in shown:
        parts.append(dot(index, time, score, across, down, results.models[index].label))
        parts.append(tag(results.models[index].label, across.position(time.value), down.position(score.value), taken))
    names = ", ".join(results.models[shown[i][0]].label for i in front)
    return drawing(f"{results.metric} against latency. Not beaten in both: {names}.", parts)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the points that no other beats in both cost and value, by cost.

    Example:
        >>> pareto_front([(1.0, 0.5), (2.0, 0.4), (3.0, 0.9)])
        [0, 2]
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def front_line(points: Sequence[tuple[float, float]], across: Axis, down: Axis) -> str:
    """The front as steps: at each cost, the best that can be had."""
    steps = []
    for index, (cost, value) in enumerate(points):
        until = points[index + 1][0] if index + 1 < len(points) else across.high
        steps += [f"{across.position(x):.1f},{down.position(value):.1f}" for x in (cost, until)]
    return f'<polyline class="front" points="{" ".join(steps)}"/>'


def dot(index: int, time: Interval, score: Interval, across: Axis, down: Axis, label: str) -> str:
    """A model with the interval of its score."""
    x, y = across.position(time.value), down.position(score.value)
    low, high = down.position(score.low), down.position(score.high)
    title = f"{label}: {score.value:.1%}, {time.value:.2f} ms"
    return (
        f'<g class="{colour(index)}"><title>{escape(title)}</title>'
        f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/></g>'
    )


def tag(label: str, x: float, y: float, taken: list[tuple[float, float, float, float]]) -> str:
    """A model's name beside its dot, where no other name or dot is."""
    width = LETTER * len(label)
    corners = [(x + 9, y - 6), (x - 9 - width, y - 6), (x - width / 2, y - 22), (x - width / 2, y + 10)]
    corners += [(x + 9, y + 8), (x + 9, y - 20), (x - 9 - width, y + 8), (x - 9 - width, y - 20)]
    for left, top in corners:
        box = (left, top, left + width, top + 12)
        inside = left > LEFT and left + width < WIDTH and top > 0 and top + 12 < HEIGHT - BOTTOM
        if inside and not any(overlap(box, other) for other in taken):
            taken.append(box)
            return f'<text class="tag" x="{left:.1f}" y="{top + 10:.1f}">{escape(label)}</text>'
    return ""  # too crowded; the name is in the legend and shows up under the pointer


def overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes (left, top, right, bottom) overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def interval_bar(results: Comparison, index: int) -> Markup:
    """The interval of a model's score on the scale that all models of the table share."""
    found = [model.score for model in results.models if model.score]
    value = results.models[index].score
    if value is None:
        return Markup("")
    scale = Axis(*padded([v for a in found for v in (a.low, a.high)], 0.05, 0.002), 4, BAR - 4)
    x, low, high = (scale.position(v) for v in (value.value, value.low, value.high))
    return Markup(
        f'<svg class="bar {colour(index)}" viewBox="0 0 {BAR} 14" width="{BAR}" height="14" aria-hidden="true">'
        f'<line class="rail" x1="0" x2="{BAR}" y1="7" y2="7"/>'
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="7" y2="7"/>'
        f'<circle class="dot" cx="{x:.1f}" cy="7" r="4.5"/></svg>'
    )


def upright(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis for scores."""
    low, high = padded(values)
    return max(low, 0.0) if low > -0.02 else low, min(high, 1.02)


def frame(across: Axis, down: Axis, title: str, count: int, is_score: bool = True) -> str:
    """Grid, ticks and the title below; on the left scores in percent, or other numbers."""
    parts = []
    ticks = down.ticks(5)
    digits = 1 if len(ticks) > 1 and (ticks[1] - ticks[0]) < 0.0099 else 0
    for value in ticks:
        shown = f"{value:.{digits}%}" if is_score else f"{value:g}"
        y = down.position(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for value in across.ticks(count):
        x = across.position(value)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="base" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="title" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(title)}</text>')
    return "".join(parts)


def points_of(across: Axis, down: Axis, x: Sequence[float], y: Sequence[float]) -> str:
    """Points of a line, as SVG takes them."""
    return " ".join(f"{across.position(a):.1f},{down.position(b):.1f}" for a, b in zip(x, y, strict=True))


def drawing(described: str, parts: Sequence[str]) -> Markup:
    """A whole chart with a description for those who can't see it."""
    label = escape(described, quote=True)
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>')


def render(results: Comparison) -> str:
    """The report as HTML; every text from outside is escaped."""
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {
        "duration": duration,
        "percent": percent,
        "probability": probability,
        "short_number": short_number,
        "signed": signed,
        "count": count,
    }
    text = (files("nearsight.comparison") / "report.html.j2").read_text(encoding="utf-8")
    headline, *more = verdict(results)
    order = {model.label: index for index, model in enumerate(results.ranked)}
    rows = sorted(enumerate(results.models), key=lambda item: order.get(item[1].label, len(order)))
    return page.from_string(text).render(
        results=results,
        headline=headline,
        metric=results.metric[:1].upper() + results.metric[1:],
        more=more,
        rows=[{"model": model, "colour": colour(i), "bar": interval_bar(results, i)} for i, model in rows],
        curves=learning_curves(results),
        losses=learning_curves(results, "loss"),
        top5=learning_curves(results, "val_top5"),
        scatter=score_by_latency(results),
        facts=facts(results),
        best=results.ranked[0].label if results.ranked else None,
        decided_by_val=results.split == "val",
        image_score=get_task(results.task).image_score,
    )


def facts(results: Comparison) -> list[tuple[str, str]]:
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


def budget(results: Comparison) -> str:
    """The training that every model got."""
    epochs = results.recipe["epochs"]
    if results.recipe["budget"] is not None:
        each = ", ".join(f"{label} {number}" for label, number in epochs.items())
        return f"{duration(results.recipe['budget'])} of training for each run; epochs that fit: {each}"
    different = sorted(set(epochs.values()))
    *few, most = different
    return f"{' or '.join([*map(str, few), count(most, 'epoch')])} for every model and seed"


def short_number(value: float) -> str:
    """A large number in short: `797 k`, `49.6 M`, `1.26 G`.

    Example:
        >>> short_number(797704), short_number(49642368), short_number(1.26e9), short_number(812)
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


def results_table(results: Comparison) -> Table:
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
            short_number(model.parameters),
            short_number(model.macs),
            f"{model.latency.milliseconds.value:.2f} ms" if model.latency else "–",
            duration(model.seconds) if model.seconds else "–",
        )
    return table
