"""The feature pyramid network between a backbone's maps and a head."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .pyramid import Levels


class Fpn(nn.Module):
    """Maps of a backbone to maps of one width, each twice as coarse as the one before it.

    Levels that the backbone has are merged from coarse to fine. Finer ones are made by 2x2 transposed convolutions on
    the finest merged map (LightViT's neck: stride 4 of a backbone that begins with 8); coarser ones behind them by
    taking every second position (`pool`, as in Mask R-CNN) or by convolutions on the backbone's last map (`conv`, as in
    RetinaNet).

    Args:
        given: The backbone's maps.
        width: Channels of all maps given out.
        finest: Stride of the first map given out, a power of two.
        count: How many maps; None for no coarser ones than the backbone has.
        extra: How coarser maps are made.

    Attributes:
        strides: Strides of the maps given out.

    Example:
        >>> import torch
        >>> fpn = Fpn(Levels((8, 16), (8, 16)), width=4, finest=4, count=4)
        >>> maps = fpn([torch.randn(1, 8, 6, 8), torch.randn(1, 16, 3, 4)])
        >>> [tuple(level.shape) for level in maps], fpn.strides
        ([(1, 4, 12, 16), (1, 4, 6, 8), (1, 4, 3, 4), (1, 4, 2, 2)], (4.0, 8, 16, 32))
    """

    def __init__(
        self, given: Levels, width: int, finest: int, count: int | None = None, extra: Literal["pool", "conv"] = "pool"
    ):
        super().__init__()
        finer = max(given.round_strides[0].bit_length() - finest.bit_length(), 0)
        self.used = len(given.strides) if count is None else min(len(given.strides), max(count - finer, 1))
        strides = [given.strides[0] / 2**step for step in range(finer, 0, -1)] + [*given.strides[: self.used]]
        self.laterals = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in given.channels[: self.used])
        self.doublings = nn.ModuleList(nn.ConvTranspose2d(width, width, 2, stride=2) for _ in range(finer))
        self.outputs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in strides)
        more = max((count or 0) - len(strides), 0)
        self.pools = more if extra == "pool" else 0
        widths = [given.channels[self.used - 1], *[width] * more]
        convs = (nn.Conv2d(channels, width, 3, stride=2, padding=1) for channels in widths[:more])
        self.coarser = nn.ModuleList(convs if extra == "conv" else ())
        self.strides: tuple[float, ...] = (*strides, *(strides[-1] * 2 ** (step + 1) for step in range(more)))
        self.out_channels = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=1)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Maps `[B, C_i, H_i, W_i]` to maps `[B, width, H_j, W_j]`."""
        merged = [lateral(level) for lateral, level in zip(self.laterals, maps, strict=False)]
        for index in range(len(merged) - 1, 0, -1):
            merged[index - 1] = merged[index - 1] + F.interpolate(merged[index], scale_factor=2.0, mode="nearest")
        for double in self.doublings:
            merged.insert(0, double(merged[0]))
        levels = [output(level) for output, level in zip(self.outputs, merged, strict=True)]
        for _ in range(self.pools):
            levels.append(F.max_pool2d(levels[-1], 1, stride=2))
        last = maps[self.used - 1]
        for index, conv in enumerate(self.coarser):
            last = conv(last.relu() if index else last)
            levels.append(last)
        return levels
