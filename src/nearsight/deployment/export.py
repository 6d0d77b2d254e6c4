"""From a model to a bundle: written, verified against PyTorch, and only then put in its place."""

import platform
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..runs.bundle import ABOUT, CLASSES, FILES, VERIFIED, Bundle, describe, refuse_target, write_json, writing_bundle
from ..runs.predictor import Predictor
from ..runs.runtime import need, open_runner
from .calibration import Pictures, find_pictures
from .model import open_exportable
from .program import Axes, Exportable, write_program
from .quantise import Progress, Quantised, no_progress, quantise
from .verify import TOLERANCE, Agreement, compare, compare_dense, refuse_disagreement

# What writing and running each kind takes beside torch.
NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino"), "pt2": ()}


@dataclass(frozen=True, repr=False)
class Exported:
    """A bundle that was written.

    Attributes:
        folder: Where it is.
        bundle: What it holds.
        images: What it was verified with, in words.
        agreements: How near its float model is to PyTorch, at each size.
        quantised: What 8 bits cost; None for a float model.
    """

    folder: Path
    bundle: Bundle
    images: str
    agreements: tuple[Agreement, ...]
    quantised: Quantised | None

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
    force: bool = False,
    progress: Progress = no_progress,
) -> Exported:
    """Write a model as a bundle: a folder with the model, how to prepare images, and how near it is to PyTorch.

    Args:
        source: Folder of a run, weight file, or name of a model (whose weights are random then).
        out: Folder to write; None puts it into the run's folder, or beside the weights, or here.
        format: `onnx`, `pt2` or `openvino`.
        images: Data or a folder of images to verify and calibrate with; None takes the run's own, or two photographs.
        int8: Whether to quantise to 8 bits; only as `onnx`.
        margin: Share of right answers that 8 bits may cost.
        size: Height and width that images are shown in; None takes the model's own.
        force: Whether a bundle that is there already is replaced.
        progress: Wraps what takes time, to show how far the work is.

    Returns:
        The bundle; it is complete, or there is none.

    Raises:
        ValueError: Something can't be done, the answers differ from PyTorch's, or 8 bits cost more than the margin.
        OSError: The folder can't be written.

    Example:
        >>> import tempfile
        >>> found = export("deit_nano", Path(tempfile.mkdtemp()) / "bundle", format="pt2")
        >>> sorted(file.name for file in found.folder.iterdir())
        ['model.pt2', 'preprocess.json', 'verify.json']
        >>> found.agreements[0].top1
        1.0
    """
    refuse_kind(format, int8, margin)
    subject = open_exportable(source, size)
    folder = Path(out) if out is not None else default_folder(subject, format, int8)
    refuse_target(folder, force)
    pictures = find_pictures(subject, images)
    if int8 and hasattr(subject.model, "postprocessing"):
        raise ValueError(f"--int8 is for classifiers so far; {subject.name} was trained to {subject.task}.")
    if int8 and pictures.calibrate is None:
        raise ValueError(f"--int8 needs images like those of the later use, not {pictures.what}; give --images.")
    with writing_bundle(folder) as part:
        axes = write_model(subject.model, format, part, subject.preprocessing.size)
        bundle = to_bundle(subject, format, axes, int8)
        agreements = check(subject, bundle, part, pictures)
        quantised = None
        if int8:
            quantised = shrink(part / FILES[format][0], pictures, subject, margin, progress)
            check_runs(subject, bundle, part, pictures)
        found = Exported(folder, bundle, pictures.what, tuple(agreements), quantised)
        write_json(part / ABOUT, describe(bundle, part))
        write_json(part / VERIFIED, report(found))
    return found


def refuse_kind(kind: str, int8: bool, margin: float) -> None:
    """Refuse what can't be written, before any work."""
    if kind not in FILES:
        raise ValueError(f"There is no format {kind!r}; use {', '.join(FILES)}.")
    if int8 and kind != "onnx":
        raise ValueError(f"--int8 is for the format onnx, not for {kind}; leave one of them out.")
    if not 0 <= margin <= 1:
        raise ValueError(f"--margin {margin:g} is no share; 0.01 stands for one point of accuracy.")
    for package in NEEDED[kind]:
        need(package, f"The format {kind}")


def default_folder(subject: Predictor, kind: str, int8: bool) -> Path:
    """Where a bundle goes unless somebody says otherwise."""
    suffix = f"{kind}-int8" if int8 else kind
    if subject.path is None:
        return Path(f"{subject.name.replace('/', '-')}-{suffix}")
    return subject.path.with_name(f"export-{suffix}")


def write_model(model: nn.Module, kind: str, folder: Path, size: tuple[int, int]) -> Axes:
    """Write a folded model in a format; returns which of its sides are open."""
    from ..models.fold import fold
    from .onnx import write_onnx
    from .openvino import write_openvino

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


def to_bundle(subject: Predictor, kind: str, axes: Axes, int8: bool) -> Bundle:
    """The description of what is exported."""
    shown, model = subject.preprocessing, subject.model
    with torch.no_grad():
        outputs = Exportable(model).outputs(torch.zeros(1, 3, *shown.size))
    known = getattr(model, "postprocessing", None)
    fit = None
    if shown.dense:
        fit = {"min_size": shown.min_size, "max_size": shown.most, "stretch": shown.stretch}
    return Bundle(
        kind=kind,
        model=subject.name,
        weights=subject.weights,
        labels=subject.classes,
        size=shown.size,
        crop=1.0 if fit else shown.crop,
        mean=shown.mean,
        std=shown.std,
        any_batch=axes.batch,
        any_size=axes.size,
        int8=int8,
        task=subject.task,
        outputs=tuple(outputs),
        postprocessing=known() if known else dict(CLASSES),
        fit=fit,
        settings=dict(subject.settings),
    )


def check(subject: Predictor, bundle: Bundle, folder: Path, pictures: Pictures) -> list[Agreement]:
    """How near the written model is to PyTorch; too far is refused."""
    runner = open_runner(folder, bundle)
    if bundle.fit is None:
        found = compare(subject, runner, pictures.measure, any_batch=bundle.any_batch, any_size=bundle.any_size)
    else:
        found = compare_dense(subject, bundle, runner, pictures.measure, pictures.labelled)
    refuse_disagreement(found, pictures.what)
    return found


def shrink(file: Path, pictures: Pictures, subject: Predictor, margin: float, progress: Progress) -> Quantised:
    """Put a model of 8 bits in the place of a float one."""
    small = file.with_name(f"small-{file.name}")
    quantised = quantise(file, small, pictures, subject.preprocessing, margin=margin, progress=progress)
    small.replace(file)
    return quantised


def check_runs(subject: Predictor, bundle: Bundle, folder: Path, pictures: Pictures) -> None:
    """Run a model of 8 bits at all sizes; its answers were judged before, here they only have to be numbers."""
    runner = open_runner(folder, bundle)
    for one in compare(subject, runner, pictures.measure, any_batch=bundle.any_batch, any_size=bundle.any_size):
        if not one.max_abs < float("inf"):
            raise ValueError(f"In 8 bits the model gives no numbers at {one.size[0]}×{one.size[1]} pixels.")


def report(found: Exported) -> dict[str, Any]:
    """What is written to `verify.json`."""
    packages = ("torch", *NEEDED[found.bundle.kind])
    about: dict[str, Any] = {
        "images": found.images,
        "tolerance": TOLERANCE,
        "against": "PyTorch, before folding and export",
        "sizes": [one.as_dict() for one in found.agreements],
        "versions": {package: version(package) for package in packages} | {"python": platform.python_version()},
    }
    if found.quantised is not None:
        about["int8"] = asdict(found.quantised) | {"kept": list(found.quantised.kept)}
    return about
