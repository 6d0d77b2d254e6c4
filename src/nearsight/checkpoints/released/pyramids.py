"""Reading files of PVT and its kin: numbered stages with tables of positions (PVT, LocalViT-PVT, LIT-Ti)."""

import math
from typing import Literal

from ...models.spec import BackboneSpec, Stage
from ...parts import ConvMerge, DeformableMerge, Global, Learned, LinearQkv, Patchify, SpatialReduction
from ...parts.slots import Ffn, Merge, Mixer
from .blocks import family_of, read_ffn
from .families import Choices, Reading, Released, square_side
from .isotropic import same_or_each

HEAD_WIDTH = 64  # in every stage of every PVT


def read_pvt(released: Released, choices: Choices) -> Reading:
    """PVT with spatial reduction or full attention, LocalViT-PVT, and LIT-Ti."""
    patch = released.shape("patch_embed1.proj.weight")[-1]
    img_size = square_side(released.shape("pos_embed1")[1], "pos_embed1") * patch
    classes = "cls_token" in released
    count = released.count("block", first=1)
    # The dense backbones leave out what fills no whole patch.
    edge: Literal["pad", "crop"] = "pad" if classes or choices.behaviour == "paper" else "crop"
    stages = [read_stage(released, index, count, choices, edge) for index in range(count)]
    released.move("patch_embed1", "embed")
    released.move("norm", "norm")
    released.move("head", "head")
    output_norms: dict[int, str] | None = None if classes else {}
    spec = BackboneSpec(
        Patchify(patch=patch, norm=True, edge=edge),
        tuple(stages),
        family_of(stages),
        pool="token" if classes else "mean",
        img_size=img_size,
    )
    return Reading(spec, released.finish(), output_norms)


def read_stage(released: Released, index: int, count: int, choices: Choices, edge: Literal["pad", "crop"]) -> Stage:
    """One stage; the class token joins in the last."""
    number, new = index + 1, f"stages.{index}"
    _, tokens, dim = released.shape(f"pos_embed{number}")
    aux = int(index == count - 1 and "cls_token" in released)
    if index == count - 1 and not aux and math.isqrt(tokens) ** 2 != tokens:
        # Dense backbones have no class token but keep its row of the table.
        released.move(f"pos_embed{number}", f"{new}.position.table", lambda t: t[:, 1:].contiguous())
    released.move(f"pos_embed{number}", f"{new}.position.table")
    if aux:
        released.move("cls_token", f"{new}.aux_tokens")
    merge = read_merge(released, f"patch_embed{number}", f"{new}.merge", edge) if index else None
    depth = released.count(f"block{number}.")
    mixer: Mixer | None = None
    bias = True
    ffns: list[Ffn] = []
    for layer in range(depth):
        old, block = f"block{number}.{layer}", f"{new}.blocks.{layer}"
        if f"{old}.attn" in released:
            bias = f"{old}.attn.q.bias" in released or f"{old}.attn.qkv.bias" in released
            mixer = read_attention(released, f"{old}.attn", f"{block}.mixer", dim)
        released.move(f"{old}.norm1", f"{block}.norm1")
        released.move(f"{old}.norm2", f"{block}.norm2")
        ffns.append(read_ffn(released, old, block, dim, choices))
    position = Learned(resize="bilinear")
    return Stage(dim, depth, mixer, same_or_each(ffns), LinearQkv(bias=bias), merge, aux, position)


def read_attention(released: Released, old: str, new: str, dim: int) -> Mixer:
    """Spatial reduction, or full attention in either of the forms it is stored in."""
    heads = dim // HEAD_WIDTH
    released.move(f"{old}.proj", f"{new}.proj")
    if f"{old}.sr" in released:
        ratio = released.shape(f"{old}.sr.weight")[-1]
        bias = f"{old}.q.bias" in released
        for theirs, ours in (("q", "q"), ("kv", "kv"), ("sr", "reduce"), ("norm", "norm")):
            released.move(f"{old}.{theirs}", f"{new}.{ours}")
        return SpatialReduction(heads=heads, sr_ratio=ratio, bias=bias)
    if f"{old}.qkv" in released:
        released.move(f"{old}.qkv", f"{new}.qkv.proj")
    else:
        released.join((f"{old}.q", f"{old}.kv"), f"{new}.qkv.proj")
    return Global(heads=heads)


def read_merge(released: Released, old: str, new: str, edge: Literal["pad", "crop"]) -> Merge:
    """Deformable merging, or a strided convolution."""
    if f"{old}.dconv" in released:
        released.move(f"{old}.dconv.conv_offset", f"{new}.offsets")
        released.move(f"{old}.dconv", f"{new}.conv")
        released.move(f"{old}.norm_layer", f"{new}.norm")
        return DeformableMerge(edge=edge)
    released.move(f"{old}.proj", f"{new}.conv")
    released.move(f"{old}.norm", f"{new}.norm")
    return ConvMerge()
