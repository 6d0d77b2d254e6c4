"""`nearsight eval` and `nearsight predict`: how good a model is, and what it sees."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, check_folder

if TYPE_CHECKING:
    from ..data.loader import Batch

Source = Annotated[
    Path,
    typer.Argument(metavar="RUN|BUNDLE", help="Folder of a finished run, its model.safetensors, or a bundle."),
]
Size = Annotated[int, typer.Option(min=1, help="Images at a time.")]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Processes that read images; 0: none besides this one. Default: by machine.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps. Default: a GPU if there is one.")]


def evaluate(
    source: Source,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Other data with the same class names. Default: the run's own."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="test, val or train. Default: the first of these that there is.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the report. Default: eval-SPLIT in RUN.")
    ] = None,
    as_json: AsJson = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Images at a time. Default: by task.")] = None,
    workers: Workers = None,
    device: Device = None,
) -> None:
    """Say how good a model is.

    A classifier: accuracy with intervals, by class, confusions, calibration, worst mistakes. A detector: AP of boxes
    and masks, by size and class. A segmenter: IoU by class. Both with their best and worst cases as an image.
    """
    from ..console import make_console
    from ..evaluation import evaluate as judge

    check_folder("--out", out)
    found = judge(source, data, split=split, batch=batch, workers=workers, device=device, progress=watch("Evaluating"))
    folder = found.save(out)
    if as_json:
        print(found.to_json(), end="")
    else:
        make_console().print(found.table(), highlight=False)
    for name, reason in list(found.bad.items())[:10]:
        print(f"left out: {name}: {reason}", file=sys.stderr)
    files = ", ".join(["metrics.json", *found.task.files])
    print(f"Wrote {folder}: {files}.", file=sys.stderr)


def predict(
    source: Source,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE|FOLDER", help="Images, or folders of images.")],
    top: Annotated[int, typer.Option(min=1, help="Of a classifier: classes named for each image.")] = 5,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a table.")] = None,
    jsonl: Annotated[Path | None, typer.Option("--jsonl", metavar="FILE", help="Write JSON lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for drawn images and files. Default: found, for a detector or segmenter without a table.",
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Of a detector: score that an object needs. Default: by training."),
    ] = None,
    least: Annotated[float | None, typer.Option(min=0, max=1, hidden=True)] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Images at a time. Default: 64, of a detector or segmenter 8.")
    ] = None,
    workers: Workers = None,
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that this command did not write.")] = False,
) -> None:
    """Say what is in images. Folders are searched through; unreadable images are named and left out.

    A detector draws boxes and masks and writes objects.json (COCO); a segmenter draws its map and writes PNGs of class
    numbers.

    A bundle that `nearsight export` wrote runs without torch.
    """
    from ..atomic import check_output
    from ..data.file_system import find_images
    from ..prediction import Folder, is_json_lines, is_table, open_output
    from ..runs.predictor import load

    chosen = [name for name, given in (("--csv", csv), ("--jsonl", jsonl), ("--json", as_json)) if given]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} were given; choose one.")
    check_folder("--out", out)
    if least is not None:
        print("--least is called --min-score now; the old name will go.", file=sys.stderr)
        min_score = least if min_score is None else min_score
    file = csv or jsonl
    if file is not None and file.is_dir():
        raise ValueError(f"{chosen[0]} {file} is a folder; give the name of a file to write.")
    predictor = load(source)
    paths = find_images([str(path) for path in images])
    if file is not None:
        given: list[str | Path] = [*paths, *([predictor.path] if predictor.path else [])]
        check_output(file, inputs=given, is_ours=is_table if csv else is_json_lines, force=force, option=chosen[0])
    # Predictions that scroll by are progress enough, and a bar would get in their way.
    silent = file is None and sys.stdout.isatty()
    found = predictor.predict(
        paths,
        top=top,
        min_score=min_score,
        batch=batch,
        workers=workers,
        device=device,
        progress=iter if silent else watch("Predicting"),
    )
    done, bad = 0, 0
    folder = None if out is None else Folder(out)
    with open_output(csv=csv, jsonl=jsonl, as_json=as_json) as output:
        for prediction in found:
            if prediction.problem is not None:
                print(f"skipped {prediction.image}: {prediction.problem}", file=sys.stderr)
                bad += 1
                continue
            if folder is None and file is None and prediction.pictured:
                folder = Folder(Path("found"))
            output.add(prediction)
            if folder is not None:
                folder.add(prediction)
            done, kind = done + 1, type(prediction)
        if not done:  # nothing is written then
            raise ValueError(f"No image can be read: {bad:,} of {bad:,} are unreadable.")
        if folder is not None:
            folder.close(kind)
    if file is not None or folder is not None or bad:
        written = f" Wrote {file}." if file else ""
        written += f" Wrote {folder.folder}: {' and '.join(folder.written)}." if folder else ""
        skipped = f", {bad:,} unreadable skipped" if bad else ""
        print(f"{done:,} image{'s' * (done != 1)} predicted{skipped}.{written}", file=sys.stderr)


def watch(title: str) -> "Callable[[Iterable[Batch]], Iterator[Batch]]":
    """A wrapper of batches that shows a bar on stderr; only its title where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    def follow(batches: "Iterable[Batch]") -> "Iterator[Batch]":
        console = Console(stderr=True)
        total = len(batches.sampler)  # type: ignore[attr-defined]
        if not console.is_terminal:
            print(f"{title} {total:,} image{'s' * (total != 1)} ...", file=sys.stderr)
            yield from batches
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # stdout is not redirected: it may be a pipe that waits for results.
        with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
            task = progress.add_task(title, total=total)
            for group in batches:
                yield group
                progress.advance(task, len(group.indices) + len(group.bad))

    return follow
