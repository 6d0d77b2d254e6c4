"""How to train, as strictly typed values: recipes, their files, and what to say of a setting that is wrong."""

from typing import Literal, get_args

TaskName = Literal["classify", "multilabel", "detect", "segment"]  # each a file of `nearsight.tasks`
TASKS: tuple[TaskName, ...] = get_args(TaskName)
