"""A mixer without its projections, as the dwconv paper looks at it.

The paper's analysis ignores the linear layers that make values and outputs (footnote 1): they mix channels at a
position, whatever stands between them. With the identity in their place a module shows its own connections. Queries and
keys keep their layers, since weights are predicted with them.
"""

import torch
from torch import Tensor, nn

from ...parts.attention import SpatialReductionModule
from ...parts.local_mlp import LocalMlpModule
from ...parts.qkv import LinearQkvModule


@torch.no_grad()
def strip_projections(module: nn.Module) -> nn.Module:
    """Make the layers of values and outputs the identity, in the module itself; returns it.

    Example:
        >>> from torch import nn
        >>> layer = strip_projections(nn.MultiheadAttention(8, 2))
        >>> torch.equal(layer.out_proj.weight, torch.eye(8))
        True
    """
    for part in module.modules():
        match part:
            case LinearQkvModule():
                identity_rows(part.proj.weight, part.width, last=True)
            case LocalMlpModule():
                identity_rows(part.value.weight, part.value.out_features)
            case SpatialReductionModule():
                identity_rows(part.kv.weight, part.kv.in_features, last=True)
            case nn.MultiheadAttention() if part.in_proj_weight is not None:
                identity_rows(part.in_proj_weight, part.embed_dim, last=True)
                identity_rows(part.out_proj.weight, part.embed_dim)
        joint = getattr(part, "qkv", None)
        if isinstance(joint, nn.Linear):  # timm's attention layers
            identity_rows(joint.weight, joint.in_features, last=True)
        out = getattr(part, "proj", None)
        if isinstance(out, nn.Linear) and out.in_features == out.out_features:
            identity_rows(out.weight, out.out_features)
    return module


def identity_rows(weight: Tensor, count: int, last: bool = False) -> None:
    """Write the identity into a weight `[out, in]`: into all its rows, or its last `count`."""
    if weight.shape[1] == count:
        rows = weight[-count:] if last else weight
        if rows.shape[0] == count:
            rows.copy_(torch.eye(count, dtype=weight.dtype, device=weight.device))
