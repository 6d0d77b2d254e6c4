"""LIFE: A Flexible and Efficient Module for Incorporating Local Information into Vision Transformers (2023).

Queries, keys and values from a cascade of convolutions with growing kernels.
"""

from dataclasses import replace

from ..parts import Life
from .hosts import SPECS as HOSTS
from .hosts import t2t
from .registry import register
from .spec import BackboneSpec


def with_life(spec: BackboneSpec) -> BackboneSpec:
    """A host whose queries, keys and values come from LIFE."""
    stages = tuple(replace(stage, qkv=Life()) for stage in spec.stages)
    return replace(spec, stages=stages, family="life")


SPECS = {
    "deit_tiny_life": with_life(HOSTS["deit_tiny"]),
    "deit_small_life": with_life(HOSTS["deit_small"]),
    "t2t_vit_12_life": with_life(t2t(252, 4, depth=12, ratio=2)),  # 256 does not divide by three scales
    "swinv2_tiny_life": with_life(HOSTS["swinv2_tiny"]),
    **{f"{host}_nano_life": with_life(HOSTS[f"{host}_nano"]) for host in ("deit", "t2t", "tnt", "swinv2")},
}

register(__name__, SPECS)
