"""The mixing weights of our own mixers, computed again from what went into them."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..lattice import Grid, lattice, pad_to_multiple, roll, sequence, window_shift, windows, with_aux
from ..ops.attention_matrix import (
    AttentionMatrix,
    GatherMatrix,
    GlobalMatrix,
    KernelMatrix,
    ReducedMatrix,
    WindowMatrix,
    softmax_rows,
    widened,
)
from ..ops.relative import shift_mask
from ..ops.sliding import inside_window, tap_products
from ..parts.attention import GlobalModule, SpatialReductionModule, WindowModule, join_heads, split_heads
from ..parts.depthwise import DepthWiseModule, DynamicKernel, InhomogeneousKernel, SharedKernel, StaticKernel
from ..parts.gather import GatherBroadcastModule
from ..parts.local_mlp import LocalMlpModule
from ..parts.sliding import SlidingModule
from ..parts.slots import TokenModule
from ..parts.squeeze import SqueezedModule


def mixing_of(mixer: TokenModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """The weights with which a mixer mixes these tokens `[B, N, C]`.

    Raises:
        ValueError: The mixer is not one of this library.
    """
    while isinstance(mixer, SqueezedModule):  # the gate behind it weighs channels, not positions
        mixer = mixer.mixer
    for kind, compute in COMPUTE.items():
        if isinstance(mixer, kind):
            return compute(mixer, tokens, grid)
    raise ValueError(
        f"The weights of {type(mixer).__name__} are not known here; Nearsight's own mixers can be looked into."
    )


def global_mixing(mixer: GlobalModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """Every token to every token."""
    queries, keys, _ = mixer.qkv(tokens, grid)
    return GlobalMatrix(split_heads(queries, mixer.heads), split_heads(keys, mixer.heads), mixer.bias(grid), grid)


def window_places(grid: Grid, size: int, shift: tuple[int, int], device: torch.device) -> Tensor:
    """The token in each slot of windows that pad first and shift then: `[windows, size**2]`."""
    numbers = torch.arange(grid.patches, device=device).view(1, grid.height, grid.width, 1)
    # Padding is zeros, so the numbers start from one on the way.
    field = roll(pad_to_multiple(numbers + 1, size), *shift)
    places = windows(field, size)[..., 0]
    return torch.where(places > 0, places - 1, grid.patches)


def window_mixing(mixer: WindowModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """Inside (shifted) windows."""
    size, shift = mixer.size, mixer.shift_on(grid)
    field = pad_to_multiple(lattice(tokens, grid), size)
    height, width = field.shape[1:3]
    pieces = windows(roll(field, *shift), size)
    queries, keys, _ = (split_heads(t, mixer.heads) for t in mixer.qkv(pieces, Grid(size, size)))
    scale = queries.shape[-1] ** -0.5
    if mixer.similarity is not None:
        queries, keys = mixer.similarity.scale(queries, keys)
        scale = 1.0
    queries, keys = (widened(t).unflatten(0, (len(tokens), -1)) for t in (queries, keys))  # [B, windows, h, slots, d]
    mask = mixer.mask(height, width, shift, tokens.dtype)
    weights = softmax_rows(queries, keys, None if mask is None else mask[None], scale)
    return WindowMatrix(weights, window_places(grid, size, shift, tokens.device), grid, len(tokens))


def local_mlp_mixing(mixer: LocalMlpModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """Static weights inside (shifted) windows."""
    size = mixer.size
    shift = (window_shift(grid.height, size), window_shift(grid.width, size)) if mixer.shifted else (0, 0)
    height, width = (side + (-side) % size for side in (grid.height, grid.width))
    weights = mixer.weights_for(height // size, width // size)
    if any(shift):
        weights = weights * shift_mask(height, width, size, shift, tokens.device)[:, None]
    places = window_places(grid, size, shift, tokens.device)
    return WindowMatrix(weights[None], places, grid, len(tokens), signed=True)


def reduced_mixing(mixer: SpatialReductionModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """To a map that a strided convolution has made smaller."""
    ratio = mixer.ratio
    field = pad_to_multiple(lattice(tokens, grid), ratio)
    reduced = mixer.norm(sequence(mixer.reduce(field.permute(0, 3, 1, 2))))
    keys = mixer.kv(with_aux(tokens, reduced, grid)).chunk(2, dim=-1)[0]
    covers = cells_of_keys(grid, field.shape[1] // ratio, field.shape[2] // ratio, ratio, tokens.device)
    return ReducedMatrix(split_heads(mixer.q(tokens), mixer.heads), split_heads(keys, mixer.heads), covers, grid)


def cells_of_keys(grid: Grid, rows: int, columns: int, ratio: int, device: torch.device) -> Tensor:
    """Which share of each key of a map reduced by `ratio` the tokens have: `[aux + rows * columns, N]`."""
    own_row = torch.arange(grid.height, device=device) // ratio
    own_column = torch.arange(grid.width, device=device) // ratio
    owner = (own_row[:, None] * columns + own_column).flatten()
    covered = ((own_row < rows)[:, None] & (own_column < columns)).flatten()
    covers = torch.zeros(rows * columns, grid.patches, device=device)
    covers[owner[covered], covered.nonzero().flatten()] = 1.0
    covers /= covers.sum(dim=1, keepdim=True)
    return torch.block_diag(torch.eye(grid.aux, device=device), covers) if grid.aux else covers


def gather_mixing(mixer: GatherBroadcastModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """Windows, and global tokens that gather and broadcast."""
    padded, broad = mixer.pad(tokens, grid)
    queries, keys, values = mixer.qkv(padded, broad)
    bare = Grid(grid.height, grid.width)
    q, k = (split_heads(windows(lattice(t, broad), mixer.size), mixer.heads) for t in (queries, keys))
    q, k = (widened(t).unflatten(0, (len(tokens), -1)) for t in (q, k))
    bias = mixer.bias()
    weights = softmax_rows(q, k, None if bias is None else bias[None], q.shape[-1] ** -0.5)
    local = WindowMatrix(weights, window_places(bare, mixer.size, (0, 0), tokens.device), bare, len(tokens))
    if not grid.aux:
        return local
    assert mixer.kv_global is not None
    inside = [widened(split_heads(mixer.crop(t, grid, broad), mixer.heads)) for t in (queries, keys, values)]
    asking = widened(split_heads(queries[:, : grid.aux], mixer.heads))
    gathering = softmax_rows(asking, inside[1], None, asking.shape[-1] ** -0.5)  # [B, h, T, N]
    gathered = join_heads((gathering @ inside[2]).to(tokens.dtype))
    global_keys = mixer.kv_global(gathered).chunk(2, dim=-1)[0]
    return GatherMatrix(local, gathering, inside[0], split_heads(global_keys, mixer.heads), grid)


def sliding_mixing(mixer: SlidingModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """Attention in a window around each query."""
    queries, keys, _ = mixer.qkv(tokens, grid)
    if mixer.pre is not None:
        queries, keys, _ = mixer.qkv(mixer.pre(tokens, grid), grid)
    fields = [widened(lattice(t, grid).unflatten(-1, (mixer.heads, -1))) for t in (queries, keys)]
    logits = tap_products(fields[0], fields[1], mixer.window) / math.sqrt(fields[0].shape[-1])
    logits = logits if mixer.post is None else mixer.post(logits)
    logits = logits if mixer.table is None else logits + mixer.table
    inside = inside_window(grid.height, grid.width, mixer.window, tokens.device)[..., None]
    weights = logits.masked_fill(~inside, -torch.inf).softmax(dim=3)  # [B, H, W, taps, h]

    def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
        return weights[:, rows, columns].permute(0, 3, 1, 2)

    return KernelMatrix(weights_at, mixer.window, grid, images=len(tokens), heads=mixer.heads, signed=False)


def depthwise_mixing(mixer: DepthWiseModule, tokens: Tensor, grid: Grid) -> AttentionMatrix:
    """The kernels between the two point-wise layers."""
    broad = grid
    if mixer.pad_to is not None:
        field = pad_to_multiple(lattice(tokens, grid), mixer.pad_to)
        tokens, broad = field.flatten(1, 2), Grid(field.shape[1], field.shape[2])
    tokens = F.relu(mixer.norm_in(mixer.point_in(tokens)))
    spatial: Any = mixer.spatial
    for kind, compute in KERNELS.items():
        if isinstance(spatial, kind):
            return compute(spatial, tokens, broad, grid)
    raise ValueError(f"The kernels of {type(spatial).__name__} are not known here.")


def static_kernels(spatial: StaticKernel, tokens: Tensor, broad: Grid, grid: Grid) -> AttentionMatrix:
    """The same kernel of each channel everywhere, for every image."""
    kernel = spatial.conv.kernel_size[0]
    weight = spatial.conv.weight.flatten(1)[None, :, None]  # [1, C, 1, taps]

    def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
        return weight.expand(-1, -1, len(rows), -1)

    return KernelMatrix(weights_at, kernel, grid, images=len(tokens), heads=weight.shape[1], signed=True)


def dynamic_kernels(spatial: DynamicKernel, tokens: Tensor, broad: Grid, grid: Grid) -> AttentionMatrix:
    """The same kernel of each channel everywhere, another for every image."""
    hidden = spatial.norm(spatial.reduce(tokens.mean(dim=1))).relu()
    weight = spatial.predict(hidden).view(len(tokens), tokens.shape[-1], 1, -1)  # [B, C, 1, taps]

    def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
        return weight.expand(-1, -1, len(rows), -1)

    return KernelMatrix(weights_at, spatial.kernel, grid, images=len(tokens), heads=weight.shape[1], signed=True)


def inhomogeneous_kernels(spatial: InhomogeneousKernel, tokens: Tensor, broad: Grid, grid: Grid) -> AttentionMatrix:
    """Another kernel of each group at every place."""
    field = lattice(tokens, broad)

    def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
        hidden = spatial.norm(spatial.reduce(field[:, rows, columns])).relu()  # [B, q, R]
        return spatial.predict(hidden).unflatten(-1, (spatial.groups, -1)).transpose(1, 2)

    return KernelMatrix(weights_at, spatial.kernel, grid, images=len(tokens), heads=spatial.groups, signed=True)


def shared_kernels(spatial: SharedKernel, tokens: Tensor, broad: Grid, grid: Grid) -> AttentionMatrix:
    """Kernels shared by the channels of a group, everywhere the same or one at every place."""
    weights = spatial.weights_for(broad)  # [1, H or 1, W or 1, taps, G]
    everywhere = weights.expand(1, broad.height, broad.width, -1, -1)

    def weights_at(rows: Tensor, columns: Tensor) -> Tensor:
        return everywhere[:, rows, columns].permute(0, 3, 1, 2)

    return KernelMatrix(weights_at, spatial.kernel, grid, images=len(tokens), heads=spatial.groups, signed=True)


COMPUTE: dict[type, Any] = {
    GlobalModule: global_mixing,
    WindowModule: window_mixing,
    LocalMlpModule: local_mlp_mixing,
    SpatialReductionModule: reduced_mixing,
    GatherBroadcastModule: gather_mixing,
    SlidingModule: sliding_mixing,
    DepthWiseModule: depthwise_mixing,
}
KERNELS: dict[type, Any] = {
    StaticKernel: static_kernels,
    DynamicKernel: dynamic_kernels,
    InhomogeneousKernel: inhomogeneous_kernels,
    SharedKernel: shared_kernels,
}
