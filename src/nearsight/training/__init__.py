"""Training: a typed recipe, one flat loop, checkpoints that lose nothing."""

from ..config.files import load_recipe
from ..config.recipe import Recipe
from ..runs.run import Outcome, Run
from .loop import resume_training, run_training

__all__ = ["Outcome", "Recipe", "Run", "load_recipe", "resume_training", "run_training"]
