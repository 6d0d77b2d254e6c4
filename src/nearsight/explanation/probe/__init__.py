"""What kind of layer is it? The dwconv paper's theory (sparse connections, shared and dynamic weights), measured."""

from .bare import strip_projections
from .findings import Findings, describe
from .measure import probe
from .named import open_subject
from .subject import Subject, wrap

__all__ = ["Findings", "Subject", "describe", "open_subject", "probe", "strip_projections", "wrap"]
