"""Tasks: what a model learns of images, how its predictions are judged, and what reports show of them.

Who trains, evaluates, predicts or compares asks the task and never which one it is. Importing this package imports
neither torch nor any task, since `tasks.predictions` serves programs that have no torch.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from ..config import TASKS as NAMES  # a task is a file of this package with that name, and its `TASK`

if TYPE_CHECKING:
    from .base import Task
    from .evaluator import Evaluator

__all__ = ["TASKS", "get_evaluator", "get_task"]

# Where the evaluator of a task stands by itself, without torch; of another task, the task is asked.
EVALUATORS = {
    "classify": "classification_report",
    "multilabel": "multilabel_metrics",
    "detect": "detection_metrics",
    "segment": "segmentation_metrics",
}


class Registry(Mapping[str, "Task"]):
    """The tasks by name; each is imported when it is first asked for."""

    def __getitem__(self, name: str) -> "Task":
        if name not in NAMES:
            raise KeyError(name)
        task: Task = import_module(f".{name}", __name__).TASK
        return task

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


TASKS = Registry()


def get_task(name: str) -> "Task":
    """The task of a name.

    Raises:
        ValueError: There is no such task.

    Example:
        >>> get_task("detect").metric.title
        'box AP'
    """
    if name not in NAMES:
        raise ValueError(f"There is no task {name!r}; tasks are {', '.join(NAMES)}.")
    return TASKS[name]


def get_evaluator(name: str) -> "Evaluator":
    """How the predictions of a task are judged, without torch where the task's evaluator needs none.

    Raises:
        ValueError: There is no such task.

    Example:
        >>> get_evaluator("segment").metric.title
        'mIoU'
    """
    if name not in EVALUATORS:
        return get_task(name)
    evaluator: Evaluator = import_module(f".{EVALUATORS[name]}", __name__).EVALUATOR
    return evaluator
