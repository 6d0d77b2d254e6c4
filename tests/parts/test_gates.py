import pytest
import torch
import torch.nn.functional as F

from nearsight.ops.channel_gate import gate_by_mean_reference
from nearsight.parts.gates import (
    BiDimensionalGate,
    EfficientChannelAttention,
    OpenChannelAttention,
    OpenSqueezeExcite,
    SqueezeExcite,
)


def test_squeeze_and_excitation_weighs_channels_by_a_hard_sigmoid_of_their_means(stir):
    gate = stir(SqueezeExcite(6, 2))
    tokens = torch.randn(2, 5, 6, dtype=torch.float64)
    squeezed = (tokens.mean(1) @ gate.reduce.weight.T + gate.reduce.bias).clamp(min=0)
    excited = squeezed @ gate.expand.weight.T + gate.expand.bias
    torch.testing.assert_close(gate(tokens), tokens * ((excited + 3).clamp(0, 6) / 6)[:, None])


def test_squeezing_keeps_at_least_one_channel():
    assert SqueezeExcite(8, 8 // 16).reduce.out_features == 1


@pytest.mark.parametrize("hard", [False, True])
def test_efficient_channel_attention_convolves_the_channel_means(stir, hard):
    gate = stir(EfficientChannelAttention(16, hard))
    kernel = gate.conv.weight.flatten()
    half = len(kernel) // 2
    tokens = torch.randn(2, 5, 16, dtype=torch.float64)
    means = F.pad(tokens.mean(1), (half, half))
    logits = sum(kernel[tap] * means[:, tap : tap + 16] for tap in range(len(kernel)))
    weight = (logits + 3).clamp(0, 6) / 6 if hard else 1 / (1 + (-logits).exp())
    torch.testing.assert_close(gate(tokens), tokens * weight[:, None])


@pytest.mark.parametrize(("dim", "kernel"), [(768, 5), (16, 3), (192, 5), (1536, 5), (4, 1)])
def test_the_kernel_of_efficient_channel_attention_is_odd_and_grows_with_the_width(dim, kernel):
    assert EfficientChannelAttention(dim).conv.weight.numel() == kernel  # 768: 60 parameters in 12 layers


@pytest.mark.parametrize(("channel", "spatial"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("norm", [True, False])
def test_the_bi_dimensional_gate_is_the_product_of_its_two_factors(stir, channel, spatial, norm):
    gate = stir(BiDimensionalGate(8, 4, channel=channel, spatial=spatial, norm=norm))
    tokens = torch.randn(2, 5, 8, dtype=torch.float64)
    normed = F.layer_norm(tokens, (8,), gate.norm.weight, gate.norm.bias) if norm else tokens
    g = F.gelu(gate.global_reduce(normed.mean(1)))  # [B, 2]
    wanted = tokens
    if channel:
        wanted = wanted * torch.sigmoid(gate.channel_select(g))[:, None]
    if spatial:
        local = F.gelu(gate.local_reduce(normed))
        both = torch.stack([torch.cat((local[:, n], g), dim=-1) for n in range(5)], dim=1)
        wanted = wanted * torch.sigmoid(gate.spatial_select(both))
    torch.testing.assert_close(gate(tokens), wanted)
    assert (gate.channel_select is None) == (not channel) and (gate.spatial_select is None) == (not spatial)


@pytest.mark.parametrize("kind", [SqueezeExcite, OpenSqueezeExcite, EfficientChannelAttention, OpenChannelAttention])
def test_every_channel_gate_learns_what_autograd_says(stir, kind):
    gate = stir(kind(8, 4) if issubclass(kind, SqueezeExcite) else kind(8))
    tokens = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    wanted, found = gate_by_mean_reference(tokens, gate.weigh), gate(tokens)
    inputs, cotangent = [tokens, *gate.parameters()], torch.randn_like(found)
    torch.testing.assert_close(*(torch.autograd.grad(out, inputs, cotangent) for out in (found, wanted)))
