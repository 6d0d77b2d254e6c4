"""A model as a graph: one recording that serves any number of images, of any size where the model takes any.

The graph is that of `torch.export`. It is a format of its own (`.pt2`), and what `onnx.py` translates.
"""

import io
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from ..atomic import claimed_part
from ..console import first_line
from ..tasks.build import channels_seen

INPUT = "images"
EXAMPLE_BATCH = 2  # one image would be taken for "always one"
# What happens to hold for the example is taken for a law: that a map has one cell, that windows fit, that two sides are
# equal. Here nothing fits: up to stride 32, each map is one cell more than a multiple of 2, 4, 7 and 8. Nothing is
# computed on it, so it may be large.
EXAMPLE_SIZE = (32 * 56 + 1, 32 * 112 + 1)


class Exportable(nn.Module):
    """A model as it is exported: images `[B, C, H, W]` to a tuple of tensors.

    A detector or segmenter says itself where its graph ends (`export_outputs`); a classifier gives its logits.

    Attributes:
        any_batch: Whether the graph may take several images at once.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.any_batch: bool = getattr(getattr(model, "head", None), "any_batch", True)
        self.training = model.training

    def outputs(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors by name."""
        known = getattr(self.model, "export_outputs", None)
        return known(images) if known else {"logits": self.model(images).float()}  # averages are of float64

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.outputs(images).values())


@dataclass(frozen=True)
class Axes:
    """Which sides of the input `[B, C, H, W]` a graph leaves open.

    Attributes:
        batch: Any number of images.
        size: Any height and width.

    Example:
        >>> Axes(batch=True, size=False).names()
        {0: 'batch'}
    """

    batch: bool
    size: bool

    def names(self) -> dict[int, str]:
        """The open axes by number."""
        return ({0: "batch"} if self.batch else {}) | ({2: "height", 3: "width"} if self.size else {})


def write_program(model: nn.Module, path: Path, size: tuple[int, int]) -> Axes:
    """Write a model as a program of `torch.export` (`.pt2`).

    Args:
        model: Takes images `[B, C, H, W]`, returns `[B, classes]` or has `export_outputs`; in evaluation mode.
        path: File to write.
        size: Height and width of the images that it is recorded with, and the only ones where other sizes can't be.

    Returns:
        Which sides of the input the program leaves open.

    Example:
        >>> import tempfile, nearsight
        >>> model = nearsight.create_model("dwnet_nano", num_classes=10).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_program(model, Path(folder) / "model.pt2", (32, 32))
        Axes(batch=True, size=True)
    """
    with written_whole(path) as part:
        program, axes = record(Exportable(model), size)
        stream = io.BytesIO()  # on a full disk PyTorch's own file ends the process
        torch.export.save(program, stream)
        part.write_bytes(stream.getbuffer())
    return axes


def record(model: Exportable, size: tuple[int, int]) -> tuple[ExportedProgram, Axes]:
    """The graph of a model, with as many sides of the input open as the model allows.

    Raises:
        ValueError: The model is in training mode, or can't be recorded even for one size.
    """
    if model.training:
        raise ValueError("The model is in training mode; call model.eval() before it is exported.")
    reasons = []
    ways = (Axes(batch=True, size=True), Axes(batch=True, size=False), Axes(batch=False, size=False))
    for axes in ways if model.any_batch else (Axes(batch=False, size=True), Axes(batch=False, size=False)):
        try:
            return capture(model, size, axes), axes
        except Exception as error:  # torch.export fails with many classes on a model that asks for its sizes
            reasons.append(error)
    raise ValueError(
        f"{type(model.model).__name__} can't be exported: torch.export says {first_line(reasons[-1])}."
    ) from reasons[-1]


def capture(model: Exportable, size: tuple[int, int], axes: Axes) -> ExportedProgram:
    """The graph of a model with these sides open; raises where the graph would hold for some of these sizes only."""
    height, width = EXAMPLE_SIZE if axes.size else size
    device = next(model.parameters()).device
    images = torch.empty(EXAMPLE_BATCH if axes.batch else 1, channels_seen(model.model), height, width, device=device)
    open_sides = {axis: Dim.DYNAMIC for axis in axes.names()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (images,), dynamic_shapes=(open_sides,), strict=False)
    loosen(program, images.shape[1])
    return program


def loosen(program: ExportedProgram, channels: int) -> None:
    """Take out the conditions on sizes that stem from the layout in memory that the example happened to have.

    PyTorch notes for each recorded view, and for the result of each convolution, how its strides compare; the program
    would then refuse images for which it is otherwise, down to one image, or a map of one cell. A reshape looks at the
    strides when it runs. An equation of sizes, though, was used to simplify the graph; it may stand for a law that
    PyTorch can't prove, such as `4 * n % 4 == 0`.

    Raises:
        ValueError: There is an equation that does not hold for all sizes.
    """
    for fact in program._guards_code:
        if "==" in fact and not is_law(fact, channels):
            raise ValueError(f"the graph would hold only where {fact}")
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    program.graph_module.recompile()
    program._guards_code = []
    program._example_inputs = None  # megabytes that nobody needs in a file
    for symbol, values in program.range_constraints.items():
        program.range_constraints[symbol] = ValueRanges(1, values.upper)


def is_law(fact: str, channels: int) -> bool:
    """Whether a condition on the size of the images, as PyTorch writes it, holds for all that are tried."""
    code = compile(fact, "guard", "eval")
    shapes = [(batch, height, width) for batch in (1, 5) for height in range(32, 160, 3) for width in (47, 64, 150)]
    for batch, height, width in shapes:
        images = torch.empty(batch, channels, height, width, device="meta")
        if not eval(code, {"L": defaultdict(lambda: images), "torch": torch}):  # noqa: B023 (used at once)
            return False
    return True


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A file to write, under its own name since some formats note it inside, which becomes `path` when all is written.

    Raises:
        OSError: The folder is not there or can't be written to; raised before any work.
    """
    with claimed_part(path, folder=True) as folder:
        yield folder / path.name
        (folder / path.name).replace(path)
