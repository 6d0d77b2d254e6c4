"""Where a run may lie: outside of its data, and in no folder that holds something else."""

from pathlib import Path

from ..data.open import NAMES
from .run import Run

# What a run, or the comparison that starts it, has written when a kill or a refusal leaves it unbegun.
WRITTEN_FIRST = {"log.txt", "metrics.jsonl", "checkpoints", "tensorboard", "recipe.yaml", "environment.json"}


def check_place(run: Run, source: str) -> None:
    """Refuse a folder for a new run that lies inside the data, or holds what is not of a run."""
    if run.is_begun():
        return
    refuse_inside(run.folder, source)
    if not run.folder.is_dir():
        return
    held = sorted(entry.name for entry in run.folder.iterdir() if not entry.name.startswith("."))
    if held and not WRITTEN_FIRST & set(held):
        raise ValueError(
            f"{run.folder} holds other things than a run (such as {held[0]}); give --out a new or an empty folder."
        )


def refuse_inside(folder: Path, source: str) -> None:
    """Refuse a folder inside the data, where it would become a class."""
    data = data_folder(source)
    if data is not None and folder.resolve().is_relative_to(data):
        raise ValueError(f"{folder} lies inside the data {source}; give a folder outside with --out.")


def data_folder(source: str) -> Path | None:
    """The folder that data lie in; None for a file, a name or something else."""
    if source in NAMES:
        return None
    for text in (source, source.partition("?")[0]):
        path = Path(text).expanduser()
        if path.is_dir():
            return path.resolve()
    return None
