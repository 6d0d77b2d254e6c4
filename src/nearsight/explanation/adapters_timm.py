"""The attention matrices of timm's attention layers, computed again from what went into them."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.models.pvt_v2 import Attention as PyramidAttention
from timm.models.swin_transformer import WindowAttention
from timm.models.swin_transformer import window_partition as partition
from timm.models.swin_transformer_v2 import WindowAttention as WindowAttentionV2
from torch import Tensor, nn

from ..lattice import Grid
from ..ops.attention_matrix import (
    AttentionMatrix,
    GlobalMatrix,
    ReducedMatrix,
    WindowMatrix,
    cells_of_keys,
    softmax_rows,
    widened,
)


def qkv_heads(attention: Any, tokens: Tensor, joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[B, h, N, d]` from the joint projection `[B, N, 3 * h * d]`."""
    batch, count = tokens.shape[:2]
    queries, keys, values = joint.reshape(batch, count, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return queries, keys, values


def plain_matrix(attention: Any, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """VisionTransformer: every token to every token."""
    if type(attention) is not Attention:
        raise ValueError(
            f"The attention of timm's {type(attention).__name__} can't be computed again here; of timm's models, "
            "VisionTransformer, Swin, SwinV2 and PVTv2 with their own attention layers can be looked into."
        )
    queries, keys, values = qkv_heads(attention, tokens, attention.qkv(tokens))
    queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    return GlobalMatrix(queries, keys, None, grid, attention.scale, values=values)


def exit_of(attention: Any) -> nn.Module:
    """The module that is given what was mixed, heads joined: a norm in front of the projection, where there is one."""
    return attention.norm if isinstance(attention, Attention) else attention.proj


def window_matrix(block: Any, pieces: Tensor, mask: Tensor | None, grid: Grid) -> AttentionMatrix:
    """Swin and SwinV2: inside windows that shift first and pad then.

    Args:
        block: The block around the attention layer.
        pieces: What the attention layer was given `[B * windows, slots, C]`.
        mask: Added to the logits `[windows, slots, slots]`, or nothing.
        grid: Of the map.
    """
    attention = block.attn
    if isinstance(attention, WindowAttentionV2):
        queries, keys, values, bias, scale = cosine_terms(attention, pieces)
    elif isinstance(attention, WindowAttention):
        queries, keys, values = qkv_heads(attention, pieces, attention.qkv(pieces))
        bias, scale = attention._get_rel_pos_bias(), attention.scale
    else:
        raise ValueError(f"The attention of timm's {type(attention).__name__} can't be computed again here.")
    inside = window_slots(block, grid, pieces.device)
    each = (queries, keys, values)
    queries, keys, values = (widened(t).unflatten(0, (-1, len(inside))) for t in each)  # [B, windows, h, slots, d]
    added = bias[None] if mask is None else bias[None] + mask[None, :, None]
    weights = softmax_rows(queries, keys, added, scale)
    return WindowMatrix(weights, inside, grid, len(queries), values=values)


def cosine_terms(attention: Any, pieces: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """SwinV2's unit-length queries times the temperature, unit-length keys, values, bias, and scale."""
    joint = attention.qkv(pieces)
    if attention.q_bias is not None:
        joint = joint + torch.cat((attention.q_bias, attention.k_bias, attention.v_bias))
    queries, keys, values = qkv_heads(attention, pieces, joint)
    temperature = attention.logit_scale.clamp(max=math.log(100)).exp()
    table = attention.cpb_mlp(attention.relative_coords_table).view(-1, attention.num_heads)
    slots = pieces.shape[1]
    bias = table[attention.relative_position_index.view(-1)].view(slots, slots, -1).permute(2, 0, 1)
    queries, keys = F.normalize(queries, dim=-1) * temperature, F.normalize(keys, dim=-1)
    return queries, keys, values, 16 * bias.sigmoid()[None], 1.0


def window_slots(block: Any, grid: Grid, device: torch.device) -> Tensor:
    """The token in each slot of the block's windows `[windows, slots]`; `grid.patches` for padding."""
    numbers = torch.arange(grid.patches, device=device).view(1, grid.height, grid.width, 1)
    if any(block.shift_size):
        numbers = numbers.roll((-block.shift_size[0], -block.shift_size[1]), dims=(1, 2))
    down, right = (-side % size for side, size in zip((grid.height, grid.width), block.window_size, strict=True))
    numbers = F.pad(numbers, (0, 0, 0, right, 0, down), value=grid.patches)
    return partition(numbers, block.window_size).flatten(1)


def pyramid_matrix(attention: nn.Module, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """PVTv2: to all patches, to a map made smaller by a convolution, or to one pooled to 7 x 7."""
    if not isinstance(attention, PyramidAttention):
        raise ValueError(f"The attention of timm's {type(attention).__name__} can't be computed again here.")
    image = tokens.transpose(1, 2).unflatten(2, (grid.height, grid.width))
    if attention.pool is not None:
        reduced = attention.act(attention.norm(attention.sr(attention.pool(image)).flatten(2).transpose(1, 2)))
        ones = torch.eye(grid.patches, device=tokens.device).view(grid.patches, 1, grid.height, grid.width)
        covers = attention.pool(ones).flatten(1).T  # [cells, patches]: the fraction of each patch in each cell
    elif attention.sr is not None:
        small = attention.sr(image)
        reduced = attention.norm(small.flatten(2).transpose(1, 2))
        covers = cells_of_keys(grid, small.shape[2], small.shape[3], attention.sr.stride[0], tokens.device)
    else:
        reduced, covers = tokens, None
    heads, width = attention.num_heads, attention.head_dim
    queries = attention.q(tokens).unflatten(-1, (heads, width)).transpose(1, 2)
    keys, values = attention.kv(reduced).unflatten(-1, (2, heads, width)).permute(2, 0, 3, 1, 4).unbind(0)
    if covers is None:
        return GlobalMatrix(queries, keys, None, grid, values=values)
    return ReducedMatrix(queries, keys, covers, grid, values=values)
