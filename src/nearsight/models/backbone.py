"""From spec to model: one backbone for all families, under timm's contract, and its pyramid of maps."""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import register_notrace_module
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..lattice import Grid, image, sequence
from ..ops.chunks import in_chunks
from ..parts.layers import fold_norm, make_norm
from ..parts.ranges import Channels, Classes, Pixels, Rate, check_fields
from ..parts.slots import EmbedModule, Site, TokenModule, declared
from .fold import fold
from .pooling import SequencePool
from .resize import adopt_size
from .spec import BackboneSpec, Layer, Stage, iter_parts


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

    undecayed = ("aux_tokens",)

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


ORDINARY = 2**26  # of a stage, the widest product of its numbers; the largest model of the papers has a tenth of it


def refuse_giant(model: "Backbone") -> None:
    """Refuse a model that does not fit into memory, before any is taken; values may be in range and their product not.

    Raises:
        ValueError: Its parameters take more memory than is free.
    """
    spec = model.spec
    tokens = math.prod(-(-side // spec.embed.stride) for side in model.img_size)
    sides = [value for part in iter_parts(spec) for value in vars(part).values() if isinstance(value, int | float)]
    largest = max(sides, default=1)  # a ratio, a window, a kernel, heads
    stages = [stage.dim * max(stage.depth * stage.dim, tokens, model.num_classes) for stage in spec.stages]
    if max(*stages, max(stage.depth for stage in spec.stages) * largest**2) <= ORDINARY:
        return
    if torch.empty(0).is_meta:  # tensors take no memory at present
        return
    with torch.device("meta"):
        twin = Backbone(spec, img_size=model.img_size, in_chans=model.in_chans, num_classes=model.num_classes)
    numbers = sum(tensor.numel() for tensor in (*twin.parameters(), *twin.buffers()))
    free = free_bytes(torch.empty(0).device)
    if free is not None and 4 * numbers > free:
        raise ValueError(
            f"A model of {sum(stage.depth for stage in spec.stages)} blocks up to "
            f"{max(stage.dim for stage in spec.stages)} wide for images of {model.img_size[0]}x{model.img_size[1]} "
            f"pixels has {numbers:,} numbers, which take {4 * numbers / 1e9:,.0f} GB of memory; "
            f"{free / 1e9:,.1f} GB are free. Make it smaller."
        )


class Backbone(nn.Module):
    """A vision transformer built from a spec: embed, stages, norm, head.

    Models with auxiliary tokens are token models: `forward_features` returns `[B, aux + N, C]`. The others return the
    last map `[B, C, H, W]`. Any height and width from the stride up is taken, from call to call.

    Args:
        spec: What to build.
        img_size: Size that positions and windows are made for; None takes the spec's.
        in_chans: Channels of the images.
        num_classes: Outputs of the head; 0 for none.
        global_pool: timm's name of the pooling: `token`, `avg`, `all`, `sequence`, or `` for none; None takes the
            spec's.
        drop_rate: Dropout in front of the head.
        drop_path_rate: Stochastic depth; None takes the spec's.

    Example:
        >>> from nearsight.models.lit import SPECS
        >>> model = Backbone(SPECS["lit_nano"], num_classes=10)
        >>> model(torch.randn(2, 3, 45, 32)).shape
        torch.Size([2, 10])
    """

    pretrained_cfg: dict[str, Any]
    default_cfg: dict[str, Any]

    def __init__(
        self,
        spec: BackboneSpec,
        *,
        img_size: int | tuple[int, int] | None = None,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
    ):
        super().__init__()
        spec.check()
        settings = settings_of(spec, img_size, in_chans, num_classes, drop_rate, drop_path_rate)
        self.spec = spec
        self.img_size = settings.img_size
        self.in_chans = in_chans = settings.in_chans
        self.num_classes = settings.num_classes
        self.global_pool = _pool_name(spec, global_pool)
        self.num_prefix_tokens = spec.aux
        self.drop_path_rate = settings.drop_path_rate
        refuse_giant(self)

        self.embed: EmbedModule = spec.embed.build(spec.stages[0].dim, in_chans, self.img_size)
        register_notrace_module(type(self.embed))  # one node for torch.fx: its grid follows the image
        self.embed.in_chans = in_chans
        self.stages: Any = nn.ModuleList(self._make_stages())  # of StageModule
        width = spec.stages[-1].dim
        self.norm: nn.Module = nn.LayerNorm(width, eps=spec.eps)
        self.neck = Neck(width, spec.neck) if spec.neck else nn.Identity()
        self.num_features = self.embed_dim = self.head_hidden_size = spec.neck or width
        self.seq_pool = self._make_seq_pool()
        self.head_drop = nn.Dropout(drop_rate)
        self.head = self._make_head(spec.distilled)
        self.feature_info = self._feature_info()
        self.init_weights()

    def _make_stages(self) -> Iterator[StageModule]:
        spec = self.spec
        depth = sum(stage.depth for stage in spec.stages)
        rates = iter([self.drop_path_rate * index / max(depth - 1, 1) for index in range(depth)])
        stride, in_dim, aux = spec.embed.stride, spec.stages[0].dim, 0
        for stage in spec.stages:
            aux += stage.aux
            grid = Grid(-(-self.img_size[0] // stride), -(-self.img_size[1] // stride), aux)
            yield StageModule(stage, in_dim, grid, spec.eps, [next(rates) for _ in range(stage.depth)])
            stride, in_dim = stride * 2, stage.dim

    def _make_head(self, distilled: bool, **kwargs: Any) -> nn.Module:
        def linear() -> nn.Module:
            if not self.num_classes:
                return nn.Identity()
            return nn.Linear(self.num_features, self.num_classes, **kwargs)

        self.head_dist = linear() if distilled else None
        return linear()

    def _make_seq_pool(self) -> SequencePool | None:
        return SequencePool(self.num_features) if self.global_pool == "sequence" else None

    def _feature_info(self) -> list[dict[str, Any]]:
        spec = self.spec
        if len(spec.stages) == 1:
            stage = spec.stages[0]
            row = {"num_chs": stage.dim, "reduction": spec.embed.stride}
            return [row | {"module": f"stages.0.blocks.{index}"} for index in range(stage.depth)]
        rows = zip(spec.stages, spec.strides, strict=True)
        return [{"num_chs": s.dim, "reduction": r, "module": f"stages.{i}"} for i, (s, r) in enumerate(rows)]

    @torch.no_grad()
    def init_weights(self) -> None:
        """Linear layers and tokens from a normal distribution of std 0.02, biases 0; convolutions by default."""
        for module in self.modules():
            if type(module) is nn.Linear:
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, StageModule) and module.aux_tokens is not None:
                nn.init.normal_(module.aux_tokens, std=0.02)
            elif isinstance(module, Block) and module.post_norm:
                for norm in (module.norm1, module.norm2):
                    if isinstance(norm, nn.LayerNorm):
                        nn.init.zeros_(norm.weight)

    # The contract of a timm model

    def forward_features(self, images: Tensor) -> Tensor:
        """Images `[B, C, H, W]` to normed tokens `[B, aux + N, C]`, or to the map `[B, C, H, W]` without aux tokens."""
        tokens, grid, pixels = self.embed(images)
        for stage in self.stages:
            tokens, grid, pixels = stage(tokens, grid, pixels)
        return self._finish(tokens, grid)

    def _finish(self, tokens: Tensor, grid: Grid) -> Tensor:
        tokens = self.neck(self.norm(tokens))
        return tokens if self.num_prefix_tokens else image(tokens, grid)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Any:
        """Pool what `forward_features` returned, and classify it: `[B, num_classes]`; not pooled, each position."""
        pooled = self.head_drop(self._pool(features))
        if self.head_dist is None:
            return pooled if pre_logits else self._classify(pooled)
        for_teacher = self.head_drop(features[:, 1]) if self.global_pool == "token" else pooled
        if pre_logits:
            return (pooled + for_teacher) / 2
        by_class, by_teacher = self.head(pooled), self.head_dist(for_teacher)
        distilling = self.training and getattr(self, "distilled_training", False)
        return (by_class, by_teacher) if distilling else (by_class + by_teacher) / 2

    def _classify(self, pooled: Tensor) -> Tensor:
        if self.global_pool or self.num_prefix_tokens:
            return self.head(pooled)
        return self.head(pooled.movedim(1, -1)).movedim(-1, 1)  # a map of each class, [B, num_classes, H, W]

    def _pool(self, features: Tensor) -> Tensor:
        if self.global_pool == "":
            return features
        if self.seq_pool is not None:
            return self.seq_pool(self._patches(features))
        if self.num_prefix_tokens == 0:
            return features.mean(dim=(2, 3))
        if self.global_pool == "token":
            return features[:, 0]
        return features.mean(dim=1) if self.global_pool == "all" else features[:, self.num_prefix_tokens :].mean(dim=1)

    def _patches(self, features: Tensor) -> Tensor:
        """The patch tokens `[B, N, C]` of what `forward_features` returned."""
        return features[:, self.num_prefix_tokens :] if self.num_prefix_tokens else sequence(features)

    def reading_weights(self, images: Tensor) -> Tensor | None:
        """How much the head reads of each patch token `[B, N]`, where it learned that; None for other poolings."""
        if self.seq_pool is None:
            return None
        return self.seq_pool.weights(self._patches(self.forward_features(images))).squeeze(-1)

    def fold(self) -> "Backbone":
        """A copy for inference alone, with the same predictions: see `nearsight.fold`."""
        return fold(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images `[B, C, H, W]` to logits `[B, num_classes]`."""
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Maps behind chosen blocks (one stage) or stages (several), and the final features.

        Args:
            x: Images `[B, C, H, W]`.
            indices: Which rows of `feature_info`: a list, the last n, or all.
            return_prefix_tokens: Return pairs of map and auxiliary tokens.
            norm: Apply the last norm (to every block's map; of several stages only to the last one's).
            stop_early: Do not run past the last map asked for.
            output_fmt: `NCHW` or `NLC`.
            intermediates_only: Return the maps alone.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt={output_fmt!r} is not known; use NCHW or NLC.")
        wanted, last = feature_take_indices(len(self.feature_info), indices)
        maps = []
        tokens, grid, pixels = self.embed(x)
        single = len(self.spec.stages) == 1
        stages = self.stages if not stop_early or single else self.stages[: last + 1]
        for number, stage in enumerate(stages):
            tokens, grid = stage.enter(tokens, grid)
            for index in range(len(stage.blocks)):
                tokens, pixels = stage.step(index, tokens, grid, pixels)
                if single and index in wanted:
                    maps.append(self._as_map(tokens, grid, norm, output_fmt, return_prefix_tokens))
                if single and stop_early and index == last:
                    break
            if not single and number in wanted:
                final = norm and number == len(self.spec.stages) - 1
                maps.append(self._as_map(tokens, grid, final, output_fmt, return_prefix_tokens))
        return maps if intermediates_only else (self._finish(tokens, grid), maps)

    def _as_map(self, tokens: Tensor, grid: Grid, norm: bool, output_fmt: str, with_prefix: bool) -> Any:
        tokens = self.norm(tokens) if norm else tokens
        prefix = tokens[:, : grid.aux]
        patches = image(tokens, grid).contiguous() if output_fmt == "NCHW" else tokens[:, grid.aux :]
        return (patches, prefix) if with_prefix else patches

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what comes behind the last map asked for; returns the indices kept."""
        wanted, last = feature_take_indices(len(self.feature_info), indices)
        if len(self.spec.stages) == 1:
            stage = self.stages[0]
            stage.blocks = stage.blocks[: last + 1]
            stage.inner = stage.inner[: last + 1] if stage.inner is not None else None
        else:
            self.stages = self.stages[: last + 1]
        if prune_norm or len(self.stages) < len(self.spec.stages):
            self.norm = nn.Identity()
        if prune_head:
            self.neck = nn.Identity()
            self.num_features = self.embed_dim = self.head_hidden_size = self.feature_info[last]["num_chs"]
            self.reset_classifier(0, "")
        return wanted

    def get_classifier(self) -> Any:
        """The head, or both heads of a distilled model."""
        return self.head if self.head_dist is None else (self.head, self.head_dist)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head for another number of classes, on the same device and in the same type."""
        self.num_classes = settings_of(self.spec, num_classes=num_classes).num_classes
        like = next(self.parameters())
        if global_pool is not None:
            before, self.global_pool = self.global_pool, _pool_name(self.spec, global_pool)
            if before != self.global_pool:
                made = self._make_seq_pool()
                self.seq_pool = None if made is None else made.to(like)
        self.head = self._make_head(self.head_dist is not None, device=like.device, dtype=like.dtype)
        for head in (self.head, self.head_dist):
            if isinstance(head, nn.Linear):
                nn.init.normal_(head.weight, std=0.02)
                nn.init.zeros_(head.bias)
                head.train(self.training)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        """Make the model for another image or patch size: positions, windows and kernels are resized with the weights.

        Other sizes can be fed without it, and are interpolated in every call. Call it before the optimizer is made.

        Args:
            img_size: Height and width, one number for both; None keeps the present size.
            patch_size: Side of a patch; None keeps the present one.
        """
        spec = self.spec
        if patch_size is not None:
            height, width = pair(patch_size)
            if height != width:
                raise ValueError(f"patch_size={patch_size} is not square; give one number.")
            spec = replace(spec, embed=spec.embed.with_patch(height))
        with torch.device("meta"):
            size = self.img_size if img_size is None else img_size
            resized = Backbone(spec, img_size=size, in_chans=self.in_chans, num_classes=0)
            if (localized := getattr(self, "localized", None)) is not None:
                localized.again(resized)
        adopt_size(self, resized)
        self.spec, self.img_size, self.feature_info = spec, resized.img_size, resized.feature_info
        if described := getattr(self, "pretrained_cfg", None):
            described.update(input_shapes(spec, self.img_size, self.in_chans))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training: keep only what stands between blocks."""
        for stage in self.stages:
            stage.grad_checkpointing = enable

    def set_distilled_training(self, enable: bool = True) -> None:
        """In training mode, return the predictions of both heads instead of their mean."""
        self.distilled_training = enable

    def no_weight_decay(self) -> set[str]:
        """Names of positions, auxiliary tokens and relative-bias tables, which are not decayed."""
        return declared(self, "undecayed")

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Groups of parameters from input to output, for layer-wise learning rates."""
        stem = r"^embed|^stages\.0\.(?:aux_tokens|position)"
        if coarse:
            return {"stem": stem, "blocks": r"^stages\.(\d+)"}
        return {
            "stem": stem,
            "blocks": [
                (r"^stages\.(\d+)\.(?:blocks|inner)\.(\d+)", None),
                (r"^stages\.(\d+)\.(?:merge|aux_tokens|position)", (0,)),
                (r"^norm|^neck|^seq_pool", (99999,)),
            ],
        }


class Neck(nn.Module):
    """LightViT's layer between the last norm and the pooling: linear, layer norm, GELU on every token."""

    def __init__(self, in_dim: int, dim: int):
        super().__init__()
        self.proj = nn.Linear(in_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.act = nn.GELU()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.act(self.norm(self.proj(tokens)))


@dataclass(frozen=True)
class ModelSettings:
    """What a backbone is given beside its spec; see there."""

    img_size: tuple[Pixels, Pixels]
    in_chans: Channels
    num_classes: Classes
    drop_rate: Rate
    drop_path_rate: Rate


def settings_of(
    spec: BackboneSpec,
    img_size: int | Sequence[int] | None = None,
    in_chans: int = 3,
    num_classes: int = 1000,
    drop_rate: float = 0.0,
    drop_path_rate: float | None = None,
) -> ModelSettings:
    """The settings of a model, checked; the spec's where they are left open."""
    size = pair(spec.img_size if img_size is None else img_size)
    rate = spec.drop_path if drop_path_rate is None else drop_path_rate
    settings = ModelSettings(size, whole(in_chans), whole(num_classes), drop_rate, rate)
    check_fields(settings)
    return settings


def whole(number: Any) -> Any:
    """A whole number of any kind (also numpy's) as Python's; anything else as it is."""
    return operator.index(number) if hasattr(number, "__index__") and not isinstance(number, bool) else number


def pair(size: Any) -> tuple[int, int]:
    """Height and width from one number or two."""
    if hasattr(size, "__index__"):
        return whole(size), whole(size)
    if isinstance(size, str) or not hasattr(size, "__len__") or len(size) != 2:
        raise ValueError(f"{size!r} is no size in pixels; give one number, or height and width.")
    return whole(size[0]), whole(size[1])


def input_shapes(spec: BackboneSpec, img_size: tuple[int, int], in_chans: int) -> dict[str, Any]:
    """The shapes in timm's description of a model that is made for this image size."""
    stride = spec.strides[-1]
    return {
        "input_size": (in_chans, *img_size),
        "min_input_size": (in_chans, stride, stride),
        "pool_size": None if spec.aux else (-(-img_size[0] // stride), -(-img_size[1] // stride)),
    }


def _pool_name(spec: BackboneSpec, given: str | None) -> str:
    names = {"token": "token", "mean": "avg", "all": "all", "sequence": "sequence"}
    pool = names[spec.pool] if given is None else given
    if pool not in ("token", "avg", "all", "sequence", ""):
        raise ValueError(f"global_pool={given!r} is not known; use token, avg, all, sequence or ''.")
    if pool == "token" and not spec.aux:
        raise ValueError("global_pool='token' needs a model with auxiliary tokens; use avg.")
    return pool


class FeaturePyramid(nn.Module):
    """The maps behind each stage, without auxiliary tokens, some of them layer-normed.

    Args:
        backbone: The model; its last norm and head are dropped.
        norms: Which norm a stage's map gets, `layer` or `batch`, by the number of the stage.
        first: Number of the first stage whose map is given out.
        last: Number of the last stage; None for all. Stages behind it are dropped.

    Attributes:
        channels: Width of each map.
        strides: Pixels between neighbouring positions of each map.

    Example:
        >>> import torch
        >>> from nearsight.models.lightvit import SPECS
        >>> pyramid = FeaturePyramid(Backbone(SPECS["lightvit_nano"], num_classes=0), norms={0: "layer", 2: "layer"})
        >>> [tuple(m.shape) for m in pyramid(torch.randn(1, 3, 40, 32))]
        [(1, 32, 20, 16), (1, 64, 10, 8), (1, 128, 5, 4)]
        >>> pyramid.channels, pyramid.strides
        ((32, 64, 128), (2, 4, 8))
    """

    def __init__(
        self, backbone: Backbone, norms: Mapping[int, str] | None = None, first: int = 0, last: int | None = None
    ):
        super().__init__()
        self.spec = backbone.spec
        self.first = first
        self.levels = len(backbone.feature_info) if last is None else last + 1
        rows = backbone.feature_info[first : self.levels]
        self.channels: tuple[int, ...] = tuple(row["num_chs"] for row in rows)
        self.strides: tuple[float, ...] = tuple(row["reduction"] for row in rows)
        backbone.prune_intermediate_layers(list(range(self.levels)), prune_norm=True)
        self.backbone = backbone
        stages, eps = backbone.spec.stages, backbone.spec.eps
        self.norm_kinds = dict(norms or {})
        self.norms = nn.ModuleDict({str(i): make_norm(kind, stages[i].dim, eps) for i, kind in self.norm_kinds.items()})

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images `[B, C, H, W]` to maps `[B, C_i, H_i, W_i]`, fine to coarse."""
        wanted = list(range(self.first, self.levels))
        maps: list[Tensor] = self.backbone.forward_intermediates(images, indices=wanted, intermediates_only=True)
        for index, norm in self.norms.items():
            level = int(index) - self.first
            height, width = maps[level].shape[2:]
            maps[level] = image(norm(sequence(maps[level])), Grid(height, width))
        return maps


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be had, as far as the system tells: of the machine, or of what contains this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    free = []
    with suppress(OSError, ValueError, StopIteration):
        rows = Path("/proc/meminfo").read_text().splitlines()
        free.append(next(int(row.split()[1]) for row in rows if row.startswith("MemAvailable")) * 1024)
    with suppress(OSError, ValueError):  # "max" where a container has no limit
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free, default=None)
