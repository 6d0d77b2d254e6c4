"""Attention of many small problems, for inference on a CPU.

The fused kernel works on one head of one window at a time, which is little work for 49 tokens. Here all heads of many
windows go through one batched product, in pieces whose logits stay in the cache. Queries, keys and values are copied
once, from the map to the windows' heads; the result is written to the map.
"""

import torch
from torch import Tensor

from .execution import may_overwrite

LOGITS = 1 << 19  # at a time: 2 MiB in float32
SHORT = 64  # tokens; for longer sequences the fused kernel is as fast


def suits(tokens: Tensor) -> bool:
    """Whether these tokens may, and had better, be attended to in the ways of this file."""
    return may_overwrite(tokens) and tokens.device.type == "cpu" and tokens.dtype in (torch.float32, torch.float64)


def window_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    *,
    size: int,
    heads: int,
    scale: float | None = None,
) -> Tensor:
    """`softmax(scale * q k + bias) v` inside each window.

    Args:
        queries: `[B, H, W, h*d]` in any memory order, as keys and values; both sides divide by `size`.
        keys: As many.
        values: As many.
        bias: Added to the logits: `[1, h, size**2, size**2]` for all windows, or one for each window of an image
            (row-major) in place of the 1; or nothing.
        size: Side of a window.
        heads: Attention heads.
        scale: Of the products; None: `1 / sqrt(d)`.

    Returns:
        `[B, H, W, h*d]`, contiguous.

    Example:
        >>> nhwc = torch.randn(2, 4, 6, 8)
        >>> mixed = window_attention(nhwc, nhwc, nhwc, None, size=2, heads=4)
        >>> alone = window_attention(*[nhwc[:, :2, :2]] * 3, None, size=2, heads=4)
        >>> torch.allclose(mixed[:, :2, :2], alone, atol=1e-6)
        True
    """
    batch, height, width, channels = queries.shape
    rows, columns = height // size, width // size
    scale = (channels // heads) ** -0.5 if scale is None else scale
    if bias is not None:
        of_windows = (rows, columns) if len(bias) > 1 else (1, 1)
        bias = bias.unflatten(0, of_windows).expand(rows, columns, -1, -1, -1)
    mixed = queries.new_empty(batch, height, width, channels)
    numbers = rows * columns * heads * size**4  # logits of an image
    images = max(1, LOGITS // numbers)
    strip = rows if numbers <= LOGITS else max(1, LOGITS * rows // numbers)
    for first in range(0, batch, images):
        for top in range(0, rows, strip):
            piece = (slice(first, first + images), slice(top * size, (top + strip) * size))
            q, k, v, out = (heads_of_windows(nhwc[piece], size, heads) for nhwc in (queries, keys, values, mixed))
            attend(q, k, v, None if bias is None else bias[top : top + strip], scale, out=out)
    return mixed


def heads_of_windows(nhwc: Tensor, size: int, heads: int) -> Tensor:
    """View `[B, H, W, h*d]` as `[B, rows, columns, h, size, size, d]`."""
    height, width = nhwc.shape[1:3]
    pieces = nhwc.unflatten(3, (heads, -1)).unflatten(2, (width // size, size)).unflatten(1, (height // size, size))
    return pieces.permute(0, 1, 3, 5, 2, 4, 6)


def short_attention(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """`softmax(q k / sqrt(d) + bias) v` over all tokens, for sequences as short as a window.

    Args:
        queries: `[B, N, h*d]`, as keys and values.
        keys: As many.
        values: As many.
        bias: `[1, h, N, N]`, or nothing.
        heads: Attention heads.

    Returns:
        `[B, N, h*d]`, contiguous.
    """
    batch, tokens, channels = queries.shape
    mixed = queries.new_empty(batch, tokens, channels)
    images = max(1, LOGITS // (heads * tokens**2))
    for first in range(0, batch, images):
        q, k, v, out = (
            t[first : first + images].unflatten(2, (heads, -1)).transpose(1, 2) for t in (queries, keys, values, mixed)
        )
        attend(q, k, v, bias, (channels // heads) ** -0.5, out=out)
    return mixed


def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float, *, out: Tensor) -> None:
    """Attention of `[B, h, N, d]` or `[B, rows, columns, h, size, size, d]`, written to `out` of the same shape."""
    problems = 2 if out.ndim == 4 else 4  # axes in front of those of the tokens
    tokens, depth = out.shape[problems:-1].numel(), out.shape[-1]
    queries, keys, values = (t.reshape(-1, tokens, depth) for t in (queries, keys, values))
    logits = queries.new_empty(*out.shape[:problems], tokens, tokens)
    if bias is not None:
        logits.copy_(bias)
    logits = logits.flatten(0, -3)
    logits.baddbmm_(queries, keys.transpose(1, 2), beta=0 if bias is None else 1, alpha=scale)
    torch.softmax(logits, dim=-1, out=logits)
    out.copy_(torch.bmm(logits, values).view(out.shape))


def add_from_few(tokens: Tensor, queries: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Add to `tokens`, in place, what `queries` read from a few keys and values: `tokens + softmax(q k) v`.

    All heads share two products with keys and values that are zero outside their head, which costs more arithmetic and
    less time as long as heads and keys are few.

    Args:
        tokens: `[B, N, h*d]`, contiguous.
        queries: `[B, N, h*d]`.
        keys: `[B, T, h*d]`.
        values: `[B, T, h*d]`.
        heads: Attention heads.
    """
    batch, count, channels = queries.shape
    own = torch.eye(heads, dtype=queries.dtype).repeat_interleave(channels // heads, dim=1)[:, None]  # [h, 1, h*d]
    keys = (keys[:, None] * (own * (channels // heads) ** -0.5)).flatten(1, 2)  # [B, h*T, h*d]
    values = (values[:, None] * own).flatten(1, 2)
    logits = torch.bmm(keys, queries.transpose(1, 2)).view(batch, heads, -1, count)
    torch.softmax(logits, dim=2, out=logits)
    return tokens.baddbmm_(logits.flatten(1, 2).transpose(1, 2), values)
