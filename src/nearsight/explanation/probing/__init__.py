"""What kind of layer is it? The dwconv paper's theory (sparse connections, shared and dynamic weights), measured."""

from .bare import strip_projections
from .layer import Subject, wrap
from .measure import Findings, describe, probe
from .open import open_subject

__all__ = ["Findings", "Subject", "describe", "open_subject", "probe", "strip_projections", "wrap"]
