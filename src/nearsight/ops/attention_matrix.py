"""Who listens to whom in one layer: weights between positions, of the wanted rows only.

A layer mixes positions with a matrix `[queries, keys]` for each head. The whole matrix of a large map is never made:
rows are asked for by the number of their query, and a layer that looks at a few positions (a window, a kernel) says
which. Where the layer hands over its values too, the same rows tell what each weight adds to a class.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..lattice import Grid, crop, lattice, pad_to_multiple, roll, windows
from .bands import same_padding

Fusion = Literal["mean", "max", "min"]
FUSIONS = ("mean", "max", "min")
PIECE = 1 << 22  # weights of all heads at a time: 16 MiB in float32


class AttentionMatrix(ABC):
    """The weights with which a layer mixes positions.

    Attributes:
        grid: The lattice of the tokens, and how many auxiliary tokens stand in front.
        images: How many images there are.
        heads: How many matrices there are: attention heads, or groups of channels that share a kernel.
        signed: Whether weights may be negative, as those of kernels; else they are fractions of the attention.
        values: What the weights mix, laid out as the keys are; None for a layer that does not hand it over.
    """

    grid: Grid
    images: int
    heads: int
    signed = False
    values: Tensor | None = None

    @abstractmethod
    def compact(self, queries: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights of some queries, where they are not zero by construction.

        Args:
            queries: Numbers of tokens `[q]`, auxiliary ones first.

        Returns:
            Weights `[B, h, q, K]`, and which tokens they belong to `[q, K]`, where `grid.tokens` stands for a position
            outside the map; None in place of it if they belong to all tokens in order.
        """

    def positive(self, queries: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """What each weight of some queries adds to a class: the weight times the score's gradient by it, if positive.

        Since the mixed token of a query is `sum_k A[q, k] v[k]`, its gradient by `A[q, k]` is `gradient[q] . v[k]`.

        Args:
            queries: Numbers of tokens `[q]`.
            gradient: Of the score by the mixed values `[B, h, N, d]`.

        Returns:
            As `compact`; here of values that are laid out as the tokens are, `[B, h, N, d]`.
        """
        assert self.values is not None
        return (self.rows(queries) * (gradient[:, :, queries] @ self.values.mT)).relu(), None

    def rows(self, queries: Tensor) -> Tensor:
        """The weights of some queries `[q]` over all tokens: `[B, h, q, N]`; what falls outside the map is left out."""
        weights, keys = self.compact(queries)
        return spread(weights, keys, self.grid.tokens)

    def fractions(self, queries: Tensor, fusion: Fusion = "mean", discard: float = 0.0) -> Tensor:
        """The rows of some queries `[q]` with the heads fused, as fractions that sum to one: `[B, q, N]`.

        Args:
            queries: Numbers of tokens.
            fusion: How heads become one: their `mean`, `max` or `min`.
            discard: Fraction of each row's weights, the smallest, that is set to zero.
        """
        weights, keys = self.compact(queries)
        fused = discarded(fuse(weights.abs() if self.signed else weights, fusion), discard)
        rows = spread(fused, keys, self.grid.tokens)
        total = rows.sum(dim=-1, keepdim=True)
        own = torch.zeros_like(rows).scatter_(-1, queries[None, :, None].expand(len(rows), -1, 1), 1.0)
        # A row without any weight stays with its own token.
        return torch.where(total > 0, rows / total.clamp(min=torch.finfo(rows.dtype).tiny), own)

    def pull(self, vectors: Tensor, fusion: Fusion = "mean", discard: float = 0.0) -> Tensor:
        """Weigh the rows of `fractions` and add them up: `vectors @ fractions`, in pieces that stay small.

        Args:
            vectors: A weight for each query `[B, r, N]`.
            fusion: As in `fractions`.
            discard: As in `fractions`.

        Returns:
            `[B, r, N]`.
        """
        return self.weigh(vectors, lambda queries: self.fractions(queries, fusion, discard))

    def attribute(self, vectors: Tensor, gradient: Tensor) -> Tensor:
        """The same with what the weights add to a class, the mean of the heads, in place of fractions.

        Args:
            vectors: A weight for each query `[B, r, N]`.
            gradient: Of the score by what was mixed, heads joined, `[B, N, C]`; or in windows, as the layer has them.

        Raises:
            ValueError: The layer does not hand over what it mixes.
        """
        if self.values is None:
            raise ValueError("A layer does not say which values it mixes, so what it adds to a class is not known.")
        split = widened(self.on_map(gradient)).unflatten(-1, (self.heads, -1)).transpose(1, 2)

        def rows(queries: Tensor) -> Tensor:
            added, keys = self.positive(queries, split)
            return spread(added.mean(dim=1), keys, self.grid.tokens)

        return self.weigh(vectors, rows)

    def weigh(self, vectors: Tensor, rows: Callable[[Tensor], Tensor]) -> Tensor:
        """`vectors` `[B, r, N]` times the rows `[B, q, N]` of the queries that count, piece by piece."""
        total = torch.zeros_like(vectors)
        asked = vectors.abs().amax(dim=(0, 1)).nonzero().flatten()  # rows that count at all
        piece = max(1, PIECE // (self.images * self.heads * self.grid.tokens))
        for queries in asked.split(piece):
            total += vectors[:, :, queries] @ rows(queries).to(vectors.dtype)
        return total

    def on_map(self, mixed: Tensor) -> Tensor:
        """Numbers of the mixed tokens in the order of the map `[B, N, C]`."""
        return mixed


def fuse(weights: Tensor, fusion: Fusion) -> Tensor:
    """`[B, h, q, K]` to `[B, q, K]`."""
    if fusion not in FUSIONS:
        raise ValueError(f"fusion={fusion!r} is not known; use {', '.join(FUSIONS[:-1])} or {FUSIONS[-1]}.")
    if fusion == "mean":
        return weights.mean(dim=1)
    return weights.amax(dim=1) if fusion == "max" else weights.amin(dim=1)


def discarded(weights: Tensor, fraction: float) -> Tensor:
    """Set the smallest weights of each row `[..., K]` to zero, this fraction of them; at least one stays."""
    if not 0 <= fraction < 1:
        raise ValueError(f"discard={fraction} is no fraction of the weights; give a number from 0 to below 1.")
    count = min(int(fraction * weights.shape[-1]), weights.shape[-1] - 1)
    if not count:
        return weights
    return weights.scatter(-1, weights.topk(count, largest=False).indices, 0.0)


def spread(weights: Tensor, keys: Tensor | None, tokens: int) -> Tensor:
    """Put weights `[..., q, K]` of the tokens `keys` `[q, K]` into rows over all tokens `[..., q, N]`."""
    if keys is None:
        return weights
    rows = weights.new_zeros(*weights.shape[:-1], tokens + 1)  # the last column takes what is outside
    return rows.scatter_add_(-1, keys.expand(weights.shape), weights)[..., :tokens]


def softmax_rows(queries: Tensor, keys: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`softmax(scale * q k + bias)` in float32 or wider: `[..., q, d]` and `[..., K, d]` to `[..., q, K]`."""
    logits = scale * (queries @ keys.mT)
    return (logits if bias is None else logits + bias).softmax(dim=-1)


def widened(tokens: Tensor) -> Tensor:
    """In float32, or float64 if it is."""
    return tokens if tokens.dtype == torch.float64 else tokens.float()


class GlobalMatrix(AttentionMatrix):
    """Softmax attention of every token to every token.

    Args:
        queries: `[B, h, N, d]`.
        keys: `[B, h, N, d]`.
        bias: `[1, h, N, N]` or nothing.
        grid: Of the tokens.
        scale: Of the products; None: `1 / sqrt(d)`.
        values: `[B, h, N, d]`.
    """

    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        bias: Tensor | None,
        grid: Grid,
        scale: float | None = None,
        *,
        values: Tensor | None = None,
    ):
        self.grid = grid
        self.images, self.heads = queries.shape[:2]
        self.queries, self.keys, self.bias = widened(queries), widened(keys), bias
        self.values = None if values is None else widened(values)
        self.scale = queries.shape[-1] ** -0.5 if scale is None else scale

    def compact(self, queries: Tensor) -> tuple[Tensor, None]:
        bias = None if self.bias is None else self.bias[:, :, queries]
        return softmax_rows(self.queries[:, :, queries], self.keys, bias, self.scale), None


class ReducedMatrix(AttentionMatrix):
    """Softmax attention to keys that each stand for several patches; a key's fraction is divided among these.

    Args:
        queries: `[B, h, N, d]`.
        keys: `[B, h, aux + R, d]`.
        covers: Which fraction of a key each token has `[aux + R, N]`; its rows sum to one.
        grid: Of the tokens.
        values: `[B, h, aux + R, d]`.
    """

    def __init__(self, queries: Tensor, keys: Tensor, covers: Tensor, grid: Grid, *, values: Tensor | None = None):
        self.grid = grid
        self.images, self.heads = queries.shape[:2]
        self.queries, self.keys = widened(queries), widened(keys)
        self.values = None if values is None else widened(values)
        self.covers = covers.to(self.queries)
        self.scale = queries.shape[-1] ** -0.5

    def to_keys(self, queries: Tensor) -> Tensor:
        """Attention of some queries `[q]` to the keys themselves: `[B, h, q, aux + R]`."""
        return softmax_rows(self.queries[:, :, queries], self.keys, None, self.scale)

    def compact(self, queries: Tensor) -> tuple[Tensor, None]:
        return self.to_keys(queries) @ self.covers, None

    def positive(self, queries: Tensor, gradient: Tensor) -> tuple[Tensor, None]:
        assert self.values is not None
        added = (self.to_keys(queries) * (gradient[:, :, queries] @ self.values.mT)).relu()
        return added @ self.covers, None


class WindowMatrix(AttentionMatrix):
    """Weights inside windows, in the coordinates of the map: shifts and padding are undone.

    Args:
        weights: `[B or 1, windows or 1, h, slots, slots]`.
        positions: The token in each slot of each window `[windows, slots]`; `grid.tokens` for padding.
        grid: Of the tokens.
        images: How many images there are.
        signed: Whether weights may be negative.
        values: `[B, windows, h, slots, d]`.
    """

    def __init__(
        self,
        weights: Tensor,
        positions: Tensor,
        grid: Grid,
        images: int,
        signed: bool = False,
        *,
        values: Tensor | None = None,
    ):
        self.grid = grid
        self.images = images
        self.heads = weights.shape[2]
        self.signed = signed
        self.weights = widened(weights)
        self.values = None if values is None else widened(values)
        self.positions = positions
        slot_of = torch.zeros(grid.tokens + 1, dtype=torch.long, device=positions.device)
        slot_of[positions.flatten()] = torch.arange(positions.numel(), device=positions.device)
        self.slot_of = slot_of  # the window and slot of each token, as one number

    def compact(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        window, slot = self.place(queries)
        which = torch.zeros_like(window) if self.weights.shape[1] == 1 else window
        rows = self.weights[:, which, :, slot]  # [q, B or 1, h, slots]: indices come first
        return rows.permute(1, 2, 0, 3).expand(self.images, -1, -1, -1), self.positions[window]

    def positive(self, queries: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        assert self.values is not None
        weights, keys = self.compact(queries)
        inside = self.values[:, self.place(queries)[0]]  # [B, q, h, slots, d]
        return (weights * torch.einsum("bhqd,bqhkd->bhqk", gradient[:, :, queries], inside)).relu(), keys

    def place(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Window and slot of some tokens `[q]`."""
        slots = self.slot_of[queries]
        return slots // self.positions.shape[1], slots % self.positions.shape[1]

    def on_map(self, mixed: Tensor) -> Tensor:
        if mixed.shape[:2] == (self.images, self.grid.tokens):
            return mixed
        pieces = mixed.reshape(self.images, -1, mixed.shape[-1])  # windows as the layer has them, with their padding
        return pieces[:, self.slot_of[: self.grid.tokens]]


class KernelMatrix(AttentionMatrix):
    """Weights over the offsets of a kernel around each query: convolutions, and attention in a sliding window.

    Args:
        weights_at: Gives the weights `[B or 1, h, q, offsets]` of queries at rows `[q]` and columns `[q]`.
        kernel: Side of the kernel.
        grid: Of the tokens; there are no auxiliary ones.
        images: How many images there are.
        heads: Groups of channels, or heads.
        signed: Whether weights may be negative.
        values: What is mixed, groups joined, `[B, N, C]`.
        wide: The padded map on which the layer works; None: the map itself.
    """

    def __init__(
        self,
        weights_at: Callable[[Tensor, Tensor], Tensor],
        kernel: int,
        grid: Grid,
        *,
        images: int,
        heads: int,
        signed: bool,
        values: Tensor | None = None,
        wide: Grid | None = None,
    ):
        self.weights_at = weights_at
        self.kernel = kernel
        self.grid = grid
        self.images = images
        self.heads = heads
        self.signed = signed
        self.values = None if values is None else widened(values)
        self.wide = wide or grid

    def on_map(self, mixed: Tensor) -> Tensor:
        return crop(lattice(mixed, self.wide), self.grid)

    def compact(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        height, width = self.grid.height, self.grid.width
        rows, columns = queries // width, queries % width
        offsets = torch.arange(self.kernel**2, device=queries.device)
        before, _ = same_padding(self.kernel)
        y = rows[:, None] + offsets // self.kernel - before
        x = columns[:, None] + offsets % self.kernel - before
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        keys = torch.where(inside, y * width + x, self.grid.tokens)
        weights = widened(self.weights_at(rows, columns))
        return weights.expand(self.images, -1, -1, -1), keys

    def positive(self, queries: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        assert self.values is not None
        weights, keys = self.compact(queries)
        around = F.pad(self.values, (0, 0, 0, 1))[:, keys].unflatten(-1, (self.heads, -1))  # [B, q, K, h, d]
        return (weights * torch.einsum("bhqd,bqkhd->bhqk", gradient[:, :, queries], around)).relu(), keys

    def kernels(self, queries: Tensor) -> Tensor:
        """The kernels at some positions `[q]`: `[B, h, q, kernel, kernel]`."""
        return self.compact(queries)[0].unflatten(-1, (self.kernel, self.kernel))


class GatherMatrix(AttentionMatrix):
    """LightViT: windows for what is near, and global tokens that gather from all patches and broadcast back.

    A patch hears half through its window and half through the global tokens, whose results the layer adds.

    Args:
        local: The windows' weights.
        gathering: Attention of the global tokens to the patches `[B, h, T, N]`.
        queries: Of the patches `[B, h, N, d]`.
        keys: Of the global tokens after gathering `[B, h, T, d]`.
        grid: Of the tokens; its auxiliary ones are the global tokens.
        values: Of the patches `[B, h, N, d]`.
        global_values: Of the global tokens after gathering `[B, h, T, d]`.
    """

    def __init__(
        self,
        local: WindowMatrix,
        gathering: Tensor,
        queries: Tensor,
        keys: Tensor,
        grid: Grid,
        *,
        values: Tensor,
        global_values: Tensor,
    ):
        self.grid = grid
        self.images, self.heads = queries.shape[:2]
        self.local = local
        self.gathering = gathering
        self.queries, self.keys = widened(queries), widened(keys)
        self.values, self.global_values = widened(values), widened(global_values)

    def broadcast(self, patches: Tensor) -> Tensor:
        """How much some patches `[q]` (counted without global tokens) read from each global token: `[B, h, q, T]`."""
        return softmax_rows(self.queries[:, :, patches], self.keys, None, self.queries.shape[-1] ** -0.5)

    def compact(self, queries: Tensor) -> tuple[Tensor, None]:
        aux = self.grid.aux
        rows = self.queries.new_zeros(self.images, self.heads, len(queries), self.grid.tokens)
        is_global = queries < aux
        rows[:, :, is_global, aux:] = self.gathering[:, :, queries[is_global]]
        patches = queries[~is_global] - aux
        far = self.broadcast(patches) @ self.gathering
        rows[:, :, ~is_global, aux:] = (self.local.rows(patches) + far) / 2
        return rows, None

    def positive(self, queries: Tensor, gradient: Tensor) -> tuple[Tensor, None]:
        """What a patch reads from a global token is handed on to the patches that this one gathered from.

        The layer between gathering and broadcasting mixes heads, so their mean tells where a global token's content is
        from.
        """
        assert self.values is not None
        aux = self.grid.aux
        rows = self.queries.new_zeros(self.images, self.heads, len(queries), self.grid.tokens)
        is_global = queries < aux
        asking = queries[is_global]
        gathered = self.gathering[:, :, asking] * (gradient[:, :, asking] @ self.values.mT)
        rows[:, :, is_global, aux:] = gathered.relu()
        patches = queries[~is_global] - aux
        read = (self.broadcast(patches) * (gradient[:, :, queries[~is_global]] @ self.global_values.mT)).relu()
        near, keys = self.local.positive(patches, gradient[:, :, aux:])
        far = read @ self.gathering.mean(dim=1, keepdim=True)
        rows[:, :, ~is_global, aux:] = spread(near, keys, self.grid.patches) + far
        return rows, None


def window_tokens(grid: Grid, size: int, shift: tuple[int, int], device: torch.device) -> Tensor:
    """The token in each slot of windows that pad first and shift then: `[windows, size**2]`."""
    numbers = torch.arange(grid.patches, device=device).view(1, grid.height, grid.width, 1)
    # Padding is zeros, so the numbers start from one on the way.
    tokens = windows(roll(pad_to_multiple(numbers + 1, size), *shift), size)[..., 0]
    return torch.where(tokens > 0, tokens - 1, grid.patches)


def cells_of_keys(grid: Grid, rows: int, columns: int, ratio: int, device: torch.device) -> Tensor:
    """Which fraction of each key of a map reduced by `ratio` the tokens have: `[aux + rows * columns, N]`."""
    own_row = torch.arange(grid.height, device=device) // ratio
    own_column = torch.arange(grid.width, device=device) // ratio
    owner = (own_row[:, None] * columns + own_column).flatten()
    covered = ((own_row < rows)[:, None] & (own_column < columns)).flatten()
    covers = torch.zeros(rows * columns, grid.patches, device=device)
    covers[owner[covered], covered.nonzero().flatten()] = 1.0
    covers /= covers.sum(dim=1, keepdim=True)
    return torch.block_diag(torch.eye(grid.aux, device=device), covers) if grid.aux else covers
