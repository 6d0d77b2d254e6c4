import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nearsight import fold
from nearsight.lattice import Grid
from nearsight.parts import BiGate, DepthwiseThen, LocalityFfn, Mlp
from nearsight.parts.slots import Site

ACTS = {"hswish": nn.Hardswish, "relu6": nn.ReLU6}


class Excite(nn.Module):
    """Squeeze-and-excitation on an image."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, picture):
        weight = self.gate.expand(F.relu(self.gate.reduce(picture.mean((2, 3)))))
        return picture * (F.relu6(weight + 3) / 6)[..., None, None]


class Eca(nn.Module):
    """Efficient channel attention on an image."""

    def __init__(self, gate, hard):
        super().__init__()
        self.conv = gate.conv
        self.act = (lambda x: F.relu6(x + 3) / 6) if hard else torch.sigmoid

    def forward(self, picture):
        return picture * self.act(self.conv(picture.mean((2, 3))[:, None]))[:, 0, :, None, None]


def convolution(weight):
    weight = weight[:, :, None, None] if weight.ndim == 2 else weight
    groups = weight.shape[0] if weight.shape[1] == 1 else 1
    conv = nn.Conv2d(
        weight.shape[1] * groups, weight.shape[0], weight.shape[2:], padding="same", groups=groups, bias=False
    ).double()
    conv.weight.data.copy_(weight)
    return conv


def batch_norm(norm):
    layer = nn.BatchNorm2d(norm.bn.num_features).double()
    layer.load_state_dict(norm.bn.state_dict())
    return layer


def as_convolutions(module, part):
    """LocalViT's feed-forward as in its release: a sequence of layers on an image."""
    act = ACTS[part.act]
    expand = [convolution(module.expand.weight), batch_norm(module.norm_expand), act()]
    local = [convolution(module.local.weight), batch_norm(module.norm_local), act()] if part.depthwise else []
    layers = local + expand if part.depthwise_first else expand + local
    if part.channel_attention == "se":
        layers.append(Excite(copy.deepcopy(module.gate)))
    elif part.channel_attention:
        layers.append(Eca(copy.deepcopy(module.gate), part.channel_attention == "eca_hsigmoid"))
    return nn.Sequential(*layers, convolution(module.project.weight), batch_norm(module.norm_project))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("aux", [0, 2])
@pytest.mark.parametrize(
    "part",
    [
        LocalityFfn(),
        LocalityFfn(gamma=2, act="relu6", channel_attention=None),
        LocalityFfn(gamma=1.5, channel_attention="eca", kernel=5),
        LocalityFfn(channel_attention="eca_hsigmoid"),
        LocalityFfn(se_reduction=8),
        LocalityFfn(depthwise=False, channel_attention=None, act="relu6"),
        LocalityFfn(depthwise_first=True),
    ],
)
def test_the_local_feed_forward_is_a_sequence_of_convolutions(stir, part, aux, training):
    grid = Grid(4, 3, aux)
    module = stir(part.build(Site(8, grid))).train(training)
    plain = as_convolutions(module, part).train(training)
    tokens = torch.randn(2, grid.tokens, 8, dtype=torch.float64)
    wanted = plain(tokens[:, aux:].transpose(1, 2).unflatten(2, (4, 3))).flatten(2).transpose(1, 2)
    branch = module(tokens, grid)
    torch.testing.assert_close(branch[:, aux:], wanted)
    assert branch[:, :aux].count_nonzero() == 0  # added to the tokens, it leaves auxiliary ones untouched
    torch.testing.assert_close(module.norm_project.bn.running_var, plain[-1].running_var)


@pytest.mark.parametrize(("part", "squeezed"), [(LocalityFfn(), 4), (LocalityFfn(se_reduction=8), 4 * 8 // 8)])
def test_squeezing_keeps_four_channels_unless_told(part, squeezed):
    assert part.build(Site(8, Grid(2, 2))).gate.reduce.out_features == squeezed


def test_an_unknown_activation_or_gate_is_refused():
    with pytest.raises(ValueError, match="act='swosh' is not known; use one of gelu, relu, relu6, hswish"):
        LocalityFfn(act="swosh").build(Site(8, Grid(2, 2)))
    with pytest.raises(ValueError, match="channel_attention='cbam' is not known; use se, eca, eca_hsigmoid or None"):
        LocalityFfn(channel_attention="cbam").build(Site(8, Grid(2, 2)))  # type: ignore[arg-type]


def test_an_even_depthwise_kernel_keeps_the_size():
    module = LocalityFfn(kernel=12).build(Site(8, Grid(5, 4)))
    assert module(torch.randn(2, 20, 8), Grid(5, 4)).shape == (2, 20, 8)


def test_the_mlp_is_two_linear_layers_on_every_token(stir):
    module = stir(Mlp(ratio=2.5).build(Site(8, Grid(2, 2))))
    assert module.fc1.out_features == 20
    tokens = torch.randn(2, 5, 8, dtype=torch.float64)
    wanted = F.gelu(tokens @ module.fc1.weight.T + module.fc1.bias) @ module.fc2.weight.T + module.fc2.bias
    torch.testing.assert_close(module(tokens, Grid(2, 2, 1)), wanted)


@pytest.mark.parametrize(("channel", "spatial"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_gate_stands_behind_the_mlp_and_vanishes_when_both_factors_are_off(stir, channel, spatial):
    module = stir(BiGate(ratio=2, channel_gate=channel, spatial_gate=spatial).build(Site(8, Grid(2, 2))))
    plain = Mlp(ratio=2).build(Site(8, Grid(2, 2))).double()
    tokens = torch.randn(2, 5, 8, dtype=torch.float64)
    if not (channel or spatial):
        plain.load_state_dict(module.state_dict())
        torch.testing.assert_close(module(tokens, Grid(2, 2, 1)), plain(tokens, Grid(2, 2, 1)))
        return
    plain.load_state_dict(module.mlp.state_dict())
    torch.testing.assert_close(module(tokens, Grid(2, 2, 1)), module.gate(plain(tokens, Grid(2, 2, 1))))


@pytest.mark.parametrize("aux", [0, 1])
@pytest.mark.parametrize("then", [Mlp(ratio=2), LocalityFfn(gamma=2)])
def test_a_depthwise_convolution_before_the_feed_forward_makes_two_residual_steps(stir, aux, then):
    grid = Grid(4, 3, aux)
    module = stir(DepthwiseThen(kernel=3, then=then).build(Site(8, grid, eps=1e-3)))
    tokens = torch.randn(2, grid.tokens, 8, dtype=torch.float64)
    near = F.conv2d(
        tokens[:, aux:].transpose(1, 2).unflatten(2, (4, 3)),
        module.local.weight,
        module.local.bias,
        padding=1,
        groups=8,
    )
    first = tokens.clone()
    first[:, aux:] += near.flatten(2).transpose(1, 2)
    if then.normed:
        second = first + module.ffn(F.layer_norm(first, (8,), module.norm.weight, module.norm.bias, 1e-3), grid)
    else:
        second = first + module.ffn(first, grid)
    torch.testing.assert_close(tokens + module(tokens, grid), second)


@pytest.mark.parametrize("aux", [0, 1])
@pytest.mark.parametrize(
    "part",
    [
        Mlp(ratio=2),
        Mlp(ratio=2, act="relu"),
        LocalityFfn(),
        LocalityFfn(act="relu6", channel_attention=None),
        LocalityFfn(depthwise_first=True),
        LocalityFfn(depthwise=False),
    ],
)
def test_a_folded_part_writes_over_nothing_but_its_own(stir, part, aux):
    """Its activations work in place: the tokens stay, and gradients are those of the part that was folded."""
    grid = Grid(4, 3, aux)
    module = stir(part.build(Site(8, grid))).eval()
    folded = fold(module)
    tokens = torch.randn(2, grid.tokens, 8, dtype=torch.float64)
    before = tokens.clone()
    with torch.inference_mode():
        torch.testing.assert_close(folded(tokens, grid), module(tokens, grid))
    assert torch.equal(tokens, before)
    tokens.requires_grad_()
    slopes = [torch.autograd.grad(m(tokens, grid).square().sum(), tokens) for m in (folded, module)]
    torch.testing.assert_close(*slopes)
