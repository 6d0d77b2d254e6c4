"""The matrix of hosts and parts as a table in the terminal and as a page."""

from collections.abc import Sequence

from rich.table import Table

from .cells import Cell

HEAD = """# Which part fits which host

Made by `nearsight matrix --out docs/matrix.md`: every cell is the outcome of putting the part into a small model of the
family with random weights, never a claim. See [Localize](localize.md) for what the parts do.

"""
LEGEND = """
| letter | was found true |
| --- | --- |
| B | built: `localize` took it |
| P | preserved: answers equal to the last bit, for 1 and 3 images, at two sizes where the family has two |
| T | trains: by the second step every new parameter has a gradient |
| E | exports: the ONNX file of the trained model gives its answers in onnxruntime |
| X | exact: with `preserve=False` the paper's form takes the place of the host's, and learns |

A dash stands where something was not true; `·` where exporting was not tried.
"""


def letters(cell: Cell) -> str:
    """A cell in five letters."""
    exported = "·" if cell.built and cell.exports is None else "E" if cell.exports else "–"
    marks = [(cell.built, "B"), (cell.preserved, "P"), (cell.trains, "T")]
    return "".join(letter if true else "–" for true, letter in marks) + exported + ("X" if cell.exact else "–")


def by_host(cells: Sequence[Cell]) -> tuple[list[str], dict[str, dict[str, Cell]]]:
    """The parts in their order, and for each host its cells by part."""
    parts = list(dict.fromkeys(cell.part for cell in cells))
    hosts: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        hosts.setdefault(cell.family, {})[cell.part] = cell
    return parts, hosts


def matrix_table(cells: Sequence[Cell]) -> Table:
    """A table for the terminal."""
    parts, hosts = by_host(cells)
    caption = "B built, P preserved to the last bit, T trains, E exports, X exact form with preserve=False, – not"
    table = Table(caption=caption, box=None, pad_edge=False)
    table.add_column("host")
    for part in parts:
        table.add_column(part, no_wrap=True)
    for family, held in hosts.items():
        table.add_row(family, *(letters(held[part]) for part in parts))
    return table


def matrix_page(cells: Sequence[Cell]) -> str:
    """The page of the documentation."""
    parts, hosts = by_host(cells)
    slots = {cell.part: cell.slot for cell in cells}
    lines = ["| host | " + " | ".join(f"{slots[part]}<br>`{part}`" for part in parts) + " |"]
    lines.append("| --- " * (len(parts) + 1) + "|")
    for family, held in hosts.items():
        lines.append(f"| {family} | " + " | ".join(letters(held[part]) for part in parts) + " |")
    return HEAD + "\n".join(lines) + "\n" + LEGEND + reasons(cells)


def reasons(cells: Sequence[Cell]) -> str:
    """Why parts were refused, with the hosts of each reason."""
    told: dict[str, list[str]] = {}
    for cell in cells:
        if cell.reason:
            why = cell.reason.partition(": ")[2].partition(" (layer")[0].rstrip(".")
            told.setdefault(f"`{cell.part}`: {why}", []).append(cell.family)
    if not told:
        return ""
    return "\n## What is missing\n\n" + "\n".join(f"- {why} ({', '.join(hosts)})" for why, hosts in told.items()) + "\n"
