"""Translating the pieces that several releases share: LocalViT's feed-forward, LIFE's and plain qkv, MLPs."""

from collections.abc import Sequence
from typing import Literal

from ...models.spec import Stage
from ...parts import Life, LinearQkv, LocalityFfn, Mlp
from ...parts.slots import Ffn, Qkv
from ..safe import WeightFileError
from .families import Choices, Released


def read_qkv(released: Released, old: str, new: str, dim: int, choices: Choices) -> Qkv:
    """`old` is the attention module, `new` our mixer; LIFE's scales or one linear layer."""
    qkv = f"{old}.qkv"
    if f"{qkv}.scale1" in released:
        return read_life(released, qkv, f"{new}.qkv", dim, choices)
    bias: bool | str = f"{qkv}.bias" in released
    released.move(qkv, f"{new}.qkv.proj")
    if f"{old}.q_bias" in released:
        bias = "qv"
        released.move(f"{old}.q_bias", f"{new}.qkv.q_bias")
        released.move(f"{old}.v_bias", f"{new}.qkv.v_bias")
    return LinearQkv(bias=bias)  # type: ignore[arg-type]


def read_life(released: Released, old: str, new: str, dim: int, choices: Choices) -> Life:
    """LIFE's cascade; its scale width is written down only where it is not an even fraction."""
    scales = released.count(f"{old}.scale", first=1)
    width = released.shape(f"{old}.scale1.weight")[0] // 3
    kernels = [1]
    released.move(f"{old}.scale1", f"{new}.scales.0.point")
    for scale in range(2, scales + 1):
        kernels.append(released.shape(f"{old}.scale{scale}.depthwise.weight")[-1])
        released.move(f"{old}.scale{scale}.depthwise", f"{new}.scales.{scale - 1}.depth")
        released.move(f"{old}.scale{scale}.pointwise", f"{new}.scales.{scale - 1}.point")
    normed = f"{old}.norm" in released
    released.move(f"{old}.norm", f"{new}.norm")
    even = width * scales == dim
    aux_key: Literal["released", "paper"] = "released" if choices.behaviour == "released" else "paper"
    return Life(tuple(kernels), None if even else width, aux_key, normed)


def read_ffn(released: Released, old: str, new: str, dim: int, choices: Choices, *, mlp: str = "mlp") -> Ffn:
    """The feed-forward part of the block `old`: LocalViT's under `conv.conv`, else an MLP with its norm."""
    if f"{old}.conv.conv" in released:
        return read_locality(released, f"{old}.conv.conv", f"{new}.ffn", dim, choices)
    hidden = released.shape(f"{old}.{mlp}.fc1.weight")[0]
    released.move(f"{old}.{mlp}", f"{new}.ffn")
    return Mlp(ratio=hidden / dim)


def read_locality(released: Released, old: str, new: str, dim: int, choices: Choices) -> LocalityFfn:
    """LocalViT's feed-forward: a numbered sequence of layers, told apart by their shapes."""
    names = {"point": ["expand", "project"], "depth": ["local"]}
    order: list[str] = []
    kernel, squeezed, attention = 3, 0, None
    hidden = 0
    for number in released.numbers(f"{old}."):
        layer = f"{old}.{number}"
        if f"{layer}.fc" in released:
            attention, squeezed = "se", released.shape(f"{layer}.fc.0.weight")[0]
            released.move(f"{layer}.fc.0", f"{new}.gate.reduce")
            released.move(f"{layer}.fc.2", f"{new}.gate.expand")
        elif f"{layer}.conv.weight" in released:
            attention = choices.channel_attention
            released.move(f"{layer}.conv", f"{new}.gate.conv")
        elif f"{layer}.running_mean" in released:
            released.move(layer, f"{new}.norm_{order[-1]}.bn")
        else:
            shape = released.shape(f"{layer}.weight")
            kind = "point" if shape[2:] == (1, 1) else "depth"
            if not names[kind]:
                raise WeightFileError(f"{layer} is one layer more than LocalViT's feed-forward has.")
            order.append(names[kind].pop(0))
            kernel = shape[-1] if kind == "depth" else kernel
            hidden = shape[0] if order[-1] == "expand" else hidden
            released.move(f"{layer}.weight", f"{new}.{order[-1]}.weight")
    return LocalityFfn(
        gamma=hidden / dim,
        kernel=kernel,
        act=choices.act,  # type: ignore[arg-type]
        channel_attention=attention,  # type: ignore[arg-type]
        se_reduction=hidden // squeezed if squeezed not in (0, 4) else None,
        depthwise="local" in order,
        depthwise_first=order[0] == "local",
    )


def family_of(stages: Sequence[Stage]) -> str:
    """Whose parts these are; a stage without a mixer is LIT's idea."""
    layers = [layer for stage in stages for layer in stage.layers()]
    parts = [part for layer in layers for part in (layer.mixer, layer.qkv, layer.ffn)] + [s.merge for s in stages]
    found = {part.family for part in parts if part is not None}
    if any(layer.mixer is None for layer in layers):
        found.add("lit")
    return next((family for family in ("dwnet", "lit", "localvit", "life") if family in found), "hosts")
