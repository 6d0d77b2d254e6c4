"""What is explained: the model of a run, weights, or a model by name with random weights."""

from ..runs.predictor import RANDOM as RANDOM
from ..runs.predictor import Predictor as Opened
from ..runs.predictor import load_module as open_model

__all__ = ["RANDOM", "Opened", "open_model"]
