"""The slots of the skeleton, and all that a part says about itself.

A part is a frozen dataclass: a value that says what fills a slot. Its `build` makes the module that does the work. Both
speak for themselves: the value how it is labelled, which sizes it can have and how `localize` puts it into a model
that exists; the module how it mixes positions, resizes, folds, and how its parameters learn. Nothing outside asks which
part it has before it, so a new part is one file. What a part does not say has a default that is right for most.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..lattice import Grid
from ..ops.attention_matrix import AttentionMatrix
from ..ops.back_projection import BackProjection, plain_back_projection

Resizing = dict[str, Callable[[Tensor], Tensor]]
Pairs = list[tuple[Any, Any]]  # a new parameter or None, and the pretrained tensor for it or None


@dataclass(frozen=True)
class Site:
    """Where a part is built.

    Attributes:
        dim: Channels of the tokens that the part returns.
        grid: Grid at the image size that the model is made for; other sizes may come later.
        norm: Normalisation of the blocks: `layer`, `batch` or `calibrated_batch`.
        eps: Epsilon of the blocks' normalisation.
    """

    dim: int
    grid: Grid
    norm: str = "layer"
    eps: float = 1e-5


class GridSource(Protocol):
    """What tells a part inside a foreign model the grid of its tokens."""

    def tokens(self, given: Tensor) -> tuple[Tensor, Grid]:
        """A host's tokens or map as tokens `[B, N, C]`, with their grid."""


# Modules


class PartModule(nn.Module):
    """What a part builds.

    Attributes:
        folded: Whether it was made for inference alone; `fold_in_place` then gave it its shortest form.
        undecayed: Names of its own parameters that weight decay leaves alone: tables, tokens.
        slow: Names of its own layers that learn at the recipe's rate for offsets.
    """

    folded: bool = False
    undecayed: ClassVar[tuple[str, ...]] = ()
    slow: ClassVar[tuple[str, ...]] = ()

    def fold_in_place(self) -> None:
        """Take the shortest form that gives the same predictions in evaluation; called once, by `fold`."""

    def resizing(self, old: Any) -> Resizing:
        """How to change each weight of `old`, of its own type but made for another size, so that it fits here."""
        return {}

    def strip_projections(self) -> None:
        """Make the layers of values and outputs the identity, so that the connections between positions are left."""


class TokenModule(PartModule):
    """What every mixer and feed-forward module is: tokens `[B, N, C]` and their grid in, tokens out.

    A module around another mixer keeps that as `mixer`.

    Attributes:
        token_width: Of a module that treats each token by itself: the numbers its widest layer holds for a token. None
            for one that looks at other tokens.
    """

    token_width: int | None = None

    @property
    def kernel_kind(self) -> str | None:
        """Kind of its kernels: `static`, `per position`, `per image`, `predicted`, `attention`; None if it has none."""
        return None

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        raise NotImplementedError

    def attention_matrix(self, tokens: Tensor, grid: Grid) -> AttentionMatrix:
        """With which weights it mixes these tokens `[B, N, C]`; what `explain` follows."""
        raise ValueError(
            f"{type(self).__name__} does not say how it mixes positions; a method `attention_matrix` would."
        )

    def exit(self) -> nn.Module | None:
        """The module that is given what was mixed, heads joined, `[B, N, C]`: there `explain` reads its gradient."""
        return getattr(self, "proj", None)

    def entry(self) -> nn.Linear | None:
        """The linear layer that all tokens enter through, each alone: a norm in front can be folded into it."""
        return None

    def mlp_layers(self) -> tuple[nn.Linear, nn.Linear] | None:
        """Of a plain MLP: its two layers `fc1` and `fc2`, which `localize` builds on."""
        return None

    def take_over_mlp(self, first: Any, second: Any) -> Pairs:
        """Own parameters, each with what it takes over from the two layers of a pretrained MLP; either may be None."""
        return []

    def take_over_attention(self, qkv: Any, proj: Any) -> Pairs:
        """The same from the layers of a pretrained attention."""
        return []


class QkvModule(PartModule):
    """Tokens in; queries, keys and values out, each `[B, N, width]`.

    Attributes:
        width: Channels of each.
        pointwise: Whether each token is treated by itself, so that it may run before or after tokens are rearranged.
    """

    width: int
    pointwise: bool = False

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError

    def by_heads(self, tokens: Tensor, grid: Grid, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head, `[B, heads, N, width / heads]`."""
        queries, keys, values = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self(tokens, grid))
        return queries, keys, values

    def linear(self) -> tuple[Tensor, Tensor | None] | None:
        """Of a plain layer: weight `[3 * width, C]` and bias, which `localize` builds on."""
        return None

    def take_over(self, weight: Tensor, bias: Tensor | None) -> Pairs:
        """Own parameters, each with what it takes over from a pretrained layer, weight `[3 * width, C]` and bias."""
        return []


class EmbedModule(PartModule):
    """Images `[B, C, H, W]` in; tokens, their grid, and the state of an inner transformer (or None) out.

    Attributes:
        stride: Pixels between two neighbouring tokens.
        in_chans: Channels of the images; set by the model that it belongs to.
    """

    stride: int
    in_chans: int | None = None

    def embed(self, images: Tensor) -> tuple[Tensor, Grid, Tensor | None]:
        """What a part fills in; `forward` has looked at the images before."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> tuple[Tensor, Grid, Tensor | None]:
        if not torch.compiler.is_compiling():
            self.check(images)
        return self.embed(images)

    def check(self, images: Tensor) -> None:
        """Refuse what is no batch of images for this model."""
        wanted = f"images [B, {self.in_chans or 'C'}, H, W] of floating-point numbers"
        if not isinstance(images, Tensor):
            raise TypeError(f"The model takes {wanted} as a tensor, not {type(images).__name__}.")
        shape = tuple(images.shape)
        if len(shape) != 4:
            hint = "; add a first axis for the batch" if len(shape) == 3 else ""
            raise ValueError(f"The model takes {wanted}, not a tensor of the shape {shape}{hint}.")
        if self.in_chans is not None and shape[1] != self.in_chans:
            last = "; its channels stand last: permute(0, 3, 1, 2)" if shape[3] == self.in_chans else ""
            raise ValueError(f"The model takes {wanted}, not {shape[1]} channels (shape {shape}){last}.")
        if 0 in shape[2:]:
            raise ValueError(f"The model takes {wanted} with at least one pixel a side, not the shape {shape}.")
        if not images.is_floating_point():
            raise TypeError(f"The model takes {wanted}, not {images.dtype}; convert and normalise them first.")


class MergeModule(PartModule):
    """Tokens in; tokens on a grid of half the height and width out, with that grid.

    Attributes:
        deformable: Whether it reads cells at positions that it learns.
    """

    deformable: ClassVar[bool] = False

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        raise NotImplementedError

    def back_projection(self, tokens: Tensor, fine: Grid, coarse: Grid) -> BackProjection:
        """Which tokens `[B, N, C]` on `fine` those on `coarse` were made from; by default each from its 2x2 cells."""
        return plain_back_projection(fine, coarse, tokens.device)

    def cells(self) -> tuple[Tensor, Tensor | None] | None:
        """Of a linear layer on 2x2 cells: its weight `[D, C, 2, 2]` and bias, which another merge can take over."""
        return None

    def take_over(self, weight: Tensor, bias: Tensor | None) -> Pairs:
        """Own parameters, each with what it takes over from a pretrained layer on 2x2 cells."""
        return []


class Branch(nn.Module):
    """Takes what attention made and what it was given, in the host's layout; returns what goes on.

    Attributes:
        alone: Whether it works without what attention made, so that attention need not run.
    """

    alone = False

    def forward(self, mixed: Tensor, entering: Tensor) -> Tensor:
        raise NotImplementedError


def identity_rows(weight: Tensor, count: int, last: bool = False) -> None:
    """Write the identity into a weight `[out, in]`: into all its rows, or its last `count`."""
    if weight.shape[1] == count:
        rows = weight[-count:] if last else weight
        if rows.shape[0] == count:
            rows.copy_(torch.eye(count, dtype=weight.dtype, device=weight.device))


def declared(model: nn.Module, what: str) -> set[str]:
    """Names of all parameters of a model that its modules declare as `undecayed` or `slow`.

    Example:
        >>> from nearsight import create_model
        >>> sorted(declared(create_model("lit_nano"), "slow"))[0]
        'stages.1.merge.offsets.bias'
    """
    names = {name for name, _ in model.named_parameters()}
    wanted = [
        f"{prefix}.{own}" if prefix else own
        for prefix, module in model.named_modules()
        for own in getattr(module, what, ())
    ]
    return {name for name in names for own in wanted if name == own or name.startswith(f"{own}.")}


# Values


class Part:
    """A value that fills a slot.

    Attributes:
        family: Whose idea it is: a family of models, `hosts` for what all transformers have.
        plain: Whether it is what a host has without any of the papers: an MLP, a linear layer.
        patches_only: Whether auxiliary tokens pass by it untouched.
    """

    family: ClassVar[str] = "hosts"
    plain: ClassVar[bool] = False
    patches_only: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """It in a few words, for tables: what it is, its size, its heads.

        Example:
            >>> from nearsight.parts import Life, Window
            >>> Life().label, Window(heads=3, window=7).label
            ('Life 1·3·5', 'Window 7 ×3')
        """
        return type(self).__name__.removesuffix("Merge")

    def behaving(self, behaviour: str) -> Any:
        """It as the `paper` says or as the `released` code does, where they differ."""
        return self

    def with_norm(self, norm: str) -> Any:
        """It with another normalisation inside, where it has one of the blocks' kind."""
        return self


def unpreserving(part: Part) -> ValueError:
    """The refusal of a part that can't join a pretrained model without changing its predictions."""
    forms: dict[type, str] = {Ffn: "on_linear", Qkv: "on_linear", Mixer: "branch", Merge: "in_front"}
    slot, form = next((slot, form) for slot, form in forms.items() if isinstance(part, slot))
    parts = [kind for kind in REGISTERED.values() if issubclass(kind, slot)]
    known = [kind.__name__ for kind in parts if getattr(kind, form) is not getattr(slot, form)]
    return ValueError(
        f"{type(part).__name__} is no part that localize() can put into a model with preserve=True: it has no form "
        f"that starts at nothing (`{form}`); it knows {', '.join(known)}."
    )


@dataclass(frozen=True)
class Embed(Part):
    """From image to tokens.

    `qkv_bias` tells whether the hosts with it have biases in their qkv layers; `any_patch` whether weights for one
    patch size can be resized for another, by the field `patch`.
    """

    qkv_bias: ClassVar[bool] = True
    any_patch: ClassVar[bool] = False

    @property
    def first_conv(self) -> str:
        """Name of the model's layer that sees the image's channels."""
        return "embed.proj"

    @property
    def stride(self) -> int:
        """Pixels between two neighbouring tokens."""
        raise NotImplementedError

    @property
    def possible_patches(self) -> tuple[int, ...]:
        """Patch sizes among which to choose for an image size."""
        return (1, 2, 4, 8, 16)

    @property
    def pixel_tokens(self) -> tuple[int, int] | None:
        """Side and width of the lattice of pixel tokens that it hands to an inner transformer; None for none."""
        return None

    def with_patch(self, patch: int) -> "Embed":
        """The same for another patch size, if weights can be carried over."""
        if not self.any_patch:
            raise ValueError(
                f"{type(self).__name__} has weights for patches of {self.stride} pixels only; leave patch_size as it "
                "is."
            )
        return replace(self, patch=patch)  # type: ignore[call-arg]

    def build(self, dim: int, in_chans: int, image_size: tuple[int, int]) -> EmbedModule:
        raise NotImplementedError


@dataclass(frozen=True)
class Qkv(Part):
    """From tokens to queries, keys and values."""

    def build(self, site: Site, heads: int) -> QkvModule:
        raise NotImplementedError

    def on_linear(self, linear: nn.Linear, keeper: GridSource, q_bias: Any, v_bias: Any) -> nn.Linear:
        """For `localize`: a pretrained qkv layer with what this part adds, which starts at nothing.

        Args:
            linear: The layer.
            keeper: Tells the grid of the tokens.
            q_bias: Biases that the host adds to the layer itself, of queries; or None.
            v_bias: The same of values.
        """
        raise unpreserving(self)


@dataclass(frozen=True)
class Mixer(Part):
    """Exchange between positions.

    `fed_by_qkv` tells whether the qkv slot exists; `carries_aux` whether auxiliary tokens take part; `needs_aux`
    whether nothing happens without them; `normed` whether the block's norm stands in front.
    """

    fed_by_qkv: ClassVar[bool] = False
    carries_aux: ClassVar[bool] = False
    needs_aux: ClassVar[bool] = False
    normed: ClassVar[bool] = True

    def build(self, site: Site, qkv: Qkv) -> TokenModule:
        raise NotImplementedError

    def branch(self, site: Site, qkv: Qkv, keeper: GridSource) -> Branch:
        """For `localize`: what joins a pretrained attention and starts at nothing.

        Args:
            site: Where it goes.
            qkv: What would feed it.
            keeper: Tells the grid of the tokens.
        """
        raise unpreserving(self)

    def behind(self, site: Site, keeper: GridSource) -> Branch | None:
        """Of a mixer that only adds something behind another one: that."""
        return None


@dataclass(frozen=True)
class Ffn(Part):
    """Exchange between channels. `normed` and `drops` tell whether the block's norm and drop path apply."""

    normed: ClassVar[bool] = True
    drops: ClassVar[bool] = True

    def build(self, site: Site) -> TokenModule:
        raise NotImplementedError

    def on_linear(self, linear: nn.Linear, keeper: GridSource) -> nn.Linear:
        """For `localize`: the last layer of a pretrained MLP with what this part adds, which starts at nothing."""
        raise unpreserving(self)


@dataclass(frozen=True)
class Merge(Part):
    """Down-sampling by two at the entry of a stage."""

    def build(self, site: Site, in_dim: int) -> MergeModule:
        raise NotImplementedError

    def in_front(self, in_dim: int) -> nn.Module:
        """For `localize`: what changes maps `[B, C, H, W]` in front of a pretrained merge, at first not at all."""
        raise unpreserving(self)


@dataclass(frozen=True)
class Position(Part):
    """Absolute positions, added to the tokens at the entry of a stage. `learned` tells whether they are trained."""

    learned: ClassVar[bool] = False

    def build(self, dim: int, grid: Grid) -> nn.Module:
        """A module that adds positions to tokens `dim` wide, given them and their grid."""
        raise NotImplementedError


class Inner(Part):
    """A transformer inside the transformer, among the pixel tokens of each patch.

    Attributes:
        dim: Width of a pixel token.
        side: Pixel tokens along a side of a patch.
    """

    dim: int
    side: int

    def build(self, out_dim: int, eps: float, drop_path: float) -> nn.Module:
        """The inner block for patch tokens `out_dim` wide: takes patch tokens, pixel tokens and the grid."""
        raise NotImplementedError


# What a description beside weights can name

REGISTERED: dict[str, type] = {}
Registered = TypeVar("Registered", bound=type)


def register(part: Registered) -> Registered:
    """Let the description beside saved weights name a part; a decorator above `@dataclass(frozen=True)`.

    A file can only name what is registered already when it is opened: nothing is imported or run because of it. A part
    of your own is registered by importing the module that defines it.

    Raises:
        TypeError: It is no frozen dataclass, or fills no slot.
        ValueError: Another part has that name.

    Example:
        >>> from nearsight.parts import register
        >>> from nearsight.parts.slots import Ffn
        >>> @register
        ... @dataclass(frozen=True)
        ... class Nothing(Ffn):
        ...     strength: float = 1.0
        >>> REGISTERED.pop("Nothing").__name__
        'Nothing'
    """
    name = getattr(part, "__name__", repr(part))
    if not isinstance(part, type) or not issubclass(part, Part):
        raise TypeError(f"{name} fills no slot; a part is a subclass of {', '.join(s.__name__ for s in SLOTS)}.")
    if not getattr(vars(part).get("__dataclass_params__"), "frozen", False):
        raise TypeError(f"{name} is no frozen dataclass; write @dataclass(frozen=True) between it and @register.")
    if any(field.name == "type" for field in fields(part)):  # type: ignore[arg-type]
        raise TypeError(f"{name} has a field `type`, which a description uses for the part's name; rename it.")
    if (held := REGISTERED.get(name, part)) is not part and (held.__module__, held.__qualname__) != (
        part.__module__,
        part.__qualname__,
    ):
        raise ValueError(f"{held.__module__} has a part {name} already; give yours another name.")
    REGISTERED[name] = part
    return part


SLOTS: Sequence[type[Part]] = (Embed, Qkv, Mixer, Ffn, Merge, Position, Inner)
