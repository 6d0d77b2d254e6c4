"""Types are wide enough for sums, and numbers are written over only where nothing remembers them."""

import torch
import torch.nn.functional as F

from nearsight.ops.execution import gelu_over, may_overwrite, wide, without_autocast


def test_sums_are_made_in_float32_or_wider():
    assert wide(torch.float16) == wide(torch.bfloat16) == wide(torch.float32) == torch.float32
    assert wide(torch.float64) == torch.float64


def test_autocast_can_be_left_for_a_block():
    matrix = torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with without_autocast(matrix.device):
            assert (matrix @ matrix).dtype == torch.float32
        assert (matrix @ matrix).dtype == torch.bfloat16


def test_a_device_without_autocast_has_nothing_to_leave():
    matrix = torch.empty(3, 3, device="meta")
    with without_autocast(matrix.device):
        assert (matrix @ matrix).shape == (3, 3)


def test_a_tensor_that_a_gradient_needs_is_left_as_it_is():
    source = torch.randn(5, requires_grad=True)
    tokens = 2 * source
    before = tokens.detach().clone()
    out = gelu_over(tokens)
    assert torch.equal(tokens, before)
    out.sum().backward()
    expected = torch.autograd.grad(F.gelu(2 * source).sum(), source)[0]
    torch.testing.assert_close(source.grad, expected)


def test_inference_writes_into_the_same_memory():
    tokens = torch.randn(5, requires_grad=True)
    with torch.inference_mode():
        fresh = tokens * 1
        expected = F.gelu(fresh)
        out = gelu_over(fresh)
    assert out.data_ptr() == fresh.data_ptr() and torch.equal(out, expected)


def test_a_recorded_graph_writes_over_nothing():
    def ask(tokens):
        return tokens + 1 if may_overwrite(tokens) else tokens + 2

    compiled = torch.compile(ask, backend="eager", fullgraph=True)
    assert ask(torch.zeros(2)).sum() == 2 and compiled(torch.zeros(2)).sum() == 4
