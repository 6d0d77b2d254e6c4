"""What kind of layer is it? The dwconv paper's theory (sparse connections, shared and dynamic weights), measured."""

from .layer import ProbedLayer, strip_projections, wrap
from .measure import ProbeResult, describe, probe
from .open import open_probed

__all__ = ["ProbeResult", "ProbedLayer", "describe", "open_probed", "probe", "strip_projections", "wrap"]
