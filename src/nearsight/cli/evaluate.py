"""`nearsight eval`, `nearsight predict` and `nearsight embed`: how good a model is, what it sees, and its features."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Device, check_folder, watch

if TYPE_CHECKING:
    from ..runs.predictor import Predictor

Source = Annotated[
    Path,
    typer.Argument(metavar="RUN|BUNDLE", help="Folder of a finished run, its model.safetensors, or a bundle."),
]
Size = Annotated[int, typer.Option(min=1, help="Images at a time.")]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Processes that read images; 0: none besides this one. Default: by machine.")
]


Views = Annotated[
    str | None,
    typer.Option(metavar="VIEW,...", help="Merge several views of an image: flip, vflip, crops; flip, vflip, scales."),
]


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
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also on worse images: noise, blur, weather, ... at five strengths.")
    ] = False,
    shifts: Annotated[bool, typer.Option("--shifts", help="Also on images shifted by 1 to 8 pixels.")] = False,
    tta: Views = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a classifier: also by other labels, such as ReaL's real.json."),
    ] = None,
) -> None:
    """Say how good a model is.

    A classifier: accuracy with intervals, by class, confusions, calibration, worst mistakes. A detector: AP of boxes
    and masks, by size and class. A segmenter: IoU by class. Both with their best and worst cases as an image.
    """
    from ..console import make_console
    from ..evaluation import ROBUSTNESS, refuse_other_files
    from ..evaluation import evaluate as judge

    check_folder("--out", out)
    if out is not None:
        refuse_other_files(out)
    found = judge(
        source,
        data,
        split=split,
        batch=batch,
        workers=workers,
        device=device,
        corruptions=corruptions,
        shifts=shifts,
        tta=tta,
        labels=labels,
        progress=watch("Evaluating"),
    )
    folder = found.save(out)
    if as_json:
        print(found.to_json(), end="")
    else:
        make_console().print(found.table(), highlight=False)
    for name, reason in list(found.bad.items())[:10]:
        print(f"left out: {name}: {reason}", file=sys.stderr)
    files = ", ".join(["metrics.json", *found.task.files, *([ROBUSTNESS] if found.robustness else [])])
    print(f"Wrote {folder}: {files}.", file=sys.stderr)


def calibrate(
    source: Source,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Other data with the same class names. Default: the run's own."),
    ] = None,
    split: Annotated[str, typer.Option(help="val or test: images that the model was not trained with.")] = "val",
    tta: Views = None,
    as_json: AsJson = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Images at a time. Default: by task.")] = None,
    workers: Workers = None,
    device: Device = None,
) -> None:
    """Make confidences honest, and find out when to say 'don't know' for a promised error rate."""
    import json

    from ..calibration import calibrate as verb

    watched = watch("Calibrating")
    found = verb(source, data, split=split, tta=tta, batch=batch, workers=workers, device=device, progress=watched)
    print(json.dumps(found.to_dict(), indent=1) if as_json else "\n".join(found.lines()))


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
    format: Annotated[
        str | None,
        typer.Option(
            help="Write labels to correct and train on into DIR: coco, yolo or voc; masks; folders or table. By task."
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Of a detector: score that an object needs. Default: by training."),
    ] = None,
    tta: Views = None,
    error_rate: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Of a calibrated classifier: say 'don't know' so that no more is missed."),
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
    from ..prediction import Folder, LabelFolder, open_output
    from ..runs.predictor import load
    from ..tasks.predictions import is_json_lines, is_table

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
        given: list[str | Path] = [*paths, *files_of(predictor)]
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
        tta=tta,
        error_rate=error_rate,
        progress=iter if silent else watch("Predicting"),
    )
    done, bad = 0, 0
    folder: Folder | LabelFolder | None = None
    if format is not None:
        if out is None:
            raise ValueError("--format writes labels; give their folder with --out.")
        folder = LabelFolder(out, format)
    elif out is not None:
        folder = Folder(out, paths, force)
    with open_output(csv=csv, jsonl=jsonl, as_json=as_json) as output:
        for prediction in found:
            if prediction.problem is not None:
                print(f"skipped {prediction.image}: {prediction.problem}", file=sys.stderr)
                bad += 1
                continue
            if folder is None and file is None and prediction.pictured:
                folder = Folder(Path("found"), paths, force)
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


def files_of(predictor: "Predictor") -> "Iterator[Path]":
    """The files that a model was opened from."""
    from ..runs.predictor import calibration_file

    if predictor.path is not None and predictor.path.is_dir():
        yield from predictor.path.iterdir()
    elif predictor.path is not None:
        yield from (predictor.path, predictor.path.with_suffix(".json"), calibration_file(predictor))


def embed(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Data as for training, or a folder of images.")],
    model: Annotated[
        str | None,
        typer.Option(help="A run, a weight file or a model's name. Default: pretrained weights that are at hand."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a table: .parquet, .npz or .csv, by its name.")
    ] = None,
    query: Annotated[
        list[Path] | None, typer.Option(metavar="IMAGE", help="Name the images that are most like this one.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Similar images named for each query.")] = 5,
    as_json: AsJson = False,
    split: Annotated[str | None, typer.Option(help="train, val or test. Default: all.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="First so many images of each split only.")] = None,
    batch: Size = 32,
    workers: Workers = None,
    device: Device = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for what is kept. Default: ~/.cache/nearsight/features.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that this command did not write.")] = False,
) -> None:
    """Write a backbone's features of images as a table, or name the images that are most like another.

    Features are kept on the disk: the same command again, or another query, is done at once.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..atomic import check_output
    from ..console import print_json
    from ..data.file_system import find_images
    from ..embedding import check_suffix, is_features
    from ..embedding import embed as extract
    from ..runs.run import data_inputs

    if out is None and not query:
        raise ValueError("Give --out FILE for a table of the features, or --query IMAGE for similar images.")
    if out is not None:
        check_suffix(out)
        check_output(out, inputs=data_inputs(data, out), is_ours=is_features, force=force, option="--out")
    asked = [str(path) for path in find_images([str(path) for path in query or ()])] if query else []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=quiet) as progress:
        line = progress.add_task("Features", total=None)
        found = extract(
            data,
            model=model,
            split=split,
            limit=limit,
            batch=batch,
            workers=workers,
            device=device,
            cache=cache,
            progress=lambda done, total: progress.update(line, completed=done, total=total),
        )
    for name, reason in list(found.bad.items())[:10]:
        print(f"left out: {name}: {reason}", file=sys.stderr)
    near = found.similar(asked, top=top) if asked else []
    if as_json:
        rows = [[vars(one) for one in row] for row in near]
        print_json(found.to_dict() | {"similar": dict(zip(asked, rows, strict=True))})
    else:
        for path, row in zip(asked, near, strict=True):
            print(path)
            for one in row:
                print(f"  {one.similarity:6.3f}  {one.image}{f' ({one.label})' * bool(one.label)}")
    if out is not None:
        found.save(out, force=True)  # which was checked before the work
        count, width = found.values.shape
        print(f"Wrote {out}: {width:,} features of {count:,} images by {found.model}.", file=sys.stderr)
