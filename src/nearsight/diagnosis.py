"""What is installed, what the machine has, and whether every fast path computes what its reference does here."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import __version__
from .arguments import checked
from .console import first_line
from .factory import create_model
from .lattice import Grid
from .models.fold import fold
from .ops.attention import add_from_few, window_attention
from .ops.chunks import PIECE, by_images, in_chunks
from .ops.deform import (
    deformable_2x2_reference,
    deformable_2x2_sampled,
    deformable_2x2_summed,
    deformable_2x2_torchvision,
)
from .ops.dynamic import convolve_each_by_image, convolve_each_by_offsets, convolve_each_in_groups
from .ops.life import ScaleWeights, cascade
from .ops.predicted import convolve_predicted
from .ops.sliding import (
    gather_offsets,
    gather_offsets_at_once,
    offset_products,
    unfold_gather_offsets,
    unfold_offset_products,
)
from .result import Result
from .runs.predictor import pick_device
from .runs.run import processor

PACKAGES = (
    *("torch", "torchvision", "timm", "numpy", "accelerate", "safetensors", "faster-coco-eval", "onnxruntime"),
    *("openvino", "gradio", "starlette", "optuna", "pyarrow", "datasets"),
)
TOLERANCE = 2e-4  # of the largest number, float32 on the device against float64 on the CPU
MODELS = (
    *("deit_nano", "localvit_nano", "lit_nano", "dwnet_nano", "ddwnet_nano", "iddwnet_nano", "lightvit_nano"),
    *("deit_nano_life", "swin_nano", "pvt_nano", "near_nano"),
)


@dataclass(frozen=True)
class Check:
    """A fast path beside its reference.

    Attributes:
        name: What was tried.
        error: Largest difference, as a fraction of the reference's largest number; forward and, where it is trained,
            backward. None if it failed.
        problem: What went wrong; None if nothing did.
        seconds: How long it took.
    """

    name: str
    error: float | None
    problem: str | None
    seconds: float


@dataclass(frozen=True)
class Diagnosis(Result):
    """What `doctor` found.

    Attributes:
        versions: Of Nearsight, Python and packages; only of those that are installed.
        system: Operating system and processor.
        instructions: The widest instruction set that PyTorch uses on this processor.
        threads: CPU threads of PyTorch, and cores of the machine.
        devices: What there is to compute on, the best first.
        device: What the checks ran on.
        checks: Every fast path beside its reference.
    """

    versions: dict[str, str]
    system: str
    instructions: str
    threads: tuple[int, int]
    devices: tuple[str, ...]
    device: str
    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        """Checks that failed."""
        return tuple(check for check in self.checks if check.problem is not None)

    @property
    def line(self) -> str:
        """All of it in one line, to paste into an issue; it names no folder, user or host."""
        versions = " ".join(f"{name} {version}" for name, version in self.versions.items())
        found = ", ".join(f"{check.name}: {check.problem}" for check in self.problems) or "none"
        return (
            f"{versions} | {self.system} | {self.instructions}, {self.threads[0]} of {self.threads[1]} threads | "
            f"{', '.join(self.devices)} | checked on {self.device}: {len(self.checks)}, problems: {found}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has."""
        return asdict(self) | {"line": self.line}

    def __repr__(self) -> str:
        return f"Diagnosis({len(self.checks)} checks on {self.device}, {len(self.problems)} problems)"


@checked
def doctor(device: "torch.device | str | None" = None) -> Diagnosis:
    """Look at versions and devices, and hold every fast path to its reference on a device.

    Args:
        device: To try; None takes a GPU if there is one.

    Raises:
        ValueError: There is no such device.

    Example:
        >>> found = doctor("cpu")
        >>> found.problems, found.versions["nearsight"] == __version__
        ((), True)
    """
    where = pick_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        checks = tuple(try_out(name, case) for name, case in cases(where))
    capability = torch.backends.cpu.get_cpu_capability()
    threads = (torch.get_num_threads(), os.cpu_count() or 1)
    system = f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}, {processor()}"
    return Diagnosis(installed(), system, capability, threads, devices(), str(where), checks)


def installed() -> dict[str, str]:
    """Versions of what is installed."""
    found = {"nearsight": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def devices() -> tuple[str, ...]:
    """What there is to compute on, the best first."""
    found = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        found.append(f"cuda:{number} {about.name} {about.total_memory / 2**30:.0f} GB")
    if torch.backends.mps.is_available():
        found.append("mps")
    return (*found, "cpu")


Case = Callable[[], float]  # runs a path and its reference, and gives the largest relative difference


def try_out(name: str, case: Case) -> Check:
    """Run a check; whatever it raises is its problem."""
    began = time.perf_counter()
    try:
        error = case()
    except Exception as failed:  # a device without the operator raises anything
        return Check(name, None, first_line(failed)[:200], time.perf_counter() - began)
    problem = None if error <= TOLERANCE else f"differs by {error:.1e} of the largest number"
    return Check(name, error, problem, time.perf_counter() - began)


def cases(device: torch.device) -> Iterator[tuple[str, Case]]:
    """Every fast path with its reference."""
    kernel, groups, channels = 5, 6, 4
    nhwc, weights = (2, 9, 7, groups, channels), (2, 9, 7, kernel**2, groups)
    for fast in (gather_offsets, gather_offsets_at_once):
        yield fast.__name__, compare(device, fast, unfold_gather_offsets, [nhwc, weights], kernel)
    yield "offset_products", compare(device, offset_products, unfold_offset_products, [nhwc, nhwc], kernel)
    shapes: list[tuple[int, ...]] = [nhwc, (2, 9, 7, 8), (groups * kernel**2, 8), (groups * kernel**2,)]
    yield "convolve_predicted", compare(device, convolve_predicted, plain_predicted, shapes, kernel)
    shapes = [(3, 8, 11, 9), (3, 8, 5, 5), (8,)]
    for each in (convolve_each_by_image, convolve_each_in_groups, convolve_each_by_offsets):
        yield each.__name__, compare(device, each, plain_each, shapes)
    shapes = [(2, 8, 10, 12), (2, 8, 5, 6), (16, 8, 2, 2), (16,)]
    for sampled in (deformable_2x2_summed, deformable_2x2_torchvision, deformable_2x2_sampled):
        yield sampled.__name__, compare(device, sampled, deformable_2x2_reference, shapes)
    yield "life_cascade", compare(device, fast_life, plain_life, [(2, 1 + 63, 12), (6, 12), (6, 1, 3, 3), (6, 6)])
    yield "fused_attention", compare(device, fused, plain_attention, [(2, 3, 40, 16)] * 3)
    windows = [(2, 14, 7, 24)] * 3
    yield "window_attention", compare(device, in_windows, plain_windows, windows, backward=False)
    few = [(2, 30, 24), (2, 30, 24), (2, 5, 24), (2, 5, 24)]
    yield "add_from_few", compare(device, from_few, plain_few, few, backward=False)
    pieces = [(3, 100, 16), (16, 16)]
    yield "in_chunks", compare(device, chunked, hidden_layer, pieces, backward=False)
    yield "by_images", compare(device, one_by_one, hidden_layer, pieces, backward=False)
    for name in MODELS:
        yield f"folded {name}", partial(folded_error, name, device)


def compare(
    device: torch.device,
    fast: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    shapes: Sequence[tuple[int, ...]],
    *settings: Any,
    backward: bool = True,
) -> Case:
    """A check of a function of tensors: float32 on the device against float64 on the CPU, with gradients."""

    def run() -> float:
        wide = [torch.randn(shape, dtype=torch.float64).requires_grad_(backward) for shape in shapes]
        near = [tensor.detach().to(device, torch.float32).requires_grad_(backward) for tensor in wide]
        wanted = reference(*wide, *settings)
        if not backward:
            with torch.inference_mode():
                return difference(fast(*(tensor.clone() for tensor in near), *settings), wanted)
        found = fast(*near, *settings)
        slope = torch.randn_like(wanted)
        gradients = torch.autograd.grad(wanted, wide, slope)
        ours = torch.autograd.grad(found, near, slope.to(found))
        pairs = zip([found, *ours], [wanted, *gradients], strict=True)
        return max(difference(one, other) for one, other in pairs)

    return run


def difference(found: Tensor, wanted: Tensor) -> float:
    """Largest difference, as a fraction of the largest number; infinite where shapes or numbers are no match."""
    if found.shape != wanted.shape or not found.isfinite().all():
        return float("inf")
    return float((found.detach().cpu().double() - wanted.detach()).abs().max() / wanted.detach().abs().max())


def plain_predicted(nhwc: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, kernel: int) -> Tensor:
    """Inhomogeneous dynamic convolution with every kernel and window written out."""
    weights = F.linear(hidden, weight, bias).unflatten(-1, (nhwc.shape[3], kernel**2)).transpose(3, 4)
    return unfold_gather_offsets(nhwc, weights, kernel)


def plain_each(nchw: Tensor, kernels: Tensor, bias: Tensor) -> Tensor:
    """Each image by itself with its own kernels."""
    side = kernels.shape[-1] // 2
    pairs = zip(nchw.split(1), kernels, strict=True)
    return torch.cat([F.conv2d(one, own[:, None], bias, padding=side, groups=len(own)) for one, own in pairs])


LIFE_GRID = Grid(9, 7, 1)


def fast_life(tokens: Tensor, first: Tensor, depth: Tensor, second: Tensor) -> Tensor:
    """Two scales of LIFE's cascade."""
    return cascade(tokens, LIFE_GRID, [ScaleWeights(None, first, None), ScaleWeights(depth, second, None)])


def plain_life(tokens: Tensor, first: Tensor, depth: Tensor, second: Tensor) -> Tensor:
    """The same with the convolution written as a sum over its offsets; see equations 3 and 4 of the paper."""
    one = F.linear(tokens, first)
    padded = F.pad(one[:, 1:].unflatten(1, (9, 7)), (0, 0, 1, 1, 1, 1))
    near = [padded[:, row : row + 9, column : column + 7] for row in range(3) for column in range(3)]
    mixed = torch.stack([part * depth[:, 0].flatten(1)[:, number] for number, part in enumerate(near)]).sum(0)
    two = F.linear(torch.cat((one[:, :1], mixed.flatten(1, 2)), dim=1), second)
    return torch.cat((one.unflatten(-1, (3, -1)), two.unflatten(-1, (3, -1))), dim=-1)


def fused(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Softmax attention by PyTorch's kernel."""
    return F.scaled_dot_product_attention(queries, keys, values)


def plain_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Softmax attention as its formula has it."""
    return (queries @ keys.transpose(-2, -1) / queries.shape[-1] ** 0.5).softmax(-1) @ values


def in_windows(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention in windows of 7x7 with three heads."""
    return window_attention(queries, keys, values, None, size=7, heads=3)


def plain_windows(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same, window by window."""

    def split(nhwc: Tensor) -> Tensor:  # [B, 2, 7, 7, 3, 8] to [B, 2, 3, 49, 8]
        return nhwc.unflatten(1, (2, 7)).unflatten(-1, (3, 8)).flatten(2, 3).transpose(2, 3)

    mixed = plain_attention(split(queries), split(keys), split(values))
    return mixed.transpose(2, 3).flatten(3).unflatten(2, (7, 7)).flatten(1, 2)


def from_few(tokens: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What tokens read from a few keys, added to them."""
    return add_from_few(tokens, queries, keys, values, 3)


def plain_few(tokens: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same as its formula has it."""
    split = [given.unflatten(-1, (3, 8)).transpose(1, 2) for given in (queries, keys, values)]
    return tokens + plain_attention(*split).transpose(1, 2).flatten(2)


def hidden_layer(tokens: Tensor, weight: Tensor) -> Tensor:
    """What is done to each token by itself."""
    return F.gelu(tokens @ weight)


def chunked(tokens: Tensor, weight: Tensor) -> Tensor:
    """The same in pieces of 64 tokens."""
    return in_chunks(lambda piece: hidden_layer(piece, weight), tokens, PIECE // 64)


def one_by_one(tokens: Tensor, weight: Tensor) -> Tensor:
    """The same image by image."""
    return by_images(lambda images: hidden_layer(images, weight), tokens, PIECE)


def randomised(name: str) -> nn.Module:
    """A model whose branches all count: what starts at zero or one is drawn at random."""
    model = create_model(name, num_classes=10).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.05) if parameter.ndim > 1 else nn.init.uniform_(parameter, 0.5, 1.0)
    return model


def folded_error(name: str, device: torch.device) -> float:
    """A folded model on the device against the model itself in float64 on the CPU."""
    model, images = randomised(name), torch.randn(2, 3, 40, 32)
    with torch.inference_mode():
        found = fold(model).to(device)(images.to(device))
        return difference(found, model.double()(images.double()))
