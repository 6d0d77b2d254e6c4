"""T2T-ViT's embedding: overlapping soft splits with a light attention layer between them."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lattice import Grid, image
from ..ops.execution import wide, without_autocast
from .attention import join_heads, split_heads
from .feedforward import Mlp
from .ranges import Patch, Rate, Width
from .slots import Embed, EmbedModule, Ffn, Site, TokenModule, register

SPLITS = {  # stride of the whole: (kernel, stride, padding) of each soft split
    16: ((7, 4, 2), (3, 2, 1), (3, 2, 1)),
    8: ((3, 2, 1), (3, 2, 1), (3, 2, 1)),
    4: ((3, 2, 1), (3, 2, 1), (1, 1, 0)),
}


@register
@dataclass(frozen=True)
class TokensToToken(Embed):
    """Soft split, attention, soft split, attention, soft split, linear.

    Attributes:
        patch: Stride of the whole: 16 as in the paper; 8 or 4 (the form of LIFE's experiments) for small images.
        token_dim: Width of the tokens between the splits.
        attention: `performer` (linear in the number of tokens) or `transformer`.
        ffn: Feed-forward part of the two attention layers.
        dropout: Dropout behind the performer's attention and behind a plain MLP; LocalViT's feed-forward part in the
            place of that MLP has none, as released.
    """

    qkv_bias: ClassVar[bool] = False

    patch: Patch = 16
    token_dim: Width = 64
    attention: Literal["performer", "transformer"] = "performer"
    ffn: Ffn = Mlp(ratio=1.0)
    dropout: Rate = 0.1

    @property
    def label(self) -> str:
        return f"T2T {self.patch}" + ("" if self.ffn.plain else " local")

    @property
    def possible_patches(self) -> tuple[int, ...]:
        return tuple(SPLITS)

    @property
    def first_conv(self) -> str:
        return "embed.layers.0.kqv" if self.attention == "performer" else "embed.layers.0.qkv"

    @property
    def stride(self) -> int:
        return self.patch

    @property
    def splits(self) -> tuple[tuple[int, int, int], ...]:
        """Kernel, stride and padding of each soft split."""
        if self.patch not in SPLITS:
            raise ValueError(
                f"Tokens-to-token has stride 16, 8 or 4, not {self.patch}; set patch_size to one of these."
            )
        return SPLITS[self.patch]

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        return TokensToTokenModule(dim, in_chans, self)


def soft_split(nchw: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, Grid]:
    """Overlapping patches of `[B, C, H, W]`, flattened channel-major: tokens `[B, N, C * kernel**2]` and their grid."""
    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in nchw.shape[2:])
    return F.unfold(nchw, kernel, stride=stride, padding=padding).transpose(1, 2), Grid(height, width)


class TokensToTokenModule(EmbedModule):
    """The three splits with a token layer after each of the first two."""

    def __init__(self, dim: int, in_chans: int, part: TokensToToken):
        super().__init__()
        self.stride = part.patch
        self.splits = part.splits
        channels = in_chans
        layers: list[nn.Module] = []
        for kernel, _, _ in self.splits[:2]:
            kind = PerformerLayer if part.attention == "performer" else TransformerLayer
            layers.append(kind(channels * kernel**2, part))
            channels = part.token_dim
        self.layers = nn.ModuleList(layers)
        self.proj = nn.Linear(channels * self.splits[2][0] ** 2, dim)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, None]:
        tokens, grid = soft_split(images, *self.splits[0])
        for layer, split in zip(self.layers, self.splits[1:], strict=True):
            tokens, grid = soft_split(image(layer(tokens, grid), grid), *split)
        return self.proj(tokens), grid, None


class TokenLayer(TokenModule):
    """Attention whose skip connection is the value (the width changes), then a feed-forward part."""

    def __init__(self, part: TokensToToken):
        super().__init__()
        site = Site(part.token_dim, Grid(1, 1))
        self.norm2 = nn.LayerNorm(part.token_dim) if part.ffn.normed else nn.Identity()
        self.ffn = part.ffn.build(site)

    def attend(self, tokens: Tensor) -> Tensor:
        """`[B, N, in]` to `[B, N, token_dim]`."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        tokens = self.attend(tokens)
        return tokens + self.drop(self.ffn(self.norm2(tokens), grid))

    def drop(self, tokens: Tensor) -> Tensor:
        """Dropout behind the feed-forward part."""
        return tokens


class PerformerLayer(TokenLayer):
    """Linear attention with positive random features."""

    features: Tensor

    def __init__(self, in_dim: int, part: TokensToToken):
        super().__init__(part)
        dim = part.token_dim
        self.norm1 = nn.LayerNorm(in_dim)
        self.kqv = nn.Linear(in_dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(part.dropout)
        self.drops_mlp = part.ffn.plain
        count = dim // 2
        self.register_buffer("features", nn.init.orthogonal_(torch.empty(count, dim)) * math.sqrt(count))

    def attend(self, tokens: Tensor) -> Tensor:
        keys, queries, values = self.kqv(self.norm1(tokens)).chunk(3, dim=-1)
        with without_autocast(tokens.device):  # the features reach e^(m/2), beyond float16
            keys, queries = self.positive(keys), self.positive(queries)  # [B, N, m]
            mixed = queries @ (keys.transpose(1, 2) @ values.to(keys.dtype))
            mixed = mixed / (queries @ keys.sum(dim=1)[..., None] + 1e-8)
        return values + self.dropout(self.proj(mixed.to(values.dtype)))

    def positive(self, tokens: Tensor) -> Tensor:
        """exp(w x - |x|^2 / 2) / sqrt(m), not in 16 bits."""
        tokens = tokens.to(wide(tokens.dtype))
        features = self.features.to(tokens.dtype)
        exponent = tokens @ features.transpose(0, 1) - (tokens * tokens).sum(dim=-1, keepdim=True) / 2
        return exponent.exp() / math.sqrt(len(features))

    def drop(self, tokens: Tensor) -> Tensor:
        return self.dropout(tokens) if self.drops_mlp else tokens


class TransformerLayer(TokenLayer):
    """Softmax attention with one head, scaled by the width of its input as in the release."""

    def __init__(self, in_dim: int, part: TokensToToken):
        super().__init__(part)
        dim = part.token_dim
        self.scale = in_dim**-0.5
        self.norm1 = nn.LayerNorm(in_dim)
        self.qkv = nn.Linear(in_dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def attend(self, tokens: Tensor) -> Tensor:
        # One head, but with an axis for it: without, there is no fused kernel.
        queries, keys, values = (split_heads(t, 1) for t in self.qkv(self.norm1(tokens)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(queries, keys, values, scale=self.scale)
        return join_heads(values) + self.proj(join_heads(mixed))
