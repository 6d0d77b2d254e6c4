"""See what a model sees: attention, roll-out, sampling points, kernels, receptive fields; and whether it is true.

Every method takes a model and images, or what `capture` returned, and gives a typed result that the functions of
`nearsight.explanation.drawing` turn into figures of one style.
"""

from .attention import Attention, attention
from .cam import grad_cam
from .capture import Capture, Layer, capture
from .dense_rollout import DenseRollout, dense_rollout, masks_of_boxes
from .global_tokens import GlobalTokens, global_tokens
from .grids import ProbabilityGrid, ProbabilityGrids, probability_grids
from .kernels import Kernels, kernels
from .maps import Maps
from .receptive_field import receptive_field
from .rollout import rollout
from .sampling import SamplingPoints, sampling_points

__all__ = [
    "Attention",
    "Capture",
    "DenseRollout",
    "GlobalTokens",
    "Kernels",
    "Layer",
    "Maps",
    "ProbabilityGrid",
    "ProbabilityGrids",
    "SamplingPoints",
    "attention",
    "capture",
    "dense_rollout",
    "global_tokens",
    "grad_cam",
    "kernels",
    "masks_of_boxes",
    "probability_grids",
    "receptive_field",
    "rollout",
    "sampling_points",
]
