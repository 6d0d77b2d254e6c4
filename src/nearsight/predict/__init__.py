"""What a trained model sees in images."""

from .images import Answer, Prediction, predict

__all__ = ["Answer", "Prediction", "predict"]
