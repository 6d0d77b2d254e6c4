"""Models in the ONNX format, in its standard operators alone."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from .operators import plainly
from .program import INPUT, OUTPUT, Axes, record, written_whole
from .runtime import need

OPSET = 20  # the first with GELU as one operator


def write_onnx(model: nn.Module, path: Path, size: tuple[int, int]) -> Axes:
    """Write a model as an ONNX file in float32, in one file, with input `images` and output `logits`.

    Args:
        model: Takes images `[B, C, H, W]`, returns `[B, classes]`; in evaluation mode, usually folded.
        path: File to write.
        size: Height and width of the images that it is recorded with, and the only ones where other sizes can't be.

    Returns:
        Which sides of the input the file leaves open.

    Raises:
        ValueError: A package is missing, or the model can't be exported.
        OSError: The file can't be written.

    Example:
        >>> import tempfile, nearsight
        >>> model = nearsight.create_model("dwnet_nano", num_classes=10).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_onnx(model, Path(folder) / "model.onnx", (32, 32))
        Axes(batch=True, size=True)
    """
    for package in ("onnx", "onnxscript"):
        need(package, "Writing an ONNX file")
    with written_whole(path) as part, quietly():
        program, axes = record(model, size)
        translated = translate(program)
        tidy(translated)
        name_axes(translated.model, axes)
        translated.save(part, external_data=False)
    return axes


def translate(program: ExportedProgram) -> Any:
    """The graph in ONNX's operators, a `torch.onnx.ONNXProgram`.

    PyTorch would first trace the graph twice more, with symbols for sizes, to break up operators; that takes a minute
    for a model of middling size. The library of translations knows nearly all operators as they were recorded, so that
    is done only where one is missing.
    """
    whole = copy.copy(program)
    plainly(whole)
    whole.run_decompositions = lambda table=None: whole  # type: ignore[method-assign, assignment]
    try:
        return to_onnx(whole)
    except torch.onnx.OnnxExporterError:
        return to_onnx(program)


def to_onnx(program: ExportedProgram) -> Any:
    """PyTorch's translation, without its optimiser: runtimes fold constants faster when they load the file."""
    return torch.onnx.export(
        program,
        input_names=[INPUT],
        output_names=[OUTPUT],
        opset_version=OPSET,
        dynamo=True,
        optimize=False,
        verbose=False,
    )


def tidy(translated: Any) -> None:
    """Compute once what several blocks compute alike, sizes above all, and drop what nobody reads."""
    from onnx_ir.passes import common

    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.DeduplicateInitializersPass(),
        common.RemoveUnusedNodesPass(),
    ):
        translated.model = step(translated.model).model


def name_axes(graph: Any, axes: Axes) -> None:
    """Give the open axes the names that people look for; `graph` is a model of the package `onnx_ir`."""
    images = graph.graph.inputs[0]
    names = {str(images.shape[axis]): name for axis, name in axes.names().items()}
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        for axis, side in enumerate(value.shape):
            if str(side) in names:
                value.shape[axis] = names[str(side)]


@contextmanager
def quietly() -> Iterator[None]:
    """The exporter without its remarks on missing optional packages and on names of dimensions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
