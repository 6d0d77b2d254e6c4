"""Share a trained model: a folder, or a repository of the Hugging Face hub, with a card that says what it is.

The layout is timm's own (`config.json`, `model.safetensors`), so that `timm.create_model("hf-hub:owner/name")` opens
it after `import nearsight`; `model.json` beside it has what Nearsight knows more, such as the task.
"""

import json
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .arguments import checked
from .atomic import HEAD, write_whole, writing
from .checkpoints.hub import DESCRIPTION, TIMM, WEIGHTS, parse_repository
from .checkpoints.pretrained import first_weights, permits_commercial_use
from .console import percent
from .interval import Interval, student, wilson
from .models import MODELS
from .models.counting import count
from .models.registry import describe
from .result import Result
from .runs.bundle import Bundle
from .runs.predictor import Predictor, load_trained
from .runs.run import PREDICTIONS, Outcome, Run, read_predictions
from .tasks import get_task

CARD = "README.md"
NAMED = 40  # classes that a card names
OFTEN = ("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-nc-4.0", "other")


@dataclass(frozen=True)
class SharedModel(Result):
    """A model that was written for others.

    Attributes:
        repository: Owner and name on the hub; None for a folder alone.
        url: Where to look at it; None for a folder alone.
        folder: What was written or uploaded; None where it was temporary.
        files: Its files with their bytes.
        timm: Whether timm opens it, too.
    """

    repository: str | None
    url: str | None
    folder: Path | None
    files: dict[str, int]
    timm: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"folder": None if self.folder is None else str(self.folder)}

    def __repr__(self) -> str:
        where = self.url or self.folder
        size = sum(self.files.values()) / 1e6
        return f"{where}: {', '.join(self.files)} ({size:.1f} MB){', also for timm' if self.timm else ''}"


@checked
def push(
    source: str | os.PathLike[str] | Predictor,
    repository: str | None = None,
    *,
    licence: str,
    folder: str | os.PathLike[str] | None = None,
    public: bool = False,
    message: str | None = None,
) -> SharedModel:
    """Share a trained model with a card made from its run.

    Args:
        source: Folder of a run, or its weight file.
        repository: `owner/name` on the Hugging Face hub; it is made if there is none. Your token is the hub's own
            (`hf auth login`, or `HF_TOKEN`). None writes the folder alone.
        licence: Of the weights, by its SPDX name, such as `apache-2.0`; it is your decision.
        folder: Where to write what is shared, too; None keeps nothing here.
        public: Whether everybody can see a repository that is made.
        message: Of the commit.

    Returns:
        What was written, and where.

    Raises:
        ValueError: It is no trained model, or it can't be uploaded.

    Example:
        >>> import nearsight, tempfile
        >>> from nearsight.tasks.build import build
        >>> from nearsight.config.recipe import ModelChoice
        >>> from nearsight.runs.predictor import save_trained
        >>> file = tempfile.mkdtemp() + "/model.safetensors"
        >>> _ = save_trained(build(ModelChoice(name="localvit_nano"), 2), "classify", ("cat", "dog"), Path(file))
        >>> shared = push(file, folder=tempfile.mkdtemp() + "/cats", licence="cc0-1.0")
        >>> sorted(shared.files), shared.timm
        (['README.md', 'config.json', 'model.json', 'model.safetensors'], True)
    """
    if repository is None and folder is None:
        raise ValueError("Nothing says where to; give a repository (owner/name) of the hub, or a folder.")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{1,99}", licence):  # as the hub has them
        raise ValueError(f"The weights need the short name of a licence; give one such as {', '.join(OFTEN[:3])}.")
    name = parse_repository(repository)[0] if repository is not None else None
    predictor = load_trained(source)
    if isinstance(predictor.preprocessing, Bundle) or hasattr(predictor.model, "members"):
        raise ValueError(f"{source} is a bundle, or an average of several models; give one run.")
    if name is None and folder is not None:
        target = Path(folder)
        written = write_repository(predictor, target, licence, None)
        return SharedModel(None, None, target, sizes(target), written)
    assert name is not None
    with tempfile.TemporaryDirectory(prefix="nearsight-push-") as scratch:
        target = Path(folder) if folder is not None else Path(scratch) / "model"
        for_timm = write_repository(predictor, target, licence, name)
        url = upload(target, name, public, message or f"Add {predictor.name}, trained with Nearsight {__version__}")
        return SharedModel(name, url, target if folder is not None else None, sizes(target), for_timm)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file that is shared."""
    names = (CARD, TIMM, DESCRIPTION, WEIGHTS)
    return {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}


def write_repository(predictor: Predictor, folder: Path, licence: str, repository: str | None) -> bool:
    """Write weights, descriptions and card; returns whether timm opens the model, too.

    Raises:
        ValueError: The folder holds something else.
    """
    assert predictor.path is not None
    if folder.is_dir() and folder.samefile(predictor.path.parent):
        raise ValueError(f"{folder} is the folder of the model itself; give another.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give another.")
    held = [file.name for file in folder.iterdir() if not file.name.startswith(".")] if folder.is_dir() else []
    if held and not is_card(folder / CARD):  # not by its other files: a run, and weights beside others, have them, too
        raise ValueError(f"{folder} holds other files (such as {held[0]}); give another folder.")
    description = json.loads(predictor.path.with_suffix(".json").read_text(encoding="utf-8"))
    config = timm_config(predictor, description)
    # The card first: by it, what a kill left here is known as ours.
    write_whole(folder / CARD, card(predictor, licence, repository, config is not None).encode(errors="replace"))
    with predictor.path.open("rb") as source, writing(folder / WEIGHTS) as target:
        shutil.copyfileobj(source, target)
    write_whole(folder / DESCRIPTION, json.dumps(description, indent=1).encode())
    if config is not None:
        write_whole(folder / TIMM, json.dumps(config, indent=1).encode())
    return config is not None


def is_card(file: Path) -> bool:
    """Whether a file is a card that was written here."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        head = stream.read(HEAD)
    return head.startswith(b"---\nlicense: ") and b'\ntags: ["nearsight", ' in head


def timm_config(predictor: Predictor, description: dict[str, Any]) -> dict[str, Any] | None:
    """What timm reads to build the model and show it images; None for what timm does not know.

    That are detectors, segmenters, localized models, and backbones of timm whose pooled features are put together.
    """
    if description.get("dense") or description.get("localized") or description.get("pooling"):
        return None
    model, shown, sides = predictor.model, predictor.preprocessing, description["img_size"]
    arguments: dict[str, Any] = {}  # the number of classes is in `pretrained_cfg`; transformers refuses it in both
    if description.get("spec") is not None:  # which says all, under whatever name of ours
        name = predictor.name if predictor.name in MODELS else next(iter(MODELS))
        known = describe(model.spec, tuple(sides), description["in_chans"])
        arguments |= {"spec": description["spec"], "img_size": sides}
    else:
        name, known = predictor.name.removeprefix("timm/"), dict(model.pretrained_cfg)
        arguments |= dict(description.get("timm") or {})
        if known.get("fixed_input_size"):
            arguments["img_size"] = sides
    if description["in_chans"] != 3:
        arguments["in_chans"] = description["in_chans"]
    return {
        "architecture": name,
        "num_classes": len(predictor.classes),
        "num_features": model.num_features,
        "label_names": list(predictor.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": len(predictor.classes),
            "input_size": [description["in_chans"], *shown.size],
            "interpolation": "bicubic",
            "crop_pct": shown.crop,
            "crop_mode": "center",
            "mean": list(shown.mean),
            "std": list(shown.std),
            "first_conv": known.get("first_conv"),
            "classifier": known.get("classifier"),
        },
    }


def upload(folder: Path, repository: str, public: bool, message: str) -> str:
    """Put a folder into a repository of the hub, which is made if there is none; returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    hub = HfApi(library_name="nearsight", library_version=__version__)
    try:
        made = hub.create_repo(repository, private=not public, exist_ok=True)
        hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=message, allow_patterns=list(sizes(folder))
        )
    except LocalTokenNotFoundError:
        raise ValueError("The hub does not know who you are; `hf auth login` first, or set HF_TOKEN.") from None
    except OfflineModeIsEnabled:
        raise ValueError(
            "--offline or HF_HUB_OFFLINE forbids to upload; leave it out, or write a folder with --folder alone."
        ) from None
    except (HfHubHTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise ValueError(
                f"The hub does not let you write to {repository} (HTTP {status}); check the owner, and `hf auth login` "
                "with a token that may write."
            ) from None
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"{repository} can't be uploaded ({reason[0]}); try again later.") from None
    return str(made)


def card(predictor: Predictor, licence: str, repository: str | None, for_timm: bool) -> str:
    """The model card, from what the run knows."""
    task = get_task(predictor.task)
    run = Run(predictor.folder)
    outcome = run.outcome()
    # Nothing is there beside a weight file alone.
    data, environment = run.data() if run.is_begun() else {}, run.environment() if run.is_begun() else {}
    if (first := first_weights(predictor.folder)) is not None:  # of a run that went on from others, where these began
        environment["weights"] = first
    head = {
        "license": licence,
        "library_name": "timm" if for_timm else "nearsight",
        "pipeline_tag": task.hub_tag,
        "tags": ["nearsight", task.hub_tag, *(["timm"] if for_timm else [])],
    }
    names = ", ".join(predictor.classes[:NAMED]) + ", ..." * (len(predictor.classes) > NAMED)
    title = repository.partition("/")[2] if repository else predictor.name
    where = f"hf:{repository}" if repository else "path/to/this/folder"
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---", "", f"# {title}", ""]
    lines += [f"{predictor.name}, trained to {task.purpose}: {names}.", ""]
    lines += ["## Use", "", "```python", "import nearsight", "", f'predictor = nearsight.load("{where}")']
    lines += ['[found] = predictor.predict("photo.jpg")', "print(found.summary())", "```", ""]
    if for_timm:
        opened = f"hf-hub:{repository}" if repository else "local-dir:path/to/this/folder"
        lines += ["With timm (after `import nearsight`, which registers the model):", "", "```python"]
        lines += ["import nearsight, timm", "", f'model = timm.create_model("{opened}", pretrained=True).eval()']
        lines += ["```", ""]
    rows = [("parameters", f"{sum(p.numel() for p in predictor.model.parameters()) / 1e6:.2f} million")]
    if predictor.path is not None:
        rows += [("weights", f"{predictor.path.stat().st_size / 1e6:.1f} MB")]
    if not predictor.preprocessing.dense:
        macs = count(predictor.model, image_size=predictor.preprocessing.size).macs
        height, width = predictor.preprocessing.size
        rows += [("multiply-adds", f"{macs / 1e6:.1f} million at {height}×{width} pixels")]
    lines += ["## Model", "", *table([*rows, ("licence", licence), *origin(environment)])]
    if outcome is not None:
        lines += ["## Results", "", *table(results(outcome, predictor.folder / PREDICTIONS))]
    if data:  # without the folders of somebody's machine
        titles = {"train": "training images", "val": "validation images", "test": "test images"}
        splits = data["splits"]
        rows = [
            ("source", f"`{Path(data['source']).name}`"),
            ("classes", str(len(data["classes"]))),
            *((title, count_of(name, splits[name])) for name, title in titles.items() if name in splits),
        ]
        lines += ["## Data", "", *table(rows)]
    if outcome is None or not data:
        lines += ["What it was trained on, or how good it is, was not recorded beside these weights.", ""]
    lines += [
        "## Intended use",
        "",
        "For the classes above, in images like those of the training. It was measured on images of the same source "
        "only; on others, and on what is none of its classes, it may be wrong with high confidence. Not for decisions "
        "about people without a person who checks them.",
        "",
    ]
    if environment:
        made_with = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
        typed = without_folders(environment["command"])
        lines += ["## Training", "", "```sh", typed, "```", "", f"With {made_with}.", ""]
    return "\n".join(lines)


def count_of(name: str, split: dict[str, Any]) -> str:
    """How many images a split has, and whether the run drew it from the training images (which it then lists)."""
    drawn = name != "train" and split.get("names") is not None
    return f"{split['count']:,}{', drawn from the training images' if drawn else ''}"


def table(rows: list[tuple[str, str]]) -> list[str]:
    """The lines of a table of two columns."""
    return ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows), ""]


def origin(environment: dict[str, Any]) -> list[tuple[str, str]]:
    """Where the weights began, and those of the teacher of a distilled model."""
    rows = [("began", began(environment.get("weights")))]
    if teacher := environment.get("teacher"):
        rows.append(("teacher", f"{teacher['model']}, which began {began(teacher['weights'])}"))
    return rows


def began(weights: dict[str, Any] | None) -> str:
    """What a training started from."""
    if not weights:
        return "from scratch"
    weights = weights.get("first") or weights  # of a run that went on from others: where the first of them began
    if "name" not in weights:
        return f"from the weights of another run (SHA-256 {weights['sha256'][:16]}...)"
    licence = weights.get("licence") or "unknown"
    terms = "" if permits_commercial_use(licence) else ", which may forbid commercial use"
    known = f"licence {licence}{terms}; SHA-256 {weights['sha256'][:16]}..."
    return f"from pretrained weights {weights['name']} ({known})"


def results(outcome: Outcome, file: Path) -> list[tuple[str, str]]:
    """The scores; that of the images that nothing was chosen by, if there are any, has its 95 % interval."""
    found = {"validation images, which chose the epoch": ("val", outcome.val_score)}
    if outcome.test_score is not None:
        found["test images"] = "test", outcome.test_score
    rows = []
    for images, (split, score) in found.items():
        interval = score_interval(file, split)
        spread = "" if interval is None else f" (95 % interval {percent(interval.low)} to {percent(interval.high)})"
        rows.append((f"{outcome.metric} on the {images}", f"{percent(score)}{spread}"))
    return rows


def score_interval(file: Path, split: str) -> Interval | None:
    """The interval of a run's score on a split, None where its predictions are of another one."""
    if not file.is_file():
        return None
    saved = read_predictions(file)
    if str(saved["split"]) != split:
        return None
    if "parts" not in saved:
        return wilson(int(saved["scores"].sum()), len(saved["scores"]))
    return student(saved["parts"].astype(np.float64)) if len(saved["parts"]) > 1 else None


def without_folders(command: str) -> str:
    """A command with paths cut to their last part: others need not know somebody's folders."""
    try:
        typed = shlex.split(command)
    except ValueError:  # a quotation that has no end
        typed = command.split()
    words = []
    for word in typed:
        option, equals, value = word.rpartition("=")
        words.append(f"{option}{equals}{Path(value).name if '/' in value else value}")
    return shlex.join(words)
