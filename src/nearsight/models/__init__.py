"""The models of the five papers and their hosts, registered in timm."""

from ..models import dwnet, hosts, life, lightvit, lit, localvit, near
from .backbone import Backbone
from .registry import MODELS
from .spec import BackboneSpec, Stage

__all__ = [
    "MODELS",
    "Backbone",
    "BackboneSpec",
    "Stage",
    "dwnet",
    "hosts",
    "life",
    "lightvit",
    "lit",
    "localvit",
    "near",
]
