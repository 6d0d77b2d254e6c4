"""A mixer without its projections, as the dwconv paper looks at it.

The paper's analysis ignores the linear layers that make values and outputs (footnote 1): they mix channels at a
position, whatever stands between them. With the identity in their place a module shows its own connections. Queries and
keys keep their layers, since weights are predicted with them.
"""

import torch
from torch import nn

from ...parts.slots import PartModule, identity_rows


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
        if isinstance(part, PartModule):
            part.strip_projections()
        elif isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            identity_rows(part.in_proj_weight, part.embed_dim, last=True)
            identity_rows(part.out_proj.weight, part.embed_dim)
        joint = getattr(part, "qkv", None)
        if isinstance(joint, nn.Linear):  # timm's attention layers
            identity_rows(joint.weight, joint.in_features, last=True)
        out = getattr(part, "proj", None)
        if isinstance(out, nn.Linear) and out.in_features == out.out_features:
            identity_rows(out.weight, out.out_features)
    return module
