"""`nearsight export`: a model as a folder that runs in production."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import parse_size

if TYPE_CHECKING:
    from ..deployment.export import Exported
    from ..deployment.quantize import Quantized


def export(
    source: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="Folder of a finished run, a weight file, or a model's name.")
    ],
    format: Annotated[str, typer.Option(metavar="FORMAT", help="onnx, pt2, openvino, or web (a page).")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write. Default: export-FORMAT in RUN.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|DATA", help="Images to verify and calibrate with. Default: the run's own."),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise to 8 bits (onnx and web only).")] = False,
    margin: Annotated[
        float, typer.Option(help="Accuracy that 8 bits may cost; 0.01 is one point. More is refused.")
    ] = 0.01,
    size: Annotated[
        str | None, typer.Option(metavar="HxW", help="Size that images are shown in. Default: the model's.")
    ] = None,
    fastest: Annotated[
        bool, typer.Option("--fastest", help="Try formats and bits, keep what is fastest here within --margin.")
    ] = False,
    runtime: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Unpacked onnxruntime-web for the format web.")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Take onnxruntime-web from npm if need be.")] = False,
    tta: Annotated[
        str | None, typer.Option(metavar="VIEW,...", help="Of a classifier: views that the bundle merges: flip, vflip.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
) -> None:
    """Write a model as a bundle: the model, how to prepare images, and how near it is to PyTorch."""
    from ..console import tracked
    from ..deployment.export import export as export_model

    found = export_model(
        source,
        out,
        format=format,
        images=images,
        int8=int8,
        margin=margin,
        size=None if size is None else parse_size(size),
        fastest=fastest,
        runtime=runtime,
        download=download,
        tta=tta,
        force=force,
        progress=tracked,
    )
    for line in summary(found):
        print(line)
    if format == "web":
        print(
            f"Look at it: python -m http.server --directory {shlex.quote(str(found.folder))}, then open localhost:8000."
        )


def summary(found: "Exported") -> list[str]:
    """What was written, in words."""
    from ..console import percent
    from ..runs.bundle import FILES

    bundle = found.bundle
    mega = sum((found.folder / name).stat().st_size for name in FILES[bundle.kind]) / 1e6
    weights = {"trained": "", "converted": "", "random": " with RANDOM weights: it was not trained"}[bundle.weights]
    sides = "any size" if bundle.any_size else f"{bundle.size[0]}×{bundle.size[1]} pixels only"
    batch = "any number of images" if bundle.any_batch else "one image"
    lines = [
        f"{bundle.model}{weights}, {len(bundle.labels):,} classes; takes {batch} at once, {sides}.",
        f"Compared with PyTorch on {found.images}:",
    ]
    for one in found.agreements:
        shape = f"{one.size[0]}×{one.size[1]}"
        lines.append(
            f"  {shape:>9}  {one.images} images, largest difference {one.max_abs:.1e} "
            f"({one.max_rel:.1e} of the largest value), same prediction for {percent(one.top1)}"
        )
    lines += int8_summary(found.quantized) if found.quantized else []
    for trial in found.trials:
        told = trial.reason or ""
        if trial.milliseconds is not None and trial.ratio is not None and trial.agreement is not None:
            told = f"{trial.milliseconds.value:.2f} ms, {trial.ratio.value:.2f} of the first; "
            told += f"same prediction for {percent(trial.agreement)}"
        lines.append(f"  {trial.format:<8} {trial.precision:<8}  {told}")
    if found.trials:
        chosen = "int8" if bundle.int8 else "bfloat16" if bundle.bfloat16 else "float32"
        lines.append(f"Fastest for one image on this machine: {bundle.kind} in {chosen}.")
    return [*lines, f"Wrote {found.folder} ({mega:.1f} MB)."]


def int8_summary(made: "Quantized") -> list[str]:
    """What 8 bits cost and save, in words."""
    from ..console import percent

    verdict = made.verdict
    predictions = f"same prediction as in float for {percent(verdict.agreement)} of {verdict.images:,} images"
    if verdict.before is not None and verdict.after is not None:
        predictions = f"accuracy {percent(verdict.before)} before, {percent(verdict.after)} after; {predictions}"
    total = made.layers + len(made.kept)
    kept = f", {len(made.kept)} sensitive ones stay in float" if made.kept else ""
    return [
        f"In 8 bits: {made.layers} of {total} layers{kept}; calibrated on {made.calibrated:,} images.",
        f"  {predictions}",
        f"  {made.bytes_before / 1e6:.1f} MB before, {made.bytes_after / 1e6:.1f} MB after",
    ]
