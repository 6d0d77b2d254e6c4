"""See what a model sees: attention, roll-out, sampling points, kernels, receptive fields; and whether it is true.

Every method takes a model and images, or what `capture` returned, and gives a typed result that the functions of
`nearsight.explanation.figures` turn into figures of one style.
"""

from .attention import (
    Attention,
    GlobalTokens,
    ProbabilityGrid,
    ProbabilityGrids,
    attention,
    global_tokens,
    probability_grids,
)
from .capture import Capture, CapturedLayer, capture
from .faithfulness import Scores, score
from .gradients import grad_cam, grad_rollout, receptive_field
from .kernels import Kernels, SamplingPoints, kernels, sampling_points
from .maps import Maps
from .methods import Explanation, Explanations, explain
from .rollout import DenseRollout, dense_rollout, masks_of_boxes, rollout

__all__ = [
    "Attention",
    "Capture",
    "CapturedLayer",
    "DenseRollout",
    "Explanation",
    "Explanations",
    "GlobalTokens",
    "Kernels",
    "Maps",
    "ProbabilityGrid",
    "ProbabilityGrids",
    "SamplingPoints",
    "Scores",
    "attention",
    "capture",
    "dense_rollout",
    "explain",
    "global_tokens",
    "grad_cam",
    "grad_rollout",
    "kernels",
    "masks_of_boxes",
    "probability_grids",
    "receptive_field",
    "rollout",
    "sampling_points",
    "score",
]
