"""What kind of layer is it? The dwconv paper's theory (sparse connections, shared and dynamic weights), measured."""

from .bare import strip_projections
from .layer import ProbedLayer, wrap
from .measure import Findings, describe, probe
from .open import open_probed

__all__ = ["Findings", "ProbedLayer", "describe", "open_probed", "probe", "strip_projections", "wrap"]
