"""`nearsight bench`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..atomic import check_output, is_own_png
from .options import Device, refuse_same

if TYPE_CHECKING:
    from ..benchmarking import Bench


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Models of ours or of timm, with options NAME:KEY=VALUE:... and a label LABEL=NAME; folders of runs.",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="More models; times are divided by those of the first of them."),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Images at a time.", show_default="1,8,32; scaling: 1")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=16, max=2048, help="Side of the images.", show_default="each model's own")
    ] = None,
    runtimes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Some of eager, folded, compiled, onnx, openvino; -bfloat16 or -int8 behind: in fewer bits; or all.",
            show_default="eager,folded,compiled,onnx; scaling: eager",
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Measure growth over these image sizes, such as 224,320,448,640,896."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Each measures everything once.")] = 10,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU.", show_default="as PyTorch does")] = None,
    device: Device = None,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure memory too.")] = True,
    stages: Annotated[
        bool, typer.Option("--stages/--no-stages", help="Time embedding, stages and head, too (eager and folded).")
    ] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all measurements.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw a PNG: the papers' accuracy against latency; with --scaling growth over image sizes.",
        ),
    ] = None,
) -> None:
    """Measure models beside each other: latency, images/s, memory, fraction of the machine's peak."""
    for option, file in (("--json", json), ("--plot", plot)):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise ValueError(f"{option} {file} can't be written; give the name of a file in a folder that is there.")
    refuse_same(json=json, plot=plot)
    sizes = numbers("--scaling", scaling) if scaling else None
    batches = numbers("--batch", batch) if batch else None

    for option, file in (("--json", json), ("--plot", plot)):
        if file is not None:
            check_output(file, is_ours=lambda head: is_own_png(head) or is_bench(head), force=None, option=option)

    from ..benchmarking import bench as measure
    from ..benchmarking.report import bench_table, scaling_table
    from ..console import make_console, tracked
    from ..training.signals import listening

    with listening() as flag:
        found = measure(
            models,
            against=split(against) if against else (),
            batch=batches,
            size=size,
            runtimes=split(runtimes) if runtimes else None,
            scaling=sizes,
            rounds=rounds,
            threads=threads,
            device=device,
            memory=memory,
            stages=stages,
            follow=tracked,
            stopped=lambda: flag.number,
        )
    console, table = make_console(), scaling_table if found.scaling else bench_table
    console.print(table(found, min(console.width, 100)), soft_wrap=True)
    write_files(found, json, plot)
    if found.interrupted:
        print("nearsight: Interrupted; what was measured until then is shown.", file=sys.stderr)
        raise typer.Exit(128 + found.interrupted)


def is_bench(head: bytes) -> bool:
    """Whether a file begins like measurements that `--json` wrote."""
    return head.split()[:2] == [b"{", b'"nearsight":']


def split(text: str) -> list[str]:
    """What stands between commas outside brackets."""
    from ..config.candidates import split_outside

    return [part.strip() for part in split_outside(text, ",")]


def numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between them."""
    parts = split(text)
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{option} {text} is not a list of whole numbers; write it like 224,320.")
    return [int(part) for part in parts]


def write_files(found: "Bench", json: Path | None, plot: Path | None) -> None:
    """Write what was asked for."""
    from ..atomic import write_whole
    from ..benchmarking.report import draw_accuracy, draw_scaling

    if json is not None:
        found.save(json)
        print(f"Wrote {json}.", file=sys.stderr)
    if plot is None:
        return
    figure, left_out = (draw_scaling(found), []) if found.scaling else draw_accuracy(found)
    write_whole(plot, figure)
    print(f"Wrote {plot}.", file=sys.stderr)
    for label in left_out:
        print(f"{label} is not in the plot: no paper prints its ImageNet accuracy.", file=sys.stderr)
