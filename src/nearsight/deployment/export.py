"""From a model to a bundle: written, verified against PyTorch, and only then put where it belongs."""

import os
import platform
import tempfile
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..console import first_line
from ..runs.bundle import ABOUT, FILES, VERIFIED, Bundle, describe, refuse_target, write_json, writing_bundle
from ..runs.predictor import Predictor, load_module
from ..runs.runtime import need, open_runner
from ..tasks import get_task
from .calibration import CalibrationSet, find_calibration
from .graph import Axes, Exportable, write_program
from .quantize import Progress, Quantized, no_progress, quantize
from .verify import TOLERANCE, Agreement, compare, compare_dense, refuse_disagreement
from .web import find_runtime, write_page


def open_exportable(source: str | os.PathLike[str], size: tuple[int, int] | None = None) -> Predictor:
    """The model that somebody names.

    Args:
        source: Folder of a run, weight file, or name of a model, ours or timm's.
        size: Height and width that images are to be shown in; None takes the model's own.

    Raises:
        ValueError: There is no such model, it is none of RGB images, or it does not take that size.

    Example:
        >>> opened = open_exportable("lit_nano", size=(48, 64))
        >>> opened.weights, opened.preprocessing.size, len(opened.classes)
        ('random', (48, 64), 1000)
    """
    opened = load_module(source)
    if size is not None:
        # a model that is shown whole images takes it for their shorter and their longest side
        change = {"min_size": min(size), "max_size": max(size)} if opened.preprocessing.dense else {"size": size}
        opened = replace(opened, preprocessing=replace(opened.preprocessing, **change))
    refuse_others(opened)
    return opened


@torch.inference_mode()
def refuse_others(opened: Predictor) -> None:
    """Refuse a model that does not take RGB images of its size, or does not say what it finds in them."""
    height, width = opened.preprocessing.size
    try:
        logits = opened.model(torch.zeros(1, 3, height, width))
    except Exception as error:  # timm's models fail in many ways on sizes that they were not made for
        raise ValueError(
            f"{opened.name} does not take RGB images of {height}×{width} pixels ({first_line(error)}); give another "
            "--size."
        ) from None
    if hasattr(opened.model, "export_outputs"):
        return
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, len(opened.classes)) or not opened.classes:
        raise ValueError(f"{opened.name} is no classifier (it gives no number for each class); it can't be exported.")


# What writing and running each format takes beside torch.
ONNX = ("onnx", "onnxscript", "onnxruntime")
NEEDED = {"onnx": ONNX, "openvino": ("onnx", "onnxscript", "openvino"), "pt2": (), "web": ONNX}


@dataclass(frozen=True, repr=False)
class Exported:
    """A bundle that was written.

    Attributes:
        folder: Where it is.
        bundle: What it holds.
        images: What it was verified with, in words.
        agreements: How near its float model is to PyTorch, at each size.
        quantized: What 8 bits cost; None for a float model.
    """

    folder: Path
    bundle: Bundle
    images: str
    agreements: tuple[Agreement, ...]
    quantized: Quantized | None

    def to_dict(self) -> dict[str, Any]:
        """What `verify.json` holds, with the folder and what is in it."""
        return {"folder": str(self.folder), "bundle": describe(self.bundle, self.folder), "verified": report(self)}

    def __repr__(self) -> str:
        """What was written, in words."""
        bundle = self.bundle
        same = ", ".join(f"{one.size[0]}×{one.size[1]}: {100 * one.top1:.1f} %" for one in self.agreements)
        return f"{bundle.model} ({bundle.task}, {bundle.kind}) in {self.folder}; same predictions as PyTorch at {same}"


def export(
    source: str | Path,
    out: str | Path | None = None,
    *,
    format: str = "onnx",
    images: str | Path | None = None,
    int8: bool = False,
    margin: float = 0.01,
    size: tuple[int, int] | None = None,
    runtime: str | Path | None = None,
    download: bool = False,
    force: bool = False,
    progress: Progress = no_progress,
) -> Exported:
    """Write a model as a bundle: a folder with the model, how to prepare images, and how near it is to PyTorch.

    Args:
        source: Folder of a run, weight file, or name of a model (whose weights are random then).
        out: Folder to write; None puts it into the run's folder, or beside the weights, or here.
        format: `onnx`, `pt2`, `openvino`, or `web`: an ONNX bundle with a page that runs it in the browser.
        images: Data or a folder of images to verify and calibrate with; None takes the run's own, or two photographs.
        int8: Whether to quantize to 8 bits; only as `onnx` or `web`.
        margin: Fraction of right predictions that 8 bits may cost.
        size: Height and width that images are shown in; None takes the model's own.
        runtime: Of the format `web`: folder of an unpacked onnxruntime-web; None takes what was downloaded before.
        download: Whether onnxruntime-web may be taken from npm.
        force: Whether a bundle that is there already is replaced.
        progress: Wraps what takes time, to show how far the work is.

    Returns:
        The bundle; it is complete, or there is none.

    Raises:
        ValueError: Something can't be done, the predictions differ from PyTorch's, or 8 bits cost more than the margin.
        OSError: The folder can't be written.

    Example:
        >>> import tempfile
        >>> found = export("deit_nano", Path(tempfile.mkdtemp()) / "bundle", format="pt2")
        >>> sorted(file.name for file in found.folder.iterdir())
        ['model.pt2', 'preprocess.json', 'verify.json']
        >>> found.agreements[0].top1
        1.0
    """
    refuse_format(format, int8, margin)
    if format != "web" and (runtime is not None or download):
        raise ValueError(f"--runtime and --download are for the format web, not for {format}; leave them out.")
    found_runtime = find_runtime(runtime, download) if format == "web" else None
    kind = "onnx" if format == "web" else format
    predictor = open_exportable(source, size)
    folder = Path(out) if out is not None else default_folder(predictor, format, int8)
    refuse_target(folder, force)
    calibration = find_calibration(predictor, images)
    if int8 and (hasattr(predictor.model, "postprocessing") or get_task(predictor.task).postprocessing != "classes"):
        raise ValueError(f"--int8 is for classifiers so far; {predictor.name} was trained to {predictor.task}.")
    if int8 and calibration.calibrate is None:
        raise ValueError(f"--int8 needs images like those of the later use, not {calibration.what}; give --images.")
    with writing_bundle(folder) as part:
        axes = write_model(predictor.model, kind, part, predictor.preprocessing.size)
        bundle = to_bundle(predictor, kind, axes, int8)
        agreements = check(predictor, bundle, part, calibration)
        quantized = None
        if int8:
            quantized = shrink(predictor, bundle, part, calibration, margin, progress)
        found = Exported(folder, bundle, calibration.what, tuple(agreements), quantized)
        write_json(part / ABOUT, describe(bundle, part))
        write_json(part / VERIFIED, report(found))
        if found_runtime is not None:
            write_page(part, found_runtime)
    return found


def refuse_format(format: str, int8: bool, margin: float) -> None:
    """Refuse what can't be written, before any work."""
    if format not in NEEDED:
        raise ValueError(f"There is no format {format!r}; use {', '.join(NEEDED)}.")
    if int8 and format not in ("onnx", "web"):
        raise ValueError(f"--int8 is for the formats onnx and web, not for {format}; leave one of them out.")
    if not 0 <= margin <= 1:
        raise ValueError(f"--margin {margin:g} is no fraction; 0.01 stands for one point of accuracy.")
    for package in NEEDED[format]:
        need(package, f"The format {format}")


def default_folder(predictor: Predictor, format: str, int8: bool) -> Path:
    """Where a bundle goes unless somebody says otherwise."""
    suffix = f"{format}-int8" if int8 else format
    if predictor.path is None:
        return Path(f"{predictor.name.replace('/', '-')}-{suffix}")
    return predictor.path.with_name(f"export-{suffix}")


def write_model(model: nn.Module, kind: str, folder: Path, size: tuple[int, int]) -> Axes:
    """Write a folded model in a format; returns which of its sides are open."""
    from ..models.fold import fold
    from .onnx import write_onnx, write_openvino

    folded, file = fold(model), folder / FILES[kind][0]
    if kind == "pt2":
        return write_program(folded, file, size)
    if kind == "onnx":
        return write_onnx(folded, file, size)
    with tempfile.TemporaryDirectory(prefix="nearsight-onnx-") as scratch:
        between = Path(scratch) / "model.onnx"
        axes = write_onnx(folded, between, size)
        write_openvino(between, file)
    return axes


def to_bundle(predictor: Predictor, kind: str, axes: Axes, int8: bool) -> Bundle:
    """The description of what is exported."""
    shown, model = predictor.preprocessing, predictor.model
    with torch.no_grad():
        outputs = Exportable(model).outputs(torch.zeros(1, 3, *shown.size))
    known = getattr(model, "postprocessing", None)
    fit = None
    if shown.dense:
        fit = {"min_size": shown.min_size, "max_size": shown.most, "stretch": shown.stretch}
    return Bundle(
        kind=kind,
        model=predictor.name,
        weights=predictor.weights,
        labels=predictor.classes,
        size=shown.size,
        crop=1.0 if fit else shown.crop,
        mean=shown.mean,
        std=shown.std,
        any_batch=axes.batch,
        any_size=axes.size,
        int8=int8,
        task=predictor.task,
        outputs=tuple(outputs),
        postprocessing=known() if known else {"name": get_task(predictor.task).postprocessing},
        fit=fit,
        settings=dict(predictor.settings),
    )


def check(predictor: Predictor, bundle: Bundle, folder: Path, calibration: CalibrationSet) -> list[Agreement]:
    """How near the written model is to PyTorch; too far is refused."""
    runner = open_runner(folder, bundle)
    if bundle.fit is None:
        found = compare(predictor, runner, calibration.measure, any_batch=bundle.any_batch, any_size=bundle.any_size)
    else:
        found = compare_dense(predictor, bundle, runner, calibration.measure, calibration.labelled)
    refuse_disagreement(found, calibration.what)
    return found


def shrink(
    predictor: Predictor, bundle: Bundle, folder: Path, calibration: CalibrationSet, margin: float, progress: Progress
) -> Quantized:
    """Replace a float model by one of 8 bits, whose predictions are judged, and which gives numbers at all sizes."""
    file = folder / FILES[bundle.kind][0]
    small = file.with_name(f"small-{file.name}")
    quantized = quantize(file, small, calibration, predictor.preprocessing, margin=margin, progress=progress)
    small.replace(file)
    runner = open_runner(folder, bundle)
    for one in compare(predictor, runner, calibration.measure, any_batch=bundle.any_batch, any_size=bundle.any_size):
        if not one.max_abs < float("inf"):
            raise ValueError(f"In 8 bits the model gives no numbers at {one.size[0]}×{one.size[1]} pixels.")
    return quantized


def report(found: Exported) -> dict[str, Any]:
    """What is written to `verify.json`."""
    packages = ("torch", *NEEDED[found.bundle.kind])
    about: dict[str, Any] = {
        "images": found.images,
        "tolerance": TOLERANCE,
        "against": "PyTorch, before folding and export",
        "sizes": [one.to_dict() for one in found.agreements],
        "versions": {package: version(package) for package in packages} | {"python": platform.python_version()},
    }
    if found.quantized is not None:
        about["int8"] = asdict(found.quantized) | {"kept": list(found.quantized.kept)}
    return about
