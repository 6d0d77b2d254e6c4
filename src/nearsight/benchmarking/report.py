"""Tables and figures of a benchmark."""

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..comparison.report import overlap, short_number
from ..interval import Interval
from ..plots.style import COLOURS, FAINT, LINE, SMALL, SOFT, figure, image_html, tidy, to_png, write
from ..reproduction.papers import plan
from ..reproduction.published import PublishedRow, published_rows
from ..reproduction.recipes import BuildRecipe
from ..timing import median_interval
from .results import Bench, Growth, Key, growths

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# timm's names of models that are hosts here.
HOSTS = {
    **{f"deit_{size}_patch16_224": f"deit_{size}" for size in ("tiny", "small", "base")},
    **{f"deit_{size}_distilled_patch16_224": f"deit_{size}_distilled" for size in ("tiny", "small", "base")},
    **{f"swin_{size}_patch4_window7_224": f"swin_{size}" for size in ("tiny", "small", "base")},
    "swinv2_tiny_window8_256": "swinv2_tiny",
    "tnt_s_legacy_patch16_224": "tnt_small",
}


def printed_top1(name: str) -> float | None:
    """Top-1 accuracy in percent on ImageNet-1K's validation images, trained on ImageNet-1K alone.

    Where several papers print one, that of the model's own paper is taken, else the first of them.

    Args:
        name: Of a model of ours or of timm.

    Example:
        >>> printed_top1("localvit_tiny"), printed_top1("deit_tiny_patch16_224"), printed_top1("deit_nano")
        (74.8, 72.2, None)
    """
    return all_printed().get(HOSTS.get(name, name))


@cache
def all_printed() -> dict[str, float]:
    """By name."""
    found: dict[str, float] = {}
    for row in sorted(published_rows(), key=lambda row: not row.own):
        top1 = accuracy_of(row)
        what = plan(row) if top1 is not None else None
        if top1 is None or not isinstance(what, BuildRecipe):
            continue
        options = {key for key, _ in what.options} - {"num_classes"}
        if not options and what.change is None and what.spec is None:  # the model as its name stands for it
            found.setdefault(what.model, top1)
    return found


def accuracy_of(row: PublishedRow) -> float | None:
    """What a row prints for ImageNet-1K at 224 pixels (256 for Swin v2), if it does."""
    if row.dense or row.setting.get("init", "random") != "random" or row.setting.get("image_size", 224) != 224:
        return None
    if "ImageNet-1K" not in str(row.setting.get("dataset", row.setting.get("datasets", ""))):
        return None
    printed = row.printed.get("top1_im1k", row.printed.get("top1", "-"))
    return float(printed) if printed.replace(".", "").isdigit() else None


COLUMNS = {"batch": 5, "latency, ms": 17, "images/s": 8, "memory": 8, "of peak": 7, "time ratio": 17}
INDENT = 10  # columns of the runtime's name, unless one needs more


def bench_table(found: Bench, width: int = 80) -> Text:
    """A block of lines for each model: one for each runtime and batch size."""
    titles = [title for title in COLUMNS if found.setting.memory or title != "memory"]
    names = [f"  {stage.name}" for stages in found.stages.values() for stage in stages]
    indent = max(INDENT, *(len(name) + 3 for name in [*names, *(key.runtime for key in found.seconds)]))
    text = Text("\n")
    text.append(line("", titles, titles, indent) + "\n", style="bold")
    for model in found.models:
        parameters, macs = short_number(model.parameters), short_number(model.macs)
        head = f"{parameters} parameters, {macs} multiply-adds at {sides(model.size)}"
        text.append(f"\n{model.label}", style="bold cyan").append(f"  {head}\n", style="dim")
        for key in found.seconds:
            if (key.label, key.size) == (model.label, model.size):
                shown = cells(found, key)
                text.append(line(f"  {key.runtime}", titles, [shown[title] for title in titles], indent) + "\n")
                for stage in found.stages.get(key, ()):
                    took = spread(median_interval([1e3 * value for value in stage.seconds]))
                    parts = {"latency, ms": took, "of peak": f"{found.stage_fraction(stage, key.batch):.2f}"}
                    cut = [parts.get(title, "") for title in titles]
                    text.append(line(f"    {stage.name}", titles, cut, indent).rstrip() + "\n", style="dim")
        text.append(reasons(found, model.label, width))
    refused = {missing.label for missing in found.missing} - {model.label for model in found.models}
    for label in sorted(refused):
        text.append(f"\n{label}\n", style="bold cyan").append(reasons(found, label, width))
    return text.append("\n").append(caption(found, width), style="dim italic").append(warning(found, width))


def line(name: str, titles: Sequence[str], texts: Iterable[str], indent: int) -> str:
    """A line of the table, whose numbers begin behind so many columns."""
    shown = [f"{text:>{COLUMNS[title]}}" for title, text in zip(titles, texts, strict=True)]
    return f"{name:<{indent}}" + " ".join(shown)


def cells(found: Bench, key: Key) -> dict[str, str]:
    """One measurement as text."""
    ratio = found.ratio(key)
    bytes_ = found.memory.get(key)
    return {
        "batch": str(key.batch),
        "latency, ms": spread(found.milliseconds(key)),
        "images/s": short(found.images_per_second(key).value),
        "memory": megabytes(bytes_) if bytes_ is not None else "–",
        "of peak": f"{found.fraction(key).value:.2f}",
        "time ratio": "1" if found.reference_of(key) == key else spread(ratio, 2) if ratio else "–",
    }


def spread(value: Interval, digits: int | None = None) -> str:
    """A median with its interval.

    Example:
        >>> spread(Interval(12.345, 12.1, 13.02)), spread(Interval(1.05, 1.0, 1.1), 2)
        ('12.3 (12.1–13.0)', '1.05 (1.00–1.10)')
    """
    texts = [short(number) if digits is None else f"{number:.{digits}f}" for number in value]
    return f"{texts[0]} ({texts[1]}–{texts[2]})"


def short(value: float) -> str:
    """A number with three digits, or all those before the point.

    Example:
        >>> short(0.12345), short(12.345), short(1234.5)
        ('0.123', '12.3', '1234')
    """
    digits = next((decimals for limit, decimals in ((1, 3), (10, 2), (100, 1)) if abs(value) < limit), 0)
    return f"{value:.{digits}f}"


def megabytes(count: float) -> str:
    """Bytes in short.

    Example:
        >>> megabytes(12_345_678), megabytes(1_500)
        ('12.3 MB', '0.002 MB')
    """
    return f"{short(count / 1e6)} MB" if count < 1e10 else f"{short(count / 1e9)} GB"


def sides(size: tuple[int, int]) -> str:
    """Height and width in pixels."""
    return f"{size[0]} pixels" if size[0] == size[1] else f"{size[0]} × {size[1]} pixels"


def reasons(found: Bench, label: str, width: int) -> Text:
    """What of a model could not be measured, and why; each reason once."""
    grouped: dict[str, list[str]] = {}
    for missing in found.missing:
        if missing.label == label:
            what = missing.runtime + (f" at batch {missing.batch}" if missing.batch else "")
            grouped.setdefault(missing.reason, []).append(what)
    text = Text()
    for reason, runtimes in grouped.items():
        lines = wrap(f"{', '.join(runtimes)}: {reason}", max(40, width - 2))
        text.append("".join(f"  {part}\n" for part in lines), style="yellow")
    return text


def caption(found: Bench, width: int) -> str:
    """How to read the table."""
    setting, peak = found.setting, found.peak_flops.value / 1e9
    first = next(runtime for runtime in setting.runtimes)
    threads = f"{setting.threads} thread{'s' * (setting.threads != 1)}"
    rounds = len(found.peak)
    interval = "its 95 % interval" if rounds >= 6 else "smallest and largest"  # fewer don't reach 95 %
    memory = "memory: the most that one call holds beside weights and images. " if setting.memory else ""
    making = [found.making[key] for key in found.seconds if key.runtime == "compiled"]
    compiling = f"Compiling took {sum(making):.0f} s for {len(making)} shapes of models. " if making else ""
    cut = f"Interrupted after {rounds} of {setting.rounds} rounds. " if found.interrupted else ""
    words = (
        f"{cut}Median of {rounds} rounds on {where(found)} with {threads}; in brackets {interval}. {memory}"
        f"of peak: fraction of a matrix product's speed in the same rounds ({peak:.0f} GFLOP/s). time ratio: to "
        f"{found.reference} ({first}) with the same batch, within rounds; less is faster. {compiling}"
    )
    return "\n".join(wrap(words, width)) + "\n"


def where(found: Bench) -> str:
    """The device and, of a CPU, its name and instructions."""
    if found.setting.device.type != "cpu":
        return str(found.setting.device)
    return f"cpu ({found.machine['device']}: {', '.join(found.machine['instructions']) or 'no vector instructions'})"


def scaling_table(found: Bench, width: int = 80) -> Text:
    """A line for each model, runtime and size, and the exponents below."""
    titles = {"pixels": 12, "latency, ms": 18, "memory": 9, "of peak": 8}
    text = Text("\n")
    text.append(f"{'':<{INDENT}}" + " ".join(f"{title:>{size}}" for title, size in titles.items()) + "\n", style="bold")
    for growth in growths(found):
        text.append(f"\n{growth.label}", style="bold cyan").append(f"  {growth.runtime}\n", style="dim")
        for key in growth.keys:
            bytes_ = found.memory.get(key)
            row = (
                " × ".join(map(str, key.size)),
                spread(found.milliseconds(key)),
                megabytes(bytes_) if bytes_ is not None else "–",
                f"{found.fraction(key).value:.2f}",
            )
            shown = [f"{cell:>{size}}" for cell, size in zip(row, titles.values(), strict=True)]
            text.append(f"{'':<{INDENT}}" + " ".join(shown) + "\n")
        text.append(f"  {exponents(growth)}\n")
        text.append(refused_sizes(found, growth, width))
    measured = {growth.label for growth in growths(found)}
    for label in sorted({missing.label for missing in found.missing} - measured):
        text.append(f"\n{label}\n", style="bold cyan").append(reasons(found, label, width))
    words = (
        f"Batch {found.setting.batches[0]} on {where(found)}. exponent: latency grows like the number of pixels to "
        "this power (least squares over the medians, logarithms on both sides; in brackets its 95 % interval). 1: in "
        "proportion to the pixels; 2: as attention between all positions does in the end."
    )
    cut = f"Interrupted after {len(found.peak)} of {found.setting.rounds} rounds. " if found.interrupted else ""
    text.append("\n").append("\n".join(wrap(cut + words, width)) + "\n", style="dim italic")
    return text.append(warning(found, width))


def warning(found: Bench, width: int) -> Text:
    """What to know about a machine that was not quiet."""
    return Text("".join(f"{part}\n" for part in wrap(found.restless or "", width)), style="bold yellow")


def exponents(growth: Growth) -> str:
    """The fitted powers in words."""
    if growth.latency is None:
        return "exponent: needs two sizes or more"
    memory = f", of memory {power(growth.memory)}" if growth.memory else ""
    return f"exponent of latency {power(growth.latency)}{memory}"


def power(value: Interval) -> str:
    """An exponent; two sizes give no interval."""
    return spread(value, 2) if math.isfinite(value.low) else f"{value.value:.2f}"


def refused_sizes(found: Bench, growth: Growth, width: int) -> Text:
    """Sizes that a model does not take."""
    text = Text()
    for missing in found.missing:
        if (missing.label, missing.runtime) == (growth.label, growth.runtime):
            lines = wrap(f"{sides(missing.size)}: {missing.reason}", max(40, width - 2))
            text.append("".join(f"  {part}\n" for part in lines), style="yellow")
    return text


MARKS = {
    "eager": ("o", COLOURS[0]),
    "folded": ("s", COLOURS[1]),
    "compiled": ("^", COLOURS[2]),
    "onnx": ("D", COLOURS[3]),
    "openvino": ("P", COLOURS[4]),
}
NAMES = {**{name: name for name in MARKS}, "onnx": "ONNX Runtime", "openvino": "OpenVINO"}
FILLED = {"bfloat16": "white", "int8": FAINT}  # marks of float32 have their runtime's colour


def draw_accuracy(found: Bench) -> tuple[bytes, list[str]]:
    """The papers' accuracy against the measured time for an image, and the labels of models that no paper printed.

    Each model is a level line, with a mark for each runtime.

    Raises:
        ValueError: No model has a printed accuracy.
    """
    batch = min(found.setting.batches)
    printed = {model.label: top1 for model in found.models if (top1 := printed_top1(model.name)) is not None}
    left_out = [model.label for model in found.models if model.label not in printed]
    rows = {label: [key for key in found.seconds if (key.label, key.batch) == (label, batch)] for label in printed}
    rows = {label: keys for label, keys in rows.items() if keys}
    if not rows:
        raise ValueError(
            "No plot was drawn: no paper prints an ImageNet accuracy for these models; it takes models by their "
            "registered names, such as localvit_tiny."
        )
    images = "one image" if batch == 1 else f"a batch of {batch}"
    fig = figure(8.4, 5.6)
    axes = tidy(
        fig.add_subplot(),
        title="Accuracy of the papers against measured latency",
        x=f"milliseconds for {images} on {machine(found)} (less is better)",
        y="top-1 accuracy printed, %",
    )
    draw_rows(axes, found, rows, printed)
    fig.legend(loc="outside lower center", ncols=len(MARKS), fontsize=SMALL, frameon=False, labelcolor=SOFT)
    return to_png(fig), left_out


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
            runtime, _, precision = key.runtime.partition("-")
            mark, colour = MARKS[runtime]
            title = None if key.runtime in named else f"{NAMES[runtime]} {precision}".strip()
            named.add(key.runtime)
            inside, edge = (FILLED[precision], colour) if precision else (colour, "white")
            look: dict[str, Any] = {
                "markersize": 6.5,
                "markerfacecolor": inside,
                "markeredgecolor": edge,
                "label": title,
            }
            axes.plot([times[key]], [height], mark, **look)
    tag(axes, [Line(label, printed[label], tuple(times[key] for key in keys)) for label, keys in rows.items()])


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
    fig = figure(9.6 if with_memory else 6.4, 4.6)
    panels = [fig.add_subplot(1, 1 + with_memory, index + 1) for index in range(1 + with_memory)]
    tidy(panels[0], title="Latency", y=f"milliseconds, batch {found.setting.batches[0]}")
    draw_growths(panels[0], found, grown, "latency")
    if with_memory:
        tidy(panels[1], title="Memory", y="megabytes held at most")
        draw_growths(panels[1], found, [growth for growth in grown if growth.memory], "memory")
    return to_png(fig)


def draw_growths(axes: "Axes", found: Bench, grown: Sequence[Growth], what: str) -> None:
    """Marks and lines, with the exponents in the legend."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    several = len({growth.runtime for growth in grown}) > 1
    labels = list(dict.fromkeys(growth.label for growth in grown))
    for growth in grown:
        if what == "latency":
            values = [found.milliseconds(key).value for key in growth.keys]
        else:
            values = [found.memory[key] / 1e6 for key in growth.keys]
        pixels = [math.prod(key.size) for key in growth.keys]
        exponent = growth.latency if what == "latency" else growth.memory
        name = f"{growth.label} {growth.runtime}" if several else growth.label
        mark, _ = MARKS[growth.runtime.partition("-")[0]]
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


Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels
MARK = 7.0  # half of a mark's side in pixels
NEAR = 14.0  # a name further away than this gets a line to its mark


@dataclass(frozen=True)
class Line:
    """A level line with marks: its name, its height, and the positions of its marks along it, in the plot's units."""

    label: str
    height: float
    marks: tuple[float, ...]


def tag(axes: "Axes", rows: list[Line]) -> None:
    """Write the name of each line near its left end; a thin line leads there where the name had to move away."""
    canvas = axes.figure.canvas
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # the layout decides where things are
    area = axes.get_window_extent()
    taken = [box for row in rows for box in boxes_of(axes, row)]
    for row in sorted(rows, key=lambda row: min(row.marks)):
        start = (min(row.marks), row.height)
        x, y = map(float, axes.transData.transform(start))
        end = float(axes.transData.transform((max(row.marks), row.height))[0])
        text = write(axes.annotate(row.label, start, xytext=(0, 0), textcoords="offset pixels"), SMALL)
        extent = text.get_window_extent(canvas.get_renderer())  # type: ignore[attr-defined]
        inside = (area.x0, area.y0, area.x1, area.y1)
        left, bottom = free_position((x, y, end), (extent.width, extent.height), inside, taken)
        taken.append((left, bottom, left + extent.width, bottom + extent.height))
        text.set_position((left - x, bottom - y))
        away = max(bottom - y, y - bottom - extent.height)
        if away > NEAR and left < end:
            lead(axes, start, (max(left - x, 0) + 6, bottom - y if bottom > y else bottom + extent.height - y))


def boxes_of(axes: "Axes", row: Line) -> Iterator[Box]:
    """What the marks of a line and the line itself cover."""
    points = [tuple(map(float, axes.transData.transform((across, row.height)))) for across in row.marks]
    for x, y in points:
        yield x - MARK, y - MARK, x + MARK, y + MARK
    xs, y = [x for x, _ in points], points[0][1]
    yield min(xs), y - 2, max(xs), y + 2


def free_position(
    line: tuple[float, float, float], size: tuple[float, float], inside: Box, taken: list[Box]
) -> tuple[float, float]:
    """The nearest position for a text where nothing else is; above the line's left end if there is none.

    Args:
        line: Left end, height and right end of the line that it names.
        size: Width and height of the text.
        inside: The area that it must not leave.
        taken: What is there already.

    Example:
        >>> area = (0, 0, 200, 100)
        >>> free_position((50, 50, 100), (40, 10), area, [])
        (46, 58)
        >>> free_position((50, 50, 100), (40, 10), area, [(0, 55, 200, 80)])
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
    """A thin line from a name to what it names."""
    style = {"arrowstyle": "-", "color": LINE, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 5}
    axes.annotate("", start, xytext=offset, textcoords="offset pixels", arrowprops=style, zorder=1)


def to_html(found: Bench) -> str:
    """The table as text and the figure that goes with it, for a notebook."""
    text = html.escape(repr(found))
    try:
        png = draw_scaling(found) if found.scaling else draw_accuracy(found)[0]
    except ValueError:  # no paper prints an accuracy of these models
        return f"<pre>{text}</pre>"
    return f"<pre>{text}</pre>{image_html(png, 'what was measured, as a figure')}"
