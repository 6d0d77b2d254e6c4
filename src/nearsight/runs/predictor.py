"""Trained models: what a run leaves behind, opened again with all that is needed to use it."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..checkpoints.format import load_converted, name_in, read_description, save_model
from ..checkpoints.timm import load_foreign, save_foreign
from ..data.transforms import Input

if TYPE_CHECKING:
    from ..tasks.build import Built


@dataclass(frozen=True)
class Trained:
    """A trained model with its classes.

    Attributes:
        model: In evaluation mode; takes images `[B, 3, H, W]`. A classifier returns `[B, len(classes)]`, a detector or
            segmenter what `nearsight.heads.DenseModel` says.
        name: Its name.
        classes: Names of the classes, by number.
        input: What the model wants to be fed.
        path: File of the weights.
        task: `classify`, `detect` or `segment`.
        threshold: Score from which on an object counts as found: best on the validation images.
    """

    model: nn.Module
    name: str
    classes: tuple[str, ...]
    input: Any  # Input, or SceneInput of a detector or segmenter
    path: Path
    task: str = "classify"
    threshold: float = 0.5


def load(path: str | Path) -> nn.Module:
    """Open the model of a run's folder, or a weight file that Nearsight wrote.

    Args:
        path: Folder of a run, or a `.safetensors` file with its JSON file beside it.

    Returns:
        A model in evaluation mode that takes images `[B, C, H, W]`.

    Example:
        >>> import nearsight, tempfile
        >>> from nearsight.checkpoints.format import save_model
        >>> file = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> path = save_model(nearsight.create_model("lit_nano", num_classes=3), file)
        >>> load(path).num_classes
        3
    """
    file = model_file(path)
    description = read_description(file)
    if description.get("dense") is not None:
        from ..heads.saved import load_dense

        return load_dense(file)
    if description.get("timm") is not None:
        return load_foreign(file)
    return load_converted(file)


def open_trained(path: str | Path) -> Trained:
    """Open a run's model with its classes; weights without classes are refused."""
    file = model_file(path)
    description = read_description(file)
    about = description.get("trained")
    if not about:
        raise ValueError(f"{file} was not trained by Nearsight and has no class names; give the folder of a run.")
    shown: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in about["input"].items()}
    name = name_in(description) or "model"
    classes, task = tuple(about["classes"]), about["task"]
    if task == "classify":
        return Trained(load(file), name, classes, Input(**shown), file)
    from ..data.dense.transforms import SceneInput

    return Trained(load(file), name, classes, SceneInput(**shown), file, task, about.get("threshold", 0.5))


def open_classifier(path: str | Path) -> Trained:
    """Open a run's model with its classes; one that detects or segments is refused."""
    trained = open_trained(path)
    if trained.task != "classify":
        raise ValueError(f"{trained.path.parent} was trained to {trained.task}; this takes a model that classifies.")
    return trained


def save_trained(
    built: "Built", task: str, classes: tuple[str, ...], path: Path, threshold: float | None = None
) -> Path:
    """Write a model with its task, its classes, what it wants to be fed, and the threshold of a detector."""
    about: dict[str, Any] = {"task": task, "classes": list(classes), "input": asdict(built.input)}
    if threshold is not None:
        about["threshold"] = threshold
    if task != "classify":
        from ..heads.saved import save_dense

        return save_dense(built.model, path, name=built.name, trained=about)  # type: ignore[arg-type]
    if built.timm_options is None:
        return save_model(built.model, path, {"model": built.name}, trained=about)
    return save_foreign(
        built.model, path, name=built.name, options=built.timm_options, img_size=built.input.size, trained=about
    )


def model_file(path: str | Path) -> Path:
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
