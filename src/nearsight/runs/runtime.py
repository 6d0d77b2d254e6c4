"""Run the model of a bundle with the one package that it needs."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bundle import FILES, Bundle, BundleError

Images = NDArray[np.float32]
Outputs = dict[str, NDArray[Any]]
Runner = Callable[[Images], Outputs]  # normalised images [B, 3, H, W] to the outputs of the graph, by name

EXTRAS = {"onnx": "deploy", "onnxruntime": "deploy", "onnxscript": "deploy", "openvino": "openvino"}
QUIET = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")  # onnxruntime 1.29 and later, under both of its names
FATAL = 4  # onnxruntime's level of messages; what goes wrong is raised as well


def need(package: str, what: str) -> ModuleType:
    """A package that not everybody has, or a module of it. Every import of a runtime goes through here.

    onnxruntime reports what it runs to its makers unless it is told not to before it starts; it is told so here, and
    who wants its reports sets `ORT_DISABLE_TELEMETRY=0`.

    Raises:
        ValueError: It is not installed; with the extra of Nearsight that brings it.
    """
    for name in QUIET:
        os.environ.setdefault(name, "1")
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        extra = EXTRAS.get(package.split(".")[0])
        advice = f"pip install 'nearsight[{extra}]'" if extra else f"pip install {missing}"
        raise ValueError(f"{what} needs {missing}, which is not installed; {advice}.") from None


def open_runner(folder: Path, bundle: Bundle) -> Runner:
    """The model of a bundle as a function.

    Raises:
        BundleError: The runtime can't read the model.
        ValueError: The runtime is not installed.
    """
    file = folder / FILES[bundle.kind][0]
    if bundle.kind == "pt2":
        return run_program(file, bundle.outputs)
    return run_onnx(file) if bundle.kind == "onnx" else run_openvino(file, bundle.outputs)


def run_onnx(file: Path) -> Runner:
    """A model in the ONNX format, with onnxruntime."""
    runtime = need("onnxruntime", "An ONNX bundle")
    options = runtime.SessionOptions()
    options.log_severity_level = FATAL
    try:
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for every way to fail
        raise unreadable(file, error) from None
    name, outputs = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(outputs, session.run(None, {name: images}), strict=True))


def run_openvino(file: Path, names: Sequence[str]) -> Runner:
    """A model in OpenVINO's format, whose outputs are named in their order."""
    openvino = need("openvino", "An OpenVINO bundle")
    try:
        # f32 also where the processor is faster with fewer bits: what was verified is what runs.
        compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    except RuntimeError as error:
        raise unreadable(file, error) from None

    def run(images: Images) -> Outputs:
        found = compiled(images)
        # Copies: OpenVINO writes the next results in the same place.
        return {name: np.array(found[place]) for place, name in enumerate(names)}

    return run


def run_program(file: Path, names: Sequence[str]) -> Runner:
    """A program of `torch.export`, with PyTorch; its outputs are named in their order."""
    torch: Any = need("torch", "A .pt2 bundle")
    from .untrusted import open_program

    try:
        model = open_program(file)
    except BundleError:
        raise
    except Exception as error:  # a damaged archive makes PyTorch raise nearly anything
        raise unreadable(file, error) from None

    def run(images: Images) -> Outputs:
        with torch.inference_mode():
            found = model(torch.from_numpy(images))
        found = found if isinstance(found, tuple) else (found,)  # as version 0.1 recorded classifiers
        return {name: value.numpy() for name, value in zip(names, found, strict=True)}

    return run


def unreadable(file: Path, error: Exception) -> BundleError:
    """The error for a model that its runtime can't read."""
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return BundleError(f"{file} can't be run ({reason}); export the model again, or update the runtime.")
