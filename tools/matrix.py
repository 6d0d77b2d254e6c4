"""Which part fits which host, found by doing it: `python -m tools.matrix --out docs/matrix.md`.

Every local part goes into a small model of every family that `localize` knows, and what comes of it is a cell.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from nearsight import __version__
from nearsight.atomic import write_whole
from nearsight.console import make_console
from nearsight.retrofit import localize, localized_of

from .hosts import EXAMPLES, Example

PARTS = (
    ("ffn", "localvit"),
    ("ffn", "bigate"),
    ("qkv", "life"),
    ("mixer", "depthwise"),
    ("mixer", "dynamic_depthwise"),
    ("mixer", "gather_broadcast"),
    ("mixer", "squeezed"),
    ("merge", "deformable"),
)
CLASSES = 4


@dataclass(frozen=True)
class Cell:
    """What was found for a host and a part.

    Attributes:
        family: The host.
        slot: The slot.
        part: The part.
        built: `localize` took it.
        preserved: The outputs stayed the same to the last bit, at two sizes where the host has two, for 1 and 3 images.
        trains: By the second step every new parameter had a gradient.
        exports: The ONNX file of the trained model gave its outputs; None if that was not tried.
        exact: It was also built and trained with `preserve=False`.
        reason: Why it was not built.
    """

    family: str
    slot: str
    part: str
    built: bool = False
    preserved: bool = False
    trains: bool = False
    exports: bool | None = None
    exact: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure_cells(families: Iterable[str] = (), parts: Iterable[str] = (), *, export: bool = True) -> Iterator[Cell]:
    """Try every part in every host, host by host.

    Args:
        families: Hosts to try; none for all.
        parts: Parts to try; none for all.
        export: Also write ONNX files and run them, which takes most of the time.

    Example:
        >>> next(measure_cells(["ViT"], ["localvit"], export=False)).preserved
        True
    """
    for cells in measure_hosts(families, parts, export=export):
        yield from cells


def measure_hosts(
    families: Iterable[str] = (), parts: Iterable[str] = (), *, export: bool = True, known: Sequence[Cell] = ()
) -> Iterator[list[Cell]]:
    """The cells of one host after the other; hosts whose cells are known already are not tried again.

    Example:
        >>> next(measure_hosts(["ViT"], ["life"], known=[Cell("ViT", "qkv", "life", reason="not tried")]))[0].reason
        'not tried'
    """
    hosts, tried = choose_cells(families, parts)
    for example in hosts:
        held = {cell.part: cell for cell in known if cell.family == example.family}
        if all(part in held for _, part in tried):
            yield [held[part] for _, part in tried]
        else:
            cells = [measure_cell(example, slot, part) for slot, part in tried]
            yield list(with_exports(example, cells)) if export else cells


def number_of_cells(families: Iterable[str] = (), parts: Iterable[str] = ()) -> int:
    """How many cells `measure_cells` measures."""
    hosts, tried = choose_cells(families, parts)
    return len(hosts) * len(tried)


def choose_cells(families: Iterable[str], parts: Iterable[str]) -> tuple[list[Example], list[tuple[str, str]]]:
    """Hosts and parts by name, all where none is named; unknown names are refused."""
    wanted, pieces = set(families), set(parts)
    known, named = [example.family for example in EXAMPLES], [part for _, part in PARTS]
    for wrong in sorted(wanted - set(known)):
        raise ValueError(f"There is no host {wrong!r} in the matrix; there are {', '.join(known)}.")
    for wrong in sorted(pieces - set(named)):
        raise ValueError(f"There is no part {wrong!r} in the matrix; there are {', '.join(named)}.")
    hosts = [example for example in EXAMPLES if not wanted or example.family in wanted]
    return hosts, [pair for pair in PARTS if not pieces or pair[1] in pieces]


def measure_cell(example: Example, slot: str, part: str) -> Cell:
    """Try one part in one host, without exporting it."""
    slots: dict[str, Any] = {slot: part}
    exact = is_trainable(example, slots)
    try:
        local = localize(stirred(example), **slots)
    except ValueError as error:
        return Cell(example.family, slot, part, exact=exact, reason=str(error))
    preserved = all(is_same(example, slots, size) for size in dict.fromkeys((example.size, example.other)))
    trains = all(learns(local, example).values())
    return Cell(example.family, slot, part, True, preserved, trains, None, exact)


def with_exports(example: Example, cells: Sequence[Cell]) -> Iterator[Cell]:
    """The cells of a host with what came of exporting them.

    Parts of several slots go into one file: if its outputs are right, each of them is. If not, each is tried alone.
    """
    found: dict[str, bool] = {}
    waiting = [cell for cell in cells if cell.built]
    while waiting:
        together = list({cell.slot: cell for cell in reversed(waiting)}.values())  # the first of each slot
        waiting = [cell for cell in waiting if cell not in together]
        if exports(example, together):
            found |= {cell.part: True for cell in together}
        else:
            found |= {cell.part: len(together) > 1 and exports(example, [cell]) for cell in together}
    for cell in cells:
        yield replace(cell, exports=found.get(cell.part))


def exports(example: Example, cells: Sequence[Cell]) -> bool:
    """Whether a host with these parts, trained for two steps, gives its outputs as an ONNX file."""
    slots: dict[str, Any] = {cell.slot: cell.part for cell in cells}
    local = localize(stirred(example), **slots)
    learns(local, example)
    return is_same_in_onnx(local.eval(), example.size)


@torch.no_grad()
def stirred(example: Example, size: tuple[int, int] | None = None) -> nn.Module:
    """A host with random numbers everywhere, also where a fresh one has zeros or ones."""
    torch.manual_seed(0)
    model = example.build(size, num_classes=CLASSES)
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def for_size(example: Example, size: tuple[int, int]) -> nn.Module:
    """A host for a size."""
    if size == example.size or example.resize == "build":
        return stirred(example, size)
    model: Any = stirred(example)
    if example.resize == "set" and hasattr(model, "set_input_size"):
        model.set_input_size(size)
    return model


@torch.no_grad()
def is_same(example: Example, slots: dict[str, Any], size: tuple[int, int]) -> bool:
    """Whether outputs stay the same to the last bit."""
    plain = for_size(example, size)
    local = localize(plain, **slots)
    batches = [torch.randn(batch, 3, *size) for batch in (1, 3)]
    return all(torch.equal(local(images), plain(images)) for images in batches)


def learns(model: nn.Module, example: Example) -> dict[str, bool]:
    """Two steps of training; tells of each new parameter whether it has a gradient in the second."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        output = model(torch.randn(CLASSES, 3, *example.size))
        logits: Tensor = output[0] if isinstance(output, tuple) else output  # VOLO and distilled models have two
        F.cross_entropy(logits, torch.arange(CLASSES)).backward()
        optimizer.step()
    done = localized_of(model)
    new = done.new if done else ()
    return {n: p.grad is not None and bool(p.grad.any()) for n, p in model.named_parameters() if n in new}


def is_trainable(example: Example, slots: dict[str, Any]) -> bool:
    """Whether the part also takes the place of the host's own, and learns there."""
    try:
        local = localize(stirred(example), **slots, preserve=False)
    except ValueError:
        return False
    return any(learns(local, example).values())


def is_same_in_onnx(model: nn.Module, size: tuple[int, int]) -> bool:
    """Whether the file for other runtimes gives the model's outputs, for images of one size."""
    from nearsight.runs.runtime import FATAL, need

    runtime = need("onnxruntime", "The matrix")
    quiet = runtime.SessionOptions()
    quiet.log_severity_level = FATAL
    images = torch.randn(1, 3, *size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if not write_for_size(model, path, size):
            return False
        session = runtime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"])
        output = session.run(None, {"images": images.numpy()})[0]
    with torch.no_grad():
        return torch.allclose(torch.from_numpy(output), model(images), rtol=1e-3, atol=1e-4)


def write_for_size(model: nn.Module, path: Path, size: tuple[int, int]) -> bool:
    """Write an ONNX file; returns whether the model could be recorded.

    `write_onnx` would first try for any size, which takes most of its time.
    """
    from nearsight.deployment.graph import Axes, Exportable, capture
    from nearsight.deployment.onnx import quietly, tidy, translate

    with quietly():
        for batch in (True, False):
            try:
                translated = translate(capture(Exportable(model), size, Axes(batch=batch, size=False)), ("logits",))
            except Exception:  # torch.export fails in many ways on a model that asks for its sizes
                continue
            tidy(translated)
            translated.save(path, external_data=False)
            return True
    return False


# The table and the page

HEAD = """# Which part fits which host

Made by `python -m tools.matrix --out docs/matrix.md`: every cell is the outcome of putting the part into a small model
of the family with random weights, never a claim. See [Localize](localize.md) for what the parts do.

"""
LEGEND = """
| letter | was found true |
| --- | --- |
| B | built: `localize` took it |
| P | preserved: outputs equal to the last bit, for 1 and 3 images, at two sizes where the family has two |
| T | trains: by the second step every new parameter has a gradient |
| E | exports: the ONNX file of the trained model gives its outputs in onnxruntime |
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


@dataclass(frozen=True)
class Unfinished:
    """A file beside the page, which is there until the page is.

    Attributes:
        file: Where the cells are.
        terms: What they were found with and for; others are not taken over.
    """

    file: Path
    terms: dict[str, object]

    @classmethod
    def beside(cls, page: Path, parts: Iterable[str], export: bool) -> "Unfinished":
        """What is unfinished of a page with these parts."""
        versions = {"nearsight": __version__, "torch": torch.__version__, "timm": timm.__version__}
        return cls(page.with_name(f".{page.name}.unfinished"), versions | {"parts": sorted(parts), "export": export})

    def read(self) -> list[Cell]:
        """The cells of whole hosts; none if the file is absent, spoiled, or made with other versions or settings."""
        try:
            held = json.loads(self.file.read_text(encoding="utf-8"))
            return [Cell(**cell) for cell in held["cells"]] if held["terms"] == self.terms else []
        except (OSError, ValueError, TypeError, KeyError):
            return []

    def write(self, cells: Sequence[Cell]) -> None:
        """Keep the cells of whole hosts."""
        held = {"terms": self.terms, "cells": [cell.as_dict() for cell in cells]}
        write_whole(self.file, json.dumps(held).encode())

    def finish(self) -> None:
        """The page is written."""
        self.file.unlink(missing_ok=True)


def matrix(
    host: Annotated[list[str] | None, typer.Option(help="Try this host only, such as 'Swin v2' (repeatable).")] = None,
    part: Annotated[list[str] | None, typer.Option(help="Try this part only, such as life (repeatable).")] = None,
    export: Annotated[bool, typer.Option(help="Also write ONNX files and run them; most of the time.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the page (.md) or the cells (.json).")
    ] = None,
) -> None:
    """Put every local part into a small model of every family of timm, and see what comes of it.

    With --out, a stopped matrix goes on with the same command after its last whole host.
    """
    if out is not None and out.suffix not in (".md", ".json"):
        raise ValueError(f"{out} ends neither in .md nor in .json; give the page or the cells such a name.")

    unfinished = Unfinished.beside(out, part or (), export) if out is not None else None
    known = unfinished.read() if unfinished is not None else []
    if unfinished is not None and known:
        hosts = ", ".join(dict.fromkeys(cell.family for cell in known))
        print(f"Found before: {hosts}; to try them again, delete {unfinished.file}.", file=sys.stderr)
    cells = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Trying parts in hosts", total=number_of_cells(host or (), part or ()))
        for found in measure_hosts(host or (), part or (), export=export, known=known):
            cells += found
            progress.update(task, advance=len(found), description=f"{found[0].family} is done")
            if unfinished is not None:
                unfinished.write(cells)
    described: list[dict[str, Any]] = [cell.as_dict() for cell in cells]
    if out is not None:
        text = matrix_page(cells) if out.suffix == ".md" else json.dumps(described, indent=1) + "\n"
        write_whole(out, text.encode())
    if unfinished is not None:
        unfinished.finish()
    if as_json:
        print(json.dumps(described, indent=1))
    else:
        make_console().print(matrix_table(cells))


if __name__ == "__main__":
    typer.run(matrix)
