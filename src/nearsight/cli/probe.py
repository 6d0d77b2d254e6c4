"""`nearsight probe`: what kind of layer is it?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import check_folder, parse_size

if TYPE_CHECKING:
    from ..explanation.probing import ProbeResult


def probe(
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODULE|MODEL|BLOCK...",
            help="A part (window, depthwise:kernel=5), a model or a block of it (swin_nano.stages.1.blocks.0.mixer, "
            "timm/resnet18.layer1.0.conv1), a run, or a layer of torch ('torch:Conv2d(16,16,3,groups=16)').",
        ),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Measure the layers of the dwconv paper's Tables 1 and 7.")
    ] = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="Without the projections of values and outputs, as in the paper's analysis.")
    ] = False,
    size: Annotated[
        str | None, typer.Option(metavar="HxW", help="Of the map; of a model, of the image.", show_default="its own")
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Draw connections; with --tables also the relations of layers."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of random weights and inputs.")] = 0,
) -> None:
    """Measure whether a layer is sparse, shares weights, is dynamic, and what it sees."""
    names = modules or []
    if not names and not tables:
        raise ValueError("Name what is to be probed, such as `nearsight probe window depthwise`, or give --tables.")
    check_folder("--draw", draw)
    from ..console import make_console, print_json
    from ..explanation.probing import probe as measure
    from ..explanation.probing.paper import probe_text

    shape = None if size is None else parse_size(size)
    found = [measure(name, size=shape, bare=bare, seed=seed) for name in names]
    result: dict[str, Any] = {"probed": [measured.to_dict() for measured in found]}
    if not as_json:
        console = make_console()
        for measured in found:
            console.print(probe_text(measured), soft_wrap=True)
    if draw is not None:
        for number, (name, measured) in enumerate(zip(names, found, strict=True), 1):
            write_layer(draw, number, name, measured, shape, bare, seed)
    if tables:
        result["tables"] = run_tables(as_json, draw, seed)
    if as_json:
        print_json(result)


def run_tables(as_json: bool, draw: Path | None, seed: int) -> list[dict[str, Any]]:
    """Measure the paper's tables, print them unless JSON is wanted, and draw them if asked for."""
    from ..console import make_console, tracked
    from ..explanation.probing.paper import OTHERS, ROWS, measure_rows, tables_text

    verdicts = measure_rows([*ROWS, *OTHERS], seed=seed, follow=tracked)
    printed, others = verdicts[: len(ROWS)], verdicts[len(ROWS) :]
    if not as_json:
        make_console().print(tables_text(printed, others))
    if draw is not None:
        write_tables(draw, seed)
    return [verdict.to_dict() for verdict in verdicts]


def write_layer(
    folder: Path, number: int, text: str, measured: "ProbeResult", size: tuple[int, int] | None, bare: bool, seed: int
) -> None:
    """Draw one layer."""
    import re

    from ..explanation.probing import open_probed
    from ..explanation.probing.figures import draw_layer

    probed = open_probed(text, size, bare=bare, seed=seed)
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", probed.name).strip("-.") or "layer"
    save(folder / f"{number:02}-{name[:80]}.png", draw_layer(probed, measured, seed))


def write_tables(folder: Path, seed: int) -> None:
    """Draw the paper's Figures 1 and 3."""
    import torch

    from ..explanation.probing.figures import SMALLEST, WINDOWS, draw_matrices, draw_relations, measure_nodes
    from ..explanation.probing.paper import ROWS, measure_rows

    small = [WINDOWS if row.name in ("Local MLP", "Local attention") else SMALLEST for row in ROWS]
    probed_layers, verdicts = [], []
    for row, layer_size in zip(ROWS, small, strict=True):
        verdicts += measure_rows([row], layer_size, seed)
        torch.manual_seed(seed)
        probed_layers.append(row.make(layer_size))
    save(folder / "connections.png", draw_matrices(probed_layers, verdicts))
    save(folder / "relations.png", draw_relations(measure_nodes(seed)))


def save(path: Path, figure: Any) -> None:
    """Write a figure as PNG."""
    from ..atomic import check_output, is_own_png, write_whole
    from ..plots.style import to_png

    check_output(path, is_ours=is_own_png, force=None)
    write_whole(path, to_png(figure))
    print(f"Wrote {path}.", file=sys.stderr)
