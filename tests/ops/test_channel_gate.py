"""Tokens times a gate of their mean: the step that training takes agrees with autograd's own."""

import pytest
import torch
from torch import nn

from nearsight.ops import channel_gate
from nearsight.ops.channel_gate import gate_by_mean, gate_by_mean_reference
from tests.rounding import assert_rounded

SHAPES = [(1, 1, 3), (3, 7, 5), (2, 50, 6), (1, 197, 2)]


class Curve(nn.Module):
    """A gate with more than one layer."""

    def __init__(self, dim, dtype=torch.float64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, 2), nn.Tanh(), nn.Linear(2, dim)).to(dtype)

    def forward(self, mean):
        return self.layers(mean).sigmoid()


@pytest.fixture(params=[24, 1 << 17], ids=["many pieces", "one piece"])
def piece(request, monkeypatch):
    monkeypatch.setattr(channel_gate, "PIECE", request.param)


def gradients(out, inputs):
    cotangent = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0))
    return torch.autograd.grad(out, inputs, cotangent)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turned", [False, True])
def test_it_agrees_with_autograd(piece, shape, turned):
    batch, count, dim = shape
    tokens = torch.randn(batch, dim, count, dtype=torch.float64).mT if turned else torch.randn(shape).double()
    tokens.requires_grad_()
    gate = Curve(dim)
    found, wanted = gate_by_mean(tokens, gate, gate), gate_by_mean_reference(tokens, gate)
    torch.testing.assert_close(found, wanted)
    inputs = [tokens, *gate.parameters()]
    torch.testing.assert_close(gradients(found, inputs), gradients(wanted, inputs))


def test_gradients_agree_with_finite_differences(piece):
    gate = Curve(3)
    tokens = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given, *_: gate_by_mean(given, gate, gate), (tokens, *gate.parameters()))


def test_in_float32_it_is_off_by_rounding_alone():
    gate = Curve(192, torch.float32)
    tokens = torch.randn(3, 196, 192, requires_grad=True)
    inputs = [tokens, *gate.parameters()]
    found = gradients(gate_by_mean(tokens, gate, gate), inputs)
    exact, wide = Curve(192), tokens.detach().double().requires_grad_()
    exact.load_state_dict(gate.state_dict())
    wanted = gradients(gate_by_mean_reference(wide, exact).float(), [wide, *exact.parameters()])
    for mine, theirs in zip(found, wanted, strict=True):
        assert_rounded(mine, theirs, tokens[..., 0].numel() + 2 * 192)  # over all tokens, and through the two layers


def test_frozen_parameters_stay_without_gradient_and_the_others_learn(piece):
    gate = Curve(5)
    gate.layers[0].requires_grad_(False)
    tokens = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    gate_by_mean(tokens, gate, gate).sum().backward()
    learnt = {name: one.grad.clone() for name, one in gate.named_parameters() if one.grad is not None}
    assert set(learnt) == {"layers.2.weight", "layers.2.bias"}
    gate.zero_grad()
    gate_by_mean_reference(tokens, gate).sum().backward()
    for name, grad in learnt.items():
        torch.testing.assert_close(grad, gate.get_parameter(name).grad)


def test_a_graph_that_is_kept_gives_the_same_bits_twice(piece):
    gate = Curve(5)
    tokens = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    out, inputs = gate_by_mean(tokens, gate, gate), [tokens, *gate.parameters()]
    cotangent = torch.randn_like(out)
    first = torch.autograd.grad(out, inputs, cotangent, retain_graph=True)
    second = torch.autograd.grad(out, inputs, cotangent)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_under_autocast_the_layers_compute_in_16_bits_and_gradients_come_in_32():
    gate = Curve(8, torch.float32)
    tokens = torch.randn(2, 9, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = gate_by_mean(tokens, gate, gate), gate_by_mean_reference(tokens, gate)
    assert torch.equal(found, wanted)
    found.float().sum().backward()
    assert tokens.grad.dtype == torch.float32
