"""Pictures of what was measured: accuracy against latency, and growth with the image."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..comparison.report import overlap
from ..plots.style import COLOURS, FAINT, LINE, SMALL, SOFT, figure, tidy, to_png, write
from .results import Bench, Growth, Key, growths
from .table import printed_top1

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARKS = {
    "eager": ("o", COLOURS[0]),
    "folded": ("s", COLOURS[1]),
    "compiled": ("^", COLOURS[2]),
    "onnx": ("D", COLOURS[3]),
}
NAMES = {"eager": "eager", "folded": "folded", "compiled": "compiled", "onnx": "ONNX Runtime"}


def draw_accuracy(found: Bench) -> tuple[bytes, list[str]]:
    """The papers' accuracy against the measured time for an image, and the labels of models that no paper printed.

    Each model is a level line, with a mark for each runtime.

    Raises:
        ValueError: No model has a printed accuracy.
    """
    batch = min(found.setting.batches)
    printed = {subject.label: top1 for subject in found.subjects if (top1 := printed_top1(subject.name)) is not None}
    left_out = [subject.label for subject in found.subjects if subject.label not in printed]
    rows = {label: [key for key in found.seconds if (key.label, key.batch) == (label, batch)] for label in printed}
    rows = {label: keys for label, keys in rows.items() if keys}
    if not rows:
        raise ValueError(
            "No plot was drawn: no paper prints an ImageNet accuracy for these models; it takes models by their "
            "registered names, such as localvit_tiny."
        )
    images = "one image" if batch == 1 else f"a batch of {batch}"
    picture = figure(8.4, 5.6)
    axes = tidy(
        picture.add_subplot(),
        title="Accuracy of the papers against measured latency",
        x=f"milliseconds for {images} on {machine(found)} (less is better)",
        y="top-1 accuracy printed, %",
    )
    draw_rows(axes, found, rows, printed)
    picture.legend(loc="outside lower center", ncols=len(MARKS), fontsize=SMALL, frameon=False, labelcolor=SOFT)
    return to_png(picture), left_out


def machine(found: Bench) -> str:
    """Where it was measured, in short."""
    device, threads = found.setting.device, found.setting.threads
    return f"{threads} CPU thread{'s' * (threads != 1)}" if device.type == "cpu" else str(device)


def draw_rows(axes: "Axes", found: Bench, rows: dict[str, list[Key]], printed: dict[str, float]) -> None:
    """The models: lines, marks, names."""
    times = {key: found.milliseconds(key).value for keys in rows.values() for key in keys}
    stretch_axes(axes, list(times.values()), [printed[label] for label in rows])
    named: set[str] = set()
    for label, keys in rows.items():
        height = printed[label]
        ends = [min(times[key] for key in keys), max(times[key] for key in keys)]
        axes.plot(ends, [height, height], color=LINE, linewidth=1.2, zorder=1.5)
        for key in keys:
            mark, colour = MARKS[key.runtime]
            title = None if key.runtime in named else NAMES[key.runtime]
            named.add(key.runtime)
            axes.plot([times[key]], [height], mark, color=colour, markersize=6.5, markeredgecolor="white", label=title)
    tag(axes, [Row(label, printed[label], tuple(times[key] for key in keys)) for label, keys in rows.items()])


def stretch_axes(axes: "Axes", times: Sequence[float], heights: Sequence[float]) -> None:
    """Room around the marks; logarithms where times differ much."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from ..plots.axes import log_ticks

    low, high = min(times), max(times)
    if high > 3 * low:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.35, high * 1.35)
        axes.xaxis.set_major_locator(FixedLocator(log_ticks(low / 1.35, high * 1.35)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        room = max(0.15 * (high - low), 0.05 * high)
        axes.set_xlim(max(0, low - room), high + room)
    room = max(0.1 * (max(heights) - min(heights)), 0.6)
    axes.set_ylim(min(heights) - room, max(heights) + 2 * room)


def draw_scaling(found: Bench) -> bytes:
    """Time and, where it was measured, memory against the number of pixels, with the exponents.

    Raises:
        ValueError: No model ran at two sizes.
    """
    grown = [growth for growth in growths(found) if growth.latency]
    if not grown:
        raise ValueError("No plot was drawn: no model ran at two sizes; give sizes that the models take.")
    with_memory = any(growth.memory for growth in grown)
    picture = figure(9.6 if with_memory else 6.4, 4.6)
    panels = [picture.add_subplot(1, 1 + with_memory, index + 1) for index in range(1 + with_memory)]
    tidy(panels[0], title="Latency", y=f"milliseconds, batch {found.setting.batches[0]}")
    draw_growths(panels[0], found, grown, "latency")
    if with_memory:
        tidy(panels[1], title="Memory", y="megabytes held at most")
        draw_growths(panels[1], found, [growth for growth in grown if growth.memory], "memory")
    return to_png(picture)


def draw_growths(axes: "Axes", found: Bench, grown: Sequence[Growth], what: str) -> None:
    """Marks and lines, with the exponents in the legend."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    several = len({growth.runtime for growth in grown}) > 1
    labels = list(dict.fromkeys(growth.label for growth in grown))
    for growth in grown:
        values = [cost(found, key, what) for key in growth.keys]
        pixels = [math.prod(key.size) for key in growth.keys]
        exponent = growth.latency if what == "latency" else growth.memory
        name = f"{growth.label} {growth.runtime}" if several else growth.label
        mark, _ = MARKS[growth.runtime]
        colour = COLOURS[labels.index(growth.label) % len(COLOURS)]
        title = f"{name}: {exponent.value:.2f}" if exponent else name
        axes.plot(pixels, values, f"{mark}-", color=colour, markersize=5, linewidth=1.4, label=title)
    sizes = sorted({key.size for growth in grown for key in growth.keys}, key=math.prod)
    axes.xaxis.set_major_locator(FixedLocator([math.prod(size) for size in sizes]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{size[0]}" if size[0] == size[1] else f"{size[0]}×{size[1]}" for size in sizes])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.grid(True, which="minor", color=FAINT, linewidth=0.5)
    write(axes.set_xlabel("side of the image in pixels (spaced by area)"), 10, SOFT)
    legend = axes.legend(loc="upper left", fontsize=SMALL, frameon=False, title="exponent in pixels")
    legend.set(alignment="left")
    legend.get_title().set(fontsize=SMALL, color=SOFT)


def cost(found: Bench, key: Key, what: str) -> float:
    """Milliseconds or megabytes."""
    return found.milliseconds(key).value if what == "latency" else found.memory[key] / 1e6


Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels
MARK = 7.0  # half of a mark's side in pixels
NEAR = 14.0  # a name further away than this gets a line to its place


@dataclass(frozen=True)
class Row:
    """A level line with marks: its name, its height, and the places of its marks along it, in the plot's units."""

    label: str
    height: float
    places: tuple[float, ...]


def tag(axes: "Axes", rows: list[Row]) -> None:
    """Write the name of each line near its left end; a thin line leads there where the name had to move away."""
    canvas = axes.figure.canvas
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # the layout decides where things are
    area = axes.get_window_extent()
    taken = [box for row in rows for box in boxes_of(axes, row)]
    for row in sorted(rows, key=lambda row: min(row.places)):
        start = (min(row.places), row.height)
        x, y = map(float, axes.transData.transform(start))
        end = float(axes.transData.transform((max(row.places), row.height))[0])
        text = write(axes.annotate(row.label, start, xytext=(0, 0), textcoords="offset pixels"), SMALL)
        extent = text.get_window_extent(canvas.get_renderer())  # type: ignore[attr-defined]
        inside = (area.x0, area.y0, area.x1, area.y1)
        left, bottom = free_place((x, y, end), (extent.width, extent.height), inside, taken)
        taken.append((left, bottom, left + extent.width, bottom + extent.height))
        text.set_position((left - x, bottom - y))
        away = max(bottom - y, y - bottom - extent.height)
        if away > NEAR and left < end:
            lead(axes, start, (max(left - x, 0) + 6, bottom - y if bottom > y else bottom + extent.height - y))


def boxes_of(axes: "Axes", row: Row) -> Iterator[Box]:
    """What the marks of a line and the line itself cover."""
    points = [tuple(map(float, axes.transData.transform((place, row.height)))) for place in row.places]
    for x, y in points:
        yield x - MARK, y - MARK, x + MARK, y + MARK
    xs, y = [x for x, _ in points], points[0][1]
    yield min(xs), y - 2, max(xs), y + 2


def free_place(
    line: tuple[float, float, float], size: tuple[float, float], inside: Box, taken: list[Box]
) -> tuple[float, float]:
    """The nearest place for a text where nothing else is; above the line's left end if there is none.

    Args:
        line: Left end, height and right end of the line that it names.
        size: Width and height of the text.
        inside: The area that it must not leave.
        taken: What is there already.

    Example:
        >>> area = (0, 0, 200, 100)
        >>> free_place((50, 50, 100), (40, 10), area, [])
        (46, 58)
        >>> free_place((50, 50, 100), (40, 10), area, [(0, 55, 200, 80)])
        (46, 32)
    """
    (x, y, end), (width, height) = line, size
    above = (x - 4, y + 8)
    for step in range(12):
        rise = 8 + step * (height + 2)
        spots = [(x - 4, y + rise), (x - 4, y - rise - height), (x + 16, y + rise), (x + 16, y - rise - height)]
        if step == 0:
            spots[2:2] = [(x - width - 10, y - height / 2), (end + 10, y - height / 2)]
        for left, bottom in spots:
            box = (left, bottom, left + width, bottom + height)
            held = inside[0] <= box[0] and inside[1] <= box[1] and box[2] <= inside[2] and box[3] <= inside[3]
            if held and not any(overlap(box, other) for other in taken):
                return left, bottom
    return above


def lead(axes: "Axes", start: tuple[float, float], offset: tuple[float, float]) -> None:
    """A thin line from a name to its place."""
    style = {"arrowstyle": "-", "color": LINE, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 5}
    axes.annotate("", start, xytext=offset, textcoords="offset pixels", arrowprops=style, zorder=1)
