"""What is measured: models by name, of runs and of weight files, each in the ways to run it."""

import copy
import logging
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ..atomic import expand_home
from ..config.candidates import Candidate, parse_candidate
from ..config.files import load_recipe, parse_changes
from ..models.counting import count
from ..models.fold import fold
from ..models.spec import is_spec_file
from ..runs.predictor import is_path, load_module
from ..shipped import shipped_models
from ..tasks import get_task
from ..tasks.build import build, channels_seen
from ..timing import refuse_precision

CLASSES = 1000


@dataclass(frozen=True)
class BenchModel:
    """A model that is measured.

    Attributes:
        label: What to call it.
        name: Its name, ours or timm's; empty for a model with other parts, which no paper printed.
        model: In evaluation mode; takes images `[B, 3, H, W]`.
        size: Height and width of its images.
        parameters: Numbers that training changes.
        macs: Multiply-adds of one image.
        bytes_held: The most that a call with one image holds at a time beside weights, as far as it can be told before
            it is called; at least the image.
    """

    label: str
    name: str
    model: nn.Module
    size: tuple[int, int]
    parameters: int
    macs: int
    bytes_held: int = 0


@dataclass(frozen=True)
class NotMeasured:
    """A model that can't be measured at a size.

    Attributes:
        label: What to call it.
        size: Height and width.
        reason: In words.
    """

    label: str
    size: tuple[int, int]
    reason: str


def open_model(text: str, size: int | None = None) -> BenchModel | NotMeasured:
    """The model that a text stands for, as `nearsight train` would build it, with 1000 classes.

    Args:
        text: A name of ours or of timm (`timm/NAME` too), with options as in `nearsight compare`
            (`[LABEL=]NAME[:KEY=VALUE]...`); or the folder of a run or a `.safetensors` file.
        size: Side of the images in pixels; None takes the model's own.

    Raises:
        ValueError: There is no such model.

    Example:
        >>> model = open_model("deit_nano", 64)
        >>> model.size, model.macs
        ((64, 64), 247896960)
    """
    device = "meta"  # where numbers are not needed to count, and large images take no memory
    if text in shipped_models() or (is_path(text) and not is_spec_file(text)):
        given = load_module(expand_home(text))
        label, name, model, own = label_of(Path(text)), given.name, given.model, given.preprocessing.size
        if given.weights != "converted":
            name = ""  # what was trained here is no paper's model any more
        if get_task(given.task).follows_content:
            device = "cpu"
    else:
        label, name, model, own = open_named(parse_candidate(text), size)
    sides = (size, size) if size else own
    model = model.eval().requires_grad_(False)
    try:
        with torch.no_grad():
            shape = copy.deepcopy(model).to(device)
            blank = torch.zeros(1, channels_seen(model), *sides, device=device)
            cost, held = count(shape, sides, blank.shape[1]), bytes_held(shape, blank)
    except Exception as error:  # whatever a foreign model says to a size that it was not made for
        return NotMeasured(label, sides, reason_of(error))
    return BenchModel(label, name, model, sides, cost.parameters, cost.macs, held)


class Held(TorchDispatchMode):
    """Adds up the bytes of tensors while they live.

    Attributes:
        peak: The most that lived at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self.known:
                self.known[storage] = True
                self.now += storage.nbytes()
                weakref.finalize(storage, self.release, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return made

    def release(self, count: int) -> None:
        """A tensor is gone."""
        self.now -= count


def bytes_held(model: nn.Module, images: Tensor) -> int:
    """The most bytes that a call holds at a time, images included; the meta device tells it without holding them.

    Attention counts as its fused kernel, which holds no matrix of all pairs.

    Example:
        >>> bytes_held(nn.Conv2d(3, 4, 1).to("meta"), torch.empty(1, 3, 10, 10, device="meta"))
        2800
    """

    def fused(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        return query.new_empty(*query.shape[:-1], value.shape[-1])

    with torch.no_grad(), patch.object(functional, "scaled_dot_product_attention", fused), Held() as held:
        model(images)
    return held.peak + images.nbytes


def label_of(path: Path) -> str:
    """What to call a model by its path: the name of its file, or of the folder of its run."""
    if path.is_file() and path.stem != "model":
        return path.resolve().stem
    return (path if path.is_dir() else path.parent).resolve().name


def open_named(candidate: Candidate, size: int | None) -> tuple[str, str, nn.Module, tuple[int, int]]:
    """Label, name, model and image size of a candidate."""
    wanted = {
        "model.name": candidate.name,
        **({"model.img_size": size} if size else {}),
        **parse_changes(candidate.settings()),
    }
    torch.manual_seed(0)
    built = build(load_recipe("small-data", wanted).model, CLASSES)
    return candidate.label, "" if candidate.options else built.name, built.model, built.preprocessing.size


def reason_of(error: BaseException, most: int = 160) -> str:
    """The first line of what an error says, in a length that a table can show.

    Example:
        >>> reason_of(RuntimeError("It is too long: " + "a" * 200), most=30)
        'It is too long: aaaaaaaaaaaaa…'
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= most else f"{text[: most - 1]}…"


RUNTIMES = ("eager", "folded", "compiled", "onnx")  # what is measured unless asked otherwise: float32 everywhere
# In fewer bits, and OpenVINO. ONNX Runtime has no bfloat16 on x86, and PyTorch's own 8 bits are going out of use.
PRECISIONS = (
    *("eager-bfloat16", "folded-bfloat16", "compiled-bfloat16", "onnx-int8"),
    *("openvino", "openvino-bfloat16", "openvino-int8"),
)
KNOWN = (*RUNTIMES, *PRECISIONS)


@dataclass(frozen=True)
class Runner:
    """A model in a runtime.

    Attributes:
        call: Takes images `[B, C, H, W]`.
        seconds: That making it took; a compiled model takes more at its first call.
        channels: Of the images.
        visible: Whether its memory is PyTorch's, which can be followed.
    """

    call: Callable[[Tensor], object]
    seconds: float
    channels: int
    visible: bool = True


def make_runner(model: BenchModel, runtime: str, device: torch.device, threads: int) -> Runner:
    """Bring a model into a runtime.

    Args:
        model: The model.
        runtime: One of `KNOWN`.
        device: Where it runs.
        threads: Of the CPU.

    Raises:
        ValueError: A package is missing.
        Exception: Whatever else stands against it: compilers and exporters have errors of their own.

    Example:
        >>> runner = make_runner(open_model("deit_nano"), "folded", torch.device("cpu"), threads=1)
        >>> runner.call(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 1000])
    """
    began = time.perf_counter()
    name, _, precision = runtime.partition("-")
    if precision and device.type == "cpu":
        refuse_precision(precision)
    with torch.inference_mode(False), torch.no_grad():  # exporters don't take tensors of inference mode
        call: Callable[[Tensor], object]
        if name in ("onnx", "openvino"):
            call = exported_session(model, name, precision, device, threads)
        else:
            chosen = model.model if name == "eager" else fold(model.model)
            if precision:
                chosen = copy.deepcopy(chosen).to(torch.bfloat16)
            chosen = chosen.to(device)
            module: Callable[[Tensor], object] = torch.compile(chosen, dynamic=False) if name == "compiled" else chosen
            call = (lambda images: module(images.to(torch.bfloat16))) if precision else module
    seconds = time.perf_counter() - began
    return Runner(call, seconds, channels_seen(model.model), name not in ("onnx", "openvino"))


def exported_session(
    model: BenchModel, runtime: str, precision: str, device: torch.device, threads: int
) -> Callable[[Tensor], object]:
    """The model as a file, opened by ONNX Runtime or OpenVINO."""
    from ..deployment.onnx import write_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(fold(model.model).cpu(), path, model.size)
        if precision == "int8":
            path = quantize_for_timing(path, channels_seen(model.model), model.size)
        if runtime == "openvino":
            return openvino_call(path, precision, device, threads)
        return onnx_call(path, device, threads)


def quantize_for_timing(path: Path, channels: int, size: tuple[int, int]) -> Path:
    """The file with every weighted layer in 8 bits, calibrated with noise: only its time counts, not what it says."""
    from ..deployment.quantize import Group, Layers

    noise = np.random.default_rng(0).standard_normal((4, channels, *size), dtype=np.float32)
    layers = Layers(path, path.parent, [Group(noise, np.zeros(4, dtype=np.int64))])
    return layers.write(layers.names, path.with_name("int8.onnx"))


def onnx_call(path: Path, device: torch.device, threads: int) -> Callable[[Tensor], object]:
    """A file in ONNX Runtime."""
    from ..runs.runtime import FATAL, need

    onnxruntime = need("onnxruntime", "The runtime onnx")
    provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise ValueError("onnxruntime was installed without its GPU part; install onnxruntime-gpu.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = FATAL
    # Its threads would go on looking for work for some tenths of a second, and slow down what is measured next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images.cpu().numpy()})


def openvino_call(path: Path, precision: str, device: torch.device, threads: int) -> Callable[[Tensor], object]:
    """A file in OpenVINO, on the CPU."""
    from ..runs.runtime import compile_openvino

    if device.type != "cpu":
        raise ValueError(f"OpenVINO is measured on the CPU, not on {device}; leave it out of --runtimes.")
    compiled = compile_openvino(path, "bfloat16" if precision == "bfloat16" else "float32", threads)
    return lambda images: compiled(images.numpy())


@contextmanager
def many_compilations() -> Iterator[None]:
    """Let one class be compiled for many models and shapes; beyond eight, PyTorch would run the rest uncompiled.

    The compiler's remark that there is no GPU is left out.
    """
    import torch._dynamo.config as settings

    limits: dict[str, Any] = {"cache_size_limit": 10_000, "accumulated_cache_size_limit": 100_000}
    remarks = logging.getLogger("torch.utils.cpp_extension")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with settings.patch(**limits):  # type: ignore[attr-defined]
            yield
    finally:
        remarks.setLevel(level)
