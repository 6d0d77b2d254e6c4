"""`nearsight matrix`: which part fits which host, measured."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


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

    from rich.console import Console
    from rich.progress import Progress

    from ..atomic import write_whole
    from ..console import make_console
    from ..matrix.cells import measure_hosts, number_of_cells
    from ..matrix.page import matrix_page, matrix_table
    from ..matrix.unfinished import Unfinished

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
