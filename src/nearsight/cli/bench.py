"""`nearsight bench`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
            help="Some of eager, folded, compiled and onnx.",
            show_default="all; scaling: eager",
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Measure growth over these image sizes, such as 224,320,448,640,896."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Each measures everything once.")] = 10,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU.", show_default="as PyTorch does")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps.", show_default="a GPU if there is one")] = None,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure memory too.")] = True,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw a PNG: the papers' accuracy against latency; with --scaling growth over image sizes.",
        ),
    ] = None,
) -> None:
    """Measure models beside each other: latency, images/s, memory, share of the machine's peak."""
    if size and scaling:
        raise ValueError("Give either --size or --scaling, not both.")
    for option, file in (("--json", json), ("--plot", plot)):
        check_target(option, file)
    sides = numbers("--scaling", scaling, 16, 2048) if scaling else [size]
    if scaling and len(sides) < 2:
        raise ValueError(f"--scaling {scaling} is a single size; give two or more, such as 224,320,448,640,896.")
    others = split(against) if against else []
    texts = list(dict.fromkeys([*models, *others]))

    from ..benchmarking import bench as measure
    from ..benchmarking import open_subject
    from ..console import tracked
    from ..training.signals import listening

    setting = make_setting(batch, runtimes, rounds, threads, device, memory, scaling is not None)
    wanted = [(text, side) for text in texts for side in sides]
    with listening() as flag:
        opened = [open_subject(text, side) for text, side in tracked(wanted, "Building and counting models")]
        refuse_twins([(subject.label, subject.size) for subject in opened])
        reference = opened[texts.index(others[0]) * len(sides)].label if others else None
        found = measure(opened, setting, reference, follow=tracked, stopped=lambda: flag.number)
    show(found, scaling is not None)
    write_files(found, scaling is not None, json, plot)
    if found.interrupted:
        print("nearsight: Interrupted; what was measured until then is shown.", file=sys.stderr)
        raise typer.Exit(128 + found.interrupted)


def make_setting(
    batch: str | None,
    runtimes: str | None,
    rounds: int,
    threads: int | None,
    device: str | None,
    memory: bool,
    scaling: bool,
) -> Any:
    """How to measure, from what was typed."""
    import torch

    from ..benchmarking import Setting
    from ..benchmarking.runtimes import RUNTIMES
    from ..runs.predictor import pick_device

    chosen = list(dict.fromkeys(split(runtimes))) if runtimes else ["eager"] if scaling else list(RUNTIMES)
    if unknown := [name for name in chosen if name not in RUNTIMES]:
        raise ValueError(f"--runtimes {unknown[0]} is not known; use some of {', '.join(RUNTIMES)}.")
    batches = numbers("--batch", batch, 1, 4096) if batch else [1] if scaling else [1, 8, 32]
    if scaling and len(batches) > 1:
        raise ValueError("--scaling measures one batch size; give one with --batch, or none for 1.")
    return Setting(
        tuple(batches), tuple(chosen), rounds, threads or torch.get_num_threads(), pick_device(device), memory
    )


def split(text: str) -> list[str]:
    """What stands between commas outside brackets."""
    from ..config.candidates import split_outside

    return [part.strip() for part in split_outside(text, ",")]


def numbers(option: str, text: str, low: int, high: int) -> list[int]:
    """Whole numbers with commas between them, each once, smallest first."""
    parts = split(text)
    if not all(part.isdecimal() and low <= int(part) <= high for part in parts):
        raise ValueError(f"{option} {text} is not a list of numbers from {low} to {high}; write it like 224,320.")
    return sorted({int(part) for part in parts})


def check_target(option: str, file: Path | None) -> None:
    """Refuse a file that can't be written, before the work."""
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise ValueError(f"{option} {file} can't be written; give the name of a file in a folder that is there.")


def refuse_twins(keys: list[tuple[str, tuple[int, int]]]) -> None:
    """Refuse two models of the same label."""
    for label, size in keys:
        if keys.count((label, size)) > 1:
            raise ValueError(f"Two models are called {label!r}; give one of them another name: LABEL=NAME.")


def show(found: "Bench", scaling: bool) -> None:
    """Print the table."""
    from ..benchmarking.table import bench_table, scaling_table
    from ..console import make_console

    console = make_console()
    make = scaling_table if scaling else bench_table
    console.print(make(found, min(console.width, 100)), soft_wrap=True)


def write_files(found: "Bench", scaling: bool, json: Path | None, plot: Path | None) -> None:
    """Write what was asked for."""
    from ..atomic import write_whole
    from ..benchmarking.plot import draw_accuracy, draw_scaling
    from ..benchmarking.results import to_json

    if json is not None:
        write_whole(json, to_json(found, scaling=scaling))
        print(f"Wrote {json}.", file=sys.stderr)
    if plot is None:
        return
    picture, left_out = (draw_scaling(found), []) if scaling else draw_accuracy(found)
    write_whole(plot, picture)
    print(f"Wrote {plot}.", file=sys.stderr)
    for label in left_out:
        print(f"{label} is not in the plot: no paper prints its ImageNet accuracy.", file=sys.stderr)
