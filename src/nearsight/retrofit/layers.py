"""Putting a module of a subclass in the place of a module, with its weights, settings, hooks and names."""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, image, sequence, with_aux
from ..parts import BiGate, Life, LocalityFfn
from ..parts.depthwise import same_conv
from ..parts.qkv import Scale
from .hosts import GridKeeper
from .zero_init import OpenBiGate, open_channel_gate

Adopted = TypeVar("Adopted", bound=nn.Module)


def adopt(kind: type[Adopted], module: nn.Module, **fields: Any) -> Adopted:
    """A module of `kind` that has all that `module` has, and `fields` beside it.

    Weights are the same tensors under the same names, so that files and optimizers of the old module fit.

    Example:
        >>> class Doubling(nn.Linear):
        ...     def forward(self, input):
        ...         return 2 * super().forward(input)
        >>> linear = nn.Linear(3, 4)
        >>> adopt(Doubling, linear).weight is linear.weight
        True
    """
    new = kind.__new__(kind)
    # Its tables of weights, children and hooks are copied, so that what is added does not appear in the old module.
    new.__dict__.update({k: v.copy() if isinstance(v, dict) else v for k, v in module.__dict__.items()})
    for name, value in fields.items():
        setattr(new, name, value)
    return new


class LocalLinear(nn.Linear):
    """The second layer of an MLP, whose hidden patches first see their neighbours: LocalViT on pretrained weights.

    `fc2(gate(h + depthwise(h)))` with a kernel of zeros and a gate of ones at the start. Prefix tokens pass by.
    """

    keeper: GridKeeper
    local: nn.Conv2d | None
    gate: nn.Module | None

    def forward(self, input: Tensor) -> Tensor:
        tokens, grid = self.keeper.tokens(input)
        patches = tokens[:, grid.aux :]
        if self.local is not None:
            bare = Grid(grid.height, grid.width)
            patches = patches + sequence(self.local(image(patches.contiguous(), bare)))
        if self.gate is not None:
            patches = self.gate(patches)
        return super().forward(with_aux(tokens, patches, grid).view_as(input))


def local_linear(linear: nn.Linear, part: LocalityFfn, keeper: GridKeeper) -> LocalLinear:
    """LocalViT's preserving form; hidden width and activation stay the host's."""
    if part.depthwise_first:
        raise ValueError("depthwise_first=True has no form that preserves the model; use preserve=False for it.")
    hidden = linear.in_features
    local = same_conv(hidden, part.kernel, bias=False) if part.depthwise else None
    gate = open_channel_gate(part, hidden)
    if local is None and gate is None:
        raise ValueError("This LocalityFfn has neither a depth-wise convolution nor a channel gate to add.")
    if local is not None:
        nn.init.zeros_(local.weight)
    return adopt(LocalLinear, linear, keeper=keeper, local=local, gate=gate)


class GatedLinear(nn.Linear):
    """The second layer of an MLP with LightViT's gate behind it, which starts as 1."""

    keeper: GridKeeper
    gate: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        mixed = super().forward(input)
        tokens, _ = self.keeper.tokens(mixed)
        return self.gate(tokens).view_as(mixed)


def gated_linear(linear: nn.Linear, part: BiGate, keeper: GridKeeper) -> GatedLinear:
    """LightViT's preserving form."""
    if not (part.channel_gate or part.spatial_gate):
        raise ValueError("This BiGate has neither of its two gates, so there is nothing to add.")
    return adopt(GatedLinear, linear, keeper=keeper, gate=OpenBiGate(linear.out_features, part))


class LifeLinear(nn.Linear):
    """Pretrained queries, keys and values as the first scale of LIFE; the further scales fade in.

    The cascade starts from the first n channels of Q, K and V, as in the paper, and scale s is added to the channels
    from (s-1)n of each (eq. 4), times `fade`, which starts at zero.
    """

    keeper: GridKeeper
    scales: Any  # of Scale
    fade: nn.Parameter
    q_bias: nn.Parameter | None
    v_bias: nn.Parameter | None

    def forward(self, input: Tensor) -> Tensor:
        first = F.linear(input, self.weight, self.whole_bias())  # [..., 3C]
        tokens, grid = self.keeper.tokens(first)
        width = self.fade.shape[-1] // len(self.scales)  # n
        share = tokens.unflatten(-1, (3, -1))[..., :width].flatten(-2)  # [B, N, 3n]
        further = []
        for scale in self.scales:
            share = scale(share, grid)
            further.append(share.unflatten(-1, (3, -1)))
        local = self.fade * torch.cat(further, dim=-1)  # [B, N, 3, (S-1)n]
        rest = self.out_features // 3 - width - local.shape[-1]
        return first + F.pad(local, (width, rest)).reshape(first.shape)

    def whole_bias(self) -> Tensor | None:
        """The bias of all three; of hosts that have none for the keys, with zeros there."""
        if self.q_bias is None or self.v_bias is None:
            return self.bias
        return torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))


def life_linear(linear: nn.Linear, part: Life, keeper: GridKeeper, **biases: Any) -> LifeLinear:
    """LIFE's preserving form."""
    check_life(part)
    width, scales = linear.out_features // 3, len(part.kernels)
    share = part.scale_width or width // scales
    if not 0 < share * scales <= width:
        raise ValueError(
            f"{scales} scales of {share} channels do not fit into the {width} channels of the pretrained queries; "
            "give fewer kernels or a smaller scale_width."
        )
    further = nn.ModuleList(Scale(3 * share, 3 * share, kernel, bias=False) for kernel in part.kernels[1:])
    fade = nn.Parameter(torch.zeros(3, (scales - 1) * share))
    return adopt(LifeLinear, linear, keeper=keeper, scales=further, fade=fade, **biases)


def check_life(part: Life) -> None:
    """Refuse settings under which the pretrained layer could not be the first scale."""
    if not part.kernels or part.kernels[0] != 1:
        raise ValueError(
            f"kernels={part.kernels} do not begin with 1, and preserve=True keeps the pretrained layer as the scale of "
            "kernel 1; use kernels such as (1, 3, 5), or preserve=False."
        )
    if len(part.kernels) < 2:
        raise ValueError("kernels=(1,) is the plain layer that the model has already; give more, such as (1, 3, 5).")
    if part.qkv_norm or part.aux_key != "paper":
        raise ValueError("qkv_norm and aux_key have no form that preserves the model; use preserve=False for them.")
