"""Whole numbers of 8 bits instead of floats: ONNX Runtime's static quantisation, with the layers it hurts left out.

Only products with trained weights (convolutions, linear layers) are quantised. Softmax, norms, gates, attention's and
dynamic kernels' products have no weights to shrink and stay in float. Of the weights 7 bits are used: processors
without VNNI add two products in 16 bits, which 8 bits of both factors overflow.
"""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.samples import Split
from ..data.transforms import Preprocessing
from ..runs.runtime import Runner, need, run_onnx
from .calibration import CalibrationSet, sample
from .verify import Group, batches

OPERATORS = ("Conv", "Gemm", "MatMul")
CALIBRATED, MEASURED, PROBED = 256, 1000, 16  # images: for ranges, for the verdict, to try a single layer
BATCH = 16
BUDGETS = (0.05, 0.025, 0.0125, 0.006)  # error of the logits that is aimed at, in turn

Logits = NDArray[np.float32]
Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]  # items, title, how many


def no_progress(items: Iterable[Any], title: str, total: int) -> Iterable[Any]:
    """Shows nothing."""
    return items


@dataclass(frozen=True)
class QuantizeVerdict:
    """What the quantised model predicts, beside the float one.

    Attributes:
        images: How many were shown to both.
        error: Norm of the logits' difference as a fraction of the logits' norm.
        agreement: Fraction of images with the same first prediction.
        before: Accuracy of the float model; None without labels.
        after: Accuracy of the quantised model; None without labels.
    """

    images: int
    error: float
    agreement: float
    before: float | None
    after: float | None

    @property
    def lost(self) -> float:
        """Fraction of right predictions that were lost; without labels, of all predictions that changed."""
        if self.before is None or self.after is None:
            return 1 - self.agreement
        return self.before - self.after


@dataclass(frozen=True)
class Quantized:
    """A model that was quantised.

    Attributes:
        verdict: How much it lost.
        layers: How many layers were quantised.
        kept: Names of sensitive layers that stayed in float.
        calibrated: Images that the ranges come from.
        bytes_before: Size of the float model's file.
        bytes_after: Size of the quantised model's file.
    """

    verdict: QuantizeVerdict
    layers: int
    kept: tuple[str, ...]
    calibrated: int
    bytes_before: int
    bytes_after: int


def quantize(
    source: Path,
    target: Path,
    calibration: CalibrationSet,
    preprocessing: Preprocessing,
    *,
    margin: float = 0.01,
    progress: Progress = no_progress,
) -> Quantized:
    """Write an ONNX model in 8 bits.

    All layers are quantised first. Where that costs more than the margin, each layer is tried alone and the most
    sensitive ones stay in float: errors of single layers add up like the sides of a right angle, so the error of what
    is left can be told before it is tried.

    Args:
        source: The float model.
        target: File to write.
        calibration: Images to calibrate with, and others to measure on.
        preprocessing: How images are shown.
        margin: Fraction of right predictions that may be lost; without labels, of predictions that may change.
        progress: Wraps what takes time, to show how far the work is.

    Raises:
        ValueError: There are no images to calibrate with, or the model loses more than the margin.
    """
    need("onnx", "Quantising")
    if calibration.calibrate is None:
        raise ValueError(f"{calibration.what} are too few to calibrate 8 bits with; give more with --images.")
    with tempfile.TemporaryDirectory(prefix="nearsight-int8-") as scratch:
        work = Work(source, Path(scratch), calibration, preprocessing, progress)
        kept, verdict = search(work, margin)
        work.quantizer.write(work.layers - set(kept), target)
    sizes = source.stat().st_size, target.stat().st_size
    return Quantized(verdict, len(work.layers) - len(kept), kept, work.calibrated, *sizes)


def search(work: "Work", margin: float) -> tuple[tuple[str, ...], QuantizeVerdict]:
    """The layers that stay in float, and what the rest costs."""
    whole = verdict = work.judge(work.layers)
    if whole.error <= BUDGETS[0] and whole.lost <= margin:
        return (), whole
    errors = work.probe_layers()
    for budget in BUDGETS:
        kept = most_sensitive(errors, budget)
        if len(kept) == len(errors):
            break
        verdict = work.judge(work.layers - set(kept))
        if verdict.lost <= margin:
            return kept, verdict
    if whole.lost <= margin:  # the predictions stand, although the logits behind them moved
        return (), whole
    raise ValueError(refusal(verdict, margin))


def refusal(verdict: QuantizeVerdict, margin: float) -> str:
    """Why a quantised model is not shipped."""
    if verdict.before is None:
        lost = f"changes {100 * verdict.lost:.1f} % of the predictions"
    else:
        lost = f"loses {100 * verdict.lost:.1f} points of accuracy"
    return (
        f"In 8 bits the model {lost} on {verdict.images:,} images, with its most sensitive layers left in float, and "
        f"{100 * margin:g} are allowed; nothing was written. Export it without --int8, or allow more with --margin."
    )


def most_sensitive(errors: dict[str, float], budget: float) -> tuple[str, ...]:
    """The fewest layers without which the others' errors stay within a budget together.

    Example:
        >>> most_sensitive({"a": 0.3, "b": 0.03, "c": 0.04}, budget=0.05)
        ('a',)
    """
    order = sorted(errors, key=errors.__getitem__, reverse=True)
    squares = np.array([errors[name] ** 2 for name in order])
    rest = np.append(np.cumsum(squares[::-1])[::-1], 0.0)  # of what remains when the first k are left out
    count = int(np.argmax(np.sqrt(rest) <= budget * (1 + 1e-9)))
    return tuple(order[:count])


class Layers:
    """A float model with the ranges of its activations, from which any set of layers can be quantised.

    Args:
        source: The float model.
        scratch: Folder for files that are not needed later.
        groups: Images that the ranges come from.

    Attributes:
        model: The float model, tidied up.
        names: Names of the layers that can be quantised.
    """

    def __init__(self, source: Path, scratch: Path, groups: Iterable[Group]):
        self.model = scratch / "float.onnx"
        tools: Any = need("onnxruntime.quantization.shape_inference", "Quantising")
        # Constants computed and shapes inferred, as the quantiser wants it. Symbolic inference gives up on shapes that
        # are computed from the image's; the plain one knows enough.
        tools.quant_pre_process(str(source), str(self.model), skip_symbolic_shape=True)
        graph = need("onnx", "Quantising").load(self.model).graph
        constants = {tensor.name for tensor in graph.initializer}
        weighted = (node for node in graph.node if node.op_type in OPERATORS and node.input[1] in constants)
        self.names = frozenset(node.name for node in weighted)
        if not self.names:
            raise ValueError(f"{source} has no layers with weights; there is nothing to quantize.")
        self.ranges = find_ranges(self.model, scratch, groups)

    def write(self, layers: Iterable[str], target: Path) -> Path:
        """Write the model with these layers quantised."""
        tools: Any = need("onnxruntime.quantization", "Quantising")
        quantizer = tools.qdq_quantizer.QDQQuantizer(
            tools.quant_utils.load_model_with_shape_infer(self.model),
            True,  # a scale for each output channel
            True,  # 7 bits for weights
            tools.QuantType.QInt8,
            tools.QuantType.QUInt8,
            self.ranges,
            sorted(layers),
            [],
            list(OPERATORS),
            {},
        )
        quantizer.quantize_model()
        quantizer.model.save_model_to_file(str(target), False)
        return target


class Work:
    """Layers of a model, and images to judge it by when some of them are quantised.

    Attributes:
        quantizer: The layers.
        layers: Their names.
        calibrated: Images that the ranges come from.
    """

    def __init__(
        self, source: Path, scratch: Path, calibration: CalibrationSet, preprocessing: Preprocessing, progress: Progress
    ):
        assert calibration.calibrate is not None
        self.scratch, self.preprocessing, self.progress = scratch, preprocessing, progress
        self.labelled, self.measured = calibration.labelled, sample(calibration.measure, MEASURED)
        ranged = sample(calibration.calibrate, CALIBRATED)
        self.calibrated, self.probed = len(ranged), sample(calibration.calibrate, PROBED)
        self.quantizer = Layers(source, scratch, self.show(ranged, "Calibrating"))
        self.layers = self.quantizer.names
        float_model = run_onnx(self.quantizer.model)
        self.reference, self.labels = self.predictions(float_model, "Measuring the float model")

    def show(self, split: Split, title: str) -> Iterable[Group]:
        """Batches of images, with progress."""
        return self.progress(batches(split, self.preprocessing, BATCH), title, -(-len(split) // BATCH))

    def predictions(self, runner: Runner, title: str) -> tuple[Logits, NDArray[np.int64]]:
        """Logits `[n, classes]` for the measured images, and their labels `[n]`."""
        predicted = [(runner(group.images)["logits"], group.labels) for group in self.show(self.measured, title)]
        logits, labels = zip(*predicted, strict=True)
        return np.concatenate(logits), np.concatenate(labels)

    def judge(self, layers: Iterable[str]) -> QuantizeVerdict:
        """What it costs to quantize these layers."""
        file = self.quantizer.write(layers, self.scratch / "candidate.onnx")
        mine, _ = self.predictions(run_onnx(file), "Measuring in 8 bits")
        predicted, wanted = mine.argmax(axis=1), self.reference.argmax(axis=1)
        before = after = None
        if self.labelled:
            before, after = (float((prediction == self.labels).mean()) for prediction in (wanted, predicted))
        return QuantizeVerdict(
            len(mine), distance(mine, self.reference), float((predicted == wanted).mean()), before, after
        )

    def probe_layers(self) -> dict[str, float]:
        """The error of the logits when one layer alone is quantised, for each."""
        images = np.concatenate([group.images for group in batches(self.probed, self.preprocessing, BATCH)])
        reference = run_onnx(self.quantizer.model)(images)["logits"]
        file, names = self.scratch / "probe.onnx", sorted(self.layers)
        errors = {}
        for name in self.progress(names, "Trying each layer alone", len(names)):
            errors[name] = distance(run_onnx(self.quantizer.write([name], file))(images)["logits"], reference)
        return errors


def distance(mine: Logits, reference: Logits) -> float:
    """Norm of the difference as a fraction of the norm."""
    return float(np.linalg.norm(mine - reference) / max(float(np.linalg.norm(reference)), 1e-30))


def find_ranges(model: Path, scratch: Path, groups: Iterable[Group]) -> Any:
    """Smallest and largest value of each activation; a batch at a time, so that memory does not grow with them."""
    tools: Any = need("onnxruntime.quantization.calibrate", "Quantising")

    class OneBatch(tools.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, batch: Logits):
            self.batches = [{name: batch}]

        def get_next(self) -> dict[str, Logits] | None:
            return self.batches.pop() if self.batches else None

    calibrator = tools.create_calibrator(
        model,
        list(OPERATORS),
        augmented_model_path=str(scratch / "ranges.onnx"),
        calibrate_method=tools.CalibrationMethod.MinMax,
    )
    name = calibrator.infer_session.get_inputs()[0].name
    for group in groups:
        calibrator.collect_data(OneBatch(group.images))
    return calibrator.compute_data()
