"""Names beside lines in a plot, where nothing else is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..compare.charts import overlap
from ..figures import LINE, SMALL, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
