"""From stage to module: what happens between two merges."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import register_notrace_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..lattice import Grid
from ..ops.chunks import in_chunks
from ..parts.norm import fold_norm, make_norm
from ..parts.slots import Site, TokenModule
from .spec import Layer, Stage


class Block(nn.Module):
    """`x = x + mixer(norm(x)); x = x + ffn(norm(x))`, or with the norms behind the parts."""

    folded = False

    def __init__(self, site: Site, layer: Layer, post_norm: bool, drop_path: float):
        super().__init__()
        self.post_norm = post_norm
        self.norm1 = make_norm(site.norm, site.dim, site.eps) if layer.mixer and layer.mixer.normed else nn.Identity()
        self.mixer = layer.mixer.build(site, layer.qkv) if layer.mixer else None
        self.norm2 = make_norm(site.norm, site.dim, site.eps) if layer.ffn.normed else nn.Identity()
        self.ffn = layer.ffn.build(site)
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.drop_path2 = DropPath(drop_path) if drop_path and layer.ffn.drops else nn.Identity()

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        if self.mixer is not None:
            tokens = tokens + self.drop_path1(self._branch(self.mixer, self.norm1, tokens, grid))
        if self.folded and self.ffn.token_width is not None:
            return in_chunks(lambda part: self._feed(part, grid), tokens, self.ffn.token_width)
        return self._feed(tokens, grid)

    def _feed(self, tokens: Tensor, grid: Grid) -> Tensor:
        return tokens + self.drop_path2(self._branch(self.ffn, self.norm2, tokens, grid))

    def _branch(self, part: TokenModule, norm: nn.Module, tokens: Tensor, grid: Grid) -> Tensor:
        return norm(part(tokens, grid)) if self.post_norm else part(norm(tokens), grid)

    def fold_in_place(self) -> None:
        """Fold batch norms into the parts behind them."""
        if not self.post_norm:
            if self.mixer is not None:
                self.norm1 = fold_norm(self.norm1, before=self.mixer.entry())
            self.norm2 = fold_norm(self.norm2, before=self.ffn.entry())


@register_notrace_module
class StageModule(nn.Module):
    """Merge, auxiliary tokens, positions, then the blocks."""

    def __init__(self, stage: Stage, in_dim: int, grid: Grid, eps: float, drop_paths: Sequence[float]):
        super().__init__()
        self.grad_checkpointing = False
        before = Site(stage.dim, Grid(grid.height, grid.width, grid.aux - stage.aux))
        self.merge = stage.merge.build(before, in_dim) if stage.merge else None
        self.aux_tokens = nn.Parameter(torch.zeros(1, stage.aux, stage.dim)) if stage.aux else None
        self.position = stage.position.build(stage.dim, grid) if stage.position else None
        site = Site(stage.dim, grid, stage.norm, eps)
        layers = list(zip(stage.layers(), drop_paths, strict=True))
        self.blocks = nn.ModuleList(Block(site, layer, stage.post_norm, rate) for layer, rate in layers)
        inner = stage.inner
        self.inner = nn.ModuleList(inner.build(stage.dim, eps, rate) for _, rate in layers) if inner else None

    def enter(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """What happens before the first block."""
        if self.merge is not None:
            tokens, grid = self.merge(tokens, grid)
        if self.aux_tokens is not None:
            tokens = torch.cat((self.aux_tokens.expand(tokens.shape[0], -1, -1), tokens), dim=1)
            grid = Grid(grid.height, grid.width, grid.aux + self.aux_tokens.shape[1])
        if self.position is not None:
            tokens = self.position(tokens, grid)
        return tokens, grid

    def step(self, index: int, tokens: Tensor, grid: Grid, pixels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens (and pixel tokens) behind the next block, after its inner transformer if there is one."""
        if self.inner is not None:
            tokens, pixels = self._call(self.inner[index], tokens, pixels, grid)
        return self._call(self.blocks[index], tokens, grid), pixels

    def _call(self, module: nn.Module, *inputs: Any) -> Any:
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(module, *inputs, use_reentrant=False)
        return module(*inputs)

    def forward(self, tokens: Tensor, grid: Grid, pixels: Tensor | None) -> tuple[Tensor, Grid, Tensor | None]:
        tokens, grid = self.enter(tokens, grid)
        for index in range(len(self.blocks)):
            tokens, pixels = self.step(index, tokens, grid, pixels)
        return tokens, grid, pixels
