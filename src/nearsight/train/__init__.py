"""Training: a typed recipe, one flat loop, checkpoints that lose nothing."""

from .loop import resume_training, run_training
from .recipe import Recipe
from .recipe_file import load_recipe
from .run import Outcome, Run

__all__ = ["Outcome", "Recipe", "Run", "load_recipe", "resume_training", "run_training"]
