"""Charts of the report as SVG; their colours come from the page, so that they follow light and dark."""

from collections.abc import Sequence
from html import escape

import numpy as np
from markupsafe import Markup

from ..interval import Interval
from ..plots.axes import Axis, padded
from .results import Curve, ModelResult, Results

WIDTH, HEIGHT = 440, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 40
COLOURS = 8
STROKES = ("", " dashed", " dotted")  # of the first eight models, the next, and the next
LETTER = 7.2  # width of a letter, roughly
BAR = 150  # length of an interval's bar in the table


def colour(index: int) -> str:
    """Classes that give a model its colour and stroke; 24 models can be told apart."""
    return f"m{index % COLOURS}{STROKES[index // COLOURS % len(STROKES)]}"


def learning_curves(results: Results) -> Markup:
    """Validation score while training: mean over seeds, with the range between the seeds."""
    shown = [(index, curves_of(model)) for index, model in enumerate(results.models)]
    shown = [(index, curves) for index, curves in shown if curves]
    if not shown:
        return Markup("")
    by_time = results.recipe.get("budget") is not None
    lines = [(index, *summary(curves, by_time)) for index, curves in shown]
    last = max(x[-1] for _, x, *_ in lines)
    across = Axis(0, last * 1.02, LEFT, WIDTH - RIGHT)
    down = Axis(*upright([value for _, _, low, _, high in lines for value in (*low, *high)]), HEIGHT - BOTTOM, TOP)
    parts = [frame(across, down, "training time in minutes" if by_time else "epoch", 5)]
    for index, x, low, mean, high in lines:
        there = points_of(across, down, x, high)
        back = points_of(across, down, x[::-1], low[::-1])
        parts.append(f'<polygon class="band {colour(index)}" points="{there} {back}"/>')
        parts.append(f'<polyline class="line {colour(index)}" points="{points_of(across, down, x, mean)}"/>')
    said = "; ".join(f"{results.models[i].label} ends at {mean[-1]:.1%}" for i, _, _, mean, _ in lines)
    return drawing(f"Validation {results.metric} by epoch: {said}.", parts)


def curves_of(model: ModelResult) -> list[Curve]:
    """Curves of the finished runs."""
    return [run.curve for run in model.runs if run.curve and run.curve.epoch and run.failure is None]


def summary(curves: Sequence[Curve], by_time: bool) -> tuple[list[float], list[float], list[float], list[float]]:
    """Place, lowest, mean and highest score at each epoch that all runs have."""
    epochs = min(len(curve.epoch) for curve in curves)
    values = np.array([curve.val_score[:epochs] for curve in curves])
    minutes = np.mean([curve.seconds[:epochs] for curve in curves], axis=0) / 60
    x = minutes.tolist() if by_time else [float(epoch) for epoch in curves[0].epoch[:epochs]]
    return x, values.min(axis=0).tolist(), values.mean(axis=0).tolist(), values.max(axis=0).tolist()


def score_by_latency(results: Results) -> Markup:
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
        (across.place(t.value) - 5, down.place(a.value) - 5, across.place(t.value) + 5, down.place(a.value) + 5)
        for _, t, a in shown
    ]
    for index, time, score in shown:
        parts.append(dot(index, time, score, across, down, results.models[index].label))
        parts.append(tag(results.models[index].label, across.place(time.value), down.place(score.value), taken))
    names = ", ".join(results.models[shown[i][0]].label for i in front)
    return drawing(f"{results.metric} against latency. Not beaten in both: {names}.", parts)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the points that no other beats in both cost and worth, by cost.

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
    for place, (cost, worth) in enumerate(points):
        until = points[place + 1][0] if place + 1 < len(points) else across.high
        steps += [f"{across.place(x):.1f},{down.place(worth):.1f}" for x in (cost, until)]
    return f'<polyline class="front" points="{" ".join(steps)}"/>'


def dot(index: int, time: Interval, score: Interval, across: Axis, down: Axis, label: str) -> str:
    """A model with the interval of its score."""
    x, y = across.place(time.value), down.place(score.value)
    low, high = down.place(score.low), down.place(score.high)
    said = f"{label}: {score.value:.1%}, {time.value:.2f} ms"
    return (
        f'<g class="{colour(index)}"><title>{escape(said)}</title>'
        f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/></g>'
    )


def tag(label: str, x: float, y: float, taken: list[tuple[float, float, float, float]]) -> str:
    """A model's name beside its dot, where no other name or dot is."""
    width = LETTER * len(label)
    places = [(x + 9, y - 6), (x - 9 - width, y - 6), (x - width / 2, y - 22), (x - width / 2, y + 10)]
    places += [(x + 9, y + 8), (x + 9, y - 20), (x - 9 - width, y + 8), (x - 9 - width, y - 20)]
    for left, top in places:
        box = (left, top, left + width, top + 12)
        inside = left > LEFT and left + width < WIDTH and top > 0 and top + 12 < HEIGHT - BOTTOM
        if inside and not any(overlap(box, other) for other in taken):
            taken.append(box)
            return f'<text class="tag" x="{left:.1f}" y="{top + 10:.1f}">{escape(label)}</text>'
    return ""  # too crowded; the name is in the legend and shows up under the pointer


def overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes (left, top, right, bottom) share a place."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def interval_bar(results: Results, index: int) -> Markup:
    """The interval of a model's score on the scale that all models of the table share."""
    found = [model.score for model in results.models if model.score]
    value = results.models[index].score
    if value is None:
        return Markup("")
    scale = Axis(*padded([v for a in found for v in (a.low, a.high)], 0.05, 0.002), 4, BAR - 4)
    x, low, high = (scale.place(v) for v in (value.value, value.low, value.high))
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


def frame(across: Axis, down: Axis, title: str, count: int) -> str:
    """Grid, ticks and the title below; scores on the left."""
    parts = []
    ticks = down.ticks(5)
    digits = 1 if len(ticks) > 1 and (ticks[1] - ticks[0]) < 0.0099 else 0
    for value in ticks:
        y = down.place(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.{digits}%}</text>')
    for value in across.ticks(count):
        x = across.place(value)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="base" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="title" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(title)}</text>')
    return "".join(parts)


def points_of(across: Axis, down: Axis, x: Sequence[float], y: Sequence[float]) -> str:
    """Places of a line."""
    return " ".join(f"{across.place(a):.1f},{down.place(b):.1f}" for a, b in zip(x, y, strict=True))


def drawing(described: str, parts: Sequence[str]) -> Markup:
    """A whole chart with a description for those who can't see it."""
    said = escape(described, quote=True)
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">{"".join(parts)}</svg>')
