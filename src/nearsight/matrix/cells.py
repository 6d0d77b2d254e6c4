"""Which part fits which host, found by doing it."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..retrofit.localize import localize
from ..retrofit.options import localized_of
from .examples import EXAMPLES, Example

PARTS = (
    ("ffn", "localvit"),
    ("ffn", "bigate"),
    ("qkv", "life"),
    ("mixer", "depthwise"),
    ("mixer", "dynamic_depthwise"),
    ("mixer", "gather_broadcast"),
    ("mixer", "squeezed"),
    ("merge", "deformable"),
)
CLASSES = 4


@dataclass(frozen=True)
class Cell:
    """What was found for a host and a part.

    Attributes:
        family: The host.
        slot: The slot.
        part: The part.
        built: `localize` took it.
        preserved: The answers stayed the same to the last bit, at two sizes where the host has two, for 1 and 3 images.
        trains: By the second step every new parameter had a gradient.
        exports: The ONNX file of the trained model gave its answers; None if that was not tried.
        exact: It was also built and trained with `preserve=False`.
        reason: Why it was not built.
    """

    family: str
    slot: str
    part: str
    built: bool = False
    preserved: bool = False
    trains: bool = False
    exports: bool | None = None
    exact: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure_cells(families: Iterable[str] = (), parts: Iterable[str] = (), *, export: bool = True) -> Iterator[Cell]:
    """Try every part in every host, host by host.

    Args:
        families: Hosts to try; none for all.
        parts: Parts to try; none for all.
        export: Also write ONNX files and run them, which takes most of the time.

    Example:
        >>> next(measure_cells(["ViT"], ["localvit"], export=False)).preserved
        True
    """
    for cells in measure_hosts(families, parts, export=export):
        yield from cells


def measure_hosts(
    families: Iterable[str] = (), parts: Iterable[str] = (), *, export: bool = True, known: Sequence[Cell] = ()
) -> Iterator[list[Cell]]:
    """The cells of one host after the other; hosts whose cells are known already are not tried again.

    Example:
        >>> next(measure_hosts(["ViT"], ["life"], known=[Cell("ViT", "qkv", "life", reason="not tried")]))[0].reason
        'not tried'
    """
    hosts, tried = choose_cells(families, parts)
    for example in hosts:
        held = {cell.part: cell for cell in known if cell.family == example.family}
        if all(part in held for _, part in tried):
            yield [held[part] for _, part in tried]
        else:
            cells = [measure_cell(example, slot, part) for slot, part in tried]
            yield list(with_exports(example, cells)) if export else cells


def number_of_cells(families: Iterable[str] = (), parts: Iterable[str] = ()) -> int:
    """How many cells `measure_cells` measures."""
    hosts, tried = choose_cells(families, parts)
    return len(hosts) * len(tried)


def choose_cells(families: Iterable[str], parts: Iterable[str]) -> tuple[list[Example], list[tuple[str, str]]]:
    """Hosts and parts by name, all where none is named; unknown names are refused."""
    wanted, pieces = set(families), set(parts)
    known, named = [example.family for example in EXAMPLES], [part for _, part in PARTS]
    for wrong in sorted(wanted - set(known)):
        raise ValueError(f"There is no host {wrong!r} in the matrix; there are {', '.join(known)}.")
    for wrong in sorted(pieces - set(named)):
        raise ValueError(f"There is no part {wrong!r} in the matrix; there are {', '.join(named)}.")
    hosts = [example for example in EXAMPLES if not wanted or example.family in wanted]
    return hosts, [pair for pair in PARTS if not pieces or pair[1] in pieces]


def measure_cell(example: Example, slot: str, part: str) -> Cell:
    """Try one part in one host, without exporting it."""
    slots: dict[str, Any] = {slot: part}
    exact = is_trainable(example, slots)
    try:
        local = localize(stirred(example), **slots)
    except ValueError as error:
        return Cell(example.family, slot, part, exact=exact, reason=str(error))
    preserved = all(is_same(example, slots, size) for size in dict.fromkeys((example.size, example.other)))
    trains = all(learns(local, example).values())
    return Cell(example.family, slot, part, True, preserved, trains, None, exact)


def with_exports(example: Example, cells: Sequence[Cell]) -> Iterator[Cell]:
    """The cells of a host with what came of exporting them.

    Parts of several slots go into one file: if its answers are right, each of them is. If not, each is tried alone.
    """
    found: dict[str, bool] = {}
    waiting = [cell for cell in cells if cell.built]
    while waiting:
        together = list({cell.slot: cell for cell in reversed(waiting)}.values())  # the first of each slot
        waiting = [cell for cell in waiting if cell not in together]
        if exports(example, together):
            found |= {cell.part: True for cell in together}
        else:
            found |= {cell.part: len(together) > 1 and exports(example, [cell]) for cell in together}
    for cell in cells:
        yield replace(cell, exports=found.get(cell.part))


def exports(example: Example, cells: Sequence[Cell]) -> bool:
    """Whether a host with these parts, trained for two steps, gives its answers as an ONNX file."""
    slots: dict[str, Any] = {cell.slot: cell.part for cell in cells}
    local = localize(stirred(example), **slots)
    learns(local, example)
    return is_same_in_onnx(local.eval(), example.size)


@torch.no_grad()
def stirred(example: Example, size: tuple[int, int] | None = None) -> nn.Module:
    """A host with random numbers everywhere, also where a fresh one has zeros or ones."""
    torch.manual_seed(0)
    model = example.build(size, num_classes=CLASSES)
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def for_size(example: Example, size: tuple[int, int]) -> nn.Module:
    """A host for a size."""
    if size == example.size or example.resize == "build":
        return stirred(example, size)
    model: Any = stirred(example)
    if example.resize == "set" and hasattr(model, "set_input_size"):
        model.set_input_size(size)
    return model


@torch.no_grad()
def is_same(example: Example, slots: dict[str, Any], size: tuple[int, int]) -> bool:
    """Whether answers stay the same to the last bit."""
    plain = for_size(example, size)
    local = localize(plain, **slots)
    batches = [torch.randn(batch, 3, *size) for batch in (1, 3)]
    return all(torch.equal(local(images), plain(images)) for images in batches)


def learns(model: nn.Module, example: Example) -> dict[str, bool]:
    """Two steps of training; tells of each new parameter whether it has a gradient in the second."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        answer = model(torch.randn(CLASSES, 3, *example.size))
        logits: Tensor = answer[0] if isinstance(answer, tuple) else answer  # VOLO and distilled models have two
        F.cross_entropy(logits, torch.arange(CLASSES)).backward()
        optimizer.step()
    done = localized_of(model)
    new = done.new if done else ()
    return {n: p.grad is not None and bool(p.grad.any()) for n, p in model.named_parameters() if n in new}


def is_trainable(example: Example, slots: dict[str, Any]) -> bool:
    """Whether the part also takes the place of the host's own, and learns there."""
    try:
        local = localize(stirred(example), **slots, preserve=False)
    except ValueError:
        return False
    return any(learns(local, example).values())


def is_same_in_onnx(model: nn.Module, size: tuple[int, int]) -> bool:
    """Whether the file for other runtimes gives the model's answers, for images of one size."""
    from ..deployment.runtime import FATAL, need

    runtime = need("onnxruntime", "The matrix")
    quiet = runtime.SessionOptions()
    quiet.log_severity_level = FATAL
    images = torch.randn(1, 3, *size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if not write_for_size(model, path, size):
            return False
        session = runtime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"])
        answer = session.run(None, {"images": images.numpy()})[0]
    with torch.no_grad():
        return torch.allclose(torch.from_numpy(answer), model(images), rtol=1e-3, atol=1e-4)


def write_for_size(model: nn.Module, path: Path, size: tuple[int, int]) -> bool:
    """Write an ONNX file; returns whether the model could be recorded.

    `write_onnx` would first try for any size, which takes most of its time.
    """
    from ..deployment.onnx import quietly, tidy, translate
    from ..deployment.program import Axes, capture

    with quietly():
        for batch in (True, False):
            try:
                translated = translate(capture(model, size, Axes(batch=batch, size=False)))
            except Exception:  # torch.export fails in many ways on a model that asks for its sizes
                continue
            tidy(translated)
            translated.save(path, external_data=False)
            return True
    return False
