"""Run the model of a bundle with the one package that it needs."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bundle import FILES, Bundle, BundleError

Images = NDArray[np.float32]
Runner = Callable[[Images], NDArray[np.float32]]  # normalised images [B, 3, H, W] to logits [B, classes]

EXTRAS = {"onnx": "deploy", "onnxruntime": "deploy", "onnxscript": "deploy", "openvino": "openvino"}
FATAL = 4  # onnxruntime's level of messages; what goes wrong is raised as well


def need(package: str, what: str) -> ModuleType:
    """A package that not everybody has.

    Raises:
        ValueError: It is not installed; with the extra of Nearsight that brings it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        extra = EXTRAS.get(package)
        advice = f"pip install 'nearsight[{extra}]'" if extra else f"pip install {missing}"
        raise ValueError(f"{what} needs {missing}, which is not installed; {advice}.") from None


def open_runner(folder: Path, bundle: Bundle) -> Runner:
    """The model of a bundle as a function.

    Raises:
        BundleError: The runtime can't read the model.
        ValueError: The runtime is not installed.
    """
    file = folder / FILES[bundle.kind][0]
    openers = {"onnx": run_onnx, "openvino": run_openvino, "pt2": run_program}
    return openers[bundle.kind](file)


def run_onnx(file: Path) -> Runner:
    """A model in the ONNX format, with onnxruntime."""
    runtime = need("onnxruntime", "An ONNX bundle")
    options = runtime.SessionOptions()
    options.log_severity_level = FATAL
    try:
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for every way to fail
        raise unreadable(file, error) from None
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def run_openvino(file: Path) -> Runner:
    """A model in OpenVINO's format."""
    openvino = need("openvino", "An OpenVINO bundle")
    try:
        # f32 also where the processor is faster with fewer bits: what was verified is what runs.
        compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    except RuntimeError as error:
        raise unreadable(file, error) from None
    return lambda images: np.array(compiled(images)[0])  # a copy: OpenVINO writes the next answer in the same place


def run_program(file: Path) -> Runner:
    """A program of `torch.export`, with PyTorch."""
    torch: Any = need("torch", "A .pt2 bundle")
    from .untrusted import open_program

    try:
        model = open_program(file)
    except BundleError:
        raise
    except Exception as error:  # a damaged archive makes PyTorch raise nearly anything
        raise unreadable(file, error) from None

    def run(images: Images) -> NDArray[np.float32]:
        with torch.inference_mode():
            return model(torch.from_numpy(images)).numpy()

    return run


def unreadable(file: Path, error: Exception) -> BundleError:
    """The error for a model that its runtime can't read."""
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return BundleError(f"{file} can't be run ({reason}); export the model again, or update the runtime.")
