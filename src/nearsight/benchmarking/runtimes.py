"""The ways to run a model: as it is, folded, compiled, and in ONNX Runtime."""

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..models.fold import fold
from .models import Subject

RUNTIMES = ("eager", "folded", "compiled", "onnx")


@dataclass(frozen=True)
class Runner:
    """A model in a runtime.

    Attributes:
        call: Takes images `[B, 3, H, W]`.
        seconds: That making it took; a compiled model takes more at its first call.
        visible: Whether its memory is PyTorch's, which can be followed.
    """

    call: Callable[[Tensor], object]
    seconds: float
    visible: bool = True


def make_runner(subject: Subject, runtime: str, device: torch.device, threads: int) -> Runner:
    """Bring a model into a runtime.

    Args:
        subject: The model.
        runtime: One of `RUNTIMES`.
        device: Where it runs.
        threads: Of the CPU.

    Raises:
        ValueError: A package is missing.
        Exception: Whatever else stands against it: compilers and exporters have errors of their own.

    Example:
        >>> from nearsight.benchmarking import open_subject
        >>> runner = make_runner(open_subject("deit_nano"), "folded", torch.device("cpu"), threads=1)
        >>> runner.call(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 1000])
    """
    began = time.perf_counter()
    with torch.inference_mode(False), torch.no_grad():  # exporters don't take tensors of inference mode
        call = MAKERS[runtime](subject, device, threads)
    return Runner(call, time.perf_counter() - began, runtime != "onnx")


def run_eager(subject: Subject, device: torch.device, threads: int) -> Callable[[Tensor], object]:
    """The model as it is."""
    return subject.model.to(device)


def run_folded(subject: Subject, device: torch.device, threads: int) -> nn.Module:
    """Its copy for inference."""
    return fold(subject.model).to(device)


def run_compiled(subject: Subject, device: torch.device, threads: int) -> Callable[[Tensor], object]:
    """The copy for inference, compiled for each shape it is given."""
    return torch.compile(run_folded(subject, device, threads), dynamic=False)


def run_onnx(subject: Subject, device: torch.device, threads: int) -> Callable[[Tensor], object]:
    """ONNX Runtime with the model as a file."""
    from ..deployment.onnx import write_onnx
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(fold(subject.model).cpu(), path, subject.size)
        session = onnxruntime.InferenceSession(str(path), options, providers=[provider])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images.cpu().numpy()})


MAKERS: dict[str, Callable[[Subject, torch.device, int], Callable[[Tensor], object]]] = {
    "eager": run_eager,
    "folded": run_folded,
    "compiled": run_compiled,
    "onnx": run_onnx,
}


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
