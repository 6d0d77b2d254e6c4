"""From a model to a bundle: written, verified against PyTorch, and only then put where it belongs."""

import os
import platform
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..arguments import checked
from ..atomic import writing_folder
from ..console import first_line, is_memory_error
from ..interval import Interval
from ..result import Result
from ..runs.bundle import (
    ABOUT,
    FILES,
    VERIFIED,
    Bundle,
    colour,
    describe,
    is_bundle,
    refuse_target,
    write_json,
)
from ..runs.predictor import Predictor, load
from ..runs.run import processor
from ..runs.runtime import need, open_runner
from ..tasks import get_task
from ..timing import (
    TimedCall,
    instructions,
    make_task,
    median_interval,
    ratio_interval,
    refuse_precision,
    take_turns,
)
from .calibration import CalibrationSet, find_calibration
from .graph import Axes, Exportable, write_program
from .quantize import Progress, Quantized, no_progress, quantize
from .verify import TOLERANCE, Agreement, compare, compare_dense, refuse_disagreement
from .web import find_runtime, write_page

IN_GRAPHS = ("flip", "vflip")  # views that a graph of any size can make itself


def open_exportable(
    source: str | os.PathLike[str], size: tuple[int, int] | None = None, tta: str | None = None
) -> Predictor:
    """The model that somebody names, or several classifiers or views as one.

    Args:
        source: Folder of a run or of folds, runs between commas, weight file, or name of a model, ours or timm's.
        size: Height and width that images are to be shown in; None takes the model's own.
        tta: Views that are merged in the graph.

    Raises:
        ValueError: There is no such model, it is none of RGB images, or it does not take that size.

    Example:
        >>> opened = open_exportable("lit_nano", size=(48, 64))
        >>> opened.weights, opened.preprocessing.size, len(opened.classes)
        ('random', (48, 64), 1000)
    """
    if is_bundle(source):
        raise ValueError(f"{source} is a bundle already; give the folder of a run, a weight file or a model's name.")
    opened = merge_views(load(source), tta)
    if size is not None:
        # a model that is shown whole images takes it for their shorter and their longest side
        change = {"min_size": min(size), "max_size": max(size)} if opened.preprocessing.dense else {"size": size}
        opened = replace(opened, preprocessing=replace(opened.preprocessing, **change))
    refuse_others(opened)
    return opened


def merge_views(opened: Predictor, tta: str | None) -> Predictor:
    """The predictor with views, which are part of the graph then, so that nobody has to ask for them.

    Raises:
        ValueError: Its graph can't merge them, or it was calibrated for others.
    """
    several = tta is not None or hasattr(opened.model, "members")
    if several and not get_task(opened.task).is_linear:
        raise ValueError(
            f"A bundle of a model that was trained to {opened.task} holds one model and one view; give one run, and "
            "leave --tta out."
        )
    wrong = [view for view in (tta or "").split(",") if tta is not None and view.strip() not in IN_GRAPHS]
    if wrong:
        raise ValueError(f"--tta {wrong[0]} can't be a part of a bundle; there are {' and '.join(IN_GRAPHS)}.")
    calibrated = "temperature" in opened.settings
    if calibrated and opened.settings.get("tta") != tta:
        made = f"--tta {opened.settings['tta']}" if opened.settings.get("tta") else "no --tta"
        raise ValueError(
            f"{opened.path or opened.name} was calibrated with {made}; export it so, or calibrate it anew."
        )
    settings = opened.settings | ({"tta": None} if calibrated else {})
    return replace(opened.with_views(tta), settings=settings)


@torch.inference_mode()
def refuse_others(opened: Predictor) -> None:
    """Refuse a model that does not take images of its size and channels, or does not say what it finds in them."""
    (height, width), channels = opened.preprocessing.size, opened.preprocessing.channels
    try:
        logits = opened.model(torch.zeros(1, channels, height, width))
    except Exception as error:  # timm's models fail in many ways on sizes that they were not made for
        if is_memory_error(error):
            raise
        raise ValueError(
            f"{opened.name} does not take {colour(channels)} images of {height}×{width} pixels ({first_line(error)}); "
            "give another --size."
        ) from None
    if hasattr(opened.model, "export_outputs"):
        return
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, len(opened.classes)) or not opened.classes:
        raise ValueError(f"{opened.name} is no classifier (it gives no number for each class); it can't be exported.")


# What writing and running each format takes beside torch.
ONNX = ("onnx", "onnxscript", "onnxruntime")
NEEDED = {"onnx": ONNX, "openvino": ("openvino", "onnx", "onnxscript"), "pt2": (), "web": ONNX}


@dataclass(frozen=True, repr=False)
class Exported(Result):
    """A bundle that was written.

    Attributes:
        folder: Where it is.
        bundle: What it holds.
        images: What it was verified with, in words.
        agreements: How near its float model is to PyTorch, at each size.
        quantized: What 8 bits cost; None for a float model.
        trials: Formats and precisions that were tried for the fastest; empty where nobody asked for it.
    """

    folder: Path
    bundle: Bundle
    images: str
    agreements: tuple[Agreement, ...]
    quantized: Quantized | None
    trials: tuple["RuntimeTrial", ...] = ()

    @property
    def agreement(self) -> float:
        """Fraction of predictions that are PyTorch's, at the size where they are fewest; in 8 bits those of float."""
        if self.quantized is not None:
            return self.quantized.verdict.agreement
        return min(one.top1 for one in self.agreements)

    def to_dict(self) -> dict[str, Any]:
        """What `verify.json` holds, with the folder and what is in it."""
        return {"folder": str(self.folder), "bundle": describe(self.bundle, self.folder), "verified": report(self)}

    def __repr__(self) -> str:
        """What was written, in words."""
        bundle = self.bundle
        same = ", ".join(f"{one.size[0]}×{one.size[1]}: {100 * one.top1:.1f} %" for one in self.agreements)
        return f"{bundle.model} ({bundle.task}, {bundle.kind}) in {self.folder}; same predictions as PyTorch at {same}"


@checked
def export(
    source: str | Path,
    out: str | Path | None = None,
    *,
    format: str = "onnx",
    images: str | Path | None = None,
    int8: bool = False,
    margin: float = 0.01,
    size: tuple[int, int] | None = None,
    fastest: bool = False,
    runtime: str | Path | None = None,
    download: bool = False,
    tta: str | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> Exported:
    """Write a model as a bundle: a folder with the model, how to prepare images, and how near it is to PyTorch.

    Args:
        source: Folder of a run or of folds, runs between commas, weight file, or name of a model (whose weights are
            random then).
        out: Folder to write; None puts it into the run's folder, or beside the weights, or here.
        format: `onnx`, `pt2`, `openvino`, or `web`: an ONNX bundle with a page that runs it in the browser.
        images: Data or a folder of images to verify and calibrate with; None takes the run's own, or two photographs.
        int8: Whether to quantize to 8 bits; only as `onnx` or `web`.
        margin: Fraction of right predictions that 8 bits may cost.
        size: Height and width that images are shown in; None takes the model's own.
        fastest: Whether to try the formats and precisions that run without torch, and to keep the one that is fastest
            on this machine for one image within the margin; `verify.json` has the times of all.
        runtime: Of the format `web`: folder of an unpacked onnxruntime-web; None takes what was downloaded before.
        download: Whether onnxruntime-web may be taken from npm.
        tta: Of a classifier: views (`flip`, `vflip`) whose predictions the bundle merges.
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
    if fastest and (format != "onnx" or int8):
        raise ValueError("--fastest chooses format and bits itself; leave --format and --int8 out.")
    if format != "web" and (runtime is not None or download):
        raise ValueError(f"--runtime and --download are for the format web, not for {format}; leave them out.")
    found_runtime = find_runtime(runtime, download) if format == "web" else None
    kind = "onnx" if format == "web" else format
    predictor = open_exportable(source, size, tta)
    if format == "web" and predictor.preprocessing.channels != 3:
        raise ValueError(
            f"{predictor.name} sees {colour(predictor.preprocessing.channels)} images, and browsers show red, green "
            "and blue; leave --format web out."
        )
    folder = Path(out) if out is not None else default_folder(predictor, "fastest" if fastest else format, int8)
    refuse_target(folder, force)
    calibration = find_calibration(predictor, images)
    if int8:
        refuse_int8(predictor, calibration)
    with writing_folder(folder) as part:
        if fastest:
            found, trials = race(predictor, part, calibration, margin, progress)
        else:
            precision = "int8" if int8 else "float32"
            found, trials = write_candidate(predictor, kind, precision, part, calibration, margin, progress), ()
        found = replace(found, folder=folder, trials=trials)
        bundle = found.bundle
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


def to_bundle(predictor: Predictor, kind: str, axes: Axes, precision: str) -> Bundle:
    """The description of what is exported."""
    shown, model = predictor.preprocessing, predictor.model
    with torch.no_grad():
        outputs = Exportable(model).outputs(torch.zeros(1, shown.channels, *shown.size))
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
        int8=precision == "int8",
        bfloat16=precision == "bfloat16",
        task=predictor.task,
        outputs=tuple(outputs),
        postprocessing=known() if known else {"name": get_task(predictor.task).postprocessing},
        fit=fit,
        settings=dict(predictor.settings),
    )


def check(predictor: Predictor, bundle: Bundle, folder: Path, calibration: CalibrationSet) -> list[Agreement]:
    """How near the written model is to PyTorch."""
    runner = open_runner(folder, bundle)
    if bundle.fit is None:
        labelled = calibration.labelled and bundle.postprocessing["name"] == "classes"
        sides = {"any_batch": bundle.any_batch, "any_size": bundle.any_size}
        found = compare(predictor, runner, calibration.measure, **sides, labelled=labelled)
    else:
        found = compare_dense(predictor, bundle, runner, calibration.measure, calibration.labelled)
    return found


@dataclass(frozen=True)
class RuntimeTrial:
    """A format in a precision that was tried for the fastest.

    Attributes:
        format: `onnx` or `openvino`.
        precision: `float32`, `bfloat16` or `int8`.
        milliseconds: Of one image, median over rounds in which all took turns; None where it is out.
        ratio: Time by that of ONNX in float32 within rounds.
        agreement: Fraction of predictions that are PyTorch's, at the size where they are fewest.
        reason: Why it is out; None if it is not.
    """

    format: str
    precision: str
    milliseconds: Interval | None
    ratio: Interval | None
    agreement: float | None
    reason: str | None


RACED = (("onnx", "float32"), ("openvino", "float32"), ("openvino", "bfloat16"), ("onnx", "int8"))
ROUNDS = 15


def race(
    predictor: Predictor, folder: Path, calibration: CalibrationSet, margin: float, progress: Progress
) -> tuple[Exported, tuple[RuntimeTrial, ...]]:
    """Write a model in several ways, measure one image in turns, and keep the fastest within the margin."""
    made: dict[tuple[str, str], Exported] = {}
    reasons: dict[tuple[str, str], str] = {}
    tasks: dict[tuple[str, str], TimedCall] = {}
    shape = (1, predictor.preprocessing.channels, *predictor.preprocessing.size)
    image = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    for kind, precision in progress(RACED, "Trying formats and precisions", len(RACED)):
        part = folder / f"{kind}-{precision}"
        part.mkdir()
        try:
            if precision != "float32":
                refuse_precision(precision)
            refuse_format(kind, False, margin)
            one = write_candidate(predictor, kind, precision, part, calibration, margin, no_progress)
            tasks[kind, precision] = make_task(partial(open_runner(part, one.bundle), image), torch.device("cpu"))
            made[kind, precision] = one
        except ValueError as error:  # a package that is missing, another CPU, or predictions that changed
            reasons[kind, precision] = str(error)
    if not made:
        raise ValueError(f"Nothing can be exported: {next(iter(reasons.values()))}")
    seconds = take_turns(tasks, [key for _ in range(ROUNDS) for key in tasks])
    best = min(made, key=lambda key: float(np.median(seconds[key])))
    first = next(iter(made))
    trials = []
    for key in RACED:
        times, ratio, agreement = None, None, None
        if key in made:
            times = median_interval([1e3 * value for value in seconds[key]])
            ratio, agreement = ratio_interval(seconds[key], seconds[first]), made[key].agreement
        trials.append(RuntimeTrial(*key, times, ratio, agreement, reasons.get(key)))
    for name in FILES[best[0]]:
        (folder / "-".join(best) / name).replace(folder / name)
    for key in RACED:
        shutil.rmtree(folder / "-".join(key))
    return made[best], tuple(trials)


def write_candidate(
    predictor: Predictor,
    kind: str,
    precision: str,
    folder: Path,
    calibration: CalibrationSet,
    margin: float,
    progress: Progress,
) -> Exported:
    """Write a model in a format and a precision into a folder, and hold it against PyTorch.

    Raises:
        ValueError: It can't be written, or its predictions differ from PyTorch's by more than is allowed.
    """
    if precision == "int8":
        refuse_int8(predictor, calibration)
    axes = write_model(predictor.model, kind, folder, predictor.preprocessing.size)
    bundle = to_bundle(predictor, kind, axes, precision)
    agreements = check(predictor, bundle, folder, calibration)
    if precision != "bfloat16":
        refuse_disagreement(agreements, calibration.what)
    elif (lost := 1 - min(one.top1 for one in agreements)) > margin:
        raise ValueError(
            f"In bfloat16 {100 * lost:.1f} % of the predictions for {calibration.what} change, and {100 * margin:g} "
            "are allowed."
        )
    quantized = None
    if precision == "int8":
        quantized = shrink(predictor, bundle, folder, calibration, margin, progress)
    return Exported(folder, bundle, calibration.what, tuple(agreements), quantized)


def refuse_int8(predictor: Predictor, calibration: CalibrationSet) -> None:
    """Refuse to quantise what has no class to judge it by, or no images to calibrate it with."""
    if hasattr(predictor.model, "postprocessing") or get_task(predictor.task).postprocessing != "classes":
        raise ValueError(f"--int8 is for classifiers so far; {predictor.name} was trained to {predictor.task}.")
    if calibration.calibrate is None:
        raise ValueError(f"--int8 needs images like those of the later use, not {calibration.what}; give --images.")


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
    if found.trials:
        about["trials"] = [asdict(trial) for trial in found.trials]
        about["machine"] = {"cpu": processor(), "instructions": instructions(), "threads": os.cpu_count()}
    if found.quantized is not None:
        about["int8"] = asdict(found.quantized) | {"kept": list(found.quantized.kept)}
    return about
