"""How good a trained model is: predictions of a split, figures with intervals, pictures and a report."""

from .evaluate import Evaluation, evaluate
from .metrics import Metrics, measure
from .predictions import Predictions, predict_split
from .report import write_report

__all__ = ["Evaluation", "Metrics", "Predictions", "evaluate", "measure", "predict_split", "write_report"]
