"""Reading files with Swin's skeleton: Swin, Swin v2, LocalViT-Swin, LIFE on Swin v2, LIT-S/M/B, DWNet."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from ...models.spec import BackboneSpec, Stage
from ...parts import ConcatMerge, DepthWise, Global, Learned, LinearQkv, Patchify, Window
from ...parts.slots import Ffn, Merge, Mixer, Qkv
from ..safe import WeightFileError
from .blocks import family_of, read_ffn, read_qkv
from .families import Choices, Reading, Released, read_output_norms, square_side
from .isotropic import same_or_each
from .pyramids import read_merge

# Released Swin v2 whose windows grew after a first training: width of the first stage and window, to the first window.
GROWN = {(128, 24): 12, (192, 16): 12, (192, 24): 12}


@dataclass(frozen=True)
class Windows:
    """What the stored shift masks, tables of offsets and merges tell of the windows.

    Attributes:
        window: Side of the windows, where a mask is stored.
        first_map: Side of the first stage's map, where a mask is stored.
        whole_map: Attention spans the whole map (LIT): no windows, and deformable merges or stages without attention.
        trained: Number of the stage to the window whose scale its offsets have, where a table of offsets is stored.
    """

    window: int | None
    first_map: int | None
    whole_map: bool
    trained: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Windows":
        """From all tensors of the file, masks and tables of offsets included."""
        trained = {
            int(name.split(".")[1]): scale_of_offsets(tensor)
            for name, tensor in tensors.items()
            if name.startswith("layers.") and name.endswith("relative_coords_table")
        }
        for name, tensor in tensors.items():
            if name.endswith("attn_mask") and name.startswith("layers."):
                window = math.isqrt(tensor.shape[1])
                first_map = math.isqrt(tensor.shape[0]) * window << int(name.split(".")[1])
                return cls(window, first_map, False, trained)
        deformable = any(".downsample.dconv." in name for name in tensors)
        first = any(name.startswith("layers.0.blocks.0.attn.") for name in tensors)
        return cls(None, None, deformable or not first, trained)

    def trained_in(self, index: int, width: int, asked: int | None) -> int | None:
        """The window whose scale the offsets of a stage have, or None for its own; `width` is the first stage's."""
        window = self.window or 8
        side = min(window, (self.first_map or window << index) >> index)
        if asked is None and index in self.trained:
            scale = self.trained[index]
        else:
            scale = (asked or GROWN.get((width, window), window)) * side // window
        return None if scale == side else scale


def scale_of_offsets(table: Tensor) -> int:
    """Side of the window whose largest offset would be 8 before the logarithm, from a table `[1, 2w-1, 2w-1, 2]`."""
    largest = 2 ** (3 * table.double().max().item()) - 1
    return round(8 * (table.shape[1] // 2) / largest) + 1 if largest > 0 else 1


def read_swinlike(released: Released, choices: Choices, windows: Windows) -> Reading:
    """Any of the models with `layers.N.blocks.M`."""
    patch = released.shape("patch_embed.proj.weight")[-1]
    norm = "patch_embed.norm" in released
    released.move("patch_embed", "embed")
    cosine = "layers.0.blocks.0.attn.logit_scale" in released
    count = released.count("layers.")
    side = windows.first_map or (map_side(released, count) if windows.whole_map else None)
    position, position_side = read_absolute(released)
    side = side or position_side or (256 if cosine else 224) // patch
    output_norms = read_output_norms(released, count)
    dense = bool(output_norms) or "norm" not in released
    as_dense = dense and choices.behaviour == "released"
    stages = [read_stage(released, index, choices, windows, as_dense) for index in range(count)]
    stages[0] = replace(stages[0], position=position)
    released.move("norm", "norm")
    released.move("head", "head")
    spec = BackboneSpec(
        Patchify(patch=patch, norm=norm), tuple(stages), family_of(stages), eps=1e-5, pool="mean", img_size=side * patch
    )
    return Reading(spec, released.finish(), output_norms if dense else None)


def read_absolute(released: Released) -> tuple[Learned | None, int | None]:
    """Absolute positions, an option of Swin and its kin, and the side of the map they are for."""
    name, new = "absolute_pos_embed", "stages.0.position.table"
    if name not in released:
        return None, None
    shape = released.shape(name)
    if len(shape) == 4:  # of dense models: as an image
        released.move(name, new, lambda t: t.flatten(2).transpose(1, 2).contiguous())
        return Learned(), shape[2]
    released.move(name, new)
    return Learned(), square_side(shape[1], name)


def map_side(released: Released, count: int) -> int | None:
    """Side of the first map, from a relative-position table over a whole map (LIT)."""
    for index in range(count):
        name = f"layers.{index}.blocks.0.attn.relative_position_bias_table"
        if name in released:
            return (square_side(released.shape(name)[0], name) + 1) // 2 << index
    return None


def read_stage(released: Released, index: int, choices: Choices, windows: Windows, as_dense: bool) -> Stage:
    """One stage; the releases store the merge at the end of the stage before.

    `as_dense`: as in the released detectors and segmenters, where depth-wise blocks pad their maps to multiples of the
    kernel, and deformable merges leave out an odd row or column.
    """
    old, new = f"layers.{index}", f"stages.{index}"
    edge: Literal["pad", "crop"] = "crop" if as_dense else "pad"
    merge = read_concat(released, f"layers.{index - 1}.downsample", f"{new}.merge", edge) if index else None
    depth = released.count(f"{old}.blocks.")
    names = [f"{old}.blocks.0.{name}" for name in ("norm1.weight", "norm2.weight", "bn.weight", "attn.proj.weight")]
    if not any(name in released for name in names):
        raise WeightFileError(f"{old}.blocks.0 has none of the layers that tell its width.")
    dim = next(released.shape(name)[0] for name in names if name in released)
    mixers: list[Mixer | None] = []
    qkvs: list[Qkv] = []
    ffns: list[Ffn] = []
    for layer in range(depth):
        block, ours = f"{old}.blocks.{layer}", f"{new}.blocks.{layer}"
        mixer, qkv = read_mixer(released, block, ours, dim, choices, windows, shifted=layer % 2 == 1)
        if isinstance(mixer, DepthWise) and as_dense:
            mixer = replace(mixer, pad_to=mixer.kernel)
        elif isinstance(mixer, Window) and mixer.cosine:
            mixer = replace(mixer, trained_window=windows.trained_in(index, dim >> index, choices.trained_window))
        mixers.append(mixer)
        qkvs.append(qkv)
        released.move(f"{block}.norm1", f"{ours}.norm1")
        released.move(f"{block}.norm2", f"{ours}.norm2")
        released.move(f"{block}.bn", f"{ours}.norm2.bn")
        ffns.append(read_ffn(released, block, ours, dim, choices))
    batch = isinstance(mixers[0], DepthWise)
    cosine = isinstance(mixers[0], Window) and mixers[0].cosine
    return Stage(
        dim,
        depth,
        same_or_each(mixers),
        same_or_each(ffns),
        same_or_each(qkvs),
        merge,
        norm="batch" if batch else "layer",
        post_norm=cosine,
    )


def read_concat(released: Released, old: str, new: str, edge: Literal["pad", "crop"]) -> Merge:
    """Swin's merge, its norm in front (four times the width) or behind; or LIT's."""
    if f"{old}.dconv" in released:
        return read_merge(released, old, new, edge)
    four = released.shape(f"{old}.reduction.weight")[1]
    in_front = released.shape(f"{old}.norm.weight")[0] == four
    released.move(f"{old}.reduction", f"{new}.reduce")
    released.move(f"{old}.norm", f"{new}.norm")
    return ConcatMerge(merge_norm="pre" if in_front else "post")


def read_mixer(
    released: Released,
    old: str,
    new: str,
    dim: int,
    choices: Choices,
    windows: Windows,
    *,
    shifted: bool,
) -> tuple[Mixer | None, Qkv]:
    """Depth-wise convolution, attention in windows or over the whole map, or nothing."""
    if f"{old}.attn2conv" in released:
        return read_depthwise(released, f"{old}.attn2conv", f"{new}.mixer", dim), LinearQkv()
    if f"{old}.attn" not in released:
        return None, LinearQkv()
    attn, mixer = f"{old}.attn", f"{new}.mixer"
    life = f"{attn}.qkv.scale1" in released
    if life:  # the release makes biases of queries and values and does not use them
        released.drop(f"{attn}.q_bias")
        released.drop(f"{attn}.v_bias")
    qkv = read_qkv(released, attn, mixer, dim, choices)
    released.move(f"{attn}.proj", f"{mixer}.proj")
    if f"{attn}.logit_scale" in released:
        heads = released.shape(f"{attn}.logit_scale")[0]
        released.move(f"{attn}.logit_scale", f"{mixer}.similarity.logit_scale")
        released.move(f"{attn}.cpb_mlp", f"{mixer}.similarity.offset_mlp")
        return Window(heads=heads, window=windows.window or 8, shifted=shifted, cosine=True), qkv
    table = f"{attn}.relative_position_bias_table"
    entries, heads = released.shape(table)
    released.move(table, f"{mixer}.table")
    if windows.whole_map:
        return Global(heads=heads, relative=True), qkv
    return Window(heads=heads, window=(square_side(entries, table) + 1) // 2, shifted=shifted), qkv


def read_depthwise(released: Released, old: str, new: str, dim: int) -> DepthWise:
    """Static, homogeneous or inhomogeneous, by what stands under `conv`."""
    names = {"conv0": "point_in", "bn0": "norm_in.bn", "bn": "norm_mid.bn", "conv2": "point_out", "bn2": "norm_out.bn"}
    for theirs, ours in names.items():
        released.move(f"{old}.{theirs}", f"{new}.{ours}")
    conv, spatial = f"{old}.conv", f"{new}.spatial"
    if f"{conv}.conv1.0.weight" in released:
        inner = released.shape(f"{conv}.conv1.0.weight")[0]
        kernel, groups = kernel_and_groups(released.shape(f"{conv}.conv2.0.weight")[0], dim)
        released.move(f"{conv}.conv1.0", f"{spatial}.reduce")
        released.move(f"{conv}.conv1.1", f"{spatial}.norm.bn")
        released.move(f"{conv}.conv2.0", f"{spatial}.predict")
        return DepthWise(kernel, "inhomogeneous", dim // inner, dim // groups)
    if f"{conv}.conv1.weight" in released:
        inner = released.shape(f"{conv}.conv1.weight")[0]
        kernel = math.isqrt(released.shape(f"{conv}.conv2.weight")[0] // dim)
        for theirs, ours in (("conv1", "reduce"), ("bn", "norm"), ("conv2", "predict"), ("bias", "bias")):
            released.move(f"{conv}.{theirs}", f"{spatial}.{ours}")
        return DepthWise(kernel, "homogeneous", dim // inner)
    kernel = released.shape(f"{conv}.weight")[-1]
    released.move(conv, f"{spatial}.conv")
    return DepthWise(kernel)


def kernel_and_groups(outputs: int, dim: int) -> tuple[int, int]:
    """Kernel side and number of groups of an inhomogeneous convolution; 7 where several fit."""
    for kernel in (7, 5, 9, 3, 11, 12):
        groups, rest = divmod(outputs, kernel * kernel)
        if not rest and dim % groups == 0:
            return kernel, groups
    raise WeightFileError(f"{outputs} predicted weights fit no kernel for a width of {dim}.")
