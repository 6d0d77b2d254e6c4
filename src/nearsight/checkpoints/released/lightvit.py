"""Reading files of LightViT: classifiers and detection backbones."""

from ...models.spec import BackboneSpec, Stage
from ...parts import (
    BiGate,
    ConcatMerge,
    ConvStem,
    GatherBroadcast,
    LinearQkv,
    Mlp,
    PatchesOnly,
    Patchify,
    ResidualMerge,
)
from ...parts.slots import Embed, Ffn, Merge
from .families import Choices, Reading, Released, read_output_norms, square_side
from .isotropic import same_or_each


def read_lightvit(released: Released, choices: Choices) -> Reading:
    """LightViT with any number of global tokens, gates and stages."""
    tokens = released.shape("global_token")[1] if "global_token" in released else 0
    released.move("global_token", "stages.0.aux_tokens")
    embed: Embed = ConvStem()
    if "patch_embed.stem" not in released:
        embed = Patchify(patch=released.shape("patch_embed.proj.weight")[-1], norm="patch_embed.norm" in released)
    released.move("patch_embed", "embed")
    count = released.count("stages.")
    output_norms = read_output_norms(released, count)
    stages = tuple(
        read_stage(released, index, tokens, drop_aux=bool(output_norms) and index == count - 1)
        for index in range(count)
    )
    neck = released.shape("neck.0.weight")[0] if "neck" in released else None
    released.move("neck.0", "neck.proj")
    released.move("neck.1", "neck.norm")
    released.move("norm", "norm")
    released.move("head", "head")
    spec = BackboneSpec(embed, stages, "lightvit", pool="all", neck=neck)
    return Reading(spec, released.finish(), output_norms or None)


def read_stage(released: Released, index: int, tokens: int, *, drop_aux: bool) -> Stage:
    """One stage; from the second on its first entry is the merge. `drop_aux`: the last block feeds patches alone."""
    old, new = f"stages.{index}", f"stages.{index}"
    merge: Merge | None = None
    first = 0
    if f"{old}.0.reduction" in released:
        first = 1
        merge = ResidualMerge() if f"{old}.0.res_proj" in released else ConcatMerge()
        names = {
            "norm": "norm",
            "reduction": "reduce",
            "norm2": "aux_norm",
            "proj": "aux_proj",
            "res_proj": "shortcut",
        }
        for theirs, ours in names.items():
            released.move(f"{old}.0.{theirs}", f"{new}.merge.{ours}")
    depth = released.count(f"{old}.", first)
    ffns: list[Ffn] = []
    mixer = GatherBroadcast()
    dim = released.shape(f"{old}.{first}.norm1.weight")[0]
    for layer in range(depth):
        block, ours = f"{old}.{layer + first}", f"{new}.blocks.{layer}"
        mixer = read_mixer(released, f"{block}.attn", f"{ours}.mixer")
        released.move(f"{block}.norm1", f"{ours}.norm1")
        released.move(f"{block}.norm2", f"{ours}.norm2")
        last = drop_aux and layer == depth - 1
        ffn = read_gated(released, f"{block}.mlp", f"{ours}.ffn.ffn" if last else f"{ours}.ffn", dim)
        ffns.append(PatchesOnly(ffn) if last else ffn)
    return Stage(dim, depth, mixer, same_or_each(ffns), LinearQkv(), merge, aux=0 if index else tokens)


def read_mixer(released: Released, old: str, new: str) -> GatherBroadcast:
    """Window attention with gather and broadcast."""
    table = f"{old}.relative_position_bias_table"
    entries, heads = released.shape(table)
    released.move(table, f"{new}.table")
    released.move(f"{old}.qkv", f"{new}.qkv.proj")
    released.move(f"{old}.kv_global", f"{new}.kv_global")
    released.move(f"{old}.proj", f"{new}.proj")
    return GatherBroadcast(heads=heads, window=(square_side(entries, table) + 1) // 2)


def read_gated(released: Released, old: str, new: str, dim: int) -> Ffn:
    """An MLP, with the gates that are stored behind it."""
    ratio = released.shape(f"{old}.fc1.weight")[0] / dim
    if f"{old}.attn" not in released:
        released.move(old, new)
        return Mlp(ratio=ratio)
    reduction = dim // released.shape(f"{old}.attn.global_reduce.weight")[0]
    channel, spatial = f"{old}.attn.channel_select" in released, f"{old}.attn.spatial_select" in released
    norm = f"{old}.attn.norm" in released
    released.move(f"{old}.attn", f"{new}.gate")
    released.move(old, f"{new}.mlp")
    return BiGate(ratio, reduction, channel, spatial, norm)
