import pytest
import torch

from nearsight.lattice import Grid
from nearsight.parts import GatherBroadcast, LinearQkv, Window
from nearsight.parts.slots import Site


@pytest.mark.parametrize("size", [(8, 4), (7, 6)])
def test_without_global_tokens_it_is_window_attention(stir, size):
    grid = Grid(*size)
    gather = stir(GatherBroadcast(heads=2, window=4).build(Site(8, grid), LinearQkv()))
    window = Window(heads=2, window=4).build(Site(8, grid), LinearQkv()).double()
    window.load_state_dict(gather.state_dict())
    tokens = torch.randn(2, grid.patches, 8, dtype=torch.float64)
    torch.testing.assert_close(gather(tokens, grid), window(tokens, grid))


@pytest.mark.parametrize("size", [(8, 4), (5, 6)])
@pytest.mark.parametrize("aux", [1, 3])
def test_global_tokens_gather_from_all_patches_and_broadcast_back(stir, size, aux):
    grid = Grid(*size, aux)
    module = stir(GatherBroadcast(heads=1, window=4).build(Site(8, grid), LinearQkv()))
    alone = GatherBroadcast(heads=1, window=4).build(Site(8, Grid(*size)), LinearQkv()).double()
    alone.load_state_dict({name: w for name, w in module.state_dict().items() if not name.startswith("kv_global")})
    alone.proj = torch.nn.Identity()
    tokens = torch.randn(2, grid.tokens, 8, dtype=torch.float64)

    queries, keys, values = module.qkv.proj(tokens).split(8, dim=-1)
    gathered = (queries[:, :aux] @ keys[:, aux:].mT / 8**0.5).softmax(-1) @ values[:, aux:]  # eq. 2
    global_keys, global_values = module.kv_global(gathered).split(8, dim=-1)
    sent = (queries[:, aux:] @ global_keys.mT / 8**0.5).softmax(-1) @ global_values  # eq. 3
    local = alone(tokens[:, aux:], Grid(*size))
    wanted = module.proj(torch.cat((gathered, local + sent), 1))
    torch.testing.assert_close(module(tokens, grid), wanted)


def test_one_global_token_makes_every_patch_depend_on_every_other(stir):
    grid = Grid(8, 8, 1)
    module = stir(GatherBroadcast(heads=2, window=4).build(Site(8, grid), LinearQkv()))
    tokens = torch.randn(1, grid.tokens, 8, dtype=torch.float64)
    changed = tokens.clone()
    changed[:, 1] += 1
    assert (module(changed, grid) != module(tokens, grid)).any(-1).all()


def test_a_module_without_global_branch_refuses_auxiliary_tokens():
    module = GatherBroadcast(heads=2, window=4).build(Site(8, Grid(4, 4)), LinearQkv())
    assert module.kv_global is None
    with pytest.raises(ValueError, match="built without global tokens"):
        module(torch.randn(1, 17, 8), Grid(4, 4, 1))
