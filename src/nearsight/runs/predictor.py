"""The one class of opened models: of a run, a weight file, a bundle, or a name. A bundle is used without torch."""

import hashlib
import json
import os
import re
import shlex
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import checked
from ..atomic import check_output, expand_home
from ..data.image import decode
from ..data.samples import Split
from ..shipped import shipped_models
from ..tasks import get_task
from ..tasks.predictions import CsvTable, JsonLines, Prediction, is_json_lines, is_table, writing_rows
from .bundle import LARGEST, Bundle, check_settings, is_bundle, read_bundle
from .images import GivenImages, Named, gather, to_image
from .runtime import open_runner, predict_annotated, predict_with_bundle

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..tasks.base import Built
    from ..tasks.evaluator import AnnotatedBatch

Progress = Callable[[Any], Any]

IMAGENET = 1000  # classes of a model that is opened by its name
WEIGHTS = "model.safetensors"  # of a run
CALIBRATION = "calibration.json"  # what `nearsight calibrate` writes beside a model
SHOWN = 8  # predictions that a notebook shows
FOLDS = "folds.json"  # of a folder that holds a run for each fold
HUB = "hf:"  # what a model of the Hugging Face hub begins with
RANDOM = "Random weights: this model has not learned anything yet."


@dataclass(frozen=True)
class Predictor:
    """A model with all that is needed to use it.

    Attributes:
        model: In evaluation mode; takes images `[B, 3, H, W]`. A classifier returns `[B, len(classes)]`, a detector or
            segmenter what `nearsight.heads.DenseModel` says. Of a bundle what its runtime opened.
        name: Its name.
        task: `classify`, `detect` or `segment`.
        classes: Names of the classes by number; the numbers themselves where there are no names.
        preprocessing: How images are shown to the model; of a bundle its description.
        path: File of the weights, or folder of the bundle; None for a model by its name.
        weights: Where the weights come from: `trained`, `converted` or `random`.
        settings: What else the training found out, such as the `threshold` of a detector's scores.

    Example:
        >>> import numpy as np
        >>> predictor = load("deit_nano", seed=1)
        >>> predictor.task, predictor.weights, predictor.preprocessing.size, len(predictor.classes)
        ('classify', 'random', (32, 32), 1000)
        >>> (found,) = predictor.predict(np.zeros((40, 30, 3), dtype=np.uint8))
        >>> found.image, found.probabilities.shape
        ('image 0', (1000,))
    """

    model: Any
    name: str
    task: str
    classes: tuple[str, ...]
    preprocessing: Any
    path: Path | None
    weights: str = "trained"
    settings: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        kept = f", {self.path}" if self.path else ""
        return f"Predictor({self.name}: {self.task}, {len(self.classes)} classes, {self.weights} weights{kept})"

    @property
    def learned(self) -> bool:
        """Whether the weights are learned."""
        return self.weights != "random"

    @property
    def note(self) -> str:
        """A warning for figures."""
        return "" if self.learned else RANDOM

    @property
    def folder(self) -> Path:
        """Folder of the run or bundle, where what belongs to it lies; the present one for a model by its name."""
        return Path() if self.path is None else self.path if self.path.is_dir() else self.path.parent

    @property
    def threshold(self) -> float:
        """Score from which on an object counts as found: best on the validation images."""
        return self.settings.get("threshold", 0.5)

    def class_name(self, number: int) -> str:
        """The name of a class, or its number where there are no names."""
        named = self.weights == "trained" and number < len(self.classes)
        return self.classes[number] if named else f"class {number}"

    def class_number(self, given: str) -> int:
        """The number of a class that was given by name or number."""
        if given in self.classes:
            return self.classes.index(given)
        if given.isdigit() and int(given) < len(self.classes):
            return int(given)
        named = self.weights == "trained"
        known = f" ({', '.join(self.classes[:8])}{', ...' if len(self.classes) > 8 else ''})" if named else ""
        raise ValueError(
            f"There is no class {given!r}; give a name{known} or a number from 0 to {len(self.classes) - 1}."
        )

    @checked
    def predict(
        self,
        images: Any,
        *,
        top: int = 5,
        min_score: float | None = None,
        batch: int | None = None,
        workers: int | None = None,
        device: "torch.device | str | None" = None,
        tta: str | None = None,
        error_rate: float | None = None,
        progress: Progress = iter,
    ) -> "Predictions":
        """Say what is in images, one after the other, in constant memory.

        Args:
            images: An image or any number of them, also as a stream: paths of files, of folders whose images at any
                depth are meant, bytes of a file, Pillow images, arrays `[H, W]`, `[H, W, 3]` or `[B, H, W, 3]`, tensors
                `[3, H, W]` or `[B, 3, H, W]`; numbers are bytes, or fractions from 0 to 1. For a model of other
                channels than red, green and blue, arrays, tensors and .npy files have these.
            top: Of a classifier: how many classes text and tables name.
            min_score: Of a detector: score that an object needs; None takes what was best in the training.
            batch: Images at a time; None takes 64, of a detector or segmenter 8.
            workers: Processes (for a bundle: threads) that read files; None follows the machine.
            device: Where to compute; None takes a GPU if there is one. Bundles run on the CPU.
            tta: Views whose predictions are merged (test-time augmentation), such as `flip` or `flip,scales`.
            error_rate: Of a calibrated classifier: how often the true class may be none of the possible ones; where
                several are possible, the model does not know.
            progress: Wraps the batches, to show how far the work is.

        Returns:
            An iterator over a prediction of each image in the order of the images; of one that can't be read its
            problem. A notebook shows the next few with their images.

        Raises:
            ValueError: Before any work: there is no such file, or no image in a folder.
        """
        if top < 1:
            raise ValueError(f"{top} predictions were asked for; ask for at least 1.")
        if batch is not None and batch < 1:
            raise ValueError(f"A batch of {batch} images was asked for; it takes at least 1.")
        if min_score is not None and not 0 <= min_score <= 1:
            raise ValueError(f"A score of {min_score} at least was asked for; scores go from 0 to 1.")
        settings = self.settings if error_rate is None else self.promise(error_rate, tta)
        given, waiting = gather(images), None
        if not isinstance(given, Split):
            given, waiting = keep_waiting(given)
        if tta is not None and isinstance(self.preprocessing, Bundle):
            raise ValueError(f"{self.path} is a bundle, which shows an image once; leave --tta {tta} out.")
        if tta is not None:
            size = batch or get_task(self.task).batch
            found = self.with_views(tta)._predict_with_torch(given, size, workers, device, progress)
        elif isinstance(self.preprocessing, Bundle):
            self._refuse_device(device)
            found = predict_with_bundle(self.model, self.preprocessing, given, batch, workers, progress)
        else:
            size = batch or get_task(self.task).batch
            found = self._predict_with_torch(given, size, workers, device, progress)
        return Predictions((prediction.at_settings(settings, top, min_score) for prediction in found), waiting)

    def with_views(self, tta: str | None) -> "Predictor":
        """The same with test-time augmentation: views such as `flip,scales`, whose predictions are merged."""
        from ..tasks.views import Merged, parse_views

        task = get_task(self.task)
        views = parse_views(task, tta)
        members = getattr(self.model, "members", [self.model])
        return self if len(views) == 1 else replace(self, model=Merged(task, list(members), views).eval())

    def promise(self, error_rate: float, tta: str | None = None) -> dict[str, Any]:
        """The settings with which the true class is missed no more often than this.

        Raises:
            ValueError: The model was not calibrated for it.
        """
        rates = self.settings.get("conformal") or {}
        if f"{error_rate:g}" not in rates or self.settings.get("tta") != tta:
            ways = f"with --tta {self.settings['tta']}" if self.settings.get("tta") else "without --tta"
            known = f"it was calibrated {ways} for {', '.join(rates)}" if rates else "it was not calibrated"
            raise ValueError(
                f"No error rate of {error_rate:g} can be promised for {self.path or self.name}: {known}; see "
                "`nearsight calibrate`."
            )
        return self.settings | {"error_rate": error_rate}

    def predict_annotated(
        self,
        images: Split,
        *,
        batch: int | None = None,
        workers: int = 0,
        device: "torch.device | str | None" = None,
        progress: Progress = iter,
    ) -> "Iterator[tuple[AnnotatedBatch, list[Any]]]":
        """Batches of a split with their ground truth, and the predictions for their readable images.

        Args:
            images: A split with the class numbers of the model.
            batch: Images at a time; None follows the task.
            workers: Processes (for a bundle: threads) that read images.
            device: Where to compute; None takes a GPU if there is one. Bundles run on the CPU.
            progress: Wraps the batches, to show how far the work is.
        """
        if isinstance(self.preprocessing, Bundle):
            self._refuse_device(device)
            yield from predict_annotated(self.model, self.preprocessing, images, batch, workers, progress)
            return
        where, task = pick_device(device), get_task(self.task)
        model = self.model.to(where)
        for group in progress(task.eval_loader(images, self.preprocessing, batch or task.batch, workers)):
            yield group, task.predict(model, group, self.preprocessing, where, self.classes)

    def _refuse_device(self, device: Any) -> None:
        """Bundles run on the CPU."""
        if str(device or "cpu") != "cpu":
            raise ValueError(f"{self.path} is a bundle, which runs on the CPU; leave --device {device} out.")

    def _predict_with_torch(
        self, given: Any, batch: int, workers: int | None, device: "torch.device | str | None", progress: Progress
    ) -> Iterator[Prediction]:
        """The predictions of a PyTorch model; of files all batches come from one loader."""
        from ..data.loader import default_workers

        where, task = pick_device(device), get_task(self.task)
        model = self.model.to(where)
        if isinstance(given, Split):
            if workers is None:
                workers = default_workers("folder", where) if len(given) > batch else 0
            return self._predict_split(
                model, given, batch, progress(task.image_loader(given, self.preprocessing, batch, workers)), where
            )
        chunks = iter(lambda: list(islice(given, batch)), [])
        channels = self.preprocessing.channels
        return (
            prediction
            for chunk in progress(GivenImages(chunk, channels) for chunk in chunks)
            for prediction in self._predict_split(
                model, chunk, batch, task.image_loader(chunk, self.preprocessing, batch, 0), where
            )
        )

    def _predict_split(
        self, model: "nn.Module", split: Split, batch: int, batches: Any, device: "torch.device"
    ) -> Iterator[Prediction]:
        task = get_task(self.task)
        for number, group in enumerate(batches):
            predictions = task.predict(model, group, self.preprocessing, device, self.classes)
            found = dict(zip(group.indices.tolist(), predictions, strict=True))
            for index in range(number * batch, min((number + 1) * batch, len(split))):
                name = split.name(index)
                if index in found:
                    yield found[index]
                else:
                    yield Prediction(image=name, problem=group.bad[name])


class Predictions(Iterator[Prediction]):
    """Predictions, made as they are taken: nothing is kept of those that were.

    A notebook shows the next few beside their images; showing them takes none.

    Args:
        found: A prediction of each image.
        waiting: Images that were read and whose predictions were not taken yet, in the same order; None where all are
            files, which can be read again.

    Example:
        >>> found = load("localvit_nano").predict(np.zeros((3, 40, 30, 3), dtype=np.uint8))
        >>> found._repr_html_().count("<img"), len(list(found))
        (3, 3)
    """

    def __init__(self, found: Iterator[Prediction], waiting: "deque[Named] | None" = None):
        self._found, self._waiting = found, waiting
        self._ahead: deque[tuple[Prediction, Any]] = deque()  # made to be shown, not taken yet

    def __next__(self) -> Prediction:
        if not self._ahead:
            self._make()
        return self._ahead.popleft()[0]

    def _make(self) -> None:
        """Make one more prediction, and put it beside its image if that is no file."""
        prediction = next(self._found)
        self._ahead.append((prediction, self._waiting.popleft()[1] if self._waiting else None))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write those that were not taken yet as a table (`.csv`) or as JSON lines (`.jsonl`), as they are made.

        Images that can't be read are left out, with a warning.

        Args:
            path: File to write; complete, or not there.
            force: Take the place of a file that holds something else.

        Raises:
            ValueError: The name ends otherwise, another file is in the way, or no image can be read.
        """
        path, bad, done = Path(path), [], 0
        if path.suffix not in (".csv", ".jsonl"):
            raise ValueError(f"{path} ends neither in .csv nor in .jsonl; name a file that does.")
        as_table = path.suffix == ".csv"
        check_output(path, is_ours=is_table if as_table else is_json_lines, force=force)
        with writing_rows(path, CsvTable if as_table else JsonLines) as rows:
            for prediction in self:
                if prediction.problem is None:
                    rows.add(prediction)
                    done += 1
                else:
                    bad.append(f"{prediction.image}: {prediction.problem}")
            if not done:
                raise ValueError(f"No image can be read: {len(bad):,} of {len(bad):,} are unreadable.")
        if bad:
            warnings.warn(f"{len(bad):,} unreadable left out, such as {bad[0]}", stacklevel=2)
        return path

    def _repr_html_(self) -> str:
        with suppress(StopIteration):
            while len(self._ahead) <= SHOWN:
                self._make()
        if not self._ahead:
            return "<p>No more predictions; those that were taken show themselves.</p>"
        shown = []
        for prediction, given in islice(self._ahead, SHOWN):
            image = None
            if given is not None and prediction.problem is None:
                name = prediction.image
                image = decode(name, given) if isinstance(given, str | bytes) else to_image(name, given)
            shown.append(prediction.to_html(image))
        more = "<p>More follow: iterate over the predictions to take them.</p>" if len(self._ahead) > SHOWN else ""
        return "\n".join(shown) + more


def keep_waiting(given: Iterator[Named]) -> "tuple[Iterator[Named], deque[Named]]":
    """The same images, and those of them that were read, until somebody takes them from there."""
    waiting: deque[Named] = deque()

    def read() -> Iterator[Named]:
        for named in given:
            waiting.append(named)
            yield named

    return read(), waiting


@checked
def load(
    source: "str | os.PathLike[str] | Predictor | Sequence[str | os.PathLike[str] | Predictor]",
    *,
    device: "torch.device | str | None" = None,
    img_size: int | None = None,
    seed: int = 0,
) -> Predictor:
    """Open the model of a run, a weight file, a bundle, or a model by its name.

    Args:
        source: Folder of a run or of a bundle, a `.safetensors` file with its JSON file beside it, a model of the
            Hugging Face hub as `hf:owner/name`, a model that comes with Nearsight (`near_nano.clothing`), or the name
            of any other, ours or timm's, which gets random weights. A list of runs, their folders between commas, or
            the folder of `train --folds` opens as one that averages them.
        device: Where the model is to stand; None leaves it on the CPU.
        img_size: Side of the images in pixels; None takes the model's own.
        seed: Of random weights.

    Raises:
        ValueError: There is no such model, or it can't be opened.

    Example:
        >>> import nearsight, tempfile
        >>> model = nearsight.create_model("lit_nano", num_classes=3)
        >>> file = nearsight.save(model, tempfile.mkdtemp() + "/model.safetensors")
        >>> load(file).model.num_classes, load(file).classes
        (3, ('0', '1', '2'))
    """
    predictor = open_source(source, img_size, seed)
    if device is not None and not isinstance(predictor.preprocessing, Bundle):
        predictor.model.to(pick_device(device))
    return predictor


def open_source(
    source: "str | os.PathLike[str] | Predictor | Sequence[str | os.PathLike[str] | Predictor]",
    img_size: int | None = None,
    seed: int = 0,
    calibrated: bool = True,
) -> Predictor:
    """What `load` does; `calibrated` is False where a calibration is to be made anew."""
    correct = with_calibration if calibrated else lambda predictor: predictor
    if not isinstance(source, str | os.PathLike | Predictor):
        return average([open_source(one, img_size) for one in source])
    if isinstance(source, Predictor):
        return source
    if "," in str(source) and not os.path.exists(source):
        return average([open_source(Path(part.strip()), img_size) for part in str(source).split(",")])
    if os.path.isfile(os.path.join(source, FOLDS)):
        from .run import FoldsRecord, read_record

        folder = Path(source)
        count = read_record(folder / FOLDS, kind=FoldsRecord)["folds"]
        members = [load_weights(model_file(folder / f"fold-{number + 1}"), img_size) for number in range(count)]
        return correct(replace(average(members), path=folder))
    if str(source).startswith(HUB):
        return load_from_hub(str(source), img_size)
    if os.fspath(source) in (shipped := shipped_models()) and not os.path.exists(source):
        return load_weights(shipped[os.fspath(source)], img_size)
    if not is_path(source):
        return load_by_name(os.fspath(source), img_size, seed)
    if is_bundle(path := expand_home(source)):
        if img_size is not None:
            raise ValueError(f"{path} is a bundle, which has its image size; leave {img_size} pixels out.")
        bundle = read_bundle(path)
        runner, settings = open_runner(path, bundle), dict(bundle.settings)
        return Predictor(runner, bundle.model, bundle.task, bundle.labels, bundle, path, bundle.weights, settings)
    return correct(load_weights(model_file(path), img_size))


def average(predictors: Sequence[Predictor]) -> Predictor:
    """Several models as one predictor, whose probabilities are the mean of theirs; detections are fused.

    Raises:
        ValueError: They are not for the same task and classes, or are not shown images alike.
    """
    from ..tasks.views import Merged

    first = predictors[0] if predictors else None
    if first is None:
        raise ValueError("There is no model to average; name one or more runs.")
    for other in predictors[1:]:
        for key in ("task", "classes", "preprocessing"):
            if getattr(other, key) != getattr(first, key):
                raise ValueError(
                    f"{first.path or first.name} and {other.path or other.name} can't be averaged: they have other "
                    f"{key if key == 'classes' else f'{key}s' if key == 'task' else 'image sizes or means'}."
                )
    if len(predictors) == 1:
        return first
    if any(isinstance(one.preprocessing, Bundle) for one in predictors):
        raise ValueError("Bundles can't be averaged; give the runs that they were exported from.")
    members = [member for one in predictors for member in getattr(one.model, "members", [one.model])]
    settings: dict[str, Any] = {}
    for key in ("threshold", "thresholds"):
        found = [one.settings[key] for one in predictors if key in one.settings]
        if len(found) == len(predictors):
            mean = np.mean(found, axis=0)
            settings[key] = mean.tolist() if isinstance(found[0], list) else float(mean)
    merged = Merged(get_task(first.task), members).eval()
    return replace(first, model=merged, name=f"{len(members)} x {first.name}", settings=settings)


def with_calibration(predictor: Predictor) -> Predictor:
    """The predictor with what `nearsight calibrate` found out, if that was for these weights.

    Raises:
        ValueError: It was for others, or was edited.
    """
    file = calibration_file(predictor)
    if predictor.path is None or not file.is_file():
        return predictor
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        settings, weights = check_settings(found["settings"], len(predictor.classes)), found["weights"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{file} is damaged; run `nearsight calibrate` again, or remove it.") from None
    if weights != fingerprint(predictor):
        raise ValueError(f"{file} is of other weights; run `nearsight calibrate` again, or remove it.")
    return replace(predictor, settings=predictor.settings | settings)


def calibration_file(predictor: Predictor) -> Path:
    """Where a calibration is kept: in the folder of a run, beside weights of another name under their own."""
    alone = predictor.path is not None and predictor.path.is_file() and predictor.path.name != WEIGHTS
    return predictor.folder / (f"{predictor.path.stem}.{CALIBRATION}" if alone and predictor.path else CALIBRATION)


def fingerprint(predictor: Predictor) -> str:
    """SHA-256 of the weights of a predictor, which a calibration belongs to."""
    digest = hashlib.sha256()
    for name, tensor in predictor.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def is_path(source: str | os.PathLike[str]) -> bool:
    """Whether a source means a file or folder, not the name of a model.

    Example:
        >>> [is_path(text) for text in ("lit_nano", "timm/resnet18", "runs/flowers", "a.safetensors", "./lit_nano")]
        [False, False, True, True, True]
    """
    text = os.fspath(source)
    if not isinstance(source, str) or os.path.exists(text) or text.endswith(".safetensors"):
        return True
    return text.startswith((".", "~")) or (("/" in text or os.sep in text) and not text.startswith("timm/"))


def load_from_hub(name: str, img_size: int | None) -> Predictor:
    """A model of the hub that Nearsight or timm wrote."""
    from ..checkpoints.hub import DESCRIPTION, TIMM, WEIGHTS, fetch_repository, parse_repository

    folder = fetch_repository(name)
    if (folder / DESCRIPTION).is_file():
        return load_weights(folder / WEIGHTS, img_size)
    import timm

    from ..tasks.build import preprocessing_of

    repository, revision = parse_repository(name)
    where = repository if revision is None else f"{repository}@{revision}"
    try:
        about = json.loads((folder / TIMM).read_text(encoding="utf-8"))
        model = timm.create_model(f"hf-hub:{where}", pretrained=True).eval()
    except Exception as error:  # timm fails in many ways on what it does not know
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"{name} is no model that Nearsight or timm can open ({reason[0]}).") from None
    labels = about.get("label_names") or ()
    classes = tuple(map(str, labels)) if len(labels) == model.num_classes else numbered(model.num_classes)
    kind = "trained" if labels else "converted"
    shown = preprocessing_of(model, img_size)
    return Predictor(model, str(about["architecture"]), "classify", classes, shown, folder / WEIGHTS, kind)


def load_by_name(name: str, img_size: int | None, seed: int) -> Predictor:
    """A model of ours or of timm with random weights, which follow from the seed alone."""
    import torch

    from ..config.recipe import ModelChoice, check_seed
    from ..tasks.build import build

    check_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = build(ModelChoice(name=name, img_size=img_size), IMAGENET)
    numbers = numbered(getattr(built.model, "num_classes", 0))
    return Predictor(built.model.eval(), built.name, "classify", numbers, built.preprocessing, None, "random")


def numbered(count: int) -> tuple[str, ...]:
    """Class numbers instead of names."""
    return tuple(map(str, range(count)))


def load_weights(file: Path, img_size: int | None = None) -> Predictor:
    """The model of a weight file, with its classes where it was trained by Nearsight."""
    from ..checkpoints.format import load_model, name_in, read_description
    from ..tasks.build import channels_seen, preprocessing_of

    description = read_description(file)
    model = load_model(file, description, img_size=img_size)
    refuse_damaged(file, model)
    name = name_in(description) or "model"
    about = description.get("trained")
    if not about:
        numbers = numbered(description["num_classes"])
        return Predictor(model, name, "classify", numbers, preprocessing_of(model, img_size), file, "converted")
    preprocessing = read_preprocessing(file, about)
    seen = channels_seen(model)
    if not len(preprocessing.mean) == len(preprocessing.std) == seen:
        raise ValueError(
            f"{file.with_suffix('.json')} does not say how images are shown to the model (mean or std are not of "
            f"{seen} channels); take the file that was written with the weights."
        )
    if img_size is not None and not preprocessing.dense:
        preprocessing = replace(preprocessing, size=(img_size, img_size))
    settings = {key: value for key, value in about.items() if key not in ("task", "classes", "input")}
    try:
        check_settings(settings, len(about["classes"]))
    except ValueError as error:
        beside = file.with_suffix(".json")
        raise ValueError(f"{beside} was edited ({error}); take the file that was written with the weights.") from None
    return Predictor(model, name, about["task"], tuple(about["classes"]), preprocessing, file, "trained", settings)


def refuse_damaged(file: Path, model: "nn.Module") -> None:
    """Refuse weights that are no finite numbers: whatever they would predict, draw or export means nothing."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"{file} holds numbers that are not finite (in {name}); its weights are damaged, train it anew."
            )


# How many numbers the settings of the preprocessing have; `max_size` may have none, `stretch` is true or false, mean
# and std have one for each channel that the model sees.
SHAPES = {"size": 2, "crop": 1, "min_size": 1, "shorter": 1, "divisor": 1}


def read_preprocessing(file: Path, about: dict[str, Any]) -> Any:
    """How images are shown to a trained model, as its description says it.

    Raises:
        ValueError: The description was edited.
    """
    wrong = None
    for key, value in about["input"].items():
        numbers = value if isinstance(value, list) else [value]
        counted = [number for number in numbers if number is not None and not isinstance(number, bool)]
        is_plain = all(isinstance(number, (int, float)) and abs(number) <= LARGEST for number in counted)
        is_positive = key == "mean" or all(number > 0 for number in counted if isinstance(number, (int, float)))
        is_counted = key in SHAPES or key in ("mean", "std")
        is_whole = not is_counted or len(numbers) == len(counted) == SHAPES.get(key, len(numbers))
        if not (is_plain and is_positive and is_whole):
            wrong = f"{key} is {value!r}"
    try:
        if wrong is None:
            return get_task(about["task"]).preprocessing_from(about["input"])
    except TypeError as error:  # in Python's own words
        named = re.search(r"'(\w+)'", str(error))
        wrong = f"the setting {named[1]} is unknown or missing" if named else "its settings are unknown"
    except (KeyError, ValueError) as error:
        wrong = str(error).rstrip(".")
    raise ValueError(
        f"{file.with_suffix('.json')} does not say how images are shown to the model ({wrong}); take the file that was "
        "written with the weights."
    )


def load_module(source: str | os.PathLike[str] | Predictor, seed: int = 0) -> Predictor:
    """A model of PyTorch; bundles are refused."""
    if not isinstance(source, Predictor) and is_bundle(source):
        raise ValueError(f"{source} is a bundle already; give the folder of a run, a weight file or a model's name.")
    predictor = load(source, seed=seed)
    if len(getattr(predictor.model, "members", ())) > 1:
        raise ValueError(f"{predictor.path} is an average of several models; give one of its runs.")
    return predictor


def load_trained(
    source: str | os.PathLike[str] | Predictor, task: str | None = None, calibrated: bool = True
) -> Predictor:
    """A model with names of its classes; weights without such, and a model of another task, are refused."""
    given = source if isinstance(source, Predictor | list | tuple) else Path(source)
    predictor = open_source(given, calibrated=calibrated)
    if predictor.weights != "trained":
        raise ValueError(
            f"{predictor.path or predictor.name} was not trained by Nearsight and has no class names; give the folder "
            "of a run."
        )
    if task is not None and predictor.task != task:
        where = predictor.path.parent if predictor.path else predictor.name
        raise ValueError(f"{where} was trained to {predictor.task}; this takes one that was trained to {task}.")
    return predictor


def save_trained(
    built: "Built", task: str, classes: tuple[str, ...], path: Path, settings: Mapping[str, Any] | None = None
) -> Path:
    """Write a model with its task, its classes, its preprocessing, and settings such as a detector's threshold."""
    from ..checkpoints.format import save_model

    about: dict[str, Any] = {"task": task, "classes": list(classes), "input": asdict(built.preprocessing)}
    about |= settings or {}
    origin = {} if built.timm_options is not None else {"model": built.name}
    size = getattr(built.preprocessing, "size", None)
    return save_model(built.model, path, origin, about, name=built.name, timm_options=built.timm_options, img_size=size)


@checked
def save(
    model: "torch.nn.Module | Predictor", path: str | os.PathLike[str], *, force: bool = False, **options: Any
) -> Path:
    """Write a model of ours or of timm, localized or not, as safetensors with a JSON file beside it.

    `nearsight.load` opens it again. Nothing is pickled.

    Args:
        model: The model, or a predictor, whose classes and preprocessing are written with it.
        path: File to write, ending in `.safetensors`.
        force: Whether files that Nearsight did not write may be replaced.
        **options: Of a model of timm: what `timm.create_model` was given beside its name, the number of classes and the
            image size.

    Returns:
        The path.

    Raises:
        ValueError: timm's model can't be built again from its name and the options, or a file is in the way.

    Example:
        >>> import nearsight, tempfile, timm, torch
        >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=4).eval()
        >>> local = nearsight.localize(model, ffn="localvit", layers="low")
        >>> file = save(local, Path(tempfile.mkdtemp()) / "local.safetensors")
        >>> images = torch.randn(1, 3, 32, 32)
        >>> torch.equal(load(file).model(images), local(images))
        True
    """
    from ..checkpoints.format import check_target, read_description, save_any

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} does not end in .safetensors; that is the format that save writes.")
    check_target(path, force=force)
    if not isinstance(model, Predictor):
        return save_any(model, path, options)
    if isinstance(model.preprocessing, Bundle):
        raise ValueError(f"{model.path} is a bundle, which can't be saved as weights; copy its folder.")
    if model.path is not None and not options:
        options = read_description(model.path)["timm"] or {}
    about = {"task": model.task, "classes": list(model.classes), "input": asdict(model.preprocessing), **model.settings}
    return save_any(model.model, path, options, model.name, about if model.weights == "trained" else None)


def model_file(path: str | os.PathLike[str]) -> Path:
    """The weights at a path: of a run's folder, or the file itself."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} is not there; give the folder of a run or a .safetensors file.")
    if path.is_dir():
        file = path / "model.safetensors"
        if not file.is_file():
            if not (path / "data.json").is_file() or not (path / "recipe.yaml").is_file():
                raise ValueError(
                    f"{path} has no finished model and is no run; give the folder of a run or a .safetensors file."
                )
            command = f"nearsight train --resume {shlex.quote(str(path))}"
            raise ValueError(f"{path} has no finished model; finish it with `{command}`.")
        return file
    return path


def pick_device(wanted: "torch.device | str | None" = None) -> "torch.device":
    """The device of that name, or the best that there is.

    Raises:
        ValueError: There is no such device.

    Example:
        >>> pick_device("cpu")
        device(type='cpu')
    """
    import torch

    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted is None:
        return torch.device(next(name for name, there in present.items() if there))
    here = ", ".join(name for name, there in present.items() if there)
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ValueError(f"{wanted!r} is no device; this machine has: {here}.") from None
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if not present.get(device.type) or (device.index or 0) >= count:
        raise ValueError(f"There is no device {wanted} here; this machine has: {here}.")
    return device
