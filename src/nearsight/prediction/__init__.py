"""What a trained model, or a bundle, sees in images. It starts without torch, and a bundle needs none."""

from .predict import predict
from .values import Answer, Prediction

__all__ = ["Answer", "Prediction", "predict"]
