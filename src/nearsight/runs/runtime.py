"""Run the model of a bundle with the one package that it needs: NumPy, Pillow and its runtime, without torch."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..console import first_line
from ..data.bands import refuse_channels
from ..data.instances import Instances
from ..data.samples import BadImage, Split, check_workers, read_sample
from ..tasks.predictions import Prediction
from .bundle import FILES, Bundle, BundleError
from .images import GivenImages, Named
from .postprocess import postprocess, to_prediction

Images = NDArray[np.float32]
Outputs = dict[str, NDArray[Any]]
Runner = Callable[[Images], Outputs]  # normalised images [B, C, H, W] to the outputs of the graph, by name

EXTRAS = {"onnx": "deploy", "onnxruntime": "deploy", "onnxscript": "deploy", "openvino": "openvino"}
QUIET = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")  # onnxruntime 1.29 and later, under both of its names
BATCH, WHOLE = 64, 8  # images at a time, of which a part or the whole is shown
AHEAD = 2  # batches that are read while one is predicted
FATAL = 4  # onnxruntime's level of messages; what goes wrong is raised as well


def need(package: str, what: str) -> ModuleType:
    """A package that not everybody has, or a module of it. Every import of a runtime goes through here.

    onnxruntime reports what it runs to its makers unless it is told not to before it starts; it is told so here, and
    who wants its reports sets `ORT_DISABLE_TELEMETRY=0`. OpenVINO does so from its import on if a package for it is
    there, which it is told is not; who wants its reports imports that package first.

    Raises:
        ValueError: It is not installed; with the extra of Nearsight that brings it.
    """
    for name in QUIET:
        os.environ.setdefault(name, "1")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
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
    if bundle.kind == "onnx":
        return run_onnx(file)
    return run_openvino(file, bundle.outputs, "bfloat16" if bundle.bfloat16 else "float32")


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


def compile_openvino(file: Path, precision: str = "float32", threads: int | None = None) -> Any:
    """A model of OpenVINO or ONNX, compiled for the CPU.

    It computes in this precision also where the processor is faster with fewer bits: what was verified is what runs.
    """
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision]}
    settings |= {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
    return need("openvino", "An OpenVINO bundle").Core().compile_model(str(file), "CPU", settings)


def run_openvino(file: Path, names: Sequence[str], precision: str = "float32") -> Runner:
    """A model in OpenVINO's format, whose outputs are named in their order."""
    try:
        compiled = compile_openvino(file, precision)
    except RuntimeError as error:
        raise unreadable(file, error) from None

    def run(images: Images) -> Outputs:
        found = compiled(images)
        # Copies: OpenVINO writes the next results to the same memory.
        return {name: np.array(found[index]) for index, name in enumerate(names)}

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
    return BundleError(
        f"{file} can't be run ({first_line(error)[:200]}); export the model again, or update the runtime."
    )


Shape = tuple[int, int]  # height, width


@dataclass(frozen=True)
class PreparedImages:
    """Some images as a model is shown them.

    Attributes:
        names: What the images are called, also unreadable ones.
        pixels: Bytes `[C, H, W]` of each readable one.
        sizes: Height and width of the readable ones as they were read.
        bad: Names of the unreadable ones, and why they are.
        indices: Numbers of the readable ones in their split `[B]`.
        targets: The ground truth of the readable ones; None of images without.
    """

    names: tuple[str, ...]
    pixels: tuple[NDArray[np.uint8], ...]
    sizes: tuple[Shape, ...]
    bad: dict[str, str]
    indices: NDArray[np.int64]
    targets: tuple[Any, ...]

    @property
    def originals(self) -> NDArray[np.int64]:
        """`sizes` as an array `[B, 2]`, as the batches of a `DataLoader` have it."""
        return np.array(self.sizes, dtype=np.int64).reshape(-1, 2)


class Shown(NamedTuple):
    """One image as a model is shown it: bytes `[C, H, W]`, its size as it was read, and its ground truth."""

    pixels: NDArray[np.uint8]
    size: Shape
    target: Any


class ImageBatches:
    """Images, read by threads a few batches ahead (Pillow works on several at once).

    Args:
        images: Files, or images at hand.
        bundle: Says how images are shown.
        batch: Images at a time.
        workers: Threads; 0 reads images when they are wanted.
        annotated: Whether the images have a ground truth to be compared with.

    Attributes:
        sampler: Numbers of the images, as a `DataLoader` has them; its length is what progress counts to.
    """

    def __init__(self, images: Split, bundle: Bundle, batch: int, workers: int, annotated: bool = False):
        check_workers(workers)
        self.images, self.bundle, self.batch, self.workers = images, bundle, batch, workers
        self.annotated = annotated
        self.sampler = range(len(images))

    def __iter__(self) -> Iterator[PreparedImages]:
        groups = [self.sampler[first : first + self.batch] for first in range(0, len(self.sampler), self.batch)]
        if not self.workers:
            yield from (self.collect(group, [self.show(index) for index in group]) for group in groups)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            begun: deque[tuple[range, Iterator[Shown | BadImage]]] = deque()
            for group in groups:
                begun.append((group, pool.map(self.show, group)))
                if len(begun) > AHEAD:
                    first, results = begun.popleft()
                    yield self.collect(first, list(results))
            for first, results in begun:
                yield self.collect(first, list(results))

    def show(self, index: int) -> Shown | BadImage:
        """One image, or what is wrong with it."""
        dense, enough, target = self.bundle.fit is not None, self.bundle.enough(), None
        try:
            if self.annotated:
                image, target, size = read_sample(self.images, index, enough, dense)
            else:
                image = self.images.read(index, None if dense else enough)
                size = image.height, image.width
        except BadImage as error:
            return error
        try:
            refuse_channels(image, self.bundle.channels)
        except ValueError as error:
            return BadImage(self.images.name(index), str(error))
        target = target.ground_truth() if isinstance(target, Instances) else target
        return Shown(self.bundle.show(image, size), size, target)

    def collect(self, group: range, results: Sequence[Shown | BadImage]) -> PreparedImages:
        """Put the readable images side by side, and name the others."""
        good = [(index, one) for index, one in zip(group, results, strict=True) if not isinstance(one, BadImage)]
        return PreparedImages(
            names=tuple(map(self.images.name, group)),
            pixels=tuple(one.pixels for _, one in good),
            sizes=tuple(one.size for _, one in good),
            bad={result.name: result.reason for result in results if isinstance(result, BadImage)},
            indices=np.array([index for index, _ in good], dtype=np.int64),
            targets=tuple(one.target for _, one in good),
        )


def predict_annotated(
    runner: Runner,
    bundle: Bundle,
    images: Split,
    batch: int | None,
    workers: int,
    progress: Callable[[Any], Any],
) -> Iterator[tuple[PreparedImages, list[Prediction]]]:
    """Batches of a split with their ground truth, and the predictions for them."""
    size = (batch or (BATCH if bundle.fit is None else WHOLE)) if bundle.any_batch else 1
    for shown in progress(ImageBatches(images, bundle, size, workers, annotated=True)):
        yield shown, predict_shown(runner, bundle, shown)


def predict_with_bundle(
    runner: Runner,
    bundle: Bundle,
    images: Split | Iterator[Named],
    batch: int | None,
    workers: int | None,
    progress: Callable[[Any], Any],
) -> Iterator[Prediction]:
    """The predictions for each image, in order; `Predictor.predict` says what the arguments are."""
    batch = batch or (BATCH if bundle.fit is None else WHOLE)
    if isinstance(images, Split):
        if workers is None:
            workers = min(4, os.cpu_count() or 1) if len(images) > 1 else 0
        size = batch if bundle.any_batch else 1
        return predict_batches(runner, bundle, progress(ImageBatches(images, bundle, size, workers)))
    chunks = iter(lambda: list(islice(images, batch)), [])
    shown = (shown for chunk in chunks for shown in ImageBatches(GivenImages(chunk, bundle.channels), bundle, batch, 0))
    return predict_batches(runner, bundle, progress(shown))


def predict_batches(runner: Runner, bundle: Bundle, batches: Any) -> Iterator[Prediction]:
    """The predictions for each image, in order."""
    for shown in batches:
        good = iter([name for name in shown.names if name not in shown.bad])
        found = dict(zip(good, predict_shown(runner, bundle, shown), strict=True))
        for name in shown.names:
            yield replace(found[name], image=name) if name in found else Prediction(image=name, problem=shown.bad[name])


def predict_shown(runner: Runner, bundle: Bundle, shown: PreparedImages) -> list[Prediction]:
    """The predictions for the readable images of a batch; images of one size are run together where the model can."""
    groups: dict[Shape, list[int]] = {}
    for index, pixels in enumerate(shown.pixels):
        groups.setdefault((pixels.shape[1], pixels.shape[2]), []).append(index)
    found: dict[int, Prediction] = {}
    for size, indices in groups.items():
        step = len(indices) if bundle.any_batch else 1
        for part in (indices[first : first + step] for first in range(0, len(indices), step)):
            images = bundle.normalise(np.stack([shown.pixels[index] for index in part]))
            # a JPEG may have been decoded smaller for a classifier, which does not have to know
            originals = [(0, 0) if bundle.fit is None else shown.sizes[index] for index in part]
            found |= zip(part, run_described(runner, bundle, images, size, originals), strict=True)
    return [found[index] for index in range(len(shown.pixels))]


def run_described(
    runner: Runner, bundle: Bundle, images: Images, size: Shape, originals: Sequence[Shape]
) -> list[Prediction]:
    """The predictions for images of one size; of a graph that is not the one that the bundle describes, a sentence.

    Raises:
        BundleError: The graph can't be run with these images, or gives something else than the description says.
    """
    try:
        found = postprocess(runner(images), bundle.postprocessing, size)
        for one in found:
            refuse_other_classes(one, len(bundle.labels))
        pairs = zip(found, originals, strict=True)
        return [to_prediction(one, size, "", original, bundle.labels) for one, original in pairs]
    except MemoryError:
        raise
    except Exception as error:  # of runtimes, each has its own, and of outputs that are of any shape
        reason = f"nothing is called {error}" if isinstance(error, KeyError) else first_line(error)[:200]
        if isinstance(error, TypeError | AttributeError):  # values of other kinds than we write, in Python's words
            reason = "its settings were edited"
        raise BundleError(
            f"The model in the bundle of {bundle.model} is not what its description says ({reason}); export it again."
        ) from None


def refuse_other_classes(found: Mapping[str, NDArray[Any]], count: int) -> None:
    """Refuse what was found in an image if it is of other classes than so many, or of no finite probability."""
    for name in ("probabilities", "independent", "logits"):
        if name in found and len(found[name]) != count:
            raise ValueError(f"it tells {len(found[name])} classes, not {count}")
    numbers = found.get("labels", np.zeros(0))
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        raise ValueError(f"it tells more classes than {count}")
    if not all(np.isfinite(values).all() for values in found.values()):
        raise ValueError("it gives no finite numbers")
