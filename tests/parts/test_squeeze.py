import torch

from nearsight.lattice import Grid
from nearsight.parts import DepthWise, Global, Life, LinearQkv, Squeezed, Window
from nearsight.parts.slots import Site


def test_a_squeezed_mixer_is_the_mixer_times_the_sigmoid_gate_of_senet(stir):
    grid = Grid(4, 4)
    module = stir(Squeezed(mixer=Window(heads=2, window=2), se_reduction=4).build(Site(8, grid), LinearQkv()))
    tokens = torch.randn(2, 16, 8, dtype=torch.float64)
    mixed = module.mixer(tokens, grid)
    gate = module.gate.expand(module.gate.reduce(mixed.mean(1)).relu())
    torch.testing.assert_close(module(tokens, grid), mixed / (1 + (-gate).exp())[:, None])


def test_it_takes_over_what_its_mixer_says_about_itself():
    for mixer in (Window(), Global(), DepthWise()):
        part = Squeezed(mixer=mixer)
        assert (part.fed_by_qkv, part.carries_aux, part.normed) == (mixer.fed_by_qkv, mixer.carries_aux, mixer.normed)


def test_the_qkv_slot_reaches_the_mixer_inside():
    module = Squeezed(mixer=Global(heads=1)).build(Site(12, Grid(2, 2)), Life())
    assert type(module.mixer.qkv).__name__ == "LifeModule"
