"""What a trained model, or a bundle, sees in images. It starts without torch, and a bundle needs none."""

from .answers import Answer, Prediction
from .images import predict

__all__ = ["Answer", "Prediction", "predict"]
