"""Reading files of models with one stage: DeiT, LocalViT and LIFE on DeiT, T2T-ViT, TNT."""

from dataclasses import replace
from typing import Any, Literal

import torch

from ...models.spec import BackboneSpec, Stage
from ...parts import Global, Learned, LinearQkv, Mlp, Patchify, PixelEmbed, PixelTransformer, Sinusoid, TokensToToken
from ...parts.slots import Embed, Ffn, Qkv
from ..safe import WeightFileError
from .blocks import family_of, read_ffn, read_locality, read_qkv
from .families import Choices, Reading, Released, square_side

IMAGE_SIZES = (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512)
TNT_PATCH = 16
INNER_HEADS = {12: 3, 24: 4, 40: 4}  # TNT-T, S, B: width of the pixel tokens to their heads


def read_deit(released: Released, choices: Choices) -> Reading:
    """DeiT, LocalViT-T and S, LIFE on DeiT."""
    dim, _, patch, _ = released.shape("patch_embed.proj.weight")
    released.move("patch_embed", "embed")
    stage = read_blocks(released, dim, choices)
    position, aux, side = read_positions(released, "pos_embed")
    stage = replace(stage, position=position, aux=aux)
    # LIFE's deit_base_patch4_32 has patches of 14 pixels by mistake: its 2x2 patches leave a border of 32-pixel images.
    edge: Literal["pad", "crop"] = "pad" if side * patch in IMAGE_SIZES else "crop"
    spec = finish(released, Patchify(patch=patch, edge=edge), stage, aux, side * patch, eps=1e-6, choices=choices)
    return Reading(spec, released.finish())


def read_t2t(released: Released, choices: Choices) -> Reading:
    """T2T-ViT, plain and with LocalViT's feed-forward."""
    dim = released.shape("tokens_to_token.project.weight")[0]
    embed = read_token_module(released, choices)
    stage = read_blocks(released, dim, choices)
    _, aux, side = read_positions(released, "pos_embed")
    stage = replace(stage, position=Sinusoid(), aux=aux)
    spec = finish(released, embed, stage, aux, side * embed.patch, eps=1e-5, choices=choices)
    return Reading(spec, released.finish())


def read_token_module(released: Released, choices: Choices) -> TokensToToken:
    """The soft splits and the two attention layers between them."""
    ffn: Ffn = Mlp(ratio=1.0)
    performer = "tokens_to_token.attention1.kqv" in released
    prefix = "tokens_to_token.attention{}" if performer else "tokens_to_token.attention{}.attn"
    token_dim = released.shape(f"{prefix.format(1)}.proj.weight")[0]
    last_kernel = square_side(released.shape("tokens_to_token.project.weight")[1] // token_dim, "The last soft split")
    first_norm = released.shape("tokens_to_token.attention1.norm1.weight")[0]
    patch = 16 if first_norm % 49 == 0 else {3: 8, 1: 4}[last_kernel]
    for number in (1, 2):
        old, new = f"tokens_to_token.attention{number}", f"embed.layers.{number - 1}"
        if f"{old}.conv.conv" in released:
            ffn = read_locality(released, f"{old}.conv.conv", f"{new}.ffn", token_dim, choices)
            released.drop(f"{old}.norm2")  # made by the release, never used
        released.move(f"{old}.mlp.0", f"{new}.ffn.fc1")
        released.move(f"{old}.mlp.2", f"{new}.ffn.fc2")
        released.move(f"{old}.mlp", f"{new}.ffn")
        released.move(f"{old}.w", f"{new}.features")
        released.move(f"{old}.attn", new)
        released.move(old, new)
    released.move("tokens_to_token.project", "embed.proj")
    return TokensToToken(patch, token_dim, "performer" if performer else "transformer", ffn)


def read_tnt(released: Released, choices: Choices) -> Reading:
    """TNT, plain and with LocalViT's feed-forward in the outer blocks."""
    dim = released.shape("norm2_proj.weight")[0]
    _, inner_dim, side, _ = released.shape("pixel_pos")
    released.move("pixel_pos", "embed.position", lambda t: t.flatten(2).transpose(1, 2).contiguous())
    for old, new in (("pixel_embed.proj", "proj"), ("norm1_proj", "norm1"), ("proj", "fuse"), ("norm2_proj", "norm2")):
        released.move(old, f"embed.{new}")
    hidden = released.shape("blocks.0.mlp_in.fc1.weight")[0]
    inner = PixelTransformer(inner_dim, INNER_HEADS.get(inner_dim, 4), hidden / inner_dim, side)
    for number in range(released.count("blocks.")):
        read_inner_block(released, f"blocks.{number}", f"stages.0.inner.{number}")
    stage = read_blocks(released, dim, choices)
    position, aux, grid_side = read_positions(released, "patch_pos")
    stage = replace(stage, position=position, aux=aux, inner=inner)
    embed = PixelEmbed(patch=TNT_PATCH, pixel_dim=inner_dim, pixel_stride=TNT_PATCH // side)
    spec = finish(released, embed, stage, aux, grid_side * embed.patch, eps=1e-5, choices=choices)
    return Reading(spec, released.finish())


def read_inner_block(released: Released, old: str, new: str) -> None:
    """The inner transformer of one TNT block."""
    released.join((f"{old}.attn_in.qk", f"{old}.attn_in.v"), f"{new}.mixer.qkv.proj")
    names = {
        "attn_in.proj": "mixer.proj",
        "norm_in": "norm1",
        "norm_mlp_in": "norm2",
        "mlp_in": "ffn",
        "norm1_proj": "norm_out",
        "proj": "fuse",
    }
    for theirs, ours in names.items():
        released.move(f"{old}.{theirs}", f"{new}.{ours}")


def read_blocks(released: Released, dim: int, choices: Choices) -> Stage:
    """All blocks; TNT calls its outer parts `attn_out`, `norm_out` and `norm_mlp`."""
    depth = released.count("blocks.")
    qkvs: list[Qkv] = []
    ffns: list[Ffn] = []
    for number in range(depth):
        old, new = f"blocks.{number}", f"stages.0.blocks.{number}"
        for theirs, ours in (("norm_out", "norm1"), ("norm_mlp", "norm2"), ("norm1", "norm1"), ("norm2", "norm2")):
            released.move(f"{old}.{theirs}", f"{new}.{ours}")
        if f"{old}.attn_out" in released:
            bias = f"{old}.attn_out.v.bias" in released
            released.join((f"{old}.attn_out.qk", f"{old}.attn_out.v"), f"{new}.mixer.qkv.proj")
            released.move(f"{old}.attn_out.proj", f"{new}.mixer.proj")
            qkvs.append(LinearQkv(bias=bias))
        else:
            qkvs.append(read_qkv(released, f"{old}.attn", f"{new}.mixer", dim, choices))
            released.move(f"{old}.attn.proj", f"{new}.mixer.proj")
        ffns.append(read_ffn(released, old, new, dim, choices))
    return Stage(dim, depth, None, same_or_each(ffns), same_or_each(qkvs))


def same_or_each(parts: list[Any]) -> Any:
    """One part if all are equal, else the tuple."""
    return parts[0] if all(part == parts[0] for part in parts) else tuple(parts)


def read_positions(released: Released, name: str) -> tuple[Learned, int, int]:
    """Positions, auxiliary tokens (class, distillation), and the side of the map they are for."""
    tokens = [released.left.pop(key) for key in ("cls_token", "dist_token") if key in released.left]
    aux = len(tokens)
    if tokens:
        released.moved["stages.0.aux_tokens"] = torch.cat(tokens, dim=1)
    side = square_side(released.shape(name)[1] - aux, name)
    released.move(name, "stages.0.position.table")
    return Learned(), aux, side


def finish(
    released: Released, embed: Embed, stage: Stage, aux: int, img_size: int, *, eps: float, choices: Choices
) -> BackboneSpec:
    """Heads, norm and head: what is the same in all models with one stage."""
    family = family_of([replace(stage, mixer=Global())])
    on_deit = family == "localvit" and isinstance(embed, Patchify)
    released_heads = on_deit and choices.behaviour == "released" and stage.dim % 48 == 0
    heads = choices.heads or stage.dim // (48 if released_heads else 64) or 1
    if stage.dim % heads:
        raise WeightFileError(f"Width {stage.dim} does not divide by {heads} heads; give heads.")
    released.move("norm", "norm")
    released.move("head", "head")
    released.move("head_dist", "head_dist")
    return BackboneSpec(
        embed,
        (replace(stage, mixer=Global(heads=heads)),),
        family,
        eps=eps,
        pool="token" if aux else "mean",
        distilled=aux == 2,
        img_size=img_size,
    )
