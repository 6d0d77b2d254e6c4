"""The folder of a run: its identity, its records, and the lock that keeps others out."""

import html
import io
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic import BaseModel, Field, InstanceOf, ValidationError, create_model

from .. import __version__
from ..arguments import why_no_json
from ..atomic import expand_home, write_whole
from ..config.files import read_recipe, to_yaml
from ..config.recipe import Recipe
from ..data.open import NAMES, open_again, open_any
from ..data.samples import Data
from ..data.sources.npz import load_arrays
from ..plots.style import image_html
from ..result import Result, as_json
from ..shipped import shipped_models
from ..tasks import get_evaluator

if TYPE_CHECKING:
    from .predictor import Predictor

PREDICTIONS = "predictions.npz"
OLD_KEYS = {"worth": "scores", "sureness": "confidence"}  # of predictions that version 0.1 wrote
IMAGES_OF = {"indices": 0, "confidence": 0, "classes": -1}  # the axis of each array that counts the images


Text = InstanceOf[str]  # a `str` of pydantic refuses names that are no UTF-8


class FirstWeights(BaseModel):
    """Pretrained weights that runs began with, as `nearsight.checkpoints.pretrained.first_weights` knows them."""

    name: Text
    licence: Text
    sha256: Text


class WeightsRecord(BaseModel):
    """The file of weights that a run started from, as `nearsight.checkpoints.pretrained.identify` knows it."""

    file: Text
    sha256: Text
    name: Text | None = None
    licence: Text | None = None
    first: FirstWeights | None = None  # of a run's own file: what that run began with


class TeacherRecord(BaseModel):
    """The run that a model was distilled from."""

    model: Text | None
    weights: FirstWeights | None


class EnvironmentRecord(BaseModel):
    """Where and with what a run was begun, as `environment` gives it."""

    command: Text
    begun: Text
    python: Text
    device: Text
    threads: int
    versions: dict[Text, Text]
    processes: int = 1
    weights: WeightsRecord | None = None
    teacher: TeacherRecord | None = None


class SplitRecord(BaseModel):
    """A split, as `nearsight.data.split.describe_split` gives it."""

    count: int
    fingerprint: Text = ""
    names: list[Text] = []


class FoldsRecord(BaseModel):
    """What was asked of a training in folds, as `nearsight.training.folds.train_folds` writes it."""

    source: Text
    folds: Annotated[int, Field(ge=2)]
    staged: bool
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    epochs: int | None
    recipe: dict[Text, Any]
    resolved: dict[Text, Any]


class DataRecord(BaseModel):
    """The data of a run and their split, as `nearsight.data.split.describe_splits` gives them."""

    source: Text
    kind: Text
    classes: list[Text]
    splits: dict[Text, SplitRecord]
    folder: Text = ""
    task: Text = ""


@dataclass(frozen=True)
class Outcome(Result):
    """What came of a run.

    Attributes:
        model: Name of the model.
        parameters: Numbers that were trained.
        epoch: The best epoch, counted from 1; its weights are the run's model.
        epochs: Epochs that were trained.
        steps: Steps that were trained.
        task: `classify`, `detect` or `segment`.
        metric: What the scores are: `accuracy`, `box AP`, `mask AP` or `mIoU`.
        val_score: Of the best epoch.
        test_score: Of the best epoch on the test images; None without such.
        test: All metrics of the best epoch on the test images.
        elapsed: Seconds of training and validation.
        stopped_early: Whether patience ended the run.
        bad_images: Unreadable images, with the reasons.
        folder: Of the run.
    """

    model: str
    parameters: int
    epoch: int
    epochs: int
    steps: int
    task: str
    metric: str
    val_score: float
    test_score: float | None
    test: dict[str, float] | None
    elapsed: float
    stopped_early: bool
    bad_images: dict[Text, Text]
    folder: Path | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `outcome.json` holds them."""
        return {key: value for key, value in asdict(self).items() if key != "folder"}

    def _repr_html_(self) -> str:
        curves = None if self.folder is None else self.folder / "curves.png"
        figure = image_html(curves.read_bytes(), "loss and score by epoch") if curves and curves.is_file() else ""
        return f"<p>{html.escape(repr(self))}</p>{figure}"

    def __repr__(self) -> str:
        tested = "" if self.test_score is None else f", {self.test_score:.2%} on test"
        scores = f"{self.metric} {self.val_score:.2%} on validation{tested}"
        return f"Outcome({self.model}: {scores}; {self.epochs} epochs, {self.elapsed:.0f} s; {self.folder})"


OF_OUTCOME = {name: (kind, ...) for name, kind in get_type_hints(Outcome, include_extras=True).items()}
del OF_OUTCOME["folder"]
OutcomeRecord: type[BaseModel] = create_model("OutcomeRecord", **OF_OUTCOME)  # type: ignore[call-overload]


class Run:
    """The folder of a run.

    Attributes:
        folder: Where it is.
        flags: What to type behind its folder to go on as it was started.
    """

    def __init__(self, folder: str | Path, flags: Sequence[str] = ()):
        self.folder, self.flags = Path(folder), tuple(flags)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def resume_command(self) -> str:
        """What to type to go on."""
        return shlex.join(["nearsight", "train", "--resume", str(self.folder), *self.flags])

    def is_begun(self) -> bool:
        """Whether a run was begun here."""
        return (self.folder / "data.json").is_file()

    def begin(self, recipe: Recipe, data: dict[str, Any], measured: Mapping[str, float] | None = None) -> None:
        """Write what decides the run; `data.json` last, as the sign that it was begun.

        Args:
            recipe: With nothing left open.
            data: The record of the data.
            measured: Seconds of an image in a training step in each precision, if these decided the recipe's.
        """
        write_whole(self.folder / "recipe.yaml", to_yaml(recipe).encode())
        about: dict[str, Any] = {**environment(), "processes": processes()}
        about |= {} if measured is None else {"seconds_of_an_image": dict(measured)}
        if recipe.model.weights is not None:
            from ..checkpoints.pretrained import identify

            given = shipped_models().get(recipe.model.weights) or Path(recipe.model.weights)
            about["weights"] = identify(given / "model.safetensors" if given.is_dir() else given)
        if recipe.distill is not None and (taught := Run(expand_home(recipe.distill.teacher))).is_begun():
            from ..checkpoints.pretrained import first_weights

            about["teacher"] = {"model": taught.recipe().model.name, "weights": first_weights(taught.folder)}
        write_whole(self.folder / "environment.json", as_json(about))
        write_whole(self.folder / "data.json", as_json(data))

    def recipe(self) -> Recipe:
        """The resolved recipe."""
        if not self.is_begun():
            command = f"nearsight train DATA --out {shlex.quote(str(self.folder))}"
            raise ValueError(f"{self.folder} is not the folder of a run; begin one with `{command}`.")
        return read_recipe(self.folder / "recipe.yaml")

    def data(self) -> dict[str, Any]:
        """The record of the data and their split."""
        return read_data_record(self.folder / "data.json")

    def environment(self) -> dict[str, Any]:
        """Where and with what the run was begun, as `environment` gave it.

        Raises:
            ValueError: The record is damaged, or was edited.
        """
        return read_record(self.folder / "environment.json", kind=EnvironmentRecord)

    def threads(self) -> int | None:
        """CPU threads of a run that one process began; None where nothing is known of them."""
        about = self.environment() if (self.folder / "environment.json").is_file() else {}
        return about.get("threads") if about.get("processes", 1) == 1 else None

    def weights(self) -> dict[str, Any] | None:
        """Name, licence and hash of the file of weights that the run started from; None for a start from scratch."""
        return self.environment().get("weights") if (self.folder / "environment.json").is_file() else None

    def record(self, values: dict[str, Any]) -> None:
        """Append a line to `metrics.jsonl`."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The whole lines of `metrics.jsonl`; one that was cut off by a kill is left out."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        found: list[dict[str, Any]] = []
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = None
            if not isinstance(values, dict) or {type(values.get(key)) for key in ("step", "epoch")} != {int}:
                raise ValueError(f"{path} is damaged in line {number}; remove that line.")
            found.append(values)
        return found

    def drop_half_line(self) -> None:
        """Remove the last line of `metrics.jsonl` where a kill cut it off; the next is not appended to it."""
        path = self.folder / "metrics.jsonl"
        content = path.read_bytes() if path.is_file() else b""
        if content and not content.endswith(b"\n"):
            write_whole(path, content[: content.rfind(b"\n") + 1])

    def forget_after(self, step: int, epoch: int) -> None:
        """Remove records of steps and validations that are done again."""
        kept = [
            values
            for values in self.records()
            if values["step"] <= step and (values["kind"] == "step" or values["epoch"] <= epoch)
        ]
        write_whole(self.folder / "metrics.jsonl", "".join(json.dumps(values) + "\n" for values in kept).encode())

    def write_predictions(self, split: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write what the model predicted for each image of the split that decides, for comparisons.

        Args:
            split: Name of the split.
            arrays: `indices` of the images, and what the meter of the task gives (`nearsight.tasks.base.Meter`).
        """
        file = io.BytesIO()
        np.savez_compressed(file, split=np.array(split), **arrays)  # type: ignore[arg-type]
        write_whole(self.folder / PREDICTIONS, file.getvalue())

    def finish(self, outcome: Outcome) -> None:
        """Write the outcome, as the sign that the run is finished."""
        outcome.save(self.folder / "outcome.json")

    def outcome(self) -> Outcome | None:
        """The outcome; None while the run is not finished."""
        path = self.folder / "outcome.json"
        if not path.is_file():
            return None
        values = read_record(path, kind=OutcomeRecord)
        return Outcome(**{name: values[name] for name in OF_OUTCOME}, folder=self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the lock goes with the process, even if it is killed.

        A start that was refused leaves nothing behind: neither the lock's file nor folders that were made for it.
        """
        refuse_odd_name(self.folder)
        made = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(
                f"{self.folder} is in use by another process; wait for it, or give another folder with --out."
            ) from None
        try:
            for left in self.folder.glob(".*.part"):  # of `write_whole`, after a kill; folders are of exports
                if not left.is_dir():
                    left.unlink(missing_ok=True)
            self.drop_half_line()
            yield
        finally:
            if self.folder.is_dir() and [entry.name for entry in self.folder.iterdir()] == [".lock"]:
                with suppress(OSError):  # Windows keeps files that are open; others may have put something in
                    (self.folder / ".lock").unlink()
                    for folder in made:
                        folder.rmdir()
            lock.release()


def resume_flags(track: Sequence[str], cpu: bool) -> list[str]:
    """The flags that a run does not remember."""
    return [*(["--cpu"] if cpu else []), *(word for name in track for word in ("--track", name))]


def processes() -> int:
    """Processes that torchrun or accelerate started.

    Raises:
        ValueError: What they set in the environment is no number.
    """
    for name in ("WORLD_SIZE", "RANK"):
        value = os.environ.get(name, "1")
        if not value.isdecimal() or len(value) > 6:
            raise ValueError(f"{name}={value} in the environment is no number of processes; unset it.")
    return int(os.environ.get("WORLD_SIZE", "1"))


def read_data_record(path: Path) -> dict[str, Any]:
    """The record of a run's data, as `describe_splits` gave it.

    Raises:
        ValueError: It is damaged, or was edited.
    """
    return read_record(path, kind=DataRecord)


def open_own(trained: "Predictor", source: str | os.PathLike[str] | None) -> tuple[Data, bool]:
    """The data to evaluate with, and whether they are the run's own; these get the run's split."""
    file = trained.folder / "data.json"
    if source is None and not file.is_file():
        raise ValueError(
            f"{trained.folder} has no record of its data (data.json); name the data: "
            f"`nearsight eval {trained.path} DATA`."
        )
    if file.is_file():
        record = read_data_record(file)
        first, second = record["source"], os.fspath(record["source"] if source is None else source)
        is_there = os.path.exists(first) and os.path.exists(second)
        if first == second or (is_there and os.path.samefile(first, second)):
            return open_again(record), True
    assert source is not None
    return open_any(os.fspath(source), trained.task if get_evaluator(trained.task).opens_data else None), False


def read_record(path: Path, keys: Iterable[str] = (), kind: type[BaseModel] | None = None) -> dict[str, Any]:
    """What `as_json` wrote.

    Args:
        path: The file.
        keys: What it has at least; those of `kind` need not be named.
        kind: A class that says of what kind each value is.

    Raises:
        ValueError: The file was cut off or edited, or lacks one of the keys.
    """

    def damaged(reason: str) -> ValueError:
        return ValueError(f"{path} is damaged ({reason}); restore it from a copy, or train anew.")

    if path.exists() and not path.is_file():  # a pipe would be waited at
        raise damaged("it is no file")
    try:
        values = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise damaged(why_no_json(error)) from None
    if not isinstance(values, dict):
        raise damaged("it holds no object")
    for key in keys:
        if key not in values:
            raise damaged(f"it has no {key}")
    try:
        if kind is not None:
            kind.model_validate(values, strict=True)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        key = str(mistake["loc"][0])
        if mistake["type"] == "missing" and len(mistake["loc"]) == 1:
            raise damaged(f"it has no {key}") from None
        raise ValueError(f"{path} was edited ({key} is not as the run wrote it); put it back, or train anew.") from None
    return values


def read_predictions(path: Path, names: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
    """What `Run.write_predictions` wrote; arrays of version 0.1 under their names of now.

    Args:
        path: The file.
        names: Arrays that it has at least, beside the scores.

    Raises:
        ValueError: The file is damaged, or was edited.
    """
    try:
        found = {OLD_KEYS.get(name, name): array for name, array in load_arrays(path).items()}
        scores = found["scores"].astype(np.float64)
        counted = [found[name].shape[axis] for name, axis in IMAGES_OF.items() if name in found]
        is_whole = scores.ndim == 1 and found["split"].ndim == 0 and found.keys() >= set(names)
        if not is_whole or not len(scores) or any(count != len(scores) for count in counted):
            raise ValueError
    except (ValueError, KeyError, TypeError, IndexError):
        raise ValueError(
            f"{path} is damaged; delete it and run the same command again, which writes it anew."
        ) from None
    return found


def refuse_odd_name(folder: Path) -> None:
    """Refuse a folder for runs whose name is no UTF-8: records of a run are, and name the folder."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise ValueError(f"The name {str(folder)!a} is no UTF-8; give another folder with --out.") from None


def typed_command() -> str:
    """The command as it was typed; bytes of names that are no UTF-8 are spelled, since JSON can't hold them."""
    program = Path(sys.argv[0]).name
    text = shlex.join(["nearsight" if program == "__main__.py" else program, *sys.argv[1:]])  # `python -m nearsight`
    return text.encode(errors="backslashreplace").decode()


def environment() -> dict[str, Any]:
    """Where and with what a run was begun."""
    import timm
    import torch
    import torchvision

    return {
        "command": typed_command(),
        "begun": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {
            "nearsight": __version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
        },
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """Name of the CPU, as far as the system tells."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def first_difference(old: Recipe, new: Recipe) -> str | None:
    """The first setting in which two recipes differ, in words; None if they agree."""

    def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict) and key != "options":
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    before, after = (dict(flat(recipe.model_dump(mode="json"))) for recipe in (old, new))  # as YAML keeps them
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            return f"{key} is {before.get(key)} there and {after.get(key)} here"
    return None


# What a run, or the comparison that starts it, has written when a kill or a refusal leaves it unbegun.
WRITTEN_FIRST = {
    "log.txt",
    "job.json",
    "metrics.jsonl",
    "checkpoints",
    "tensorboard",
    "recipe.yaml",
    "environment.json",
}


def check_output_folder(run: Run, source: str, anew: bool = False) -> None:
    """Refuse a folder for a new run that lies inside the data, or holds what is not of a run; `anew`: or a run."""
    if run.is_begun():
        if anew:
            raise ValueError(f"{run.folder} holds another run, which would be lost; give another folder with --out.")
        return
    refuse_inside(run.folder, source)
    if not run.folder.is_dir():
        return
    held = sorted(entry.name for entry in run.folder.iterdir() if not entry.name.startswith("."))
    other = [name for name in held if name not in WRITTEN_FIRST]
    if "recipe.yaml" in held and not is_resolved(run.folder / "recipe.yaml"):
        other.append("recipe.yaml")  # somebody's own, perhaps the one to be trained with
    if other:
        raise ValueError(
            f"{run.folder} holds other things than a run (such as {other[0]}); give --out a new or an empty folder."
        )


def check_plan_folder(folder: Path, source: str, what: str, plan: str) -> None:
    """Refuse a folder that is a file, lies inside the data, or holds other things than a comparison or a search.

    Args:
        folder: Where to.
        source: The data.
        what: Kind of work, for the sentence.
        plan: Name of the file that a folder of it has.
    """
    refuse_inside(folder, source)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder with --out.")
    held = sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []
    if held and plan not in held:
        raise ValueError(
            f"{folder} holds other things than a {what} (such as {held[0]}); give --out a new or an empty folder."
        )


def is_resolved(file: Path) -> bool:
    """Whether a recipe is one that a run wrote: with nothing left open."""
    try:
        return file.read_bytes() == to_yaml(read_recipe(file)).encode()
    except (OSError, ValueError):
        return False


def refuse_inside(folder: Path, source: str) -> None:
    """Refuse a folder inside the data, where it would become a class."""
    data = data_folder(source)
    if data is not None and folder.resolve().is_relative_to(data):
        raise ValueError(f"{folder} lies inside the data {source}; give a folder outside with --out.")


def data_inputs(source: str, file: Path) -> list[Path]:
    """What a file to write must not be: the data themselves, and in their folder whatever is there."""
    folder = data_folder(source)
    inside = folder is not None and file.resolve().is_relative_to(folder)
    return [expand_home(source), expand_home(source.partition("?")[0]), *([file] if inside else [])]


def data_folder(source: str) -> Path | None:
    """The folder that data lie in; None for a file, a name or something else."""
    if source in NAMES:
        return None
    for text in (source, source.partition("?")[0]):
        path = expand_home(text)
        if path.is_dir():
            return path.resolve()
    return None
